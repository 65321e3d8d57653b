//! What everybody who acts for a VM reaches without its lock: the guest's memory, its vCPUs' remote
//! halves, what it is called.
//!
//! The devices on a VM's bus are given this and not the [`Vm`](crate::vm::Vm), whose lock is held
//! while they act.

use crate::iommu;
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use crate::vm::memory::Memory;
use alloc::boxed::Box;
use alloc::string::String;
use core::sync::atomic::{AtomicBool, Ordering};
use delivery::VectorSet;
use proto::Policy;

/// A VM but for what its lock guards, and its life.
pub struct Guest {
    pub index: usize,
    pub name: String,
    pub policy: Policy,
    pub memory: Memory,
    /// One for each vCPU, by its APIC id.
    pub remotes: Box<[VcpuRemote]>,
    eli_gains: AtomicBool,
    routed: AtomicBool,
    /// The IOAPIC waits for the completion of some interrupt.
    completion_awaited: AtomicBool,
}

impl Guest {
    /// As it is before its VM starts; no device's interrupt is routed yet.
    pub fn new(
        index: usize,
        name: String,
        policy: Policy,
        memory: Memory,
        remotes: Box<[VcpuRemote]>,
    ) -> Self {
        let [eli_gains, routed, completion_awaited] = Default::default();
        let guest =
            Guest { index, name, policy, memory, remotes, eli_gains, routed, completion_awaited };
        guest.set_routed(false);
        guest
    }

    /// Would the guest gain something by taking its interrupts itself? The policy lets it, and some
    /// source of an assigned device is routed.
    #[inline]
    pub fn eli_gains(&self) -> bool {
        self.eli_gains.load(Ordering::Acquire)
    }

    /// Is some source of an assigned device routed?
    #[inline]
    pub fn routed(&self) -> bool {
        self.routed.load(Ordering::Acquire)
    }

    /// Does a completion mean something to the IOAPIC? Else nobody need come into the PC for it.
    /// It does from before the interrupt is delivered that is to be completed.
    #[inline]
    pub fn completion_awaited(&self) -> bool {
        self.completion_awaited.load(Ordering::Acquire)
    }

    /// By the holder of the lock, before it delivers what the IOAPIC sends.
    pub fn set_completion_awaited(&self, any: bool) {
        self.completion_awaited.store(any, Ordering::Release);
    }

    /// Some source of an assigned device is routed, or none is.
    pub fn set_routed(&self, any: bool) {
        let any = any || stands_in(self.policy);
        self.routed.store(any, Ordering::Release);
        self.eli_gains.store(any && self.policy != Policy::Trap, Ordering::Release);
    }

    /// The vectors to be hidden from this VM, whichever of its vCPUs takes interrupts.
    pub fn hidden(&self) -> VectorSet {
        self.remotes.iter().fold(VectorSet::EMPTY, |all, vcpu| all.union(&vcpu.routes.hidden()))
    }
}

/// In the image of tests, where no VM can have a device: an ELI guest takes its interrupts itself
/// as if one were routed.
fn stands_in(policy: Policy) -> bool {
    cfg!(feature = "plant") && policy == Policy::Eli && !iommu::is_on()
}
