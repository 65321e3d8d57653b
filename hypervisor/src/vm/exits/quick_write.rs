//! Writes to the two registers of the local APIC that come with every interrupt, where they exit:
//! the command that sends one, and its completion. Done before anything else is looked at.
//!
//! Guarantees: it does what the ordinary way ([`Vcpu::write_msr`]) would, or nothing was done and
//! that way is to be taken. Where the guest owns its local APIC (`Mode::Passthrough`), the way of
//! an interrupt command is another one (`vm/interrupts/ipi/quick.rs`), and completions don't exit.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::Site;
use delivery::{ApicMode, Destination, Mode};
use ledger::Reason;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const WRMSR: [u8; 2] = [0x0F, 0x30];
const EOI: u32 = 0x80B;
const ICR: u32 = 0x830;

impl<C: VirtualCpu> Vcpu<C> {
    /// Right after an exit: whether it was for one of the two, and is done and counted.
    #[inline(always)]
    pub(in crate::vm) fn quick_write(&mut self) -> bool {
        if !self.cpu.wrote_msr() {
            return false;
        }
        let done = match self.cpu.gpr(RCX) as u32 {
            register if self.mode.current() == Mode::Passthrough => {
                return register == ICR && self.quick_ipi();
            }
            EOI => self.quick_completion(),
            ICR => self.quick_command(),
            _ => None,
        };
        done.is_some()
    }

    fn quick_completion(&mut self) -> Option<()> {
        let value = self.written(Site::Completion)?;
        self.note_accepted();
        let vector = self.apic.quick_complete(value)?;
        if self.mode.current() == Mode::Injection {
            self.slot.note_completion();
        }
        let reason = self.completed(vector);
        self.step_over();
        self.ledger.count(reason);
        Some(())
    }

    fn quick_command(&mut self) -> Option<()> {
        let value = self.written(Site::Command)?;
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
        self.step_over();
        self.ledger.count(Reason::Ipi);
        Some(())
    }

    /// What is written by a bare WRMSR, if one stands at RIP, as far as is known.
    #[inline]
    fn written(&mut self, site: Site) -> Option<u64> {
        let stands = self.code_pages.stands(&self.vm.guest.memory, &self.cpu, site, &WRMSR);
        stands.then(|| self.cpu.gpr(RDX) << 32 | self.cpu.gpr(RAX) & 0xFFFF_FFFF)
    }

    #[inline]
    fn step_over(&mut self) {
        self.cpu.acknowledge_exit();
        self.cpu.advance(self.cpu.rip().wrapping_add(WRMSR.len() as u64));
    }
}
