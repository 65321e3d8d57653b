//! The quick way of an interrupt from vCPU to vCPUs: the one exit that is left under load where
//! the guest owns its local APIC, checked and sent before anything else is looked at.
//!
//! Guarantees: it sends what the ordinary way (`write_msr` in `vm/exits/msr.rs`) would, or nothing
//! was done and that way is to be taken; receivers are vCPUs of the same VM that run. A CPU that
//! virtualises IPIs (AVIC, or VMX's IPI virtualisation) would do this by itself: then ICR writes
//! don't exit, and nothing else changes.

use crate::cpu::vendor::{VirtualCpu, Visit};
use crate::cpu::x2apic;
use crate::vm::Vm;
use crate::vm::exits::code_pages::{CodePages, Site};
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use delivery::LocalApic;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const ICR: u32 = 0x830;
const WRMSR: [u8; 2] = [0x0F, 0x30];

/// What the quick way needs of a vCPU, besides the CPU itself.
pub struct QuickIpi<'a> {
    pub vm: &'a Vm,
    pub id: &'a usize,
    pub apic: &'a mut LocalApic,
    pub code_pages: &'a mut CodePages,
}

impl Visit for QuickIpi<'_> {
    type Output = bool;

    /// Right after an exit, in passthrough mode: whether it was for a write to the interrupt
    /// command register, and is done.
    #[inline(always)]
    fn visit(self, cpu: &mut impl VirtualCpu) -> bool {
        if !cpu.wrote_msr() || cpu.gpr(RCX) as u32 != ICR {
            return false;
        }
        let memory = &self.vm.guest.memory;
        if !self.code_pages.stands(memory, cpu, Site::Command, &WRMSR) {
            return false;
        }
        let command = cpu.gpr(RDX) << 32 | cpu.gpr(RAX) & 0xFFFF_FFFF;
        let remotes = &self.vm.guest.remotes;
        // Whoever isn't there, or is everybody, is seen to behind it.
        if let Some((id, vector)) = self.apic.quick_physical(command)
            && let Some(vcpu) = remotes.get(id as usize)
        {
            send(vcpu, vector);
        } else if let Some((destination, vector)) = self.apic.quick_command(command) {
            let mut members = destination.members(*self.id as u32);
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
        cpu.advance(cpu.rip().wrapping_add(WRMSR.len() as u64));
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
