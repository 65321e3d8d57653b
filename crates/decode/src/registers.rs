//! The guest's registers, and how operands of each size read and write them.

use crate::Segment;
use crate::cursor::truncate;

/// The processor state an instruction reads and writes. General registers are
/// numbered as instructions encode them: 0 RAX, 1 RCX, 2 RDX, 3 RBX, 4 RSP,
/// 5 RBP, 6 RSI, 7 RDI, 8 to 15 R8 to R15. Numbers passed are at most 15.
pub trait Registers {
    /// All 64 bits of a general register.
    fn gpr(&self, number: u8) -> u64;
    /// Replaces all 64 bits of a general register.
    fn set_gpr(&mut self, number: u8, value: u64);
    /// The flags register.
    fn rflags(&self) -> u64;
    /// Replaces the flags register; only arithmetic flags differ from what was read.
    fn set_rflags(&mut self, value: u64);
    /// The address of the instruction, before it is performed.
    fn rip(&self) -> u64;
    /// The linear address a segment starts at.
    fn segment_base(&self, segment: Segment) -> u64;
}

/// The vector registers, apart from the others because a host that doesn't use them leaves the
/// guest's where they are. Numbers passed are at most 15.
pub trait Vectors {
    /// They can be used; with `vex` as those of AVX, of 32 bytes each.
    fn usable(&self, vex: bool) -> bool;
    /// One that can be used; without `vex` its low 16 bytes alone, and zeros.
    fn read(&self, number: u8, vex: bool) -> [u64; 4];
    /// Replaces one that can be used; without `vex` its low 16 bytes alone.
    fn write(&mut self, number: u8, value: [u64; 4], vex: bool);
}

/// A general register as an operand names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// 0 to 15; for AH, CH, DH and BH the register they are part of.
    pub number: u8,
    /// Bits 15:8 are meant: AH, CH, DH or BH.
    pub high: bool,
}

impl Register {
    /// Bytes 4 to 7 are AH to BH unless a REX prefix makes them SPL to DIL.
    pub(crate) fn new(number: u8, size: u8, rex: bool) -> Self {
        if size == 1 && !rex && (4..8).contains(&number) {
            Self { number: number - 4, high: true }
        } else {
            Self { number, high: false }
        }
    }

    /// Its value as an operand of `size` bytes, zero-extended.
    pub fn read(self, registers: &impl Registers, size: u8) -> u64 {
        let value = registers.gpr(self.number);
        truncate(if self.high { value >> 8 } else { value }, size)
    }

    /// Writes an operand of `size` bytes: 1 and 2 leave the rest of the register
    /// as it was, 4 clears the upper half (APM volume 1, 3.1.2).
    pub fn write(self, registers: &mut impl Registers, size: u8, value: u64) {
        let old = registers.gpr(self.number);
        let new = match (size, self.high) {
            (1, true) => old & !0xFF00 | (value & 0xFF) << 8,
            (1, false) => old & !0xFF | value & 0xFF,
            (2, _) => old & !0xFFFF | value & 0xFFFF,
            _ => truncate(value, size),
        };
        registers.set_gpr(self.number, new);
    }
}
