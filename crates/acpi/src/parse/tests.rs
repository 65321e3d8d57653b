//! The parser against a real firmware's tables, against the same damaged, and against noise.

mod fixed;
mod ivrs;
mod places;
mod spcr;
mod srat;
mod wdat;

use crate::*;
use proptest::prelude::*;

/// FADT, MADT, HPET, MCFG, DMAR, WAET and RSDT as SeaBIOS leaves them on QEMU 10.0's q35 with 3
/// CPUs and `intel-iommu,intremap=on,eim=on`; the addresses in them assume [`Q35_AT`].
const Q35: &[u8] = include_bytes!("q35.bin");
const Q35_AT: u64 = 0x3FE_214D;
const Q35_RSDT: u32 = 0x3FE_23CD;
const RSDP_AT: u64 = 0xF_5250;

/// Memory with holes.
struct Pieces(Vec<(u64, Vec<u8>)>);

impl Physical for Pieces {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        for (start, bytes) in &self.0 {
            let Some(offset) = pa.checked_sub(*start) else { continue };
            let (Ok(from), len) = (usize::try_from(offset), buf.len()) else { continue };
            if let Some(found) = from.checked_add(len).and_then(|to| bytes.get(from..to)) {
                buf.copy_from_slice(found);
                return true;
            }
        }
        false
    }
}

fn fix_sum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
}

fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[..4].copy_from_slice(signature);
    bytes.extend_from_slice(body);
    let length = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    fix_sum(&mut bytes, 9);
    bytes
}

fn rsdp_v1(rsdt: u32) -> Vec<u8> {
    let mut bytes = b"RSD PTR \0BOCHS \0".to_vec();
    bytes.extend_from_slice(&rsdt.to_le_bytes());
    fix_sum(&mut bytes, 8);
    bytes
}

fn q35(tables: &[u8]) -> Pieces {
    Pieces(vec![(RSDP_AT, rsdp_v1(Q35_RSDT)), (Q35_AT, tables.to_vec())])
}

/// A machine of the given tables, below an RSDT.
fn machine(tables: &[Vec<u8>]) -> Pieces {
    let mut pieces = vec![(RSDP_AT, rsdp_v1(0x1000))];
    let mut entries = Vec::new();
    for (n, table) in tables.iter().enumerate() {
        let at = 0x10_0000 * (n as u32 + 1);
        entries.extend_from_slice(&at.to_le_bytes());
        pieces.push((at.into(), table.clone()));
    }
    pieces.push((0x1000, table(b"RSDT", &entries)));
    Pieces(pieces)
}

fn madt(structures: &[u8]) -> Vec<u8> {
    table(b"APIC", &[&[0; 8], structures].concat())
}

const ONE_CPU: [u8; 8] = [0, 8, 0, 0, 1, 0, 0, 0];

