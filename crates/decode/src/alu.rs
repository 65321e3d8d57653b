//! Arithmetic and logic with the flags they leave (APM volume 1, 3.1.4).

use crate::cursor::{sign, truncate};
use crate::flags::{AF, ARITHMETIC, CF, OF, of_result, with};

/// An operation on two numbers of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the mnemonics")]
pub enum Alu {
    Add,
    Or,
    Adc,
    Sbb,
    And,
    Sub,
    Xor,
    Cmp,
    Test,
}

impl Alu {
    /// The operation in bits 5:3 of an opcode or a ModRM byte.
    pub(crate) fn from_field(field: u8) -> Self {
        match field & 7 {
            0 => Self::Add,
            1 => Self::Or,
            2 => Self::Adc,
            3 => Self::Sbb,
            4 => Self::And,
            5 => Self::Sub,
            6 => Self::Xor,
            _ => Self::Cmp,
        }
    }

    /// The result is stored, not only its flags.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Cmp | Self::Test)
    }

    /// `left op right` of `size` bytes, and the flags register after it. AF,
    /// undefined after a logic operation, is cleared.
    pub(crate) fn apply(self, left: u64, right: u64, size: u8, rflags: u64) -> (u64, u64) {
        let (left, right) = (truncate(left, size), truncate(right, size));
        let carry_in = match self {
            Self::Adc | Self::Sbb => rflags & CF,
            _ => 0,
        };
        let result = match self {
            Self::Add | Self::Adc => left.wrapping_add(right).wrapping_add(carry_in),
            Self::Sub | Self::Sbb | Self::Cmp => left.wrapping_sub(right).wrapping_sub(carry_in),
            Self::And | Self::Test => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
        };
        let result = truncate(result, size);
        // With a carry in, an equal result means a carry out of every bit, or out of none.
        let (carry, overflow, nibble_carry) = match self {
            Self::Add | Self::Adc => (
                result < left || carry_in != 0 && result == left,
                (left ^ result) & (right ^ result),
                left ^ right ^ result,
            ),
            Self::Sub | Self::Sbb | Self::Cmp => (
                left < right || carry_in != 0 && left == right,
                (left ^ right) & (left ^ result),
                left ^ right ^ result,
            ),
            _ => (false, 0, 0),
        };
        let flags = rflags & !ARITHMETIC
            | of_result(result, size)
            | with(CF, carry)
            | with(AF, nibble_carry & 0x10 != 0)
            | with(OF, overflow & sign(size) != 0);
        (result, flags)
    }
}
