//! Prefixes and the sizes they select (APM volume 3, 1.2 and table 1-2).

use crate::cursor::Cursor;
use crate::{Error, Segment};

/// Default operand and address sizes by the code segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Real mode, virtual-8086 mode or a 16-bit code segment.
    Bits16,
    /// A 32-bit code segment.
    Bits32,
    /// 64-bit mode.
    Bits64,
}

/// A prefix that chooses one of several instructions with the same opcode (APM volume 3, 1.2.5
/// and 1.2.6): of 0xF2 and 0xF3 the last one, else 0x66.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mandatory {
    None,
    Operand,
    Rep,
    Repne,
}

/// Everything before the opcode.
#[derive(Clone, Copy)]
pub struct Prefixes {
    pub mode: Mode,
    /// The override in effect; in 64-bit mode only FS and GS count.
    pub segment: Option<Segment>,
    pub lock: bool,
    /// The last of REP (0xF3) and REPNE (0xF2), which select another instruction for some opcodes
    /// and mean the same for strings that are only moved.
    repeat: Option<u8>,
    pub operand: bool,
    address: bool,
    /// The REX byte, if one stands directly before the opcode.
    rex: Option<u8>,
}

impl Prefixes {
    /// Reads prefixes and the first byte after them.
    pub fn read(cursor: &mut Cursor, mode: Mode) -> Result<(Self, u8), Error> {
        let mut this = Self {
            mode,
            segment: None,
            lock: false,
            repeat: None,
            operand: false,
            address: false,
            rex: None,
        };
        loop {
            let byte = cursor.u8()?;
            match byte {
                0x26 => this.override_segment(Segment::Es),
                0x2E => this.override_segment(Segment::Cs),
                0x36 => this.override_segment(Segment::Ss),
                0x3E => this.override_segment(Segment::Ds),
                0x64 => this.override_segment(Segment::Fs),
                0x65 => this.override_segment(Segment::Gs),
                0x66 => this.operand = true,
                0x67 => this.address = true,
                0xF0 => this.lock = true,
                0xF2 | 0xF3 => this.repeat = Some(byte),
                0x40..=0x4F if mode == Mode::Bits64 => {
                    this.rex = Some(byte);
                    continue;
                }
                _ => return Ok((this, byte)),
            }
            // A REX byte that isn't the last prefix has no effect.
            this.rex = None;
        }
    }

    fn override_segment(&mut self, segment: Segment) {
        if self.mode != Mode::Bits64 || matches!(segment, Segment::Fs | Segment::Gs) {
            self.segment = Some(segment);
        }
    }

    /// 2, 4 or 8: the size of an operand that isn't a byte.
    pub fn operand_size(&self) -> u8 {
        if self.rex_w() {
            8
        } else if (self.mode == Mode::Bits16) == self.operand {
            4
        } else {
            2
        }
    }

    /// 2, 4 or 8: the size of an effective address.
    pub fn address_size(&self) -> u8 {
        match (self.mode, self.address) {
            (Mode::Bits64, false) => 8,
            (Mode::Bits64, true) | (Mode::Bits32, false) | (Mode::Bits16, true) => 4,
            (Mode::Bits32, true) | (Mode::Bits16, false) => 2,
        }
    }

    /// REP or REPNE.
    pub fn repeats(&self) -> bool {
        self.repeat.is_some()
    }

    pub fn mandatory(&self) -> Mandatory {
        match self.repeat {
            Some(0xF3) => Mandatory::Rep,
            Some(_) => Mandatory::Repne,
            None if self.operand => Mandatory::Operand,
            None => Mandatory::None,
        }
    }

    /// What a VEX prefix says instead of REX (`registers`: R, X, B from bit 2 down) and of the
    /// mandatory prefix. Outside 64-bit mode there is no REX to stand for.
    pub fn set_vex(&mut self, registers: u8, w: bool, mandatory: u8) {
        if self.mode == Mode::Bits64 {
            self.rex = Some(registers & 7 | if w { 8 } else { 0 });
        }
        match mandatory & 3 {
            1 => self.operand = true,
            2 => self.repeat = Some(0xF3),
            3 => self.repeat = Some(0xF2),
            _ => {}
        }
    }

    pub fn has_rex(&self) -> bool {
        self.rex.is_some()
    }

    pub fn rex_w(&self) -> bool {
        self.rex.is_some_and(|rex| rex & 8 != 0)
    }

    /// REX.R's part of a ModRM `reg` field.
    pub fn rex_r(&self) -> u8 {
        (self.rex.unwrap_or(0) & 4) << 1
    }

    /// REX.X's part of a SIB `index` field.
    pub fn rex_x(&self) -> u8 {
        (self.rex.unwrap_or(0) & 2) << 2
    }

    /// REX.B's part of a ModRM `rm` or SIB `base` field.
    pub fn rex_b(&self) -> u8 {
        (self.rex.unwrap_or(0) & 1) << 3
    }
}
