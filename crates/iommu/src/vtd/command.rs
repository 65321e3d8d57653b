//! The global command register (VT-d 11.4.4): one bit at a time, each with its answer awaited.

use super::registers::{CFI, EAFL, GCMD, GSTS, IRE, QIE, TE};
use crate::{Error, Registers};

/// How often a register is asked before the unit is given up: some tenths of a second, for a read
/// takes some tenths of a microsecond or more. Units answer within microseconds, the tests' model
/// within a few polls.
pub const POLLS: u32 = if cfg!(test) { 1000 } else { 1_000_000 };

/// Bits that keep what they were told; the others act once, and read as whether they have acted.
const KEPT: u32 = TE | EAFL | QIE | IRE | CFI;

/// Sets `bit` and waits for the answer.
pub fn set(regs: &mut impl Registers, bit: u32, what: &'static str) -> Result<(), Error> {
    let kept = regs.read32(GSTS) & KEPT;
    regs.write32(GCMD, kept | bit);
    poll(what, || regs.read32(GSTS) & bit != 0)
}

/// Sets a bit that stays set, if it isn't, and waits for the answer.
pub fn ensure(regs: &mut impl Registers, bit: u32, what: &'static str) -> Result<(), Error> {
    if regs.read32(GSTS) & bit != 0 {
        return Ok(());
    }
    set(regs, bit, what)
}

/// Clears `bit` if it is set, and waits for the answer.
pub fn clear(regs: &mut impl Registers, bit: u32, what: &'static str) -> Result<(), Error> {
    let kept = regs.read32(GSTS) & KEPT;
    if kept & bit == 0 {
        return Ok(());
    }
    regs.write32(GCMD, kept & !bit);
    poll(what, || regs.read32(GSTS) & bit == 0)
}

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
