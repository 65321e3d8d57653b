//! The IVRS: what is read of one that is in order, and what becomes of one that isn't.

use super::*;

fn block(kind: u8, flags: u8, device: u16, extra: u16, rest: &[u8]) -> Vec<u8> {
    let length = (8 + rest.len()) as u16;
    let mut bytes = vec![kind, flags];
    for field in [length, device, extra] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(rest);
    bytes
}

/// An IVHD block of a type, of the unit that is function `device`.
fn unit(kind: u8, device: u16, base: u64, entries: &[u8]) -> Vec<u8> {
    let mut rest = base.to_le_bytes().to_vec();
    // Segment 0, then info and features of either kind.
    rest.resize(if kind == 0x10 { 16 } else { 32 }, 0);
    rest.extend(entries);
    block(kind, 0xB0, device, 0x40, &rest)
}

fn memory(kind: u8, flags: u8, ids: (u16, u16), base: u64, length: u64) -> Vec<u8> {
    let rest = [&[0; 8], &base.to_le_bytes()[..], &length.to_le_bytes()].concat();
    block(kind, flags, ids.0, ids.1, &rest)
}

fn read(blocks: &[Vec<u8>]) -> Result<Ivrs, Error> {
    let ivrs = table(b"IVRS", &[&[0; 12][..], &blocks.concat()].concat());
    probe(&machine(&[madt(&ONE_CPU), ivrs]), RSDP_AT).map(|found| found.ivrs.unwrap())
}

const BASE: u64 = 0xFD20_0000;

fn of_one(entries: &[u8]) -> Result<HardwareDefinition, Error> {
    read(&[unit(0x11, 2, BASE, entries)]).map(|mut found| found.hardware.remove(0))
}

fn needed(result: Result<impl core::fmt::Debug, Error>) -> (u32, &'static str) {
    match result.unwrap_err() {
        Error::Inconsistent { table: "IVRS", offset, needed } => (offset, needed),
        other => panic!("{other}"),
    }
}

