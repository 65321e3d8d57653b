//! The host's core that a vCPU runs on: its own, or one that it shares.
//!
//! Whether a vCPU shares its core is decided here and nowhere else, by which of the two it was
//! given at boot; whoever has to know asks [`HostCore::slot`]. What other cores do about it is in
//! this file; what its own core does about it is in `vm/core_sharing/residency.rs`.

use crate::cpu::{self, PerCpu, x2apic};
use crate::interrupts::{self, vectors::host_vectors};
use crate::sched::shared_core::SharedCore;
use crate::vm::interrupts::iommu_units::Units;
use alloc::boxed::Box;
use mailbox::Kick;
use proto::Policy;
use routing::{CoreRoutes, VcpuRoutes};

/// The slot that stands for the guests of a vCPU's.
pub const INNER: usize = 1;
/// The most sources of one VM's.
const SOURCES: usize = 1024;

/// The core of one vCPU.
pub enum HostCore {
    /// The vCPU has this core to itself.
    Dedicated(&'static PerCpu),
    /// The vCPU has a slot in the core's run queue.
    Shared(Slot),
}

/// The run-queue slot of a vCPU on a core that it shares.
pub struct Slot {
    pub core: &'static SharedCore,
    /// Its place in the queue.
    pub index: usize,
}

impl HostCore {
    /// The next slot of a shared core.
    pub fn shared(core: &'static SharedCore) -> Self {
        HostCore::Shared(Slot { core, index: core.queue.take_slot() })
    }

    /// The vCPU's slot; `None`: everything that is sent to the core is for this vCPU.
    #[inline]
    pub fn slot(&self) -> Option<&Slot> {
        match self {
            HostCore::Dedicated(_) => None,
            HostCore::Shared(slot) => Some(slot),
        }
    }

    /// Its APIC id.
    pub fn apic_id(&self) -> u32 {
        match self {
            HostCore::Dedicated(core) => core.apic_id,
            HostCore::Shared(slot) => slot.core.queue.apic_id,
        }
    }

    /// The routes that lead to the vCPU there, none yet.
    pub fn routes(&self, policy: Policy) -> VcpuRoutes {
        match self {
            HostCore::Dedicated(core) => VcpuRoutes::dedicated(core.apic_id, host_vectors(policy)),
            HostCore::Shared(slot) => VcpuRoutes::shared(&slot.core.routes, slot.index),
        }
    }

    /// The same of a vCPU with a core of its own that runs guests to which interrupts are posted:
    /// its own come by vectors of the host's class alone, and to the others lead the second routes.
    pub fn routes_with_inner(&self, policy: Policy) -> (VcpuRoutes, Option<VcpuRoutes>) {
        let HostCore::Dedicated(core) = self else { return (self.routes(policy), None) };
        let both = CoreRoutes::new(core.apic_id, host_vectors(policy), INNER + 1);
        both.reserve(SOURCES);
        // None is bound yet, and nobody else ever owns the vectors.
        both.retarget_to_guest(&Units, INNER, || {});
        let both: &CoreRoutes = Box::leak(Box::new(both));
        (VcpuRoutes::shared(both, 0), Some(VcpuRoutes::shared(both, INNER)))
    }

    /// Kicks the core again: a request is overdue. `wakeup`: it is one that a blocked vCPU wakes
    /// up for.
    pub fn resend_kick(&self, wakeup: bool) {
        match self {
            HostCore::Dedicated(core) => core.kick(),
            HostCore::Shared(slot) => slot.core.queue.resend_kick(slot.index, wakeup),
        }
    }
}

impl Kick for HostCore {
    fn kick(&self, wakeup: bool) {
        match self {
            HostCore::Dedicated(core) if core.apic_id != cpu::this().apic_id => core.kick(),
            HostCore::Dedicated(_) => {}
            HostCore::Shared(slot) => slot.core.queue.kick(slot.index, wakeup),
        }
    }

    fn wake(&self) {
        match self {
            HostCore::Dedicated(core) => x2apic::send_ipi(core.apic_id, interrupts::WAKE),
            HostCore::Shared(slot) => slot.core.queue.kick(slot.index, true),
        }
    }

    fn is_resident(&self) -> bool {
        match self {
            HostCore::Dedicated(_) => true,
            HostCore::Shared(slot) => slot.core.queue.is_resident(slot.index),
        }
    }
}
