//! Memory operands: how they are encoded and which linear address they mean
//! (APM volume 3, 1.4 and tables ).

use crate::cursor::{Cursor, truncate};
use crate::prefixes::Prefixes;
use crate::{Error, Mode, Registers};

/// A segment register, numbered as instructions encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Segment {
    /// Extra.
    Es = 0,
    /// Code.
    Cs = 1,
    /// Stack.
    Ss = 2,
    /// Data.
    Ds = 3,
    /// The base counts in 64-bit mode too.
    Fs = 4,
    /// The base counts in 64-bit mode too.
    Gs = 5,
}

/// `segment:[base + index * scale + displacement]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOperand {
    /// The segment after overrides; in 64-bit mode only FS and GS add a base.
    pub segment: Segment,
    /// Number of the base register.
    pub base: Option<u8>,
    /// Number of the index register.
    pub index: Option<u8>,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    /// Sign-extended; a full 64-bit address for `MOV` with an absolute address.
    pub displacement: u64,
    /// The address of the next instruction is added.
    pub rip_relative: bool,
    /// 2, 4 or 8 bytes: the effective address wraps at this size.
    pub address_size: u8,
}

impl MemoryOperand {
    /// The linear address the operand means when the next instruction is at `next_rip`.
    /// It wraps as the processor's does; canonical form isn't checked.
    pub fn linear_address(&self, registers: &impl Registers, next_rip: u64, mode: Mode) -> u64 {
        let mut effective = self.displacement;
        if self.rip_relative {
            effective = effective.wrapping_add(next_rip);
        }
        if let Some(base) = self.base {
            effective = effective.wrapping_add(registers.gpr(base));
        }
        if let Some(index) = self.index {
            let scaled = registers.gpr(index).wrapping_mul(u64::from(self.scale));
            effective = effective.wrapping_add(scaled);
        }
        let effective = truncate(effective, self.address_size);
        match (mode, self.segment) {
            (Mode::Bits64, Segment::Fs | Segment::Gs) => {
                effective.wrapping_add(registers.segment_base(self.segment))
            }
            (Mode::Bits64, _) => effective,
            _ => truncate(effective.wrapping_add(registers.segment_base(self.segment)), 4),
        }
    }

    /// The operand of `MOV` to or from an absolute address.
    pub(crate) fn absolute(cursor: &mut Cursor, prefixes: &Prefixes) -> Result<Self, Error> {
        let size = prefixes.address_size();
        let displacement = cursor.unsigned(size)?;
        Ok(Self { displacement, ..Self::empty(prefixes) })
    }

    /// DS:rSI, the source of a string instruction.
    pub(crate) fn string_source(prefixes: &Prefixes) -> Self {
        const RSI: u8 = 6;
        Self { base: Some(RSI), ..Self::empty(prefixes) }
    }

    /// ES:rDI, the destination of a string instruction, which no prefix moves to another segment.
    pub(crate) fn string_destination(prefixes: &Prefixes) -> Self {
        const RDI: u8 = 7;
        Self { segment: Segment::Es, base: Some(RDI), ..Self::empty(prefixes) }
    }

    /// The operand a ModRM byte with `mod` other than 3 asks for.
    pub(crate) fn read(cursor: &mut Cursor, prefixes: &Prefixes, modrm: u8) -> Result<Self, Error> {
        if prefixes.address_size() == 2 {
            Self::read_16(cursor, prefixes, modrm)
        } else {
            Self::read_32(cursor, prefixes, modrm)
        }
    }

    fn empty(prefixes: &Prefixes) -> Self {
        Self {
            segment: prefixes.segment.unwrap_or(Segment::Ds),
            base: None,
            index: None,
            scale: 1,
            displacement: 0,
            rip_relative: false,
            address_size: prefixes.address_size(),
        }
    }

    fn read_16(cursor: &mut Cursor, prefixes: &Prefixes, modrm: u8) -> Result<Self, Error> {
        const BX: u8 = 3;
        const BP: u8 = 5;
        const SI: u8 = 6;
        const DI: u8 = 7;
        let (base, index) = match modrm & 7 {
            0 => (Some(BX), Some(SI)),
            1 => (Some(BX), Some(DI)),
            2 => (Some(BP), Some(SI)),
            3 => (Some(BP), Some(DI)),
            4 => (Some(SI), None),
            5 => (Some(DI), None),
            6 if modrm >> 6 == 0 => (None, None),
            6 => (Some(BP), None),
            _ => (Some(BX), None),
        };
        let displacement = match (modrm >> 6, base) {
            (0, None) => cursor.signed(2)?,
            (0, _) => 0,
            (1, _) => cursor.signed(1)?,
            _ => cursor.signed(2)?,
        };
        let default = if base == Some(BP) { Segment::Ss } else { Segment::Ds };
        let segment = prefixes.segment.unwrap_or(default);
        Ok(Self { segment, base, index, displacement, ..Self::empty(prefixes) })
    }

    fn read_32(cursor: &mut Cursor, prefixes: &Prefixes, modrm: u8) -> Result<Self, Error> {
        let mut this = Self::empty(prefixes);
        // The fields that stand for "none" do so before REX extends them.
        let mut base = modrm & 7;
        let has_sib = base == 4;
        if has_sib {
            let sib = cursor.u8()?;
            base = sib & 7;
            let index = (sib >> 3) & 7 | prefixes.rex_x();
            if index != 4 {
                this.index = Some(index);
                this.scale = 1 << (sib >> 6);
            }
        }
        let no_base = base == 5 && modrm >> 6 == 0;
        if no_base {
            this.rip_relative = !has_sib && prefixes.mode == Mode::Bits64;
        } else {
            this.base = Some(base | prefixes.rex_b());
        }
        this.displacement = match modrm >> 6 {
            0 if !no_base => 0,
            1 => cursor.signed(1)?,
            _ => cursor.signed(4)?,
        };
        if prefixes.segment.is_none() && matches!(this.base, Some(4 | 5)) {
            this.segment = Segment::Ss;
        }
        Ok(this)
    }
}