/// What boards of today say, in short: two units, the second for the rest; the I/O APICs; the
/// bridge to a conventional bus.
#[test]
fn a_table_in_order_is_read() {
    let namespace = [&[0xF0, 0x99, 0, 0x40][..], b"AMDI0040", &[0; 8], &[1, 8], &[7; 8]].concat();
    let first = [
        &[3, 0x03, 0, 0, 4, 0xFE, 0x3F, 0][..],
        &[0x43, 0x00, 0x03, 0, 0, 0xA4, 0, 0, 4, 0xFF, 0x03, 0],
        &[0x42, 0x08, 0x02, 0, 0, 0x09, 0x02, 0],
        &[0x48, 0, 0, 0xD7, 33, 0xA0, 0, 1],
        &[0x48, 0, 0, 0, 0, 0xA1, 0, 2],
        &[0x48, 0, 0, 0, 5, 0xA2, 0, 3],
        &namespace,
    ];
    let second = [
        &[1, 0, 0, 0x04, 2, 0x28, 0x40, 0, 0, 0, 0, 0][..],
        &[0x46, 0x30, 0x40, 0, 0, 0, 0, 0x80],
        &[0x47, 0x38, 0x40, 0, 0, 0, 0, 0x80, 4, 0x3F, 0x40, 0],
    ];
    let found = read(&[
        unit(0x40, 0x0002, BASE, &first.concat()),
        memory(0x20, 1 | 2 | 4, (0, 0), 0x1000, 0x1000),
        unit(0x10, 0x4002, BASE + 0x4000, &second.concat()),
        memory(0x21, 1 | 2, (0x80, 0), 0x7000_0000, 1),
        memory(0x22, 8, (0x80, 0x8F), u64::MAX, 1),
    ])
    .unwrap();
    let [one, two] = &found.hardware[..] else { panic!("{found:?}") };
    assert_eq!((one.function, one.base, one.segment), (2, BASE, 0));
    let entry = |ids, alias, passing| DeviceEntry { ids, alias, passing: Passing(passing) };
    let devices = [
        entry(0x0003..=0x3FFE, None, 0),
        entry(0x0300..=0x03FF, Some(0x00A4), 0),
        entry(0x0208..=0x0208, Some(0x0209), 0),
    ];
    assert_eq!(one.devices, devices);
    let special = |kind, id, passing| SpecialDevice { kind, id, passing: Passing(passing) };
    let expected = [
        special(SpecialKind::IoApic(33), 0xA0, 0xD7),
        special(SpecialKind::Hpet(0), 0xA1, 0),
        special(SpecialKind::Other(3), 0xA2, 0),
        special(SpecialKind::Namespace(*b"AMDI0040"), 0x99, 0x40),
    ];
    assert_eq!(one.special, expected);
    assert!(!one.include_all() && two.include_all());
    let devices = [
        entry(0..=u16::MAX, None, 4),
        entry(0x4028..=0x4028, None, 0),
        entry(0x4030..=0x4030, None, 0),
        entry(0x4038..=0x403F, None, 0),
    ];
    assert_eq!((two.base, &two.devices[..]), (BASE + 0x4000, &devices[..]));

    let passing: Vec<_> = one.passing().map(|(ids, what)| (ids, what.to_string())).collect();
    let all = "INIT, ExtINT, NMI, LINT0, LINT1".to_string();
    assert_eq!(passing, [(0xA0..=0xA0, all), (0x99..=0x99, "LINT0".into())]);
    assert_eq!(two.passing().map(|(ids, _)| ids).collect::<Vec<_>>(), [0..=u16::MAX]);

    let told: Vec<_> =
        found.memory.iter().map(|m| (m.access.to_string(), m.base, m.limit)).collect();
    let expected = [
        ("read and write".into(), 0x1000, 0x1FFF),
        ("read".into(), 0x7000_0000, 0x7000_0000),
        ("reach, past the IOMMU,".into(), u64::MAX, u64::MAX),
    ];
    assert_eq!(told, expected);
    let ids: Vec<_> = found.memory.iter().map(|m| m.devices.clone()).collect();
    assert_eq!(ids, [0..=u16::MAX, 0x80..=0x80, 0x80..=0x8F]);
}

