//! The core's own timer while a guest has it: how the host takes it back.
//!
//! While a vCPU that shares its core takes its interrupts itself, its one-shot timer may be the
//! core's own, with the guest's vector: setting it costs no exit then, nor does its interrupt.
//! Before another vCPU has the core, [`take_back`] reads what is left of it.
//!
//! Guarantees: an interrupt that was due is pending by the guest's vector, or taken, or *owed*; one
//! that wasn't is in the rest. It relies on the guest's not running meanwhile, and on an interrupt
//! that is due being pending once [`CoreTimer::settle`] has said so. If it gave up the guest may
//! get one interrupt too many, as a spurious one is on hardware, rather than one too few. Doesn't
//! tell a guest that wrote the very count that the host had started the timer from; only what it
//! reads of its initial count depends on it.

/// The timer of the core that this runs on; its entry has the guest's vector.
pub trait CoreTimer {
    /// The count that it last started from.
    fn initial(&self) -> u32;
    /// The count now; 0: it has expired, or doesn't run.
    fn count(&self) -> u32;
    /// Masks its entry.
    fn mask(&mut self);
    /// Is its interrupt pending?
    fn is_pending(&self) -> bool;
    /// Waits until an interrupt that is due is pending; false: gave up.
    fn settle(&mut self) -> bool;
}

/// What the core's timer had left when the host took it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The count that the guest last started it from, if it did.
    pub written: Option<u32>,
    /// The rest of the count; 0: it doesn't run.
    pub rest: u32,
    /// It has expired, and nothing is pending.
    pub owed: bool,
}

/// Takes the timer back from the guest, which the host had started from `lent`. Afterwards its
/// entry is masked.
pub fn take_back(timer: &mut impl CoreTimer, lent: u32) -> Taken {
    let initial = timer.initial();
    let written = (initial != lent).then_some(initial);
    if initial == 0 {
        // The guest never set it, or stopped it: what it took before is over.
        timer.mask();
        return Taken { written, rest: 0, owed: false };
    }
    let ran = timer.count() != 0;
    if !ran {
        // It may have expired just now, or the guest has taken it long since.
        let owed = !timer.is_pending() && !timer.settle() && !timer.is_pending();
        timer.mask();
        return Taken { written, rest: 0, owed };
    }
    timer.mask();
    let rest = timer.count();
    if rest != 0 {
        return Taken { written, rest, owed: false };
    }
    // In between, before it was masked or after.
    if !timer.is_pending() {
        timer.settle();
    }
    Taken { written, rest: 0, owed: !timer.is_pending() }
}

#[cfg(test)]
#[path = "lent_timer_tests.rs"]
mod tests;
