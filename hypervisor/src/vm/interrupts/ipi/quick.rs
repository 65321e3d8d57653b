//! The quick way of an interrupt from vCPU to vCPUs: the one exit that is left under load where
//! the guest owns its local APIC, checked and sent before anything else is looked at.
//!
//! Guarantees: it sends what the ordinary way ([`Vcpu::write_msr`]) would, or nothing was done
//! and that way is to be taken; receivers are vCPUs of the same VM that run. A CPU that
//! virtualises IPIs (AVIC, or VMX's IPI virtualisation) would do this by itself: then ICR writes
//! don't exit, and nothing else changes.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::Site;
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use ledger::Reason;

const RAX: u8 = 0;
const RDX: u8 = 2;
const WRMSR: [u8; 2] = [0x0F, 0x30];

impl<C: VirtualCpu> Vcpu<C> {
    /// After an exit for a write to the interrupt command register, in passthrough mode: whether it
    /// is done, and counted.
    #[inline(always)]
    pub(in crate::vm) fn quick_ipi(&mut self) -> bool {
        if !self.code_pages.stands(&self.vm.guest.memory, &self.cpu, Site::Command, &WRMSR) {
            return false;
        }
        let command = self.cpu.gpr(RDX) << 32 | self.cpu.gpr(RAX) & 0xFFFF_FFFF;
        let remotes = &self.vm.guest.remotes;
        // Whoever isn't there, or is everybody, is seen to behind it.
        if let Some((id, vector)) = self.apic.quick_physical(command)
            && let Some(vcpu) = remotes.get(id as usize)
        {
            send(vcpu, vector);
        } else if let Some((destination, vector)) = self.apic.quick_command(command) {
            let mut members = destination.members(self.id as u32);
            while let Some(vcpu) = remotes.get(members.trailing_zeros() as usize) {
                send(vcpu, vector);
                members &= members - 1;
                if members == 0 {
                    break;
                }
            }
        } else {
            return false;
        }
        self.cpu.advance(self.cpu.rip().wrapping_add(WRMSR.len() as u64));
        self.ledger.count(Reason::Ipi);
        true
    }
}

/// The guest's own vector, on its own core too: nothing else is delivered there.
#[inline(always)]
fn send(vcpu: &VcpuRemote, vector: u8) {
    if vcpu.mailbox.running() {
        x2apic::send_ipi(vcpu.apic_id, vector);
    }
}
