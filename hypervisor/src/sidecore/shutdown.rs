//! The end of the machine, for what sidecores drive.
//!
//! Guarantees: when [`all`] returns, each controller has kept what it held, was given up, or had
//! its time ([`PATIENCE`]). No VM runs any more then; sidecores go on polling.

use crate::cpu::{self, rdtsc};
use crate::watchdog;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Seconds that core 0 waits: a controller's shutdown has 5, and what it is at may end first.
const PATIENCE: u64 = 10;

static ASKED: AtomicBool = AtomicBool::new(false);
/// Controllers that aren't shut down.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// While booting: one more is to be shut down in the end.
pub fn expect_one() {
    LEFT.fetch_add(1, Ordering::Relaxed);
}

/// The sidecore's side: are they to be?
#[inline]
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The sidecore's side: one is.
pub fn one_done() {
    LEFT.fetch_sub(1, Ordering::Release);
}

/// Core 0, when every VM has ended: has all of them shut down, and waits.
pub fn all() {
    ASKED.store(true, Ordering::Relaxed);
    let (start, patience) = (rdtsc(), cpu::tsc_hz() * PATIENCE);
    while LEFT.load(Ordering::Acquire) > 0 && rdtsc().wrapping_sub(start) < patience {
        watchdog::feed();
        core::hint::spin_loop();
    }
}
