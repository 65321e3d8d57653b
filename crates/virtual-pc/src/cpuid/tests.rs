//! The CPUID policy: what must be hidden, what must be shown, what must agree.

use super::*;
use proptest::prelude::*;

const ALL: CpuidResult = CpuidResult { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX };
const NONE: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
const VCPU: CpuidContext = CpuidContext {
    apic_id: 2,
    cpus: 3,
    apic: true,
    osxsave: true,
    pke: false,
    max_basic: 0x20,
    max_extended: 0x8000_0026,
    ledger_page: 0x12_FED4_2000,
    svm: None,
};

fn all(leaf: u32, subleaf: u32) -> CpuidResult {
    filter(leaf, subleaf, ALL, &VCPU)
}

#[test]
fn a_cpu_that_has_everything_shows_nothing_forbidden() {
    let one = all(1, 0);
    for (name, bit) in [
        ("DTES64", 2),
        ("MONITOR", 3),
        ("VMX", 5),
        ("SMX", 6),
        ("EIST", 7),
        ("PDCM", 15),
        ("TSC_DEADLINE", 24),
    ] {
        assert_eq!(one.ecx >> bit & 1, 0, "{name}");
    }
    assert_eq!(one.edx & (1 << 21 | 1 << 22 | 1 << 29), 0, "DS, ACPI, TM");
    let seven = all(7, 0);
    assert_eq!(
        seven.ebx & (1 << 1 | 1 << 2 | 1 << 4 | 1 << 11 | 1 << 25),
        0,
        "TSC_ADJUST SGX TSX PT"
    );
    assert_eq!(seven.ecx & (1 << 5 | 1 << 7 | 1 << 16 | 1 << 23 | 1 << 29 | 1 << 31), 0);
    assert_eq!(seven.edx & (1 << 5 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 24 | 1 << 25 | 1 << 30), 0);
    assert_eq!(all(7, 1).eax & (1 << 17 | 1 << 18 | 1 << 19 | 1 << 26), 0, "FRED LKGS WRMSRNS LAM");
    assert_eq!(all(7, 1).edx & (1 << 17 | 1 << 19 | 1 << 21), 0, "UIRET AVX10 APX");
    let extended = all(0x8000_0001, 0);
    for (name, bit) in
        [("SVM", 2), ("EXTAPIC", 3), ("IBS", 10), ("SKINIT", 12), ("PERFCTR", 23), ("MWAITX", 29)]
    {
        assert_eq!(extended.ecx >> bit & 1, 0, "{name}");
    }
    for leaf in [
        3,
        5,
        8,
        9,
        0xA,
        0xF,
        0x10,
        0x12,
        0x14,
        0x17,
        0x19,
        0x1A,
        0x1C,
        0x1D,
        0x1E,
        0x20,
        0x8000_000A,
        0x8000_001B,
        0x8000_001C,
        0x8000_001F,
        0x8000_0020,
        0x8000_0022,
        0x8000_0026,
        0x4000_0002,
        0xC000_0001,
        0x1000_0000,
        u32::MAX,
    ] {
        assert_eq!(all(leaf, 0), NONE, "{leaf:#x}");
    }
    assert_eq!(all(0x8000_0008, 0).ebx & (1 << 1 | 1 << 3 | 1 << 4 | 1 << 23 | 1 << 25), 0);
}

/// On a CPU that has everything, leaf by leaf: the lists of bits as numbers.
#[test]
fn a_cpu_that_has_everything_shows_just_this() {
    let registers = |leaf, subleaf| {
        let CpuidResult { eax, ebx, ecx, edx } = all(leaf, subleaf);
        [eax, ebx, ecx, edx]
    };
    const ONES: u32 = u32::MAX;
    for (leaf, subleaf, shown) in [
        (1, 0, [ONES, 0x0203_FF00, 0xFEFA_3203, 0x1F8B_FBFF]),
        (2, 0, [ONES; 4]),
        (4, 0, [0x0800_BFFF, ONES, ONES, ONES]),
        (6, 0, [1 << 2, 0, 0, 0]),
        (7, 0, [2, 0xFDBF_27E9, 0x1A40_5F4F, 0xBC80_451C]),
        (7, 1, [0x0080_1CB7, 0, 0, 0x4430]),
        (7, 2, [0, 0, 0, 0x3F]),
        (7, 3, [0; 4]),
        (0x15, 0, [ONES; 4]),
        (0x16, 0, [ONES; 4]),
        (0x8000_0001, 0, [ONES, ONES, 0x0061_09F3, 0xEFD3_FBFF]),
        (0x8000_0002, 0, [ONES; 4]),
        (0x8000_0006, 0, [ONES; 4]),
        (0x8000_0008, 0, [48 << 8 | 0xFF, 0x751F_D205, 2 << 12 | 2, 0]),
        (0x8000_0019, 0, [ONES; 4]),
        (0x8000_001A, 0, [ONES; 4]),
        (0x8000_001D, 0, [0x0000_BFFF, ONES, ONES, ONES]),
        (0x8000_0021, 0, [0x7800_0D45, 0, 0, 0]),
    ] {
        assert_eq!(registers(leaf, subleaf), shown, "{leaf:#x}.{subleaf}");
    }
    // Where there are others, legacy multi-core is shown; where there are none, it isn't.
    for (cpus, shown) in [(0, 0), (1, 0), (2, 2), (3, 2)] {
        let vcpu = CpuidContext { cpus, ..VCPU };
        assert_eq!(filter(0x8000_0001, 0, ALL, &vcpu).ecx & 2, shown);
    }
}

