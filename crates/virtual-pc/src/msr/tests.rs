//! Model-specific registers as Linux uses them, and by a hostile guest.

use super::*;
use crate::cpuid::{CpuidResult, efer_offered};
use proptest::prelude::*;

const IDENTITY: Identity = Identity {
    vendor: Vendor::Amd,
    physical_bits: 40,
    microcode: 0x0100_0065,
    arch_capabilities: Some(u64::MAX),
    lfence_serializes: true,
    svm: false,
};

fn amd() -> Msrs {
    Msrs::new(IDENTITY)
}

fn intel() -> Msrs {
    Msrs::new(Identity { vendor: Vendor::Intel, ..IDENTITY })
}

#[test]
fn capabilities_are_facts_where_the_cpu_tells_any() {
    let mut m = amd();
    let Value(capabilities) = m.read(0x10A) else { panic!("must be readable") };
    for register in [7, 10, 11, 12, 18, 21, 25] {
        assert_eq!(capabilities >> register & 1, 0, "bit {register} would promise a register");
    }
    assert_eq!(capabilities & 1, 1);
    // RDCL_NO to MDS_NO; IF_PSCHANGE_MC_NO; TAA_NO, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO; FB_CLEAR;
    // RRSBA, BHI_NO; PBRSB_NO, GDS_NO, RFDS_NO, RFDS_CLEAR; ITS_NO: by their numbers in SDM vol. 4.
    let shown: Vec<_> = (0..64).filter(|bit| capabilities >> bit & 1 == 1).collect();
    assert_eq!(shown, [0, 1, 2, 3, 4, 5, 6, 8, 13, 14, 15, 17, 19, 20, 24, 26, 27, 28, 62]);
    assert_eq!((m.read(0xBD), m.write(0xBD, 0)), (GeneralProtection, GeneralProtection));
    let none = Msrs::new(Identity { arch_capabilities: None, ..IDENTITY });
    assert_eq!(none.read(0x10A), GeneralProtection);
}

/// Linux 6.12 reads these without a fault handler on AMD, or warns at the value.
#[test]
fn linux_on_amd_finds_nothing_to_complain_of() {
    let m = amd();
    for msr in [0xC001_0010, 0xC001_001A, 0xC001_001D, 0xC001_001F, 0xC001_0058, 0x179, 0x17A] {
        assert_eq!(m.read(msr), Value(0), "{msr:#x}");
    }
    assert_eq!(m.read(0x8B), Value(0x0100_0065));
    assert_eq!(m.read(0xC001_0015), Value(1 << 24), "no \"TSC doesn't count with P0 frequency\"");
    assert_eq!(m.read(0xC001_0114), Value(0x18), "SVM disabled and locked");
    assert_eq!(m.read(0xC001_0117), GeneralProtection);
    assert_eq!(m.read(0xC001_1020), GeneralProtection, "no switch that switches nothing");
    assert_eq!(m.read(0x1A0), GeneralProtection, "Intel's");
}

/// What a register that is there reads at first, and whether 0 and 1 can be written to it; by the
/// numbers of the manuals.
fn there(vendor: Vendor, msr: u32) -> Option<(u64, bool, bool)> {
    let amd = vendor == Vendor::Amd;
    Some(match msr {
        0x0 | 0x1 | 0x17A | 0xDA0 => (0, true, false),
        0x8B => (0x0100_0065, true, false),
        0xFE => (0x508, false, false),
        0x10A => (0x4000_0000_1D1A_E17F, false, false),
        0x179 | 0x1DB..=0x1DE => (0, false, false),
        0x1D9 => (0, true, true),
        // Bases have a type, masks don't.
        0x200..=0x20F => (0, true, msr.is_multiple_of(2)),
        0x259 => (0, true, true),
        0x250 | 0x258 | 0x268..=0x26F => (0x0606_0606_0606_0606, true, true),
        0x2FF => (0xC06, true, true),
        0xC001_0000..=0xC001_0007 | 0xC001_0010 | 0xC001_001F | 0xC001_102A if amd => {
            (0, true, true)
        }
        0xC001_0015 if amd => (1 << 24, true, true),
        0xC001_001A | 0xC001_001D | 0xC001_0058 if amd => (0, true, false),
        0xC001_0112 if amd => (0, false, false),
        0xC001_0114 if amd => (0x18, true, true),
        0xC001_1029 if amd => (2, true, true),
        0x17 if !amd => (0, false, false),
        0x2A if !amd => (0, true, true),
        0x3A if !amd => (1, false, false),
        0x1A0 if !amd => (0x1801, true, true),
        _ => return None,
    })
}

#[test]
fn each_register_is_there_or_faults() {
    let registers = (0..0x1000).chain(0xC000_0000..0xC000_0200).chain(0xC001_0000..0xC001_1100);
    for msr in registers {
        for fresh in [amd, intel] {
            let vendor = fresh().identity.vendor;
            let (read, zero, one) = there(vendor, msr)
                .map_or((GeneralProtection, false, false), |(v, zero, one)| (Value(v), zero, one));
            assert_eq!(fresh().read(msr), read, "{vendor:?} {msr:#x}");
            for (value, taken) in [(0, zero), (1, one)] {
                let written = if taken { Ignore } else { GeneralProtection };
                assert_eq!(fresh().write(msr, value), written, "{vendor:?} {msr:#x} := {value}");
            }
        }
    }
    // LBR and BTF may be asked for, and nothing beside them.
    assert_eq!(
        [3, 4, 7, 1 << 63].map(|v| amd().write(0x1D9, v)),
        [Ignore, GeneralProtection, GeneralProtection, GeneralProtection]
    );
}

