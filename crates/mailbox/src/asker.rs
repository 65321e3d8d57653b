//! Other cores: what they ask of a vCPU.
//!
//! Guarantees: the request is stored before the core is told, so that whoever is told sees it.

use crate::{Mailbox, request};
use delivery::{Signal, Startup};

/// How the core of a vCPU is told to look.
pub trait Kick {
    /// Something was asked of the vCPU: its core looks before the guest runs again. `wakeup`: it is
    /// something that a blocked vCPU wakes up for.
    fn kick(&self, wakeup: bool);
    /// Wakes the vCPU while it waits for its start-up.
    fn wake(&self);
    /// Is the vCPU in its guest, or about to be?
    fn is_resident(&self) -> bool;
}

impl Mailbox {
    /// Asks, and gets the core to look.
    pub fn ask(&self, core: &impl Kick, requests: u32) {
        self.store(requests);
        core.kick(requests & request::WAKEUPS != 0);
    }

    /// Asks for something that may wait until the vCPU has an exit anyway: its core isn't told.
    pub fn ask_at_leisure(&self, requests: u32) {
        self.store(requests);
    }

    /// Raises an NMI in the guest, if it runs.
    pub fn ask_nmi(&self, core: &impl Kick) {
        if self.running() {
            self.ask(core, request::NMI);
        }
    }

    /// Leaves a fixed interrupt in the inbox, and gets the core to look.
    pub fn post(&self, core: &impl Kick, vector: u8) {
        self.put(vector);
        core.kick(true);
    }

    /// INIT, start-up or stop, as `f` has it.
    pub fn signal(&self, core: &impl Kick, f: impl Fn(Startup) -> (Startup, Signal)) {
        // Stored first: whoever sees the new state has the request, too.
        self.store(request::STARTUP);
        match self.change(f) {
            Signal::None => {}
            Signal::Kick => self.ask(core, request::STARTUP),
            Signal::Wake => {
                // Asked again: it may have looked between the question and the new state.
                self.store(request::STARTUP);
                core.wake();
            }
        }
    }

    /// Waits until `requests` are done, or the vCPU isn't resident: then it looks before its guest
    /// runs again. Does `meanwhile` until then.
    pub fn wait_until_done(&self, core: &impl Kick, requests: u32, meanwhile: impl Fn()) {
        while self.running() && core.is_resident() && self.requests() & requests != 0 {
            meanwhile();
        }
    }
}
