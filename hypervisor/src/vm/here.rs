//! The vCPU that is in the PC, on whose behalf its devices act.

use crate::vm::guest::Guest;
use mailbox::request;
use virtual_pc::pci::Actions;

/// The vCPU that holds the VM's lock, and what is left for it to do when it gives that back.
pub struct Here {
    pub guest: &'static Guest,
    pub me: usize,
    /// To drop its own cached translations.
    pub flush: bool,
    /// To leave direct mode.
    pub unshadow: bool,
    /// To reset this device, and then to follow what else was written.
    pub reset: Option<(usize, Actions)>,
}

impl Here {
    /// Nothing is left to do yet.
    pub fn new(guest: &'static Guest, me: usize) -> Self {
        Here { guest, me, flush: false, unshadow: false, reset: None }
    }

    /// Has every vCPU drop its cached translations before it uses one again.
    pub fn flush_all(&mut self) {
        self.flush = true;
        self.guest.ask_and_wait(self.me, u64::MAX, request::FLUSH);
    }
}
