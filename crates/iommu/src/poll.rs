//! Waiting for a unit, for so long and no longer.

use crate::Error;

/// How often a register is asked before the unit is given up: some tenths of a second, for a read
/// takes some tenths of a microsecond or more. Units answer within microseconds, the tests' models
/// within a few polls.
pub const POLLS: u32 = if cfg!(test) { 1000 } else { 1_000_000 };

/// Asks until the answer is yes, or for too long.
pub fn poll(what: &'static str, mut done: impl FnMut() -> bool) -> Result<(), Error> {
    for _ in 0..POLLS {
        if done() {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(Error::Timeout { what, polls: POLLS })
}
