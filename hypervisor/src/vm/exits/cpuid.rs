//! CPUID and XSETBV exits.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exceptions::{GENERAL_PROTECTION, UNDEFINED};
use delivery::ApicMode;
use virtual_pc::cpuid::{CpuidContext, CpuidResult};

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const CPUID: [u8; 2] = [0x0F, 0xA2];
const XSETBV: [u8; 3] = [0x0F, 0x01, 0xD1];
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_PKE: u64 = 1 << 22;

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn cpuid(&mut self) {
        let (leaf, subleaf) = (self.cpu.gpr(RAX) as u32, self.cpu.gpr(RCX) as u32);
        let cr4 = self.cpu.cr4();
        let context = CpuidContext {
            apic_id: self.id as u32,
            cpus: self.vm.guest.remotes.len() as u32,
            apic: self.apic.mode() != ApicMode::Disabled,
            osxsave: cr4 & CR4_OSXSAVE != 0,
            pke: cr4 & CR4_PKE != 0,
            max_basic: self.vm.cpuid_limits.0,
            max_extended: self.vm.cpuid_limits.1,
            ledger_page: crate::vm::LEDGER_PAGES + ((self.id as u64) << 12),
            svm: self.vm.nesting.as_ref().map(|nesting| nesting.leaf),
        };
        let shown =
            virtual_pc::cpuid::filter(leaf, subleaf, physical_cpuid(leaf, subleaf), &context);
        self.cpu.set_gpr(RAX, shown.eax as u64);
        self.cpu.set_gpr(RBX, shown.ebx as u64);
        self.cpu.set_gpr(RCX, shown.ecx as u64);
        self.cpu.set_gpr(RDX, shown.edx as u64);
        self.skip(&CPUID);
    }

    /// XCR0 isn't switched at an exit and the host doesn't use it: the guest's value is set
    /// for real, if the CPU would take it (APM vol. 4, XSETBV).
    pub(in crate::vm) fn xsetbv(&mut self) {
        let value = self.cpu.gpr(RDX) << 32 | self.cpu.gpr(RAX) & 0xFFFF_FFFF;
        let states = physical_cpuid(0xD, 0);
        let offered = (states.edx as u64) << 32 | states.eax as u64;
        if self.cpu.cr4() & CR4_OSXSAVE == 0 {
            return self.cpu.inject(UNDEFINED, None);
        }
        let allowed = self.cpu.privilege() == 0
            && self.cpu.gpr(RCX) as u32 == 0
            && virtual_pc::cpuid::xcr0_allowed(value, offered);
        if !allowed {
            self.cpu.inject(GENERAL_PROTECTION, Some(0));
            return;
        }
        crate::cpu::control::set_xcr0((value as u32, (value >> 32) as u32));
        self.skip(&XSETBV);
    }
}

/// CPUID of this core.
pub fn physical_cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    let r = raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf);
    CpuidResult { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx }
}