#[test]
fn what_the_machine_model_promises_is_shown_on_any_cpu() {
    let with = |leaf| filter(leaf, 0, NONE, &VCPU);
    assert_eq!(with(1).ecx, 1 << 21 | 1 << 31, "x2APIC, hypervisor, and nothing invented");
    let name = with(0x4000_0000);
    let bytes: Vec<u8> =
        [name.ebx, name.ecx, name.edx].iter().flat_map(|r| r.to_le_bytes()).collect();
    assert_eq!((name.eax, &bytes[..]), (0x4000_0001, &b"ExitlessHypV"[..]));
    let kvm = with(0x4000_0100);
    let bytes: Vec<u8> = [kvm.ebx, kvm.ecx, kvm.edx].iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!((kvm.eax, &bytes[..]), (0x4000_0101, &b"KVMKVMKVM\0\0\0"[..]));
    assert_eq!(with(0x4000_0101), NONE, "none of KVM's features is offered");
    let ledger = with(0x4000_0001);
    assert_eq!((ledger.eax, ledger.ebx, ledger.ecx, ledger.edx), (0xFED4_2000, 0x12, 1, 2));
}

#[test]
fn a_disabled_local_apic_is_not_shown() {
    let off = CpuidContext { apic: false, ..VCPU };
    for (leaf, physical) in [(1, ALL), (1, NONE), (0x8000_0001, ALL), (0x8000_0001, NONE)] {
        let [with, without] = [VCPU, off].map(|vcpu| filter(leaf, 0, physical, &vcpu));
        assert_eq!(without.edx >> 9 & 1, 0);
        assert_eq!(without, CpuidResult { edx: with.edx & !(1 << 9), ..with }, "nothing else");
        assert_eq!(with.edx >> 9 & 1, u32::from(leaf == 1 || physical == ALL));
    }
}

#[test]
fn topology_agrees_on_three_single_threaded_cores() {
    assert_eq!(all(1, 0).ebx >> 16, 0x0203);
    assert_ne!(all(1, 0).edx & 1 << 28, 0);
    for leaf in [0xB, 0x1F] {
        assert_eq!(all(leaf, 0), CpuidResult { eax: 0, ebx: 1, ecx: 0x100, edx: 2 });
        assert_eq!(all(leaf, 1), CpuidResult { eax: 2, ebx: 3, ecx: 0x201, edx: 2 });
        assert_eq!(all(leaf, 2), CpuidResult { eax: 0, ebx: 0, ecx: 2, edx: 2 });
    }
    assert_eq!(all(0x8000_0008, 0).ecx, 2 << 12 | 2);
    assert_eq!(all(0x8000_001E, 0), CpuidResult { eax: 2, ebx: 2, ecx: 0, edx: 0 });
    let l2 = CpuidResult { eax: 0xFFFF_C043, ..NONE };
    assert_eq!(filter(4, 2, l2, &VCPU).eax, 2 << 26 | 0x43, "a level 2 cache is private");
    let l3 = CpuidResult { eax: 0xFFFF_C063, ..NONE };
    assert_eq!(filter(0x8000_001D, 3, l3, &VCPU).eax, 2 << 14 | 0x63, "level 3 is shared");
    assert_eq!(filter(4, 9, NONE, &VCPU), NONE);
    let alone = CpuidContext { apic_id: 0, cpus: 0, ..VCPU };
    assert_eq!(filter(0xB, 1, ALL, &alone), CpuidResult { eax: 0, ebx: 1, ecx: 0x201, edx: 0 });
    assert_eq!(filter(1, 0, ALL, &alone).edx & 1 << 28, 0);
}

