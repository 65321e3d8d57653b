//! The context of an exit, for the devices that act in it.

use crate::vm::guest::Guest;
use mailbox::request;
use virtual_pc::pci::Actions;

/// The vCPU that holds the VM's lock, and what is left for it to do when it gives that back.
pub struct ExitContext {
    pub guest: &'static Guest,
    pub me: usize,
    /// To drop its own cached translations.
    flush: bool,
    /// To leave ELI mode.
    leave_eli: bool,
    /// To reset this device, and then to follow what else was written.
    reset: Option<(usize, Actions)>,
}

impl ExitContext {
    /// Nothing is left to do yet.
    pub fn new(guest: &'static Guest, me: usize) -> Self {
        ExitContext { guest, me, flush: false, leave_eli: false, reset: None }
    }

    /// Has every vCPU drop its cached translations before it uses one again.
    pub fn flush_all(&mut self) {
        self.flush = true;
        self.guest.ask_and_wait(self.me, u64::MAX, request::FLUSH);
    }

    /// Has the vCPU here leave ELI mode when it gives the lock back.
    pub fn leave_eli(&mut self) {
        self.leave_eli = true;
    }

    /// Has the vCPU here reset a device when it has given the lock back, and then follow `actions`.
    pub fn reset_then(&mut self, device: usize, actions: Actions) {
        self.reset = Some((device, actions));
    }

    /// The reset that is left to do; asked once.
    pub fn take_reset(&mut self) -> Option<(usize, Actions)> {
        self.reset.take()
    }

    /// Is it left to drop cached translations?
    pub fn flushes(&self) -> bool {
        self.flush
    }

    /// Is it left to leave ELI mode?
    pub fn leaves_eli(&self) -> bool {
        self.leave_eli
    }
}
