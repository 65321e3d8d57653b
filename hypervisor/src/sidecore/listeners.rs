//! The sidecores, as whoever has news for one knows them.
//!
//! Guarantees: a sidecore that is rung looks at what is new, though it sleeps. Ringing waits for
//! nobody.

use crate::cpu::{PerCpu, x2apic};
use crate::interrupts;
use ::sidecore::handover::Bell;

/// A sidecore, as whoever has news for it knows it.
pub struct Listener {
    bell: Bell,
    core: &'static PerCpu,
}

impl Listener {
    /// Of a core that is awake.
    pub fn new(core: &'static PerCpu) -> Self {
        Listener { bell: Bell::new(), core }
    }

    /// The core's index.
    pub fn core(&self) -> usize {
        self.core.index
    }

    /// Has it look at what is new.
    pub fn ring(&self) {
        if self.bell.ring() {
            x2apic::send_ipi(self.core.apic_id, interrupts::WAKE);
        }
    }

    /// The sidecore: was it asked to?
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.bell.is_rung()
    }

    /// The sidecore: it is about to look.
    pub fn answer(&self) {
        self.bell.answer();
    }

    /// The sidecore, with nothing to do: sleeps until it is rung. `counted` says when it begins
    /// (true) and when it is over; that may be at once, without either.
    pub fn sleep(&self, counted: impl Fn(bool)) {
        interrupts::disable();
        if self.bell.may_sleep() {
            counted(true);
            // Whoever rings from here on sends an interrupt, which ends the sleep that begins.
            interrupts::sleep();
            counted(false);
        }
        self.bell.wake_up();
        interrupts::take().for_each(drop);
        interrupts::enable();
    }
}
