//! Read-modify-writes with one operand in memory: INC and its like, shifts and rotates, single
//! bits; with the flags they leave (APM volume 3, one section each).

use crate::cursor::{sign, sign_extend, truncate};
use crate::flags::{ARITHMETIC, CF, OF, of_result, with};
use crate::{Alu, Registers, Source};

/// The change of the number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the mnemonics")]
pub enum Modify {
    Inc,
    Dec,
    Not,
    Neg,
    /// By a number of places.
    Shift(Shift, Places),
    /// At an index, of which the low bits count: the CPU adds the others to the address.
    Bit(Bit, Source),
}

/// How a number is shifted or rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the mnemonics")]
pub enum Shift {
    Rol,
    Ror,
    Rcl,
    Rcr,
    Shl,
    Shr,
    Sar,
}

/// How far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// This far.
    Immediate(u8),
    /// As CL says.
    Cl,
}

/// The change of a single bit, which CF shows as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the mnemonics")]
pub enum Bit {
    Bt,
    Bts,
    Btr,
    Btc,
}

impl Modify {
    /// The result is stored, not only its flags.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Bit(Bit::Bt, _))
    }

    /// How far from the operand's address the bytes are that a bit's index in a register of `size`
    /// bytes leads to (APM volume 3, BT).
    pub(crate) fn bytes_away(self, registers: &impl Registers, size: u8) -> u64 {
        let Self::Bit(_, index @ Source::Register(_)) = self else { return 0 };
        let (bytes, bits) = (i64::from(size), 8 * i64::from(size));
        let index = sign_extend(index.read(registers, size), size) as i64;
        (index.div_euclid(bits) * bytes) as u64
    }

    /// LOCK is allowed.
    pub(crate) fn takes_lock(self) -> bool {
        self.writes() && !matches!(self, Self::Shift(..))
    }

    /// What becomes of `value` of `size` bytes, and the flags register after it.
    pub(crate) fn apply(self, value: u64, size: u8, registers: &impl Registers) -> (u64, u64) {
        let rflags = registers.rflags();
        let value = truncate(value, size);
        let keep_carry = |(result, flags): (u64, u64)| (result, flags & !CF | rflags & CF);
        match self {
            Self::Inc => keep_carry(Alu::Add.apply(value, 1, size, rflags)),
            Self::Dec => keep_carry(Alu::Sub.apply(value, 1, size, rflags)),
            Self::Not => (truncate(!value, size), rflags),
            Self::Neg => Alu::Sub.apply(0, value, size, rflags),
            Self::Shift(shift, places) => {
                let places = match places {
                    Places::Immediate(places) => places,
                    Places::Cl => registers.gpr(1) as u8,
                };
                shift.apply(value, places, size, rflags)
            }
            Self::Bit(bit, index) => bit.apply(value, index.read(registers, size), size, rflags),
        }
    }
}

impl Shift {
    /// The one in bits 5:3 of a ModRM byte; 6 is an alias that no assembler writes.
    pub(crate) fn from_field(field: u8) -> Option<Self> {
        match field & 7 {
            0 => Some(Self::Rol),
            1 => Some(Self::Ror),
            2 => Some(Self::Rcl),
            3 => Some(Self::Rcr),
            4 => Some(Self::Shl),
            5 => Some(Self::Shr),
            7 => Some(Self::Sar),
            _ => None,
        }
    }

    /// OF is defined for one place alone; for more it follows from the result in the same way.
    /// AF, undefined after a shift, is cleared.
    fn apply(self, value: u64, places: u8, size: u8, rflags: u64) -> (u64, u64) {
        let places = u32::from(places & if size == 8 { 63 } else { 31 });
        if places == 0 {
            return (value, rflags);
        }
        let bits = 8 * u32::from(size);
        let top = |number: u64| number & sign(size) != 0;
        let second = |number: u64| number & (sign(size) >> 1) != 0;
        // Wide enough for a carry beside 64 bits; no shift here exceeds 64.
        let wide = u128::from(value);
        let with_carry = wide | u128::from(rflags & CF) << bits;
        let (result, carry) = match self {
            Self::Rol | Self::Ror => {
                let right = match self {
                    Self::Ror => places % bits,
                    _ => (bits - places % bits) % bits,
                };
                let result = truncate((wide >> right | wide << (bits - right)) as u64, size);
                (result, if matches!(self, Self::Rol) { result & 1 != 0 } else { top(result) })
            }
            Self::Rcl | Self::Rcr => {
                let right = match self {
                    Self::Rcr => places % (bits + 1),
                    _ => (bits + 1 - places % (bits + 1)) % (bits + 1),
                };
                let turned = with_carry >> right
                    | if right == 0 { 0 } else { with_carry << (bits + 1 - right) };
                (truncate(turned as u64, size), turned >> bits & 1 != 0)
            }
            Self::Shl => {
                let shifted = wide << places;
                (truncate(shifted as u64, size), shifted >> bits & 1 != 0)
            }
            Self::Shr => (value >> places, wide >> (places - 1) & 1 != 0),
            Self::Sar => {
                let signed = sign_extend(value, size) as i64;
                (truncate((signed >> places) as u64, size), signed >> (places - 1) & 1 != 0)
            }
        };
        let overflow = match self {
            Self::Rol | Self::Rcl | Self::Shl => top(result) != carry,
            Self::Ror | Self::Rcr => top(result) != second(result),
            Self::Shr => top(value),
            Self::Sar => false,
        };
        let kept = match self {
            Self::Rol | Self::Ror | Self::Rcl | Self::Rcr => rflags & !(CF | OF),
            _ => rflags & !ARITHMETIC | of_result(result, size),
        };
        (result, kept | with(CF, carry) | with(OF, overflow))
    }
}

impl Bit {
    /// The one in the opcode's, or for an immediate index the ModRM byte's bits 4:3.
    pub(crate) fn from_field(field: u8) -> Self {
        match field & 3 {
            0 => Self::Bt,
            1 => Self::Bts,
            2 => Self::Btr,
            _ => Self::Btc,
        }
    }

    fn apply(self, value: u64, index: u64, size: u8, rflags: u64) -> (u64, u64) {
        let bit = 1 << (index & (8 * u64::from(size) - 1));
        let result = match self {
            Self::Bt => value,
            Self::Bts => value | bit,
            Self::Btr => value & !bit,
            Self::Btc => value ^ bit,
        };
        (result, rflags & !CF | with(CF, value & bit != 0))
    }
}
