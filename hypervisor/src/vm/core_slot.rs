//! Whether a vCPU has its core to itself or shares it, and whose vectors its devices' interrupts
//! come by.

use crate::sched::host_core::HostCore;
use crate::sched::run_queue::Slot;

/// The slot of a vCPU in its core's run queue, if it shares the core.
pub struct CoreSlot {
    slot: Option<&'static Slot>,
    /// Its devices' interrupts come by its own vectors, and nobody else's do.
    owns_vectors: bool,
}

impl CoreSlot {
    /// Of a vCPU that runs on this core.
    pub fn of(core: &'static HostCore) -> Self {
        match core {
            HostCore::Dedicated(_) => CoreSlot { slot: None, owns_vectors: true },
            HostCore::Shared(slot) => CoreSlot { slot: Some(slot), owns_vectors: false },
        }
    }

    /// Its slot in its core's run queue; `None`: it has the core to itself.
    #[inline]
    pub fn slot(&self) -> Option<&'static Slot> {
        self.slot
    }

    /// Do its devices' interrupts come by its own vectors?
    #[inline]
    pub fn owns_vectors(&self) -> bool {
        self.owns_vectors
    }

    /// They do from here on, or they come by aliases.
    pub fn set_owns_vectors(&mut self, owns: bool) {
        self.owns_vectors = owns;
    }
}
