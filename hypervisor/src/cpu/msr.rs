//! Model-specific registers of the host.

use core::arch::asm;
use x86_64::registers::model_specific::Msr;

pub const APIC_BASE: u32 = 0x1B;
pub const PAT: u32 = 0x277;
pub const XSS: u32 = 0xDA0;
pub const EFER: u32 = 0xC000_0080;
pub const GS_BASE: u32 = 0xC000_0101;

/// RDMSR.
///
/// # Safety
/// The register exists.
pub unsafe fn read(register: u32) -> u64 {
    // SAFETY: our caller knows that the register exists.
    unsafe { Msr::new(register).read() }
}

/// RDMSR, low half first: for values that are kept and written back.
///
/// # Safety
/// As [`read`].
#[inline]
pub unsafe fn read_halves(register: u32) -> (u32, u32) {
    let (low, high): (u32, u32);
    // SAFETY: our caller knows that the register exists.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack, nomem));
    }
    (low, high)
}

/// WRMSR of what [`read_halves`] gave.
///
/// # Safety
/// As [`write()`].
#[inline]
pub unsafe fn write_halves(register: u32, (low, high): (u32, u32)) {
    // SAFETY: our caller knows that the register takes the value, and what changes by it.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack));
    }
}

/// WRMSR.
///
/// # Safety
/// The register exists, takes the value, and the change leaves this program's memory as it is.
pub unsafe fn write(register: u32, value: u64) {
    // SAFETY: our caller knows that the register takes the value, and what changes by it.
    unsafe { Msr::new(register).write(value) }
}
