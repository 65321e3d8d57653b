//! Waiting, bounded by the time-stamp counter.

use crate::cpu;

/// Some seconds on any machine: long enough for whatever must happen.
const LIMIT: u64 = 10_000_000_000;
/// Some milliseconds: what must not happen would have happened.
const SETTLE: u64 = 30_000_000;

/// Waits until `done` or the limit; says whether it was done.
pub fn until(done: impl FnMut() -> bool) -> bool {
    within(LIMIT, done)
}

/// The same for what several CPUs do together, which an emulator with few threads of its
/// own takes its time for.
pub fn patiently(done: impl FnMut() -> bool) -> bool {
    within(8 * LIMIT, done)
}

fn within(limit: u64, mut done: impl FnMut() -> bool) -> bool {
    let start = cpu::tsc();
    loop {
        if done() {
            return true;
        }
        if cpu::tsc().wrapping_sub(start) > limit {
            return false;
        }
        cpu::pause();
    }
}

/// Lets so many ticks of the time-stamp counter pass.
pub fn ticks(count: u64) {
    let start = cpu::tsc();
    while cpu::tsc().wrapping_sub(start) < count {
        cpu::pause();
    }
}

/// Gives what must not happen the time to happen.
pub fn settle() {
    ticks(SETTLE);
}
