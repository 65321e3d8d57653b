//! Performs a decoded load, store or read-modify-write on a device register.
//!
//! Guarantees: the device sees exactly the accesses the instruction makes, in
//! its order (at most one load, then at most one store), each of the operand's
//! size; registers and flags end as the processor would leave them. RIP is left
//! to the caller, who adds [`Instruction::len`]. String instructions, whose elements may be
//! anywhere, aren't performed here.

use crate::cursor::{sign_extend, truncate};
use crate::{Alu, Error, Instruction, Op, Register, Registers, Source, Vectors};

/// rAX.
const ACCUMULATOR: Register = Register { number: 0, high: false };

/// The device register the memory operand means.
pub trait Device {
    /// Reads `size` bytes (1, 2, 4 or 8); bits above them are ignored.
    fn load(&mut self, size: u8) -> u64;
    /// Writes `size` bytes (1, 2, 4 or 8) of `value`, which is zero above them.
    fn store(&mut self, size: u8, value: u64);
    /// Reads `size` bytes (4, 8, 16 or 32) for a vector register, the lowest first; others are
    /// ignored.
    fn load_vector(&mut self, size: u8) -> [u64; 4];
    /// Writes the first `size` bytes (4, 8, 16 or 32) of `value`, which is zero above them.
    fn store_vector(&mut self, size: u8, value: [u64; 4]);
}

/// Performs `instruction`. A refused instruction has touched nothing.
pub fn emulate_mmio(
    instruction: &Instruction,
    registers: &mut impl Registers,
    vectors: &mut impl Vectors,
    device: &mut impl Device,
) -> Result<(), Error> {
    let size = instruction.size;
    match instruction.op {
        Op::Load { to, to_size, signed } => {
            let value = device.load(size);
            let value = if signed { sign_extend(value, size) } else { truncate(value, size) };
            to.write(registers, to_size, value);
        }
        Op::Store(source) => device.store(size, source.read(registers, size)),
        Op::AluToMemory(alu, source) => {
            let left = device.load(size);
            let right = source.read(registers, size);
            let (result, rflags) = alu.apply(left, right, size, registers.rflags());
            if alu.writes() {
                device.store(size, result);
            }
            registers.set_rflags(rflags);
        }
        Op::AluToRegister(alu, register) => {
            let right = device.load(size);
            let left = register.read(registers, size);
            let (result, rflags) = alu.apply(left, right, size, registers.rflags());
            if alu.writes() {
                register.write(registers, size, result);
            }
            registers.set_rflags(rflags);
        }
        Op::Modify(modify) => {
            let (result, rflags) = modify.apply(device.load(size), size, registers);
            if modify.writes() {
                device.store(size, result);
            }
            registers.set_rflags(rflags);
        }
        Op::Exchange(register) => {
            let value = truncate(device.load(size), size);
            device.store(size, register.read(registers, size));
            register.write(registers, size, value);
        }
        Op::ExchangeAdd(register) => {
            let value = truncate(device.load(size), size);
            let right = register.read(registers, size);
            let (sum, rflags) = Alu::Add.apply(value, right, size, registers.rflags());
            device.store(size, sum);
            register.write(registers, size, value);
            registers.set_rflags(rflags);
        }
        Op::CompareExchange(register) => {
            let value = truncate(device.load(size), size);
            let expected = ACCUMULATOR.read(registers, size);
            let (_, rflags) = Alu::Cmp.apply(expected, value, size, registers.rflags());
            // It writes in any case (APM volume 3, CMPXCHG).
            if value == expected {
                device.store(size, register.read(registers, size));
            } else {
                device.store(size, value);
                ACCUMULATOR.write(registers, size, value);
            }
            registers.set_rflags(rflags);
        }
        Op::VectorLoad { vex, .. } | Op::VectorStore { vex, .. } if !vectors.usable(vex) => {
            return Err(Error::NoVectors);
        }
        Op::VectorLoad { to, vex } => {
            let value = cut(device.load_vector(size), size);
            vectors.write(to, value, vex);
        }
        Op::VectorStore { from, vex } => {
            device.store_vector(size, cut(vectors.read(from, vex), size));
        }
        _ => return Err(Error::NotMemoryAccess),
    }
    Ok(())
}

/// The first `size` bytes, and zeros.
fn cut(value: [u64; 4], size: u8) -> [u64; 4] {
    let mut at = 0;
    value.map(|part| {
        let left = size.saturating_sub(at);
        at += 8;
        if left == 0 { 0 } else { truncate(part, left.min(8)) }
    })
}

impl Source {
    pub(crate) fn read(self, registers: &impl Registers, size: u8) -> u64 {
        match self {
            Self::Register(register) => register.read(registers, size),
            Self::Immediate(value) => truncate(value, size),
        }
    }
}
