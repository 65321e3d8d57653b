//! The arithmetic flags in RFLAGS.

use crate::cursor::sign;

pub const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
pub const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
pub const OF: u64 = 1 << 11;
/// All of them.
pub const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

/// `flag`, if `set`.
pub fn with(flag: u64, set: bool) -> u64 {
    if set { flag } else { 0 }
}

/// PF, ZF and SF of a result of `size` bytes, zero above them.
pub fn of_result(result: u64, size: u8) -> u64 {
    with(PF, (result as u8).count_ones().is_multiple_of(2))
        | with(ZF, result == 0)
        | with(SF, result & sign(size) != 0)
}
