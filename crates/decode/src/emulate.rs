//! Performs a decoded load, store or read-modify-write on a device register.
//!
//! Guarantees: the device sees exactly the accesses the instruction makes, in
//! its order (at most one load, then at most one store), each of the operand's
//! size; registers and flags end as the processor would leave them. RIP is left
//! to the caller, who adds [`Instruction::len`].

use crate::cursor::{sign_extend, truncate};
use crate::{Error, Instruction, Op, Registers, Source};

/// The device register the memory operand means.
pub trait Device {
    /// Reads `size` bytes (1, 2, 4 or 8); bits above them are ignored.
    fn load(&mut self, size: u8) -> u64;
    /// Writes `size` bytes (1, 2, 4 or 8) of `value`, which is zero above them.
    fn store(&mut self, size: u8, value: u64);
}

/// Performs `instruction`. A refused instruction has touched nothing.
pub fn emulate_mmio(
    instruction: &Instruction,
    registers: &mut impl Registers,
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
        Op::Exchange(register) => {
            let value = truncate(device.load(size), size);
            device.store(size, register.read(registers, size));
            register.write(registers, size, value);
        }
        _ => return Err(Error::NotMemoryAccess),
    }
    Ok(())
}

impl Source {
    fn read(self, registers: &impl Registers, size: u8) -> u64 {
        match self {
            Self::Register(register) => register.read(registers, size),
            Self::Immediate(value) => truncate(value, size),
        }
    }
}
