//! Features the hypervisor needs of every CPU, and the control registers.
//!
//! Guarantees: only bits that CPUID shows are set; what is missing and needed
//! is refused in one sentence. EFER.SVME is the virtualization code's.

use super::msr;
use crate::refusal::refuse;
use raw_cpuid::{CpuId, CpuIdReaderNative};
use vendor::PAT_AT_RESET;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};

/// No-execute enable.
const NXE: u64 = 1 << 11;

/// This CPU's CPUID.
pub fn cpuid() -> CpuId<CpuIdReaderNative> {
    CpuId::new()
}

/// This core's APIC id, by CPUID: works before the APIC is in x2APIC mode, and without GS.
pub fn apic_id() -> u32 {
    let id = cpuid();
    let extended = id.get_extended_topology_info().and_then(|mut levels| levels.next());
    extended.map_or_else(
        || id.get_feature_info().map_or(0, |f| u32::from(f.initial_local_apic_id())),
        |level| level.x2apic_id(),
    )
}

/// Refuses a CPU without what the host itself needs.
pub fn check() {
    let id = cpuid();
    let basic = id.get_feature_info();
    let extended = id.get_extended_processor_and_feature_identifiers();
    let needs = [
        ("x2APIC", "CPUID 1 ECX[21]", basic.as_ref().is_some_and(|f| f.has_x2apic())),
        ("XSAVE", "CPUID 1 ECX[26]", basic.as_ref().is_some_and(|f| f.has_xsave())),
        (
            "no-execute pages",
            "CPUID 80000001h EDX[20]",
            extended.as_ref().is_some_and(|f| f.has_execute_disable()),
        ),
        (
            "1 GiB pages",
            "CPUID 80000001h EDX[26]",
            extended.as_ref().is_some_and(|f| f.has_1gib_pages()),
        ),
    ];
    for (name, place, there) in needs {
        if !there {
            refuse(format_args!(
                "this CPU doesn't have {name} ({place}), which the hypervisor needs"
            ));
        }
    }
}

/// Sets CR0, CR4, EFER.NXE and the PAT of the core this runs on, and empties IA32_XSS: what ran
/// before may have left supervisor states in it, which a guest's XSAVES and XRSTORS would reach
/// (user shadow stacks, traces that the CPU writes to memory), and nobody switches them.
pub fn setup() {
    let id = cpuid();
    let supervisor_states =
        id.get_extended_state_info().is_some_and(|states| states.has_xsaves_xrstors());
    let basic = id.get_feature_info();
    let structured = id.get_extended_feature_info();
    let mut cr4 = Cr4Flags::PHYSICAL_ADDRESS_EXTENSION | Cr4Flags::OSXSAVE;
    for (flag, there) in [
        (Cr4Flags::MACHINE_CHECK_EXCEPTION, basic.as_ref().is_some_and(|f| f.has_mce())),
        (Cr4Flags::OSFXSR, basic.as_ref().is_some_and(|f| f.has_fxsave_fxstor())),
        (
            Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION,
            structured.as_ref().is_some_and(|f| f.has_umip()),
        ),
        (
            Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION,
            structured.as_ref().is_some_and(|f| f.has_smep()),
        ),
        (
            Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION,
            structured.as_ref().is_some_and(|f| f.has_smap()),
        ),
    ] {
        cr4.set(flag, there);
    }
    let cr0 = Cr0Flags::PAGING
        | Cr0Flags::WRITE_PROTECT
        | Cr0Flags::NUMERIC_ERROR
        | Cr0Flags::EXTENSION_TYPE
        | Cr0Flags::MONITOR_COPROCESSOR
        | Cr0Flags::PROTECTED_MODE_ENABLE;
    // SAFETY: paging and long mode stay as they are; no page has the user bit, so SMEP and SMAP
    // change nothing that runs; `check` found NX; the PAT's value is the one at reset; a CPU with
    // XSAVES has IA32_XSS.
    unsafe {
        Cr0::write_raw(cr0.bits());
        Cr4::write_raw(cr4.bits());
        msr::write(msr::EFER, msr::read(msr::EFER) | NXE);
        msr::write(msr::PAT, PAT_AT_RESET);
        if supervisor_states {
            msr::write(msr::XSS, 0);
        }
    }
}

/// XCR0, as a guest left it, low half first.
#[inline]
pub fn xcr0() -> (u32, u32) {
    let (low, high): (u32, u32);
    // SAFETY: CR4.OSXSAVE is set by `setup`.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem))
    }
    (low, high)
}

/// Sets XCR0 for the guest on this core; the host uses no extended state.
#[inline]
pub fn set_xcr0((low, high): (u32, u32)) {
    // SAFETY: CR4.OSXSAVE is set by `setup`, and the caller checked the value against CPUID 0xD;
    // the host's code is built without FPU and SSE.
    unsafe {
        core::arch::asm!("xsetbv", in("ecx") 0, in("eax") low, in("edx") high, options(nostack, nomem))
    }
}
