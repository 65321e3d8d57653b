//! MSR exits: the virtual local APIC's registers, the time-stamp counter, and all else by
//! `virtual_pc`.

use crate::cpu::vendor::{ApicAnswer, VirtualCpu};
use crate::vm::Vcpu;
use crate::vm::exceptions::GENERAL_PROTECTION;
use ledger::Reason;
use virtual_pc::msr::MsrResult;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;

const RDMSR: [u8; 2] = [0x0F, 0x32];
const WRMSR: [u8; 2] = [0x0F, 0x30];

const TSC: u32 = 0x10;
const APIC_BASE: u32 = 0x1B;
const EFER: u32 = 0xC000_0080;
/// Of AVIC.
const DOORBELL: u32 = 0xC001_011B;
const CR0_PG: u64 = 1 << 31;
const X2APIC: core::ops::RangeInclusive<u32> = 0x800..=0x8FF;

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn read_msr(&mut self) -> Reason {
        let msr = self.cpu.gpr(RCX) as u32;
        let inner = self.inner_register(msr, None);
        let value = match msr {
            _ if inner == Some(ApicAnswer::Undone) => return Reason::MsrRead,
            _ if inner.is_some() => match inner {
                Some(ApicAnswer::Value(value)) => Some(value),
                _ => None,
            },
            TSC => Some(self.cpu.tsc()),
            EFER => Some(self.cpu.efer()),
            APIC_BASE => Some(self.apic.base()),
            n if X2APIC.contains(&n) => self.read_apic((n - X2APIC.start()) as u8),
            n => match self.msrs.read(n) {
                MsrResult::Value(v) => Some(v),
                MsrResult::Ignore => Some(0),
                MsrResult::GeneralProtection => None,
            },
        };
        match value {
            Some(v) => {
                self.cpu.set_gpr(RAX, v & 0xFFFF_FFFF);
                self.cpu.set_gpr(RDX, v >> 32);
                self.skip(&RDMSR);
            }
            None => self.cpu.inject(GENERAL_PROTECTION, Some(0)),
        }
        Reason::MsrRead
    }

    pub(in crate::vm) fn write_msr(&mut self) -> Reason {
        let msr = self.cpu.gpr(RCX) as u32;
        let value = self.cpu.gpr(RDX) << 32 | self.cpu.gpr(RAX) & 0xFFFF_FFFF;
        let inner = self.inner_register(msr, Some(value));
        let done = match msr {
            _ if inner.is_some() => {
                (inner != Some(ApicAnswer::Refused)).then_some(Reason::MsrWrite)
            }
            DOORBELL if self.vm.nesting.is_some() => {
                self.ring(value);
                Some(Reason::MsrWrite)
            }
            TSC => {
                self.cpu.set_tsc(value);
                Some(Reason::MsrWrite)
            }
            EFER => self.write_efer(value),
            APIC_BASE => self.write_apic_base(value),
            n if X2APIC.contains(&n) => self.write_apic((n - X2APIC.start()) as u8, value),
            n => match self.msrs.write(n, value) {
                MsrResult::GeneralProtection => None,
                MsrResult::Value(_) | MsrResult::Ignore => Some(Reason::MsrWrite),
            },
        };
        match done {
            Some(reason) => {
                self.skip(&WRMSR);
                reason
            }
            None => {
                self.cpu.inject(GENERAL_PROTECTION, Some(0));
                Reason::MsrWrite
            }
        }
    }

    /// An access to a register of the inner guest's local APIC, if that has one of its own.
    fn inner_register(&mut self, msr: u32, write: Option<u64>) -> Option<ApicAnswer> {
        if !self.serves || !X2APIC.contains(&msr) {
            return None;
        }
        self.cpu.inner_apic((msr - X2APIC.start()) as u8, write, false)
    }

    /// Has the vCPU with this APIC id look at what waits for its inner guest (APM vol. 2, 15.29.8).
    fn ring(&self, id: u64) {
        let vcpu = usize::try_from(id).ok().and_then(|id| self.vm.guest.remotes.get(id));
        if let Some(vcpu) = vcpu {
            vcpu.attend();
        }
    }

    fn write_efer(&mut self, value: u64) -> Option<Reason> {
        match virtual_pc::msr::write_efer(
            self.cpu.efer(),
            value,
            self.vm.efer_offered,
            self.cpu.paging().cr0 & CR0_PG != 0,
        ) {
            MsrResult::Value(v) => {
                self.cpu.set_efer(v);
                Some(Reason::MsrWrite)
            }
            MsrResult::Ignore => Some(Reason::MsrWrite),
            MsrResult::GeneralProtection => None,
        }
    }
}
