//! The host's core that a vCPU runs on: its own, or one that it shares.
//!
//! Whether a vCPU shares its core is decided here, by which of the two it was given at boot. What other
//! cores do about it is in this file; what its own core does about it is in `vm/residency.rs`.

use crate::cpu::{self, PerCpu, x2apic};
use crate::interrupts;
use crate::sched::run_queue::Slot;

/// The core of one vCPU.
pub enum HostCore {
    /// The vCPU has this core to itself.
    Dedicated(&'static PerCpu),
    /// The vCPU has a slot in the core's run queue.
    Shared(Slot),
}

impl HostCore {
    /// Is everything that is sent to the core for this vCPU?
    #[inline]
    pub fn is_dedicated(&self) -> bool {
        matches!(self, HostCore::Dedicated(_))
    }

    /// Something was asked of the vCPU: it looks before its guest runs again. `wakeup`: it is something
    /// that a blocked vCPU wakes up for.
    pub fn kick(&self, wakeup: bool) {
        match self {
            HostCore::Dedicated(core) if core.apic_id != cpu::this().apic_id => core.kick(),
            HostCore::Dedicated(_) => {}
            HostCore::Shared(slot) => slot.kick(wakeup),
        }
    }

    /// What was asked long ago isn't done: kicks the core whether it was kicked or not.
    pub fn resend_kick(&self, wakeup: bool) {
        match self {
            HostCore::Dedicated(core) => core.kick(),
            HostCore::Shared(slot) => slot.resend_kick(wakeup),
        }
    }

    /// Wakes a vCPU that waits for its start-up.
    pub fn wake(&self) {
        match self {
            HostCore::Dedicated(core) => x2apic::send_ipi(core.apic_id, interrupts::WAKE),
            HostCore::Shared(slot) => slot.kick(true),
        }
    }

    /// Is the vCPU in its guest, or about to be?
    pub fn is_resident(&self) -> bool {
        match self {
            HostCore::Dedicated(_) => true,
            HostCore::Shared(slot) => slot.is_resident(),
        }
    }
}