#[test]
fn special_devices_and_accesses_have_names() {
    let named = |kind: SpecialKind| kind.to_string();
    assert_eq!(named(SpecialKind::IoApic(33)), "I/O APIC 33");
    assert_eq!(named(SpecialKind::Hpet(0)), "HPET 0");
    assert_eq!(named(SpecialKind::Namespace(*b"AMDI0\0\0\0")), r#"ACPI device "AMDI0""#);
    assert_eq!(named(SpecialKind::Namespace(*b"A\n\"40\0\0\0")), r#"ACPI device "A\n\"40""#);
    assert_eq!(named(SpecialKind::Other(9)), "a special device of variety 9");
    let access =
        |flags| read(&[memory(0x21, flags, (0, 0), 0, 1)]).unwrap().memory[0].access.to_string();
    let told = [1, 3, 5, 7, 9, 0xF].map(access);
    let past = "reach, past the IOMMU,";
    assert_eq!(told, ["find", "read", "write", "read and write", past, past]);
}

#[test]
fn of_several_blocks_of_a_unit_the_newest_known_type_counts() {
    let typed = |kind: u8| unit(kind, 2, BASE, &[2, kind, 0, 0]);
    let kind = |blocks: &[Vec<u8>]| {
        let found = read(blocks).unwrap().hardware;
        found.iter().map(|unit| *unit.devices[0].ids.start()).collect::<Vec<_>>()
    };
    for order in [[0x10, 0x11, 0x40], [0x40, 0x11, 0x10], [0x11, 0x40, 0x10]] {
        assert_eq!(kind(&order.map(typed)), [0x40]);
    }
    assert_eq!(kind(&[typed(0x10), typed(0x11)]), [0x11]);
    // A type to come is skipped, as long as it has a length.
    let future = block(0x41, 0, 2, 0, &[0xFF; 5]);
    assert_eq!(kind(&[future.clone(), typed(0x10), future]), [0x10]);
    // Another function, or another segment: another unit.
    let mut elsewhere = unit(0x10, 2, BASE + 0x4000, &[2, 9, 0, 0]);
    elsewhere[16] = 1;
    let other = unit(0x10, 3, BASE + 0x8000, &[2, 8, 0, 0]);
    assert_eq!(kind(&[typed(0x11), elsewhere.clone(), other]), [0x11, 9, 8]);
    assert_eq!(read(&[elsewhere]).unwrap().hardware[0].segment, 1);

    let (at, text) = needed(read(&[typed(0x11), typed(0x11)]));
    assert_eq!((at, text), (48 + 44, "one block of a type for each unit"));
    let twins = [unit(0x10, 2, BASE, &[]), unit(0x10, 3, BASE, &[])];
    assert_eq!(needed(read(&twins)).1, "a register base of its own for each unit");
}

#[test]
fn flags_for_the_control_register_are_told_apart() {
    let with = |flags: u8| {
        let mut block = unit(0x11, 2, BASE, &[]);
        block[1] = flags;
        let found = read(&[block]).unwrap().hardware[0].settings;
        let HardwareSettings { ht_tunnel, pass_posted_writes, .. } = found;
        let HardwareSettings { responses_pass_posted_writes, isochronous, .. } = found;
        [ht_tunnel, pass_posted_writes, responses_pass_posted_writes, isochronous]
    };
    for bit in 0..8 {
        let expected = [0, 1, 2, 3].map(|n| n == bit);
        assert_eq!(with(1 << bit), expected);
        assert_eq!(with(!(1 << bit)), expected.map(|set| !set));
    }
}

/// The attributes are where type 10h has other things, before what is the unit's own register
/// (offset 24), whose lowest bit says something else and is set in many a machine.
#[test]
fn a_unit_without_translation_is_told_apart_and_refused() {
    let with = |kind: u8, (at, bits): (usize, u32)| {
        let mut other = unit(0x11, 3, BASE + 0x4000, &[]);
        other[24] = 1;
        let mut block = unit(kind, 2, BASE, &[2, 8, 0, 0, 2, 9, 0, 0]);
        block[at..at + 4].copy_from_slice(&bits.to_le_bytes());
        read(&[other, block]).unwrap().check_translation()
    };
    let refused = Err(Error::NoTranslation { base: BASE });
    for kind in [0x11, 0x40] {
        assert_eq!(with(kind, (20, 1)), refused, "type {kind:#x}");
        assert_eq!(with(kind, (20, u32::MAX)), refused, "type {kind:#x}");
        assert_eq!(with(kind, (20, !1)), Ok(()), "type {kind:#x}");
        assert_eq!(with(kind, (24, 1)), Ok(()), "type {kind:#x}: the register");
    }
    assert_eq!(with(0x10, (20, 1)), Ok(()), "of type 10h that is a feature");
    let text = Error::NoTranslation { base: BASE }.to_string();
    assert!(text.contains("0xfd200000 can't confine DMA"), "{text}");
    // The newest block counts here, too.
    let mut disabled = unit(0x11, 2, BASE, &[]);
    disabled[20] = 1;
    let newer = unit(0x40, 2, BASE, &[]);
    assert_eq!(read(&[disabled.clone(), newer]).unwrap().check_translation(), Ok(()));
    assert_eq!(read(&[unit(0x10, 2, BASE, &[]), disabled]).unwrap().check_translation(), refused);
}

#[test]
fn registers_must_be_somewhere() {
    for base in [0, 0x1000, BASE + 0x2000, u64::MAX - 0x3FFF] {
        let (at, text) = needed(read(&[unit(0x10, 2, base, &[])]));
        assert_eq!(at, 48);
        assert!(text.starts_with("a register base above 0"), "{base:#x}: {text}");
    }
    assert!(read(&[unit(0x10, 2, u64::MAX - 0x7FFF, &[])]).is_ok());
}

#[test]
fn ranges_begin_and_end() {
    const END: &str = "an end for every range, and nothing between";
    let range = of_one(&[3, 5, 0, 0, 0, 9, 9, 9, 0x40, 0, 0, 0, 0, 0, 0, 0, 4, 5, 0, 0]).unwrap();
    assert_eq!(range.devices[0].ids, 5..=5, "padding between");
    assert_eq!(needed(of_one(&[3, 5, 0, 0])), (48, END));
    assert_eq!(needed(of_one(&[4, 5, 0, 0])), (88, END));
    assert_eq!(needed(of_one(&[3, 5, 0, 0, 3, 6, 0, 0, 4, 7, 0, 0])), (92, END));
    assert_eq!(needed(of_one(&[3, 5, 0, 0, 2, 6, 0, 0, 4, 7, 0, 0])), (92, END));
    assert_eq!(needed(of_one(&[3, 5, 0, 0, 0x48, 0, 0, 0, 0, 0, 0, 1])), (92, END));
    assert_eq!(needed(of_one(&[3, 5, 0, 0, 4, 7, 0, 0, 4, 8, 0, 0])), (96, END));
    let (at, text) = needed(of_one(&[0x43, 5, 0, 0, 0, 1, 0, 0, 4, 4, 0, 0]));
    assert_eq!((at, text), (96, "an end of the range not before its beginning"));
}

#[test]
fn types_that_aren_t_known_are_skipped_by_their_length() {
    for (kind, length) in
        [(0, 4), (5, 4), (63, 4), (64, 8), (127, 8), (128, 16), (191, 16), (192, 32), (239, 32)]
    {
        let mut entries = vec![0xFF; length];
        entries[0] = kind;
        entries.extend([2, 8, 0, 0]);
        let found = of_one(&entries).unwrap();
        assert_eq!(found.devices.len(), 1, "type {kind}");
        assert_eq!(found.devices[0].ids, 8..=8);
        let error = of_one(&entries[..length - 1]).unwrap_err();
        let (length, needed) = (length as u32 - 1, length as u32);
        assert_eq!(error, Error::Short { table: "IVRS", offset: 88, length, needed });
    }
    for kind in 241..=255 {
        let mut entries = [0; 256];
        entries[0] = kind;
        let (at, text) = needed(of_one(&entries));
        assert_eq!((at, text), (88, "a type of device entry whose length is known (0 to 240)"));
    }
    // The id that follows is as long as it says.
    let mut namespace = vec![0; 22 + 255];
    (namespace[0], namespace[21]) = (0xF0, 255);
    assert_eq!(of_one(&[&namespace[..], &[2, 8, 0, 0]].concat()).unwrap().devices.len(), 1);
    let error = of_one(&namespace[..22 + 254]).unwrap_err();
    let (length, needed) = (276, 277);
    assert_eq!(error, Error::Short { table: "IVRS", offset: 88, length, needed });
}

#[test]
fn blocks_hold_what_they_must() {
    let short = |block: &[u8]| match read(&[block.to_vec()]).unwrap_err() {
        Error::Short { table: "IVRS", offset: 48, length, needed } => (length, needed),
        other => panic!("{other}"),
    };
    assert_eq!(short(&[0x41, 0, 0, 0]), (0, 4));
    assert_eq!(short(&[0x41, 0, 5, 0]), (4, 5));
    let mut head = unit(0x10, 2, BASE, &[]);
    (head[0], head[2]) = (0x11, 24);
    assert_eq!(short(&head), (24, 40));
    let mut head = memory(0x21, 0, (0, 0), 0, 1);
    head.truncate(31);
    head[2] = 31;
    assert_eq!(short(&head), (31, 32));

    let odd = |ids, base, length| needed(read(&[memory(0x22, 0, ids, base, length)])).1;
    assert_eq!(odd((1, 0), 0, 1), "a last device not before the first");
    let length = "a length of memory above 0 and an end below 2^64";
    assert_eq!(odd((0, 0), 5, 0), length);
    assert_eq!(odd((0, 0), u64::MAX, 2), length);
}

#[test]
fn there_are_limits() {
    let units = |count: u16| -> Vec<_> {
        (0..count).map(|i| unit(0x10, i, BASE + 0x4000 * u64::from(i), &[])).collect()
    };
    assert_eq!(read(&units(256)).unwrap().hardware.len(), 256);
    let error = read(&units(257)).unwrap_err();
    assert_eq!(error, Error::TooMany { table: "IVRS", what: "IOMMUs", most: 256 });

    let full = unit(0x10, 2, BASE, &[2, 8, 0, 0].repeat(8191));
    let more = |count| unit(0x10, 3, BASE + 0x4000, &[2, 8, 0, 0].repeat(count));
    assert!(read(&[full.clone(), more(1)]).is_ok());
    let error = read(&[full, more(2)]).unwrap_err();
    assert_eq!(error, Error::TooMany { table: "IVRS", what: "device entries", most: 8192 });
}

/// Entries of right lengths and any content.
fn any_entry() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        4 => prop::sample::select(vec![1, 2, 3, 4, 0x42, 0x43, 0x46, 0x47, 0x48, 0xF0]),
        1 => any::<u8>(),
    ];
    (kind, prop::collection::vec(any::<u8>(), 31), 0u8..20).prop_map(|(kind, mut rest, uid)| {
        rest.insert(0, kind);
        rest[21] = uid;
        rest.resize(64, 0);
        let length = match kind {
            0..=63 => 4,
            64..=127 => 8,
            128..=191 => 16,
            0xF0 => 22 + usize::from(uid),
            _ => 32,
        };
        rest.truncate(length);
        rest
    })
}

