//! Model-specific registers that a guest touches and that aren't passed through.
//!
//! Guarantees that a guest never reaches a physical register from here, and that
//! what it isn't offered gets #GP. Registers that kernels access without a fault
//! handler read as on a machine where the thing is absent or firmware's business
//! was done. The local APIC's registers (0x1B, 0x800 to 0x8FF) and the TSC's are elsewhere.

mod efer;

pub use efer::{EFER_LMA, EFER_LME, EFER_NXE, EFER_SCE, write_efer};

use crate::mtrr::Mtrrs;

/// The MSRs that [`crate::cpuid`] promises by the features it shows and that hold
/// nothing of the host's, for the MSR bitmap: SPEC_CTRL, PRED_CMD, SYSENTER (three),
/// FLUSH_CMD, PAT, STAR, LSTAR, CSTAR, SFMASK, FS, GS and kernel GS base, TSC_AUX.
/// The host must switch those that it uses itself, and drop those that the CPU lacks.
pub const PASSED_THROUGH: [u32; 15] = [
    0x48,
    0x49,
    0x174,
    0x175,
    0x176,
    0x10B,
    0x277,
    0xC000_0081,
    0xC000_0082,
    0xC000_0083,
    0xC000_0084,
    0xC000_0100,
    0xC000_0101,
    0xC000_0102,
    0xC000_0103,
];

/// Architectural.
const P5_MC_ADDR: u32 = 0x0;
const P5_MC_TYPE: u32 = 0x1;
const PLATFORM_ID: u32 = 0x17;
const EBL_CR_POWERON: u32 = 0x2A;
const FEATURE_CONTROL: u32 = 0x3A;
const PATCH_LEVEL: u32 = 0x8B;
const ARCH_CAPABILITIES: u32 = 0x10A;
const MCG_CAP: u32 = 0x179;
const MCG_STATUS: u32 = 0x17A;
const MISC_ENABLE: u32 = 0x1A0;
const DEBUG_CTL: u32 = 0x1D9;
const LAST_BRANCH_FIRST: u32 = 0x1DB;
const LAST_BRANCH_LAST: u32 = 0x1DE;
const XSS: u32 = 0xDA0;

/// AMD (APM vol. 2, appendix A).
/// The four legacy performance counters and their event selects have no CPUID bit, so kernels use
/// them unguarded (APM vol. 2, 13.2.3). Here they never count.
const LEGACY_COUNTER_FIRST: u32 = 0xC001_0000;
const LEGACY_COUNTER_LAST: u32 = 0xC001_0007;
const SYSCFG: u32 = 0xC001_0010;
const HWCR: u32 = 0xC001_0015;
const TOP_MEM: u32 = 0xC001_001A;
const TOP_MEM2: u32 = 0xC001_001D;
const NB_CFG: u32 = 0xC001_001F;
const MMIO_CFG_BASE: u32 = 0xC001_0058;
const SMM_TSEG_ADDR: u32 = 0xC001_0112;
const VM_CR: u32 = 0xC001_0114;
const VM_HSAVE_PA: u32 = 0xC001_0117;
const BU_CFG2: u32 = 0xC001_102A;
const DE_CFG: u32 = 0xC001_1029;

/// IA32_FEATURE_CONTROL: locked, VMX off.
const FEATURE_CONTROL_LOCKED: u64 = 1;
/// The bits of ARCH_CAPABILITIES that are facts about the CPU, not further registers: RDCL_NO,
/// IBRS_ALL, RSBA, SKIP_L1DFL, SSB_NO, MDS_NO, IF_PSCHANGE_MC_NO, TAA_NO,
/// SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, FB_CLEAR, RRSBA, BHI_NO, PBRSB_NO, GDS_NO,
/// RFDS_NO, RFDS_CLEAR, ITS_NO.
const ARCH_CAPABILITIES_SHOWN: u64 =
    0x17F | 7 << 13 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 24 | 7 << 26 | 1 << 62;
/// MISC_ENABLE: fast strings; no branch trace store, no precise sampling.
const MISC_ENABLE_VALUE: u64 = 1 | 1 << 11 | 1 << 12;
/// DEBUG_CTL: LBR and BTF may be asked for; neither is offered.
const DEBUG_CTL_HARMLESS: u64 = 3;
/// HWCR: the TSC counts at the P0 frequency.
const HWCR_TSC_FREQUENCY_SELECT: u64 = 1 << 24;
/// VM_CR: SVM is disabled and that is locked.
const VM_CR_VALUE: u64 = 1 << 4 | 1 << 3;
/// DE_CFG: LFENCE serialises.
const DE_CFG_LFENCE_SERIALIZE: u64 = 1 << 1;

/// How an access ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsrResult {
    /// A read gives this; or this is the new value to load (EFER).
    Value(u64),
    /// A write is done, and there is nothing for the host to do.
    Ignore,
    /// The access gets #GP(0).
    GeneralProtection,
}

use MsrResult::{GeneralProtection, Ignore, Value};

