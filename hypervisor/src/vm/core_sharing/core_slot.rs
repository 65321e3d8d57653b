//! The slot of a vCPU that shares its core, and whose vectors its devices' interrupts come by.

use crate::sched::host_core::{HostCore, Slot};

/// The slot of a vCPU in its core's run queue, if it shares the core.
pub struct CoreSlot {
    slot: Option<&'static Slot>,
    /// Its devices' interrupts come by its own vectors, and nobody else's do.
    owns_vectors: bool,
}

impl CoreSlot {
    /// Of a vCPU that runs on this core.
    pub fn of(core: &'static HostCore) -> Self {
        let slot = core.slot();
        CoreSlot { slot, owns_vectors: slot.is_none() }
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