proptest! {
    /// Whatever the entries say, each device is served under one id or not at all, and what is
    /// named is what is covered.
    #[test]
    fn what_is_read_keeps_its_promises(
        entries in prop::collection::vec(any_entry(), 0..12),
        probes in prop::collection::vec(any::<u16>(), 20),
    ) {
        let Ok(unit) = of_one(&entries.concat()) else { return Ok(()) };
        let covered = Covered::of_hardware(&unit);
        let named = |id: u16| {
            let all = 0..=u16::MAX;
            let entries = unit.devices.iter().filter(|e| e.ids != all || e.alias.is_some());
            entries.clone().any(|e| e.ids.contains(&id) || e.alias == Some(id))
                || unit.special.iter().any(|device| device.id == id)
        };
        let ends = unit.devices.iter().flat_map(|e| {
            [Some(*e.ids.start()), Some(*e.ids.end()), e.alias].into_iter().flatten()
        });
        for id in probes.into_iter().chain(ends) {
            prop_assert_eq!(covered.contains(id), named(id));
            let seen = covered.requester(id);
            let alias = |e: &DeviceEntry| e.alias == Some(seen) && e.ids.contains(&id);
            prop_assert!(seen == id || unit.devices.iter().any(alias));
        }
        for entry in &unit.devices {
            prop_assert!(!entry.ids.is_empty());
        }
    }

    /// Any bytes behind the header.
    #[test]
    fn any_blocks_give_an_answer(
        kind in prop::sample::select(vec![0x10u8, 0x11, 0x20, 0x21, 0x22, 0x40, 0x41]),
        content in prop::collection::vec(any::<u8>(), 0..120),
        tail in prop::collection::vec(0u8..80, 0..60),
    ) {
        let mut any = block(kind, 0, 0, 0, &content);
        any.extend(tail);
        if let Err(refusal) = read(&[any]) {
            prop_assert!(!refusal.to_string().contains('\n'));
        }
    }
}