/// Leaf 4, EAX: the type in bits 4:0 (none: 0), the level in 7:5.
#[test]
fn caches_beyond_level_2_are_shared_by_all_and_others_by_nobody() {
    for kind in 0..4 {
        for level in 0..6 {
            let eax = level << 5 | kind;
            let physical = CpuidResult { eax: 0xFFFF_C000 | eax, ..NONE };
            let shared = if kind != 0 && level > 2 { 2 << 14 } else { 0 };
            let cores = if kind != 0 { 2 << 26 } else { 0 };
            let shown = |leaf| filter(leaf, 0, physical, &VCPU).eax;
            assert_eq!(shown(4), eax | shared | cores, "type {kind}, level {level}");
            assert_eq!(shown(0x8000_001D), eax | shared, "type {kind}, level {level}");
        }
    }
}

#[test]
fn linear_addresses_are_as_wide_as_the_cpus_and_four_levels() {
    for (physical, shown) in
        [(0x3028, 0x3028), (0x3934, 0x3034), (0x2024, 0x2024), (0x0030_3028, 0x3028)]
    {
        let physical = CpuidResult { eax: physical, ..NONE };
        assert_eq!(filter(0x8000_0008, 0, physical, &VCPU).eax, shown);
    }
}

#[test]
fn os_bits_follow_the_guests_cr4() {
    assert_ne!(all(1, 0).ecx & 1 << 27, 0);
    let off = CpuidContext { osxsave: false, pke: true, ..VCPU };
    assert_eq!(filter(1, 0, ALL, &off).ecx & 1 << 27, 0);
    assert_eq!((all(7, 0).ecx >> 4 & 1, filter(7, 0, ALL, &off).ecx >> 4 & 1), (0, 1));
}

#[test]
fn extended_state_is_user_state_only() {
    let zero = all(0xD, 0);
    assert_eq!((zero.eax, zero.edx), (0x2E7, 0));
    assert_eq!(all(0xD, 1), CpuidResult { eax: 0xF, ebx: u32::MAX, ecx: 0, edx: 0 });
    let shown: Vec<u32> = (2..70).filter(|s| all(0xD, *s) != NONE).collect();
    assert_eq!(shown, [2, 5, 6, 7, 9]);
    for (value, allowed) in [
        (0, false),
        (1, true),
        (2, false),
        (3, true),
        (5, false),
        (7, true),
        (0x27, false),
        (0xE7, true),
        (0xE3, false),
        (0x207, true),
        (0x1F, false),
        (1 << 63 | 1, false),
    ] {
        assert_eq!(xcr0_allowed(value, u64::MAX), allowed, "{value:#x}");
    }
    assert!(!xcr0_allowed(7, 3), "not on this CPU");
}

#[test]
fn leaves_beyond_the_highest_are_zero_but_the_topology_is_there() {
    let old = CpuidContext { max_basic: 6, max_extended: 0x8000_0004, ..VCPU };
    for leaf in [7, 0xD, 0x15, 0x1F, 0x8000_0008] {
        assert_eq!(filter(leaf, 0, ALL, &old), NONE, "{leaf:#x}");
    }
    for leaf in [6, 0x8000_0004] {
        assert_ne!(filter(leaf, 0, ALL, &old), NONE, "{leaf:#x} is the highest itself");
    }
    assert_eq!(filter(0, 0, CpuidResult { eax: 6, ..NONE }, &old).eax, 0xB);
    assert_eq!(filter(0xB, 1, NONE, &old).ebx, 3);
    assert_eq!((all(0, 0).eax, all(0x8000_0000, 0).eax), (0x1F, 0x8000_0021));
    assert_eq!(all(0x8000_0008, 0).eax, 48 << 8 | 0xFF, "no five-level paging");
}

