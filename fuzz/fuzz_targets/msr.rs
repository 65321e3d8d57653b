//! Emulated MSRs and EFER: a refused write changes nothing, an accepted one changes its own
//! register at most, what can't be read can't be written, and EFER keeps to what is offered.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::cpuid::{CpuidResult, efer_offered};
use virtual_pc::msr::{
    EFER_LMA, EFER_LME, Identity, MsrResult, Msrs, PASSED_THROUGH, Vendor, write_efer,
};

#[derive(Arbitrary, Debug)]
struct Input {
    intel: bool,
    physical_bits: u8,
    microcode: u64,
    arch_capabilities: Option<u64>,
    lfence_serializes: bool,
    svm: bool,
    accesses: Vec<(Place, u64)>,
    efer: (u32, u32, u32, Vec<(u64, bool)>),
}

#[derive(Arbitrary, Debug)]
enum Place {
    Low(u16),
    High(u16),
    Any(u32),
}

/// Every register that exists, of the ranges that registers are in.
fn all(msrs: &Msrs) -> Vec<(u32, MsrResult)> {
    let ranges =
        (0..0x300).chain([0xDA0]).chain(0xC001_0000..0xC001_0120).chain(0xC001_1020..0xC001_1030);
    ranges.map(|msr| (msr, msrs.read(msr))).collect()
}

fuzz_target!(|input: Input| {
    let mut msrs = Msrs::new(Identity {
        vendor: if input.intel { Vendor::Intel } else { Vendor::Amd },
        physical_bits: input.physical_bits,
        microcode: input.microcode,
        arch_capabilities: input.arch_capabilities,
        lfence_serializes: input.lfence_serializes,
        svm: input.svm,
    });
    let mut before = all(&msrs);
    for (place, value) in input.accesses {
        let msr = match place {
            Place::Low(low) => u32::from(low) % 0x2000,
            Place::High(low) => 0xC001_0000 | u32::from(low) % 0x2000,
            Place::Any(msr) => msr,
        };
        let old = msrs.read(msr);
        let result = msrs.write(msr, value);
        let after = all(&msrs);
        let changed = before.iter().zip(&after).filter(|(old, new)| old != new);
        let changed: Vec<u32> = changed.map(|(old, _)| old.0).collect();
        before = after;
        match result {
            MsrResult::Ignore => {
                assert_ne!(old, MsrResult::GeneralProtection, "{msr:#x}");
                assert!(changed.iter().all(|other| *other == msr), "{changed:x?}");
                assert!(changed.is_empty() || msrs.read(msr) == MsrResult::Value(value));
            }
            MsrResult::GeneralProtection => assert!(changed.is_empty(), "{changed:x?}"),
            MsrResult::Value(_) => panic!("a write gives no value"),
        }
        assert!(!PASSED_THROUGH.contains(&msr) || result == MsrResult::GeneralProtection);
    }

    let (ecx, edx, leaf_21, writes) = input.efer;
    let leaf_1 = CpuidResult { ecx, edx, ..CpuidResult::default() };
    let offered = efer_offered(leaf_1, CpuidResult { eax: leaf_21, ..CpuidResult::default() });
    assert_eq!(offered & (1 << 12 | EFER_LMA), 0, "SVM is never offered");
    let mut efer = 0;
    for (value, paging) in writes {
        if let MsrResult::Value(new) = write_efer(efer, value, offered, paging) {
            assert_eq!(new & !offered, 0);
            assert!(!paging || (new ^ efer) & EFER_LME == 0);
            efer = new;
        }
    }
});
