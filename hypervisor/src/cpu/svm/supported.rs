//! Whether the CPU has all of SVM that is needed, and what it has besides.

use crate::cpu::msr;
use raw_cpuid::native_cpuid::cpuid_count;
use svm::Features;

const VM_CR: u32 = 0xC001_0114;
const VM_CR_SVMDIS: u64 = 1 << 4;

/// The features of this CPU's SVM.
pub fn features() -> Features {
    let signature = cpuid_count(1, 0).ecx >> 31 != 0;
    let signature = signature.then(|| cpuid_count(0x4000_0000, 0)).map(|s| [s.ebx, s.ecx, s.edx]);
    Features::new(cpuid_count(0x8000_000A, 0).edx, signature)
}

/// Has firmware locked this core's SVM off?
pub fn locked_off() -> bool {
    // SAFETY: VM_CR exists on every CPU with SVM.
    unsafe { msr::read(VM_CR) & VM_CR_SVMDIS != 0 }
}

/// Checks that the CPU has all that is needed; the error is the sentence that names what is
/// missing.
pub fn supported() -> Result<(), &'static str> {
    let features = features();
    if !features.nested_paging {
        return Err(
            "the CPU's SVM has no nested paging: CPUID 8000_000A EDX bit 0 is clear; Exitless needs it",
        );
    }
    if locked_off() {
        return Err(
            "SVM is disabled by the firmware (VM_CR.SVMDIS is set): enable virtualisation in its setup",
        );
    }
    if features.emulated {
        log::info!("the CPU is QEMU's own: what its SVM gets wrong is worked around");
    }
    Ok(())
}