#[test]
fn reads_what_the_firmware_of_q35_says() {
    let found = probe(&q35(Q35), RSDP_AT).unwrap();
    let ids: Vec<_> = found.cpus.iter().map(|cpu| (cpu.apic_id, cpu.acpi_uid)).collect();
    assert_eq!(ids, [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(found.ioapics[..], [IoApic { id: 0, address: 0xFEC0_0000, gsi_base: 0 }]);
    let ecam = Ecam { base: 0xB000_0000, segment: 0, bus_start: 0, bus_end: 255 };
    assert_eq!(found.ecams[..], [ecam]);
    assert_eq!(found.pm_timer, Some(PmTimer { port: 0x608, bits32: false }));
    assert_eq!(found.reset, Some(Reset { register: ResetRegister::Port(0xCF9), value: 0xF }));
    assert_eq!(found.ivrs, None);
    let dmar = found.dmar.unwrap();
    assert!(dmar.interrupt_remapping && !dmar.x2apic_opt_out);
    assert_eq!(dmar.check_x2apic(), Ok(()));
    assert_eq!(dmar.host_address_width, 48);
    assert_eq!(dmar.reserved, []);
    let [unit] = &dmar.units[..] else { panic!("{dmar:?}") };
    assert_eq!((unit.base, unit.segment, unit.include_all), (0xFED9_0000, 0, false));
    let scope = |kind, bus, device, function| {
        let path = vec![PathStep { device, function }];
        Scope { kind, enumeration_id: 0, bus, path }
    };
    let expected = [
        scope(ScopeKind::IoApic, 0xFF, 0, 0),
        scope(ScopeKind::Endpoint, 0, 0, 0),
        scope(ScopeKind::Endpoint, 0, 0x1F, 0),
        scope(ScopeKind::Endpoint, 0, 0x1F, 2),
        scope(ScopeKind::Endpoint, 0, 0x1F, 3),
    ];
    assert_eq!(unit.scopes, expected);
}

/// A loader's copy is read and nothing else, however little of it there is.
#[test]
fn a_copy_of_the_root_pointer_does_as_well() {
    let tables = Pieces(vec![(Q35_AT, Q35.to_vec())]);
    let mut bytes = [0; RootPointer::NEW];
    bytes[..RootPointer::OLD].copy_from_slice(&rsdp_v1(Q35_RSDT));
    let copy = |length| RootPointer::Copy { at: 0x1234, bytes, length };
    assert_eq!(probe(&tables, copy(RootPointer::OLD)), probe(&q35(Q35), RSDP_AT));
    assert_eq!(probe(&tables, copy(RootPointer::NEW)), probe(&q35(Q35), RSDP_AT));
    for length in [0, RootPointer::OLD - 1] {
        let found = probe(&q35(Q35), copy(length));
        assert!(matches!(found, Err(Error::Unreadable { table: "RSDP", .. })), "{found:?}");
    }
    bytes[15] = 2;
    fix_sum(&mut bytes[..RootPointer::OLD], 8);
    let newer = RootPointer::Copy { at: 0x1234, bytes, length: RootPointer::OLD };
    assert!(matches!(probe(&tables, newer), Err(Error::Unreadable { table: "RSDP", .. })));
}

#[test]
fn any_one_damaged_byte_is_noticed_unless_it_lies_in_a_table_that_isn_t_read() {
    let good = probe(&q35(Q35), RSDP_AT).unwrap();
    for at in 0..Q35.len() {
        let unused = [b"HPET", b"WAET"].iter().any(|signature| {
            let start = Q35.windows(4).position(|found| found == *signature).unwrap();
            (start..start + usize::from(Q35[start + 4])).contains(&at)
        });
        let mut tables = Q35.to_vec();
        tables[at] ^= 0x20;
        match probe(&q35(&tables), RSDP_AT) {
            Err(_) => assert!(!unused, "byte {at}"),
            // A damaged signature hides the table.
            Ok(found) => assert_eq!(found == good, unused, "byte {at}"),
        }
    }
}

#[test]
fn memory_that_ends_early_is_an_error() {
    for end in 0..Q35.len() {
        let error = probe(&q35(&Q35[..end]), RSDP_AT).unwrap_err();
        assert!(matches!(error, Error::Unreadable { .. }), "{end}: {error}");
    }
}

#[test]
fn no_processors_no_machine() {
    let error = probe(&machine(&[]), RSDP_AT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the firmware gives no MADT, which is needed to find the processors"
    );
}

#[test]
fn both_forms_of_processor_are_seen_once_and_absent_ones_not_at_all() {
    let x2apic = |id: u32, flags: u8| {
        let mut entry = vec![9, 16, 0, 0];
        entry.extend_from_slice(&id.to_le_bytes());
        entry.extend_from_slice(&[flags, 0, 0, 0]);
        entry.extend_from_slice(&(id + 7).to_le_bytes());
        entry
    };
    let structures = [
        ONE_CPU.to_vec(),
        vec![0, 8, 1, 0xFF, 0, 0, 0, 0],
        vec![0, 8, 1, 3, 2, 0, 0, 0],
        x2apic(300, 1),
        x2apic(3, 0),
        // Ready (1), to be plugged in (2), both; the second form of one that is known.
        vec![0, 8, 2, 4, 3, 0, 0, 0],
        x2apic(4, 1),
        x2apic(0xFFFF, 0xFE),
        vec![0, 8, 9, 0xFF, 1, 0, 0, 0],
    ];
    let found = probe(&machine(&[madt(&structures.concat())]), RSDP_AT).unwrap();
    assert_eq!(
        found.cpus[..],
        [
            Cpu { apic_id: 0, acpi_uid: 0 },
            Cpu { apic_id: 300, acpi_uid: 307 },
            Cpu { apic_id: 4, acpi_uid: 2 },
            Cpu { apic_id: 0xFF, acpi_uid: 9 },
        ]
    );
}

#[test]
fn the_1025th_processor_is_one_too_many() {
    let list = |count: u16| -> Vec<u8> {
        (0..count)
            .flat_map(|id| [9, 16, 0, 0, id as u8, (id >> 8) as u8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
            .collect()
    };
    assert_eq!(probe(&machine(&[madt(&list(1024))]), RSDP_AT).unwrap().cpus.len(), 1024);
    // Absent ones don't count: servers list as many as could ever be plugged in.
    let mut absent = list(2000);
    absent.chunks_exact_mut(16).skip(1024).for_each(|entry| entry[8] = 0);
    assert_eq!(probe(&machine(&[madt(&absent)]), RSDP_AT).unwrap().cpus.len(), 1024);
    let error = probe(&machine(&[madt(&list(1025))]), RSDP_AT).unwrap_err();
    assert_eq!(error, Error::TooMany { table: "MADT", what: "processors", most: 1024 });
}

#[test]
fn structures_that_don_t_advance_or_don_t_fit_are_refused() {
    let short = |structures: &[u8]| probe(&machine(&[madt(structures)]), RSDP_AT).unwrap_err();
    let error = short(&[1, 0]);
    assert_eq!(error, Error::Short { table: "MADT", offset: 44, length: 0, needed: 2 });
    let error = short(&[0, 8, 0, 0]);
    assert_eq!(error, Error::Short { table: "MADT", offset: 44, length: 4, needed: 8 });
    let error = short(&[9, 8, 0, 0, 0, 0, 0, 0]);
    assert_eq!(error, Error::Short { table: "MADT", offset: 44, length: 8, needed: 12 });

    let dmar = |structures: &[u8]| {
        let dmar = table(b"DMAR", &[&[47, 1], &[0; 10][..], structures].concat());
        probe(&machine(&[madt(&ONE_CPU), dmar]), RSDP_AT).unwrap_err()
    };
    let error = dmar(&[0, 0, 0, 0]);
    assert_eq!(error, Error::Short { table: "DMAR", offset: 48, length: 0, needed: 4 });
    let mut drhd = vec![0; 18];
    drhd[2] = 18;
    drhd[17] = 0; // a scope of length 0
    let error = dmar(&drhd);
    assert_eq!(error, Error::Short { table: "DMAR", offset: 64, length: 0, needed: 8 });
}

#[test]
fn reserved_memory_is_read_and_must_not_be_inside_out() {
    let rmrr = |base: u64, limit: u64| {
        let mut entry = vec![1, 0, 34, 0, 0, 0, 5, 0];
        entry.extend_from_slice(&base.to_le_bytes());
        entry.extend_from_slice(&limit.to_le_bytes());
        entry.extend_from_slice(&[2, 10, 0, 0, 0, 1, 0x1C, 4, 0x02, 1]);
        let dmar = table(b"DMAR", &[&[38, 3], &[0; 10][..], &entry].concat());
        probe(&machine(&[madt(&ONE_CPU), dmar]), RSDP_AT)
    };
    let dmar = rmrr(0x7F00_0000, 0x7F0F_FFFF).unwrap().dmar.unwrap();
    assert!(dmar.x2apic_opt_out);
    assert_eq!(dmar.check_x2apic(), Err(Error::X2apicOptOut));
    let path = vec![PathStep { device: 0x1C, function: 4 }, PathStep { device: 2, function: 1 }];
    let scopes = vec![Scope { kind: ScopeKind::Bridge, enumeration_id: 0, bus: 1, path }];
    let (base, limit) = (0x7F00_0000, 0x7F0F_FFFF);
    assert_eq!(dmar.reserved, [ReservedMemory { base, limit, segment: 5, scopes }]);
    assert!(rmrr(2, 2).is_ok(), "one byte");
    assert!(matches!(rmrr(2, 1), Err(Error::Inconsistent { table: "DMAR", offset: 48, .. })));
}

/// An entry of the MCFG.
fn window(base: u64, segment: u16, buses: (u8, u8)) -> Vec<u8> {
    [&base.to_le_bytes()[..], &segment.to_le_bytes(), &[buses.0, buses.1, 0, 0, 0, 0]].concat()
}

fn ecams(entries: &[Vec<u8>]) -> Result<Vec<Ecam>, Error> {
    let mcfg = table(b"MCFG", &[&[0; 8][..], &entries.concat()].concat());
    let found = probe(&machine(&[madt(&ONE_CPU), mcfg]), RSDP_AT)?;
    Ok(found.ecams.into_iter().collect())
}

#[test]
fn windows_of_configuration_space_are_of_any_segment_and_must_be_consistent() {
    let (one, two) = (window(1 << 32, 0x101, (0, 255)), window(2 << 32, 0, (16, 31)));
    let three = window(2 << 32, 0, (32, 40));
    let ecam = |base, segment, bus_start, bus_end| Ecam { base, segment, bus_start, bus_end };
    let expected =
        [ecam(1 << 32, 0x101, 0, 255), ecam(2 << 32, 0, 16, 31), ecam(2 << 32, 0, 32, 40)];
    let entries = [one, two.clone(), two.clone(), three];
    assert_eq!(ecams(&entries), Ok(expected.into()), "what is said twice counts once");
    assert_eq!(ecams(&[window(1 << 32, 0, (5, 5))]).map(|found| found.len()), Ok(1), "one bus");
    let inconsistent = |entries: &[Vec<u8>], at| {
        let found = ecams(entries);
        let is_it = matches!(found, Err(Error::Inconsistent { offset, .. }) if offset == at);
        assert!(is_it, "{found:?}");
    };
    inconsistent(&[window(0, 0, (2, 1))], 44);
    inconsistent(&[window(u64::MAX, 1, (0, 0))], 44);
    inconsistent(&[two.clone(), window(9 << 32, 0, (31, 32))], 60);
    inconsistent(&[two, window((2 << 32) + (8 << 20), 1, (8, 9))], 60);
    let many = |n: u16| (0..n).map(|i| window(1 << 32, i, (i as u8, i as u8))).collect::<Vec<_>>();
    assert_eq!(ecams(&many(64)).map(|found| found.len()), Ok(MAX_ECAMS));
    assert!(matches!(ecams(&many(65)), Err(Error::TooMany { table: "MCFG", .. })));
}

#[test]
fn registers_are_inside_their_window() {
    let ecam = Ecam { base: 1 << 32, segment: 2, bus_start: 3, bus_end: 4 };
    assert_eq!(ecam.window(), (1 << 32) + (3 << 20)..(1 << 32) + (5 << 20));
    assert_eq!(ecam.register(2, 0x0300, 0), Some((1 << 32) + (3 << 20)));
    assert_eq!(ecam.register(2, 0x04FF, 0xFFF), Some((1 << 32) + (5 << 20) - 1));
    for (segment, function, offset) in [(2, 0x02FF, 0), (2, 0x0500, 0), (0, 0x0300, 0)] {
        assert_eq!(ecam.register(segment, function, offset), None);
    }
    assert_eq!(ecam.register(2, 0x0300, 0x1000), None);
}

proptest! {
    /// No function of the machine has two addresses, and no address is two functions'.
    #[test]
    fn no_two_functions_share_a_register(
        raw in prop::collection::vec((0u64..12, 0u16..3, 0u8..8, 0u8..8), 1..5),
        one: (u16, u16), other: (u16, u16),
    ) {
        let entries: Vec<_> =
            raw.into_iter().map(|(at, segment, a, b)| window(at << 21, segment, (a, b))).collect();
        let Ok(found) = ecams(&entries) else { return Ok(()) };
        let all = |(segment, function): (u16, u16)| -> Vec<_> {
            let (segment, function) = (segment % 3, function % 0x800);
            found.iter().filter_map(|e| e.register(segment, function, 0)).collect()
        };
        let (a, b) = (all(one), all(other));
        prop_assert!(a.len() <= 1 && b.len() <= 1);
        if (one.0 % 3, one.1 % 0x800) != (other.0 % 3, other.1 % 0x800) {
            prop_assert!(a.is_empty() || a != b);
        }
    }
}

#[test]
fn the_root_pointer_is_found_in_the_ebda_or_below_1_mib() {
    let low = |ebda: u16| (0x400, [&[0; 0xE][..], &ebda.to_le_bytes()].concat());
    let rsdp = rsdp_v1(0x1000);
    assert_eq!(find_rsdp(&Pieces(vec![(RSDP_AT, rsdp.clone())])), Ok(RSDP_AT));
    let in_ebda = Pieces(vec![low(0x9FC0), (0x9_FC10, rsdp.clone()), (RSDP_AT, rsdp.clone())]);
    assert_eq!(find_rsdp(&in_ebda), Ok(0x9_FC10));
    // Its first KiB, and no more; where interrupt vectors or BIOS data are, there is none.
    for (segment, at, found) in [
        (0x9FC0, 0x9_FFF0, true),
        (0x9FB0, 0x9_FF00, false),
        (0x9FB0, 0x9_FEF0, true),
        (0x0050, 0x500, true),
        (0x004F, 0x4F0, false),
    ] {
        let pieces = Pieces(vec![low(segment), (at, rsdp.clone()), (0xE_0000, rsdp.clone())]);
        assert_eq!(find_rsdp(&pieces), Ok(if found { at } else { 0xE_0000 }), "{segment:#x}");
    }
    // One whose sum is wrong, and one that isn't aligned, don't count.
    let mut broken = rsdp.clone();
    broken[15] ^= 1;
    let pieces = vec![(0xE_0000, broken), (0xE_0108, rsdp.clone()), (0xF_FFE0, rsdp)];
    assert_eq!(find_rsdp(&Pieces(pieces)), Ok(0xF_FFE0));
    assert_eq!(find_rsdp(&Pieces(vec![low(0xFFFF)])), Err(Error::NoRsdp));
}

#[test]
fn a_root_table_that_lists_itself_is_read_once() {
    let rsdt = table(b"RSDT", &0x1000u32.to_le_bytes().repeat(1024));
    let pieces = vec![(RSDP_AT, rsdp_v1(0x1000)), (0x1000, rsdt)];
    let error = probe(&Pieces(pieces), RSDP_AT).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }));
    let rsdt = table(b"RSDT", &0x1000u32.to_le_bytes().repeat(1025));
    let pieces = vec![(RSDP_AT, rsdp_v1(0x1000)), (0x1000, rsdt)];
    let error = probe(&Pieces(pieces), RSDP_AT).unwrap_err();
    assert_eq!(error, Error::TooMany { table: "RSDT", what: "tables", most: 1024 });
}

#[test]
fn a_wrong_signature_is_shown_on_one_line() {
    let mut rsdp = rsdp_v1(0x1000);
    rsdp[..4].copy_from_slice(b"R\n\"\xFF");
    let text = probe(&Pieces(vec![(RSDP_AT, rsdp)]), RSDP_AT).unwrap_err().to_string();
    assert!(text.contains(r#"begins with "R\n\"\xff", which"#), "{text}");
}

#[test]
fn a_scope_s_path_leads_to_devices_and_functions_that_can_be() {
    let scope = |device, function| {
        let scope = [1, 8, 0, 0, 0, 0, device, function];
        let drhd = [&[0, 0, 24, 0, 0, 0, 0, 0][..], &[0; 8], &scope].concat();
        let dmar = table(b"DMAR", &[&[47, 1], &[0; 10][..], &drhd].concat());
        probe(&machine(&[table(b"APIC", &[0; 8]), dmar]), RSDP_AT)
    };
    assert!(scope(31, 7).is_ok());
    for (device, function) in [(32, 0), (0, 8), (0xFF, 0xFF)] {
        let refused = scope(device, function);
        assert!(matches!(refused, Err(Error::Inconsistent { table: "DMAR", offset: 64, .. })));
    }
}

#[test]
fn every_error_is_one_sentence_with_the_table_s_name() {
    let mut tables = Q35.to_vec();
    let madt = tables.windows(4).position(|found| found == b"APIC").unwrap();
    tables[madt + 50] ^= 1;
    let error = probe(&q35(&tables), RSDP_AT).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the 136 bytes of the MADT at 0x3fe2241 sum to "), "{text}");
    tables[madt + 4..madt + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        probe(&q35(&tables), RSDP_AT).unwrap_err().to_string(),
        "the MADT at 0x3fe2241 gives its length as 4294967295 bytes, \
         but 36 to 1048576 are needed"
    );
}

proptest! {
    /// Tables with right sums and any contents: an answer, no panic, no endless walk.
    #[test]
    fn any_contents_give_an_answer(
        apic in prop::collection::vec(any::<u8>(), 0..200),
        dmar in prop::collection::vec(0u8..20, 0..200),
        fadt in prop::collection::vec(any::<u8>(), 0..240),
        mcfg in prop::collection::vec(any::<u8>(), 0..100),
        spcr in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let tables = [
            table(b"DMAR", &dmar),
            table(b"FACP", &fadt),
            table(b"MCFG", &mcfg),
            table(b"SPCR", &spcr),
            table(b"APIC", &apic),
        ];
        for table in &tables {
            if let Ok(found) = probe(&machine(&[madt(&ONE_CPU), table.clone()]), RSDP_AT) {
                prop_assert!(!found.cpus.is_empty());
            }
        }
    }

    /// Any bytes in place of the tables, and any pointer into them.
    #[test]
    fn any_memory_gives_an_answer(
        memory in prop::collection::vec(any::<u8>(), 0..600),
        rsdt: u32,
        at: u64,
    ) {
        let memory = Pieces(vec![(RSDP_AT, rsdp_v1(rsdt)), (rsdt.into(), memory.clone()), (at, memory)]);
        prop_assert!(probe(&memory, at).is_err());
        prop_assert!(probe(&memory, RSDP_AT).is_err());
    }
}
