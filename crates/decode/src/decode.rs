//! From bytes to an [`Instruction`] (APM volume 3, appendix A, tables ).

use crate::cursor::Cursor;
use crate::prefixes::{Mandatory, Prefixes};
use crate::vector::{self, Vex};
use crate::{
    Alu, Bit, Error, Instruction, MemoryOperand, Mode, Modify, Op, Places, Register, Shift, Source,
};

/// Decodes the instruction that starts `bytes`; bytes after it are ignored.
/// Fewer than 15 bytes are enough if the instruction ends within them.
pub fn decode(bytes: &[u8], mode: Mode) -> Result<Instruction, Error> {
    let mut cursor = Cursor::new(bytes);
    let (mut prefixes, first) = Prefixes::read(&mut cursor, mode)?;
    // Outside 64-bit mode LES and LDS begin with the same bytes; their operand is in memory.
    let is_vex = matches!(first, 0xC4 | 0xC5) && (mode == Mode::Bits64 || cursor.peek()? >> 6 == 3);
    let vex = is_vex.then(|| Vex::read(&mut cursor, &mut prefixes, first)).transpose()?;
    let opcode = match (&vex, first) {
        (Some(vex), _) => vex.opcode,
        (None, 0x0F) => match cursor.u8()? {
            0x38 => 0x0F_3800 | u32::from(cursor.u8()?),
            second => 0x0F00 | u32::from(second),
        },
        (None, _) => first.into(),
    };
    let mut decoder = Decoder { cursor, prefixes, opcode };
    let body = match (vex, first) {
        (Some(vex), _) => decoder.vector(Some(&vex))?,
        (None, 0x0F) => decoder.two_byte()?,
        (None, _) => decoder.one_byte(first)?,
    };
    if decoder.prefixes.lock && !body.op.takes_lock() {
        return Err(Error::Lock(opcode));
    }
    let Body { op, size, memory } = body;
    Ok(Instruction { len: decoder.cursor.position(), op, size, memory })
}

/// An instruction whose length isn't known yet.
struct Body {
    op: Op,
    size: u8,
    memory: Option<MemoryOperand>,
}

impl From<Op> for Body {
    fn from(op: Op) -> Self {
        Self { op, size: 0, memory: None }
    }
}

/// A ModRM byte's `reg` field, whole, and the memory its other fields mean.
struct Operands {
    reg: u8,
    memory: MemoryOperand,
}

impl Operands {
    fn body(self, op: Op, size: u8) -> Result<Body, Error> {
        Ok(Body { op, size, memory: Some(self.memory) })
    }
}

struct Decoder<'a> {
    cursor: Cursor<'a>,
    prefixes: Prefixes,
    opcode: u32,
}

