//! The slot of a vCPU that shares its core, and whose vectors its devices' interrupts come by.

use crate::sched::host_core::{HostCore, Slot};

/// The slot of a vCPU in its core's run queue, if it shares the core.
pub struct CoreSlot {
    slot: Option<&'static Slot>,
    /// Its devices' interrupts come by its own vectors, and nobody else's do.
    owns_vectors: bool,
    /// Until when nothing is to be done before an entry, by the look before the last one, if
    /// nobody asks for anything.
    calm: u64,
    /// All that was done since that look was to complete an interrupt, in injection mode.
    completed: bool,
}

impl CoreSlot {
    /// Of a vCPU that runs on this core.
    pub fn of(core: &'static HostCore) -> Self {
        let slot = core.slot();
        CoreSlot { slot, owns_vectors: slot.is_none(), calm: 0, completed: false }
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

    /// An interrupt was completed in injection mode, and else nothing is done by this exit.
    #[inline]
    pub fn note_completion(&mut self) {
        self.completed = true;
    }

    /// What was done besides may concern others.
    #[cold]
    pub fn forget_completion(&mut self) {
        self.completed = false;
    }

    /// Before an entry at this time, of who shares the core: is nothing to be done anew, since the
    /// exit changed nothing of what that depends on? Asked once for each exit.
    #[inline]
    pub fn is_calm(&mut self, now: u64) -> bool {
        core::mem::take(&mut self.completed) && now < self.calm
    }

    /// There is nothing until then.
    #[inline]
    pub fn set_calm(&mut self, until: u64) {
        self.calm = until;
    }

    /// They do from here on, or they come by aliases.
    pub fn set_owns_vectors(&mut self, owns: bool) {
        self.owns_vectors = owns;
    }
}