#[test]
fn svm_has_its_registers_where_it_is_offered() {
    let mut m = Msrs::new(Identity { svm: true, ..IDENTITY });
    assert_eq!((m.read(0xC001_0114), m.read(0xC001_0117)), (Value(0), Value(0)));
    assert_eq!(m.write(0xC001_0114, 0x18), Ignore);
    assert_eq!(m.read(0xC001_0114), Value(0), "SVM isn't disabled");
    assert_eq!(m.write(0xC001_0117, 0x12_3000), Ignore);
    for wrong in [0x12_3001, 0x12_3800, 1 << 40] {
        assert_eq!(m.write(0xC001_0117, wrong), GeneralProtection, "{wrong:#x}");
    }
    assert_eq!(m.read(0xC001_0117), Value(0x12_3000));
    let mut on_intel = Msrs::new(Identity { svm: true, vendor: Vendor::Intel, ..IDENTITY });
    assert_eq!(on_intel.read(0xC001_0117), GeneralProtection);
    assert_eq!(on_intel.write(0xC001_0117, 0), GeneralProtection);
}

/// Xen 4.17 clears them unguarded while it starts.
#[test]
fn amds_legacy_counters_never_count() {
    let mut m = amd();
    for msr in 0xC001_0000..=0xC001_0007 {
        assert_eq!(m.write(msr, u64::MAX), Ignore, "{msr:#x}");
        assert_eq!(m.read(msr), Value(0), "{msr:#x}");
        assert_eq!(intel().write(msr, 0), GeneralProtection, "{msr:#x}");
        assert_eq!(intel().read(msr), GeneralProtection, "{msr:#x}");
    }
    // Those that CPUID would have to offer, and what stands beside the legacy ones.
    for msr in [0xC000_FFFF, 0xC001_0008, 0xC001_0200] {
        assert_eq!(m.read(msr), GeneralProtection, "{msr:#x}");
        assert_eq!(m.write(msr, 0), GeneralProtection, "{msr:#x}");
    }
}

#[test]
fn linux_on_intel_finds_vmx_locked_off() {
    let mut m = intel();
    assert_eq!((m.read(0x3A), m.read(0x17)), (Value(1), Value(0)));
    assert_eq!((m.write(0x8B, 0), m.write(0x79, 0x1000)), (Ignore, GeneralProtection));
    let Value(enable) = m.read(0x1A0) else { panic!("must be readable") };
    assert_eq!(m.write(0x1A0, enable), Ignore);
    assert_eq!(m.read(0xC001_0015), GeneralProtection);
    assert_eq!(m.read(0x480), GeneralProtection);
}

#[test]
fn a_serialising_lfence_is_claimed_only_where_it_is_one() {
    let mut m = Msrs::new(Identity { lfence_serializes: false, ..IDENTITY });
    assert_eq!(
        (m.read(0xC001_1029), m.write(0xC001_1029, 2)),
        (GeneralProtection, GeneralProtection)
    );
    assert_eq!((amd().read(0xC001_1029), amd().write(0xC001_1029, 2)), (Value(2), Ignore));
}

#[test]
fn what_is_passed_through_or_elsewhere_is_not_here() {
    let (mut a, mut i) = (amd(), intel());
    for msr in
        PASSED_THROUGH.into_iter().chain([0x10, 0x1B, 0x6E0, 0xC000_0080]).chain(0x800..0x900)
    {
        assert_eq!(a.read(msr), GeneralProtection, "{msr:#x}");
        assert_eq!(a.write(msr, 0), GeneralProtection, "{msr:#x}");
        assert_eq!((i.read(msr), i.write(msr, 0)), (GeneralProtection, GeneralProtection));
    }
}

#[test]
fn efer_takes_what_is_offered() {
    let leaf_1 =
        CpuidResult { edx: 1 << 20 | 1 << 29 | 1 << 25, ecx: u32::MAX, ..Default::default() };
    let offered = efer_offered(leaf_1, CpuidResult::default());
    assert_eq!(offered, 0x4901);
    assert_eq!(write_efer(0, 0x901, offered, false), Value(0x901));
    assert_eq!(write_efer(0xD01, 0x501, offered, true), Value(0x501));
    assert_eq!(write_efer(0xD01, 0x901, offered, true), Value(0xD01), "LMA isn't the guest's");
    assert_eq!(write_efer(0xD01, 0xC01, offered, true), GeneralProtection, "LME under paging");
    assert_eq!(write_efer(0, 0x1000, offered, false), GeneralProtection, "SVME");
    assert_eq!(write_efer(0, 0x20_0000, offered, false), GeneralProtection, "automatic IBRS");
    let automatic = CpuidResult { eax: 1 << 8, ..Default::default() };
    assert_eq!(efer_offered(CpuidResult::default(), automatic), 0x20_0101);
}

proptest! {
    #[test]
    fn what_cannot_be_read_cannot_be_written(
        msr in prop_oneof![0u32..0x2000, 0xC000_0000u32..0xC000_2000, 0xC001_0000u32..0xC001_2000, any::<u32>()],
        value: u64,
    ) {
        for mut m in [amd(), intel()] {
            let before = m.read(msr);
            let written = m.write(msr, value);
            prop_assert!(!matches!(written, Value(_)));
            if before == GeneralProtection {
                prop_assert_eq!(written, GeneralProtection);
            }
        }
    }

    #[test]
    fn efer_never_gains_a_bit_that_is_not_offered(current: u64, value: u64, paging: bool) {
        let offered = 0x901;
        for value in [value, value & offered] {
            if let Value(new) = write_efer(current & 0xD01, value, offered, paging) {
                prop_assert_eq!(new & !(offered | EFER_LMA), 0);
                prop_assert_eq!((new ^ current) & EFER_LMA, 0);
                prop_assert!(!paging || (new ^ current) & EFER_LME == 0);
            }
        }
    }
}
