//! MOV to CR0 and LMSW, as far as they exit: what a processor refuses is #GP here, too.
//!
//! All of it is rare, and kept out of the way of what isn't. The loads that exit on an emulated CPU
//! alone are in `emulator`.
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
    pub(super) fn exited(&self) -> Result<(Instruction, u64), Fault> {
        let (mut bytes, address) = ([0; 15], self.cpu.rip());
        let length = self.fetch(&mut bytes).ok_or(Fault::Unreadable { address })?;
        let code = bytes.get(..length).unwrap_or_default();
        let instruction = decode::decode(code, self.cpu.code_mode())
            .map_err(|why| Fault::Instruction { address, why })?;
        Ok((instruction, address.wrapping_add(instruction.len as u64)))
    }

    /// A general register, of the width that MOV to a control register has.
    pub(super) fn operand(&self, from: u8) -> u64 {
        let value = self.cpu.gpr(from);
        if self.cpu.code_mode() == Mode::Bits64 { value } else { value & 0xFFFF_FFFF }
    }

    /// As a processor refuses it.
    pub(super) fn refuse(&mut self) {
        self.cpu.inject(GENERAL_PROTECTION, Some(0));
    }

    /// MOV to CR0, or LMSW.
    #[cold]
    pub(in crate::vm) fn load_control(&mut self) -> Result<(), Fault> {
        let (instruction, next) = self.exited()?;
        let paging = self.cpu.paging();
        let long_code = self.cpu.cs_long();
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
        if !self.cpu.set_cr0(cr0, &self.vm.guest.memory) {
            self.refuse();
            return Ok(());
        }
        self.cpu.advance(next);
        Ok(())
    }

    /// The operand of two bytes in memory.
    fn word(&self, instruction: &Instruction) -> Result<u16, Fault> {
        let unreadable = Fault::Unreadable { address: self.cpu.rip() };
        let at = instruction.linear_address(&self.cpu, self.cpu.code_mode()).ok_or(unreadable)?;
        let mut bytes = [0; 2];
        let read = walk::read_virtual(
            &self.physical(),
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
}
