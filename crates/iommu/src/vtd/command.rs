//! The global command register (VT-d 11.4.4): one bit at a time, each with its answer awaited.

use super::registers::{CFI, EAFL, GCMD, GSTS, IRE, QIE, TE};
use crate::poll::poll;
use crate::{Error, Registers};

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
