//! Elements of string instructions: which one is next, and what one leaves in the registers
//! (APM volume 3, 1.2.6).
//!
//! Guarantees that an instruction with a repeat prefix can stop behind any element and be started
//! again at the same address, as the processor does when an interrupt comes.

use crate::{Instruction, MemoryOperand, Op, Register, Registers};

const DIRECTION: u64 = 1 << 10;
const RCX: Register = Register { number: 1, high: false };

impl Instruction {
    /// Whether a string instruction has a repeat prefix; nothing for others.
    fn repeats(&self) -> Option<bool> {
        match self.op {
            Op::Ins { repeat }
            | Op::Outs { repeat }
            | Op::Movs { repeat, .. }
            | Op::Stos { repeat }
            | Op::Lods { repeat } => Some(repeat),
            _ => None,
        }
    }

    /// A string instruction with an element left to move.
    pub fn has_element(&self, registers: &impl Registers) -> bool {
        let width = self.memory.map_or(8, |memory| memory.address_size);
        self.repeats().is_some_and(|repeat| !repeat || RCX.read(registers, width) != 0)
    }

    /// Moves pointers and count behind an element that has been moved. True: another one follows.
    pub fn pass_element(&self, registers: &mut impl Registers) -> bool {
        let Some((memory, repeat)) = self.memory.zip(self.repeats()) else { return false };
        memory.step(registers, self.size);
        if let Op::Movs { source, .. } = self.op {
            source.step(registers, self.size);
        }
        if !repeat {
            return false;
        }
        let left = RCX.read(registers, memory.address_size).wrapping_sub(1);
        RCX.write(registers, memory.address_size, left);
        left != 0
    }
}

impl MemoryOperand {
    /// Moves the pointer of a string instruction by an element of `size` bytes.
    fn step(&self, registers: &mut impl Registers, size: u8) {
        let Some(number) = self.base else { return };
        let pointer = Register { number, high: false };
        let (at, step) = (pointer.read(registers, self.address_size), u64::from(size));
        let back = registers.rflags() & DIRECTION != 0;
        let moved = if back { at.wrapping_sub(step) } else { at.wrapping_add(step) };
        pointer.write(registers, self.address_size, moved);
    }
}
