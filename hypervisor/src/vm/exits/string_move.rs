//! MOVS, STOS and LODS with an operand that isn't the guest's memory: a few elements for each
//! exit, so that the work is bounded and the guest takes its interrupts in between.
//!
//! Guarantees that each element is moved as [`super::element`] says, that an exception leaves the
//! registers at the element that raised it, and that a guest that steps through its instructions
//! sees each element.

use super::element::Exception;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::stop::Stop;
use decode::{Instruction, Op, Register};

/// Elements moved before the guest is entered again.
const AT_ONCE: usize = 16;
const TRAP: u64 = 1 << 8;
const RAX: Register = Register { number: 0, high: false };

impl<C: VirtualCpu> Vcpu<C> {
    /// Moves the next elements; `next` is where the instruction ends.
    pub(in crate::vm) fn move_string(
        &mut self,
        instruction: &Instruction,
        next: u64,
    ) -> Result<(), Stop> {
        let address = self.cpu.rip();
        let at_once = if self.cpu.rflags() & TRAP != 0 { 1 } else { AT_ONCE };
        let mut more = instruction.has_element(&self.cpu);
        for _ in 0..at_once {
            if !more {
                break;
            }
            match self.move_element(instruction, next)? {
                Ok(true) => {}
                // The guest does it.
                Ok(false) => return Ok(()),
                Err(exception) => {
                    self.raise_instead(exception);
                    return Ok(());
                }
            }
            more = instruction.pass_element(&mut self.cpu);
            if self.tells_guest() {
                break;
            }
        }
        self.cpu.advance(if more { address } else { next });
        Ok(())
    }

    /// False: it isn't done, and the guest is told.
    fn move_element(
        &mut self,
        instruction: &Instruction,
        next: u64,
    ) -> Result<Result<bool, Exception>, Stop> {
        let (size, mode) = (instruction.size, self.cpu.code_mode());
        let Some(memory) = instruction.memory else { return Ok(Ok(true)) };
        let place = |vcpu: &Self, operand: decode::MemoryOperand, write| {
            vcpu.element(operand.linear_address(&vcpu.cpu, next, mode), size, write, mode)
        };
        let (from, to) = match instruction.op {
            Op::Movs { source, .. } => (Some(place(self, source, false)), Some(memory)),
            Op::Lods { .. } => (Some(place(self, memory, false)), None),
            _ => (None, Some(memory)),
        };
        let from = match from.transpose() {
            Ok(from) => from,
            Err(exception) => return Ok(Err(exception)),
        };
        let to = match to.map(|to| place(self, to, true)).transpose() {
            Ok(to) => to,
            Err(exception) => return Ok(Err(exception)),
        };
        let value = match from {
            Some(from) => self.load_element(&from),
            None => RAX.read(&self.cpu, size),
        };
        if self.tells_guest() {
            return Ok(Ok(false));
        }
        match to {
            Some(to) => self.store_element(&to, value)?,
            None => RAX.write(&mut self.cpu, size, value),
        }
        Ok(Ok(true))
    }
}
