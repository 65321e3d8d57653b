//! Arithmetic and logic with the flags they leave (APM volume 1, 3.1.4).

use crate::cursor::{sign, truncate};

const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

/// An operation on two numbers of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the mnemonics")]
pub enum Alu {
    Add,
    Or,
    And,
    Sub,
    Xor,
    Cmp,
    Test,
}

impl Alu {
    /// The operation in bits 5:3 of an opcode or a ModRM byte. ADC and SBB
    /// make no sense on a device register and are left out.
    pub(crate) fn from_field(field: u8) -> Option<Self> {
        match field & 7 {
            0 => Some(Self::Add),
            1 => Some(Self::Or),
            4 => Some(Self::And),
            5 => Some(Self::Sub),
            6 => Some(Self::Xor),
            7 => Some(Self::Cmp),
            _ => None,
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
        let result = match self {
            Self::Add => left.wrapping_add(right),
            Self::Sub | Self::Cmp => left.wrapping_sub(right),
            Self::And | Self::Test => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
        };
        let result = truncate(result, size);
        let (carry, overflow, nibble_carry) = match self {
            Self::Add => (result < left, (left ^ result) & (right ^ result), left ^ right ^ result),
            Self::Sub | Self::Cmp => {
                (left < right, (left ^ right) & (left ^ result), left ^ right ^ result)
            }
            _ => (false, 0, 0),
        };
        let mut flags = rflags & !(CF | PF | AF | ZF | SF | OF);
        for (flag, set) in [
            (CF, carry),
            (PF, (result as u8).count_ones().is_multiple_of(2)),
            (AF, nibble_carry & 0x10 != 0),
            (ZF, result == 0),
            (SF, result & sign(size) != 0),
            (OF, overflow & sign(size) != 0),
        ] {
            if set {
                flags |= flag;
            }
        }
        (result, flags)
    }
}
