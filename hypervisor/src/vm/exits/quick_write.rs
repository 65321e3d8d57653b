//! Writes to the two registers of the local APIC that come with every interrupt, where they exit:
//! the command that sends one, and its completion. Done before anything else is looked at.
//!
//! Guarantees: it does what the ordinary way ([`Vcpu::write_msr`]) would, or nothing was done and
//! that way is to be taken. Where the guest owns its local APIC (`Mode::Passthrough`), the way of
//! an interrupt command is another one (`vm/interrupts/ipi/quick.rs`), and completions don't exit.

use crate::cpu::vendor::{VirtualCpu, Visit};
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::{CodePages, Site};
use crate::vm::interrupts::ipi::quick::QuickIpi;
use crate::vm::memory::Memory;
use delivery::{ApicMode, Destination, Mode};
use ledger::Reason;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const WRMSR: [u8; 2] = [0x0F, 0x30];
const EOI: u32 = 0x80B;
const ICR: u32 = 0x830;

/// Right after an exit: whether it was for a write to one of the two by a bare WRMSR, as far as is
/// known; which, and what was written.
struct Written<'a> {
    memory: &'a Memory,
    code_pages: &'a mut CodePages,
}

impl Visit for Written<'_> {
    type Output = Option<(u32, u64)>;

    #[inline(always)]
    fn visit(self, cpu: &mut impl VirtualCpu) -> Option<(u32, u64)> {
        if !cpu.wrote_msr() {
            return None;
        }
        let register = cpu.gpr(RCX) as u32;
        let site = match register {
            EOI => Site::Completion,
            ICR => Site::Command,
            _ => return None,
        };
        let stands = self.code_pages.stands(self.memory, cpu, site, &WRMSR);
        stands.then(|| (register, cpu.gpr(RDX) << 32 | cpu.gpr(RAX) & 0xFFFF_FFFF))
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Right after an exit: whether it was for one of the two, and is done and counted.
    #[inline(always)]
    pub(in crate::vm) fn quick_write(&mut self) -> bool {
        if self.mode.current() == Mode::Passthrough {
            let Vcpu { vm, id, apic, code_pages, .. } = self;
            let done = self.cpu.visited(QuickIpi { vm, id, apic, code_pages });
            if done {
                self.ledger.count(Reason::Ipi);
            }
            return done;
        }
        let memory = &self.vm.guest.memory;
        let written = Written { memory, code_pages: &mut self.code_pages };
        let done = match self.cpu.visited(written) {
            Some((EOI, value)) => self.quick_completion(value),
            Some((_, value)) => self.quick_command(value),
            None => None,
        };
        done.is_some()
    }

    fn quick_completion(&mut self, value: u64) -> Option<()> {
        self.note_accepted();
        let vector = self.apic.quick_complete(value)?;
        if self.mode.current() == Mode::Injection {
            self.slot.note_completion();
        }
        let reason = self.completed(vector);
        self.cpu.step_over(WRMSR.len() as u64);
        self.ledger.count(reason);
        Some(())
    }

    fn quick_command(&mut self, value: u64) -> Option<()> {
        if self.apic.mode() != ApicMode::X2apic {
            return None;
        }
        let (destination, vector) = self.apic.quick_command(value)?;
        self.note_accepted();
        match destination {
            Destination::Physical(id) if id != self.id as u32 => {
                self.vm.guest.interrupt(id as usize, vector);
            }
            _ => self.send(destination, vector),
        }
        self.cpu.step_over(WRMSR.len() as u64);
        self.ledger.count(Reason::Ipi);
        Some(())
    }
}
