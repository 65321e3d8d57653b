//! Exits of an emulated CPU alone: loads of registers that it would get wrong
//! (`crates/svm/src/emulator.rs` has all that QEMU's gets wrong).
//!
//! Guarantees: what a processor would take is taken, and what it would refuse is #GP. A real CPU
//! never comes here.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::stop::Fault;
use decode::Op;
use vendor::Quirk;
use virtual_pc::control;

impl<C: VirtualCpu> Vcpu<C> {
    /// Does for the CPU what it would get wrong. The error ends the VM.
    #[cold]
    pub(in crate::vm) fn work_around(&mut self, quirk: Quirk) -> Result<(), Fault> {
        match quirk {
            Quirk::TaskPriority => self.load_task_priority(),
            Quirk::DebugControl => self.load_debug_control(),
            Quirk::ControlRefused => self.refused_load(),
        }
    }

    /// MOV to CR8 while an interrupt is held back by the task priority, or on offer.
    fn load_task_priority(&mut self) -> Result<(), Fault> {
        let (instruction, next) = self.exited()?;
        let Op::WriteCr { cr: 8, from } = instruction.op else {
            return Err(Fault::Unreadable { address: self.cpu.rip() });
        };
        let value = self.cpu.gpr(from);
        if value > 15 {
            self.refuse();
        } else {
            self.cpu.set_task_priority((value as u8) << 4);
            self.cpu.advance(next);
        }
        Ok(())
    }

    /// MOV to DR4 to DR7. What is right the CPU does itself: breakpoints and general detection are
    /// its own affair.
    fn load_debug_control(&mut self) -> Result<(), Fault> {
        let (instruction, _) = self.exited()?;
        let Op::WriteDr { from, .. } = instruction.op else {
            return Err(Fault::Unreadable { address: self.cpu.rip() });
        };
        if control::debug_control_taken(self.operand(from)) {
            self.cpu.let_debug_control();
        } else {
            self.refuse();
        }
        Ok(())
    }

    /// It was left as if it couldn't be entered: for a MOV to CR3 or CR4 that sets reserved bits,
    /// or since it really can't be.
    fn refused_load(&mut self) -> Result<(), Fault> {
        match self.exited() {
            Ok((instruction, _)) if matches!(instruction.op, Op::WriteCr { cr: 3 | 4, .. }) => {
                self.refuse();
                Ok(())
            }
            _ => Err(Fault::InvalidState),
        }
    }
}
