//! Whether the CPU has all of VMX that is needed, and what it has besides.

use crate::cpu::msr;
use alloc::string::{String, ToString};
use raw_cpuid::native_cpuid::cpuid_count;
use spin::Once;
use vmx::{Capabilities, Controls, FeatureControl, Locked};

static FOUND: Once<(Capabilities, Controls)> = Once::new();

/// Has firmware locked this core's VMX off?
pub fn locked_off() -> bool {
    feature_control().is_err()
}

fn feature_control() -> Result<FeatureControl, Locked> {
    // SAFETY: the register exists on every CPU with VMX.
    FeatureControl::of(unsafe { msr::read(FeatureControl::MSR) })
}

/// Checks that the CPU has all that is needed; the error is the sentence that names what is
/// missing.
pub fn supported() -> Result<(), String> {
    feature_control().map_err(|locked| locked.to_string())?;
    let bits = cpuid_count(0x8000_0008, 0).eax & 0xFF;
    // SAFETY: it asks for registers that the CPU has by those it has read before.
    let capabilities = Capabilities::read(bits, |register| unsafe { msr::read(register) });
    let controls = Controls::fit(&capabilities).map_err(|lack| lack.to_string())?;
    FOUND.call_once(|| (capabilities, controls));
    Ok(())
}

/// Has it all of posted mode? The error is the sentence that names what is missing; none before
/// [`supported`].
pub fn posts() -> Result<(), String> {
    found()
        .map_or(Ok(()), |(capabilities, _)| capabilities.posts())
        .map_err(|lack| lack.to_string())
}

/// What is known to be wrong with the CPU, a sentence each.
pub fn errata() -> impl Iterator<Item = &'static str> {
    let has = cpuid_count(0, 0).eax >= 7 && cpuid_count(7, 0).edx & 1 << 29 != 0;
    // SAFETY: CPUID says that the register is there.
    let capabilities = has.then(|| unsafe { msr::read(vmx::ARCH_CAPABILITIES) });
    vmx::errata(cpuid_count(1, 0).eax, capabilities)
}

/// What the CPU's VMX can, and the controls of a guest that fit it; none before [`supported`].
pub fn found() -> Option<&'static (Capabilities, Controls)> {
    FOUND.get()
}
