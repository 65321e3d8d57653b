//! What guests are told of this machine by registers.

use crate::cpu;
use crate::vm::exits::cpuid::physical_cpuid;
use virtual_pc::msr::{Identity, Vendor};

/// Facts of this machine that its guests are told.
pub fn identity(svm: bool) -> Identity {
    let id = raw_cpuid::CpuId::new();
    let intel = id.get_vendor_info().is_some_and(|v| v.as_str() == "GenuineIntel");
    Identity {
        vendor: if intel { Vendor::Intel } else { Vendor::Amd },
        physical_bits: physical_cpuid(0x8000_0008, 0).eax as u8,
        microcode: 0,
        arch_capabilities: arch_capabilities(),
        lfence_serializes: false,
        svm,
    }
}

/// ARCH_CAPABILITIES of the CPU, if it has it.
fn arch_capabilities() -> Option<u64> {
    const ARCH_CAPABILITIES: u32 = 0x10A;
    let told = physical_cpuid(0, 0).eax >= 7 && physical_cpuid(7, 0).edx >> 29 & 1 != 0;
    // SAFETY: CPUID says that the register exists (SDM vol. 2, CPUID leaf 7); reading changes
    // nothing.
    told.then(|| unsafe { cpu::msr::read(ARCH_CAPABILITIES) })
}