/// Whose registers the guest expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// AuthenticAMD.
    Amd,
    /// GenuineIntel.
    Intel,
}

/// Facts of the machine and the vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor of the physical CPU.
    pub vendor: Vendor,
    /// Physical address bits, from CPUID 0x8000_0008.
    pub physical_bits: u8,
    /// Physical microcode revision (MSR 0x8B), so that kernels judge the CPU rightly.
    pub microcode: u64,
    /// Physical ARCH_CAPABILITIES, where there is one.
    pub arch_capabilities: Option<u64>,
    /// AMD: LFENCE serialises here, because the host set DE_CFG or it always does.
    pub lfence_serializes: bool,
    /// AMD: SVM is offered.
    pub svm: bool,
}

/// One vCPU's emulated registers.
#[derive(Clone, Debug)]
pub struct Msrs {
    identity: Identity,
    mtrrs: Mtrrs,
    /// VM_HSAVE_PA: kept, and never used.
    host_save: u64,
}

impl Msrs {
    /// The registers as firmware leaves them.
    pub fn new(identity: Identity) -> Self {
        Msrs { identity, mtrrs: Mtrrs::new(identity.physical_bits), host_save: 0 }
    }

    /// RDMSR.
    pub fn read(&self, msr: u32) -> MsrResult {
        let vendors = || match self.identity.vendor {
            Vendor::Amd => self.read_amd(msr),
            Vendor::Intel => self.read_intel(msr),
        };
        match msr {
            P5_MC_ADDR | P5_MC_TYPE | MCG_CAP | MCG_STATUS | XSS => Value(0),
            DEBUG_CTL | LAST_BRANCH_FIRST..=LAST_BRANCH_LAST => Value(0),
            PATCH_LEVEL => Value(self.identity.microcode),
            ARCH_CAPABILITIES => match self.identity.arch_capabilities {
                Some(facts) => Value(facts & ARCH_CAPABILITIES_SHOWN),
                None => GeneralProtection,
            },
            _ => self.mtrrs.read(msr).unwrap_or_else(vendors),
        }
    }

    fn read_amd(&self, msr: u32) -> MsrResult {
        match msr {
            SYSCFG | TOP_MEM | TOP_MEM2 | NB_CFG | MMIO_CFG_BASE | SMM_TSEG_ADDR | BU_CFG2 => {
                Value(0)
            }
            LEGACY_COUNTER_FIRST..=LEGACY_COUNTER_LAST => Value(0),
            HWCR => Value(HWCR_TSC_FREQUENCY_SELECT),
            VM_CR if self.identity.svm => Value(0),
            VM_CR => Value(VM_CR_VALUE),
            VM_HSAVE_PA if self.identity.svm => Value(self.host_save),
            DE_CFG if self.identity.lfence_serializes => Value(DE_CFG_LFENCE_SERIALIZE),
            _ => GeneralProtection,
        }
    }

    fn read_intel(&self, msr: u32) -> MsrResult {
        match msr {
            PLATFORM_ID | EBL_CR_POWERON => Value(0),
            FEATURE_CONTROL => Value(FEATURE_CONTROL_LOCKED),
            MISC_ENABLE => Value(MISC_ENABLE_VALUE),
            _ => GeneralProtection,
        }
    }

    /// WRMSR.
    pub fn write(&mut self, msr: u32, value: u64) -> MsrResult {
        let accepted = |yes| if yes { Ignore } else { GeneralProtection };
        match msr {
            P5_MC_ADDR | P5_MC_TYPE | MCG_STATUS | XSS => accepted(value == 0),
            DEBUG_CTL => accepted(value & !DEBUG_CTL_HARMLESS == 0),
            // Written with zero before the revision is read.
            PATCH_LEVEL => accepted(value == 0),
            _ => {
                let vendor = self.identity.vendor;
                self.mtrrs.write(msr, value).unwrap_or_else(|| match (vendor, msr) {
                    (Vendor::Amd, LEGACY_COUNTER_FIRST..=LEGACY_COUNTER_LAST) => Ignore,
                    (Vendor::Amd, SYSCFG | HWCR | NB_CFG | VM_CR | BU_CFG2) => Ignore,
                    (Vendor::Amd, MMIO_CFG_BASE | TOP_MEM | TOP_MEM2) => accepted(value == 0),
                    (Vendor::Amd, DE_CFG) => accepted(self.identity.lfence_serializes),
                    (Vendor::Amd, VM_HSAVE_PA) if self.identity.svm => self.set_host_save(value),
                    (Vendor::Intel, EBL_CR_POWERON | MISC_ENABLE) => Ignore,
                    _ => GeneralProtection,
                })
            }
        }
    }
}

impl Msrs {
    /// #GP for what isn't the address of a page (APM vol. 2, 15.30.4).
    fn set_host_save(&mut self, value: u64) -> MsrResult {
        if value & 0xFFF != 0 || value >> self.identity.physical_bits.min(52) != 0 {
            return GeneralProtection;
        }
        self.host_save = value;
        Ignore
    }
}

#[cfg(test)]
mod tests;
