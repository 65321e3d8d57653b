//! Where tables are: whatever is read of them is named before.

use super::*;
use core::cell::RefCell;
use core::ops::Range;

/// Memory that remembers what was read of it.
struct Watched<'a>(&'a Pieces, RefCell<Vec<Range<u64>>>);

impl Physical for Watched<'_> {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        let there = self.0.read(pa, buf);
        if there {
            self.1.borrow_mut().push(pa..pa + buf.len() as u64);
        }
        there
    }
}

fn named(mem: &impl Physical, rsdp: impl Into<RootPointer>) -> Result<Vec<Range<u64>>, Error> {
    let mut found = Vec::new();
    places(mem, rsdp, |place| found.push(place)).map(|()| found)
}

/// What a read by `probe` has outside of what is named, if anything.
fn unnamed(mem: &Pieces, rsdp: RootPointer) -> Option<Range<u64>> {
    let named = named(mem, rsdp).ok()?;
    let watched = Watched(mem, RefCell::default());
    let _ = probe(&watched, rsdp);
    let reads = watched.1.into_inner();
    let inside = |r: &Range<u64>| named.iter().any(|n| n.start <= r.start && r.end <= n.end);
    reads.into_iter().find(|read| !inside(read))
}

#[test]
fn the_tables_of_q35_are_named_with_their_root() {
    let found = named(&q35(Q35), RSDP_AT).unwrap();
    assert_eq!(found[..2], [RSDP_AT..RSDP_AT + 20, 0x3FE_23CD..0x3FE_23CD + 36 + 6 * 4]);
    assert_eq!(found.len(), 8, "{found:x?}");
    // They follow each other without a gap, up to the root table.
    let mut tables = found[1..].to_vec();
    tables.sort_by_key(|place| place.start);
    assert!(tables.windows(2).all(|pair| pair[0].end == pair[1].start), "{tables:x?}");
    assert_eq!(tables.first().map(|place| place.start), Some(Q35_AT));
    assert_eq!(unnamed(&q35(Q35), RSDP_AT.into()), None);
}

#[test]
fn a_copy_of_the_root_pointer_is_nowhere() {
    let mut bytes = [0; RootPointer::NEW];
    bytes[..RootPointer::OLD].copy_from_slice(&rsdp_v1(Q35_RSDT));
    let copy = RootPointer::Copy { at: RSDP_AT, bytes, length: RootPointer::OLD };
    assert_eq!(named(&q35(Q35), copy).unwrap(), named(&q35(Q35), RSDP_AT).unwrap()[1..]);
    assert_eq!(unnamed(&q35(Q35), copy), None);
}

#[test]
fn the_newer_pointer_is_named_as_long_as_it_says() {
    let xsdt = table(b"XSDT", &0x5000u64.to_le_bytes());
    let mut rsdp = rsdp_v1(0);
    rsdp[15] = 2;
    rsdp.extend(50u32.to_le_bytes());
    rsdp.extend(0x2000u64.to_le_bytes());
    rsdp.resize(50, 7);
    fix_sum(&mut rsdp[..20], 8);
    fix_sum(&mut rsdp, 32);
    let pieces = vec![(RSDP_AT, rsdp), (0x2000, xsdt), (0x5000, madt(&ONE_CPU))];
    let pieces = Pieces(pieces);
    let expected = [RSDP_AT..RSDP_AT + 50, 0x2000..0x2000 + 44, 0x5000..0x5000 + 52];
    assert_eq!(named(&pieces, RSDP_AT).unwrap(), expected);
    assert_eq!(unnamed(&pieces, RSDP_AT.into()), None);
    assert!(probe(&pieces, RSDP_AT).is_ok());
}

#[test]
fn a_length_that_can_t_be_names_the_header() {
    let listed = |bytes: Vec<u8>| {
        let found = named(&machine(&[bytes]), RSDP_AT).unwrap();
        let [_, root, table] = &found[..] else { panic!("{found:x?}") };
        assert_eq!(*root, 0x1000..0x1000 + 40);
        assert_eq!(table.start, 0x10_0000);
        table.end - table.start
    };
    let of = |length: u32| {
        let mut bytes = b"SSDT".to_vec();
        bytes.extend(length.to_le_bytes());
        bytes
    };
    assert_eq!([0, 35, 36, 37].map(|length| listed(of(length))), [36, 36, 36, 37]);
    assert_eq!([1 << 20, (1 << 20) + 1, u32::MAX].map(|n| listed(of(n))), [1 << 20, 36, 36]);
    assert_eq!(listed(b"SSDT".to_vec()), 36, "the signature alone is there");
}

#[test]
fn as_many_as_are_looked_at_and_no_more() {
    let root = |count| {
        let rsdt = table(b"RSDT", &0x1000u32.to_le_bytes().repeat(count));
        named(&Pieces(vec![(RSDP_AT, rsdp_v1(0x1000)), (0x1000, rsdt)]), RSDP_AT)
    };
    assert_eq!(root(1024).unwrap().len(), 1026);
    let too_many = Error::TooMany { table: "RSDT", what: "tables", most: 1024 };
    assert_eq!(root(1025).unwrap_err(), too_many);
    // Where there is nothing, there is no table; what can't be read is refused as it always is.
    let rsdt = table(b"RSDT", &[0; 8]);
    let holes = Pieces(vec![(RSDP_AT, rsdp_v1(0x1000)), (0x1000, rsdt)]);
    assert_eq!(named(&holes, RSDP_AT).unwrap().len(), 2);
    let nowhere = RSDP_AT + 1;
    assert_eq!(named(&holes, nowhere).unwrap_err(), probe(&holes, nowhere).unwrap_err());
}

proptest! {
    /// Damage anywhere: what is read is named, or both refuse for one reason.
    #[test]
    fn what_is_read_is_named(damage in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6)) {
        let mut tables = Q35.to_vec();
        for (at, value) in damage {
            let at = usize::from(at) % tables.len();
            tables[at] = value;
        }
        let memory = q35(&tables);
        prop_assert_eq!(unnamed(&memory, RSDP_AT.into()), None);
        if let Err(refusal) = named(&memory, RSDP_AT) {
            prop_assert!(probe(&memory, RSDP_AT).is_err(), "{}", refusal);
        }
    }

    /// Tables of any bytes below a root that is right.
    #[test]
    fn of_any_tables_what_is_read_is_named(
        bodies in prop::collection::vec((0..8usize, prop::collection::vec(any::<u8>(), 0..80), any::<bool>()), 0..6),
    ) {
        const KINDS: [&[u8; 4]; 8] =
            [b"APIC", b"FACP", b"MCFG", b"DMAR", b"IVRS", b"SPCR", b"SRAT", b"WDAT"];
        let of = |(kind, body, short): &(usize, Vec<u8>, bool)| {
            let mut bytes = table(KINDS[*kind], body);
            if *short {
                bytes.truncate(body.len());
            }
            bytes
        };
        let tables: Vec<_> = bodies.iter().map(of).collect();
        prop_assert_eq!(unnamed(&machine(&tables), RSDP_AT.into()), None);
    }
}
