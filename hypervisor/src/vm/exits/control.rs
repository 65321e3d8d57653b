//! MOV to control and debug registers, as far as it exits: what a processor refuses is #GP here
//! too, also where an emulated one would take it, and then couldn't be entered with it.
//!
//! All of it is rare, and kept out of the way of what isn't.
//!
//! Not refused: CR4 without PAE in long mode, which would need each write of CR4 to exit.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exceptions::GENERAL_PROTECTION;
use crate::vm::stop::Fault;
use decode::{Instruction, Mode, Op};
use paging::walk;
use virtual_pc::control::{self, CR0_PG, State};

impl<C: VirtualCpu> Vcpu<C> {
    /// The instruction that exited, and where the next one is.
    fn exited(&self) -> Result<(Instruction, u64), Fault> {
        let (mut bytes, address) = ([0; 15], self.cpu.rip());
        let length = self.fetch(&mut bytes).ok_or(Fault::Unreadable { address })?;
        let code = bytes.get(..length).unwrap_or_default();
        let instruction = decode::decode(code, self.cpu.code_mode())
            .map_err(|why| Fault::Instruction { address, why })?;
        Ok((instruction, address.wrapping_add(instruction.len as u64)))
    }

    /// A general register, of the width that MOV to a control register has.
    fn operand(&self, from: u8) -> u64 {
        let value = self.cpu.gpr(from);
        if self.cpu.code_mode() == Mode::Bits64 { value } else { value & 0xFFFF_FFFF }
    }

    fn refuse(&mut self) {
        self.cpu.inject(GENERAL_PROTECTION, Some(0));
    }

    /// MOV to CR8 while an interrupt is held back by the task priority, or on offer.
    #[cold]
    pub(in crate::vm) fn load_task_priority(&mut self) -> Result<(), Fault> {
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

    /// MOV to CR0 or to DR4 to DR7, or LMSW.
    #[cold]
    pub(in crate::vm) fn load_control(&mut self) -> Result<(), Fault> {
        let (instruction, next) = self.exited()?;
        let paging = self.cpu.paging();
        let long_code = self.cpu.code_mode() == Mode::Bits64;
        let state = State { cr0: paging.cr0, cr4: paging.cr4, efer: paging.efer, long_code };
        let cr0 = match instruction.op {
            Op::WriteCr { cr: 0, from } => control::write_cr0(state, self.operand(from)),
            Op::Lmsw(from) => {
                let word = match from {
                    Some(register) => self.cpu.gpr(register) as u16,
                    None => self.word(&instruction)?,
                };
                Some(control::load_machine_status(state.cr0, word))
            }
            // The CPU does it: breakpoints and general detection are its own affair.
            Op::WriteDr { from, .. } if control::debug_control_taken(self.operand(from)) => {
                self.cpu.let_debug_control();
                return Ok(());
            }
            Op::WriteDr { .. } => None,
            _ => return Err(Fault::Unreadable { address: self.cpu.rip() }),
        };
        let Some(cr0) = cr0 else {
            self.refuse();
            return Ok(());
        };
        if (state.cr0 ^ cr0) & CR0_PG != 0 {
            // The IDT becomes another: in other gates, or at an address that means another page.
            self.with_pc(|pc, cx| pc.board_mut().leave_shadow(cx))?;
        }
        self.cpu.set_cr0(cr0);
        self.cpu.advance(next);
        Ok(())
    }

    /// The operand of two bytes in memory.
    fn word(&self, instruction: &Instruction) -> Result<u16, Fault> {
        let unreadable = Fault::Unreadable { address: self.cpu.rip() };
        let at = instruction.linear_address(&self.cpu, self.cpu.code_mode()).ok_or(unreadable)?;
        let mut bytes = [0; 2];
        let read = walk::read_virtual(
            &self.vm.guest.memory,
            &self.cpu.paging(),
            at,
            walk::Access::default(),
            &mut bytes,
        );
        match read {
            Ok(2) => Ok(u16::from_le_bytes(bytes)),
            _ => Err(unreadable),
        }
    }

    /// QEMU leaves the guest for a MOV to CR3 or CR4 that sets reserved bits, as if it couldn't
    /// have been entered: true if it was that.
    #[cold]
    pub(in crate::vm) fn refused_load(&mut self) -> bool {
        let load =
            matches!(self.exited(), Ok((i, _)) if matches!(i.op, Op::WriteCr { cr: 3 | 4, .. }));
        if load {
            self.refuse();
        }
        load
    }
}