impl Decoder<'_> {
    fn one_byte(&mut self, opcode: u8) -> Result<Body, Error> {
        // In these rows bit 0 of the opcode is clear for bytes.
        let size = if opcode & 1 == 0 { 1 } else { self.prefixes.operand_size() };
        match opcode {
            0x00..=0x3F if opcode & 7 < 4 => {
                let alu = Alu::from_field(opcode >> 3);
                let operands = self.operands()?;
                let register = self.register(operands.reg, size);
                let op = if opcode & 2 == 0 {
                    Op::AluToMemory(alu, Source::Register(register))
                } else {
                    Op::AluToRegister(alu, register)
                };
                operands.body(op, size)
            }
            // In 32-bit code this opcode is ARPL; without REX.W it is a plain MOV
            // whose operand size vendors disagree on.
            0x63 if self.prefixes.rex_w() => self.load(4, true),
            0x80 | 0x81 | 0x83 => {
                let operands = self.operands()?;
                let alu = Alu::from_field(operands.reg);
                let immediate = self.immediate(if opcode == 0x83 { 1 } else { size })?;
                operands.body(Op::AluToMemory(alu, immediate), size)
            }
            0x84..=0x89 => {
                let operands = self.operands()?;
                let register = self.register(operands.reg, size);
                let op = match opcode {
                    0x84 | 0x85 => Op::AluToMemory(Alu::Test, Source::Register(register)),
                    0x86 | 0x87 => Op::Exchange(register),
                    _ => Op::Store(Source::Register(register)),
                };
                operands.body(op, size)
            }
            0x8A | 0x8B => self.load(size, false),
            0xA0..=0xA3 => {
                let memory = MemoryOperand::absolute(&mut self.cursor, &self.prefixes)?;
                let accumulator = Register { number: 0, high: false };
                let op = if opcode & 2 == 0 {
                    Op::Load { to: accumulator, to_size: size, signed: false }
                } else {
                    Op::Store(Source::Register(accumulator))
                };
                Ok(Body { op, size, memory: Some(memory) })
            }
            0xC0 | 0xC1 | 0xD0..=0xD3 => {
                let operands = self.operands()?;
                let shift = Shift::from_field(operands.reg).ok_or(self.unsupported())?;
                let places = match opcode {
                    0xC0 | 0xC1 => Places::Immediate(self.cursor.u8()?),
                    0xD0 | 0xD1 => Places::Immediate(1),
                    _ => Places::Cl,
                };
                operands.body(Op::Modify(Modify::Shift(shift, places)), size)
            }
            0xC6 | 0xC7 | 0xF6 | 0xF7 | 0xFE | 0xFF => {
                let operands = self.operands()?;
                let op = match (opcode & 0xFE, operands.reg & 7) {
                    (0xC6, 0) => Op::Store(self.immediate(size)?),
                    (0xF6, 0) => Op::AluToMemory(Alu::Test, self.immediate(size)?),
                    (0xF6, 2) => Op::Modify(Modify::Not),
                    (0xF6, 3) => Op::Modify(Modify::Neg),
                    (0xFE, 0) => Op::Modify(Modify::Inc),
                    (0xFE, 1) => Op::Modify(Modify::Dec),
                    _ => return Err(self.unsupported()),
                };
                operands.body(op, size)
            }
            0xE4 | 0xE5 => self.with_port(Op::In),
            0xE6 | 0xE7 => self.with_port(Op::Out),
            0xEC | 0xED => Ok(Op::In.into()),
            0xEE | 0xEF => Ok(Op::Out.into()),
            0xF4 => Ok(Op::Hlt.into()),
            0x6C..=0x6F | 0xA4 | 0xA5 | 0xAA..=0xAD => Ok(self.string(opcode)),
            0xA6 | 0xA7 | 0xAE | 0xAF => Err(Error::StringComparison(self.opcode)),
            _ => Err(self.unsupported()),
        }
    }

    fn two_byte(&mut self) -> Result<Body, Error> {
        match self.opcode {
            0x0F01 => self.group_7(),
            0x0F06 => Ok(Op::Clts.into()),
            0x0F08 => Ok(Op::Invd.into()),
            0x0F09 => Ok(Op::Wbinvd.into()),
            0x0F20 | 0x0F22 => self.control_register(),
            0x0F23 => self.debug_register(),
            0x0F30 => Ok(Op::Wrmsr.into()),
            0x0F32 => Ok(Op::Rdmsr.into()),
            0x0FA2 => Ok(Op::Cpuid.into()),
            0x0FB6 => self.load(1, false),
            0x0FB7 => self.load(2, false),
            0x0FBE => self.load(1, true),
            0x0FBF => self.load(2, true),
            0x0FA3 | 0x0FAB | 0x0FB3 | 0x0FBB => {
                let bit = Bit::from_field((self.opcode >> 3) as u8);
                self.with_register(|register| {
                    Op::Modify(Modify::Bit(bit, Source::Register(register)))
                })
            }
            0x0FBA => {
                let operands = self.operands()?;
                if operands.reg & 4 == 0 {
                    return Err(self.unsupported());
                }
                let index = Source::Immediate(self.cursor.unsigned(1)?);
                let bit = Bit::from_field(operands.reg);
                operands.body(Op::Modify(Modify::Bit(bit, index)), self.prefixes.operand_size())
            }
            0x0FB0 | 0x0FB1 => self.with_register(Op::CompareExchange),
            0x0FC0 | 0x0FC1 => self.with_register(Op::ExchangeAdd),
            // MOVNTI, which has no form of 2 bytes.
            0x0FC3 if self.prefixes.mandatory() == Mandatory::None => {
                let operands = self.operands()?;
                let size = if self.prefixes.rex_w() { 8 } else { 4 };
                let register = self.register(operands.reg, size);
                operands.body(Op::Store(Source::Register(register)), size)
            }
            _ => self.vector(None),
        }
    }

    /// A read-modify-write with a register, of bytes only where bit 0 of the opcode is clear and
    /// there is such a form.
    fn with_register(&mut self, op: impl FnOnce(Register) -> Op) -> Result<Body, Error> {
        let bytes = matches!(self.opcode, 0x0FB0 | 0x0FC0);
        let size = if bytes { 1 } else { self.prefixes.operand_size() };
        let operands = self.operands()?;
        let register = self.register(operands.reg, size);
        operands.body(op(register), size)
    }

    /// A move between a vector register and memory. Nothing else has a VEX prefix here.
    fn vector(&mut self, vex: Option<&Vex>) -> Result<Body, Error> {
        // Whether it is one doesn't depend on which register it names.
        vector::operation(self.opcode, &self.prefixes, vex, 0).ok_or(self.unsupported())?;
        let operands = self.operands()?;
        match vector::operation(self.opcode, &self.prefixes, vex, operands.reg) {
            Some((op, size)) => operands.body(op, size),
            None => Err(self.unsupported()),
        }
    }

    /// Descriptor tables, LMSW, INVLPG, and instructions that are one whole ModRM byte.
    fn group_7(&mut self) -> Result<Body, Error> {
        let modrm = self.cursor.u8()?;
        let register_form = modrm >> 6 == 3;
        // With other prefixes these two bytes are other instructions.
        let plain = self.prefixes.mandatory() == Mandatory::None;
        match modrm {
            0xD1 if plain => return Ok(Op::Xsetbv.into()),
            0xD9 if plain => return Ok(Op::Vmmcall.into()),
            0xF0..=0xF7 => return Ok(Op::Lmsw(Some(modrm & 7 | self.prefixes.rex_b())).into()),
            _ if register_form => return Err(self.unsupported()),
            _ => {}
        }
        let whole = if self.prefixes.mode == Mode::Bits64 { 10 } else { 6 };
        let loaded = if whole == 6 && self.prefixes.operand_size() == 2 { 5 } else { whole };
        let (op, size) = match (modrm >> 3) & 7 {
            0 => (Op::Sgdt, whole),
            1 => (Op::Sidt, whole),
            2 => (Op::Lgdt, loaded),
            3 => (Op::Lidt, loaded),
            6 => (Op::Lmsw(None), 2),
            7 => (Op::Invlpg, 0),
            _ => return Err(self.unsupported()),
        };
        let memory = MemoryOperand::read(&mut self.cursor, &self.prefixes, modrm)?;
        Ok(Body { op, size, memory: Some(memory) })
    }

    /// MOV with a control register; the `mod` field doesn't count. LOCK makes CR0 CR8, also
    /// outside 64-bit mode (APM volume 3, MOV CRn: CPUID's AltMovCr8).
    fn control_register(&mut self) -> Result<Body, Error> {
        let modrm = self.cursor.u8()?;
        let cr = match (modrm >> 3) & 7 | self.prefixes.rex_r() {
            0 if core::mem::take(&mut self.prefixes.lock) => 8,
            cr => cr,
        };
        let number = modrm & 7 | self.prefixes.rex_b();
        match (cr, self.opcode) {
            (0 | 2 | 3 | 4 | 8, 0x0F20) => Ok(Op::ReadCr { cr, to: number }.into()),
            (0 | 2 | 3 | 4 | 8, _) => Ok(Op::WriteCr { cr, from: number }.into()),
            _ => Err(self.unsupported()),
        }
    }

    /// MOV to a debug register, likewise.
    fn debug_register(&mut self) -> Result<Body, Error> {
        let modrm = self.cursor.u8()?;
        if self.prefixes.rex_r() != 0 {
            return Err(self.unsupported());
        }
        let from = modrm & 7 | self.prefixes.rex_b();
        Ok(Op::WriteDr { dr: (modrm >> 3) & 7, from }.into())
    }

    /// register := memory of `size` bytes.
    fn load(&mut self, size: u8, signed: bool) -> Result<Body, Error> {
        let to_size = if self.opcode == 0x8A { 1 } else { self.prefixes.operand_size() };
        let operands = self.operands()?;
        let to = self.register(operands.reg, to_size);
        operands.body(Op::Load { to, to_size, signed }, size)
    }

    fn with_port(&mut self, op: Op) -> Result<Body, Error> {
        self.cursor.u8()?;
        Ok(op.into())
    }

    /// A string instruction. Elements of INS and OUTS are at most 4 bytes even with REX.W.
    fn string(&self, opcode: u8) -> Body {
        let repeat = self.prefixes.repeats();
        let source = MemoryOperand::string_source(&self.prefixes);
        let destination = MemoryOperand::string_destination(&self.prefixes);
        let (op, memory, most) = match opcode {
            0x6C | 0x6D => (Op::Ins { repeat }, destination, 4),
            0x6E | 0x6F => (Op::Outs { repeat }, source, 4),
            0xA4 | 0xA5 => (Op::Movs { repeat, source }, destination, 8),
            0xAA | 0xAB => (Op::Stos { repeat }, destination, 8),
            _ => (Op::Lods { repeat }, source, 8),
        };
        let size = if opcode & 1 == 0 { 1 } else { self.prefixes.operand_size().min(most) };
        Body { op, size, memory: Some(memory) }
    }

    fn operands(&mut self) -> Result<Operands, Error> {
        let modrm = self.cursor.u8()?;
        if modrm >> 6 == 3 {
            return Err(Error::RegisterForm(self.opcode));
        }
        let memory = MemoryOperand::read(&mut self.cursor, &self.prefixes, modrm)?;
        Ok(Operands { reg: (modrm >> 3) & 7 | self.prefixes.rex_r(), memory })
    }

    fn register(&self, number: u8, size: u8) -> Register {
        Register::new(number, size, self.prefixes.has_rex())
    }

    /// Immediates are at most 4 bytes, even for operands of 8.
    fn immediate(&mut self, size: u8) -> Result<Source, Error> {
        Ok(Source::Immediate(self.cursor.signed(size.min(4))?))
    }

    fn unsupported(&self) -> Error {
        Error::Unsupported(self.opcode)
    }
}
