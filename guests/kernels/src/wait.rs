//! Waiting, bounded by the time-stamp counter.

use crate::cpu;

/// Some seconds on any machine: long enough for whatever must happen.
const LIMIT: u64 = 10_000_000_000;
/// Some milliseconds: what must not happen would have happened.
const SETTLE: u64 = 30_000_000;

/// Waits until `done` or the limit; says whether it was done.
pub fn until(mut done: impl FnMut() -> bool) -> bool {
    let start = cpu::tsc();
    loop {
        if done() {
            return true;
        }
        if cpu::tsc().wrapping_sub(start) > LIMIT {
            return false;
        }
        cpu::pause();
    }
}

/// Gives what must not happen the time to happen.
pub fn settle() {
    let start = cpu::tsc();
    while cpu::tsc().wrapping_sub(start) < SETTLE {
        cpu::pause();
    }
}
