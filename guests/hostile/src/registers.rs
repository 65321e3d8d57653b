//! Model-specific registers, with every value.

use core::ops::RangeInclusive;
use machine::{
    boot::Boot,
    counters::{Policy, policy},
    cpu,
    cpu::MSRS,
    random::Random,
    x2apic,
};

const SEED: u64 = 0x3579_0001;
const X2APIC: RangeInclusive<u32> = 0x800..=0x8FF;
const EFER: u32 = 0xC000_0080;
const PAT: u32 = 0x277;
const TSC: u32 = 0x10;
const TSC_ADJUST: u32 = 0x3B;
const TSC_DEADLINE: u32 = 0x6E0;

/// Every one but the local APIC's, read and written with a random value.
pub fn all(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for msr in MSRS.into_iter().flatten().filter(|m| !X2APIC.contains(m)) {
        let _ = cpu::try_rdmsr(msr);
        let _ = cpu::try_wrmsr(msr, random.number());
    }
}

/// EFER, bit by bit, and long mode switched off under its feet.
pub fn efer(_: &str, _: &Boot) {
    let home = cpu::rdmsr(EFER);
    for bit in 0..64 {
        let _ = cpu::try_wrmsr(EFER, home ^ 1 << bit);
        let _ = cpu::try_wrmsr(EFER, home);
    }
}

/// SVM's own: the host-save area, VM_CR, the key, and VMX's.
pub fn virtualization(_: &str, _: &Boot) {
    for msr in (0xC001_0114..=0xC001_011B).chain(0x480..=0x4A0).chain([0x3A]) {
        for value in [0, 1, 5, 0x10_0000, 0xFED9_0000, !0] {
            let _ = cpu::try_rdmsr(msr);
            let _ = cpu::try_wrmsr(msr, value);
        }
    }
}

/// Machine-check banks, and errors written into them.
pub fn machine_check(_: &str, _: &Boot) {
    let banks = (0x179..=0x17B).chain(0x280..=0x29F).chain(0x400..=0x47F);
    for msr in banks.chain(0xC000_2000..=0xC000_20FF).chain([0xC001_0015]) {
        for value in [0, 1 << 63 | 1 << 61, !0] {
            let _ = cpu::try_rdmsr(msr);
            let _ = cpu::try_wrmsr(msr, value);
        }
    }
}

/// The time-stamp counter and what hangs on it. It is put back to go on.
pub fn time(_: &str, _: &Boot) {
    let start = cpu::tsc();
    for value in [0, 1, !0, 1 << 63, start] {
        for msr in [TSC, TSC_ADJUST, TSC_DEADLINE] {
            let _ = cpu::try_wrmsr(msr, value);
        }
    }
}

/// Memory types, and what PAT may not hold; microcode, SMM, power and performance.
pub fn platform(_: &str, _: &Boot) {
    let pat = cpu::rdmsr(PAT);
    let sets = [0x79, 0x8B, 0x9E, 0x34, 0x198, 0x199, 0x19A, 0x19B, 0x1A0, 0x1A2, 0x2FF, PAT];
    let amd =
        [0xC001_0020, 0xC001_0056, 0xC001_0061, 0xC001_0062, 0xC001_0111, 0xC001_0112, 0xC001_0113];
    for msr in sets.into_iter().chain(0x200..=0x20F).chain(0x250..=0x26F).chain(amd) {
        for value in [0, 1, 0x0202_0202_0202_0202, 0x0606_0606_0606_0606, !0] {
            let _ = cpu::try_wrmsr(msr, value);
        }
    }
    let _ = cpu::try_wrmsr(PAT, pat);
}

/// Registers that are open to it, thousands of times.
pub fn storm(_: &str, _: &Boot) {
    for i in 0..20_000u64 {
        cpu::wrmsr(0xC000_0102, i);
        let _ = cpu::rdmsr(x2apic::TPR);
        if policy() == Policy::Direct {
            let _ = cpu::rdmsr(0x839);
        }
    }
}