proptest! {
    #[test]
    fn a_feature_the_cpu_lacks_is_never_invented(
        r in any::<[u32; 4]>(), leaf in prop::sample::select(vec![1u32, 7, 0x8000_0001, 0x8000_0021]), osxsave: bool, pke: bool,
    ) {
        let [eax, ebx, ecx, edx] = r;
        let vcpu = CpuidContext { osxsave, pke, ..VCPU };
        let shown = filter(leaf, 0, CpuidResult { eax, ebx, ecx, edx }, &vcpu);
        let (made_c, made_d) = match leaf {
            1 => (1 << 21 | 1 << 27 | 1 << 31, 1 << 9 | 1 << 28),
            7 => (1 << 4, 0),
            _ => (0, 0),
        };
        prop_assert_eq!(shown.ecx & !ecx & !made_c, 0);
        prop_assert_eq!(shown.edx & !edx & !made_d, 0);
        prop_assert!(leaf != 1 || shown.ecx >> 27 & 1 == u32::from(osxsave) & ecx >> 26);
        prop_assert!(leaf == 1 || shown.ebx & !ebx == 0);
    }

    #[test]
    fn any_leaf_on_any_cpu_is_answered(leaf: u32, subleaf: u32, apic_id: u32, cpus: u32, max: u32) {
        let vcpu = CpuidContext { apic_id, cpus, max_basic: max, max_extended: max, ..VCPU };
        for leaf in [leaf, leaf & 0x3F, 0x8000_0000 | leaf & 0x3F, 0x4000_0000 | leaf & 3] {
            let shown = filter(leaf, subleaf, ALL, &vcpu);
            prop_assert!(leaf <= max || leaf <= 0x4000_0001 || leaf == 0x4000_0100 || shown == NONE);
        }
        let cores = filter(0xB, 1, ALL, &vcpu);
        prop_assert!(cores.eax < 16 && (cores.ebx - 1) >> cores.eax == 0);
        prop_assert_eq!(filter(0x8000_0008, 0, ALL, &CpuidContext { max_extended: u32::MAX, ..vcpu }).ecx >> 16, 0);
    }
}

#[test]
fn svm_is_shown_as_it_is_offered_and_else_not_at_all() {
    static LEAF: CpuidResult = CpuidResult { eax: 1, ebx: 64, ecx: 0, edx: 1 };
    let nesting = CpuidContext { svm: Some(&LEAF), ..VCPU };
    let bit = |physical, vcpu| filter(0x8000_0001, 0, physical, vcpu).ecx >> 2 & 1;
    assert_eq!((bit(ALL, &VCPU), bit(ALL, &nesting), bit(NONE, &nesting)), (0, 1, 0));
    assert_eq!(all(0x8000_000A, 0), NONE);
    assert_eq!(filter(0x8000_000A, 0, ALL, &nesting), LEAF);
}

#[test]
fn cr4_is_offered_by_what_is_shown() {
    let shown = |leaf| all(leaf, 0);
    assert_eq!(cr4_offered(NONE, NONE), 1 << 8);
    assert_eq!(cr4_offered(shown(1), shown(7)), 0x77_0FFF, "neither VMXE, SMXE, LA57 nor CET");
    let pae = CpuidResult { edx: 1 << 6, ..NONE };
    let smep = CpuidResult { ebx: 1 << 7, ..NONE };
    assert_eq!(cr4_offered(pae, smep), 1 << 5 | 1 << 8 | 1 << 20);
}

#[test]
fn of_power_management_the_invariant_tsc_alone_is_shown() {
    assert_eq!(all(0x8000_0007, 0), CpuidResult { edx: 1 << 8, ..NONE });
    assert_eq!(filter(0x8000_0007, 0, NONE, &VCPU), NONE, "where the CPU has it");
}

#[test]
fn ids_and_counts_fill_their_fields_whatever_the_cpu_has() {
    let vcpu = CpuidContext { apic_id: 0x12D, cpus: 0x140, ..VCPU };
    for physical in [ALL, NONE] {
        let topology = filter(0x8000_001E, 0, physical, &vcpu);
        assert_eq!(topology, CpuidResult { eax: 0x12D, ebx: 0x2D, ecx: 0, edx: 0 });
        let one = filter(1, 0, physical, &vcpu);
        assert_eq!(one.ebx >> 16, 0x2DFF, "the id, and as many as the field can say");
        assert_eq!(one.edx & (1 << 9 | 1 << 28), 1 << 9 | 1 << 28, "an APIC, several CPUs");
        assert_eq!(one.ecx & (1 << 21 | 1 << 31), 1 << 21 | 1 << 31, "x2APIC, a hypervisor");
        let alone = filter(1, 0, physical, &CpuidContext { cpus: 1, ..vcpu });
        assert_eq!(alone.edx & (1 << 9 | 1 << 28), 1 << 9, "one CPU");
    }
}
