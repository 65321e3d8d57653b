//! EFI's memory descriptors, and the way to ResetSystem.

use super::{Pieces, words};
use crate::efi::{add_descriptors, reset_system};
use crate::{Error, MemoryKind, MemoryMap, MemoryRange};

use MemoryKind::{Acpi, Reserved, Runtime, Usable};

const AT: u64 = 0x7000;
const WB: u64 = 1 << 3;
const SP: u64 = 1 << 18;
const RT: u64 = 1 << 63;

/// A descriptor of `stride` bytes.
fn descriptor(kind: u32, start: u64, pages: u64, attributes: u64, stride: usize) -> Vec<u8> {
    let mut bytes = words([kind.into(), start, 0xBAD, pages, attributes]);
    // What stands there must not be read.
    bytes[4..8].fill(0xEE);
    bytes.resize(stride, 0xEE);
    bytes
}

fn read(bytes: Vec<u8>, stride: u32) -> Result<Vec<MemoryRange>, Error> {
    let mut map = MemoryMap::new();
    let length = bytes.len() as u64;
    add_descriptors(&Pieces::default().with(AT, bytes), AT, length, stride, &mut map)?;
    Ok(map.ranges().to_vec())
}

fn kind(class: u32, attributes: u64) -> MemoryKind {
    let ranges = read(descriptor(class, 0x1000, 1, attributes, 48), 48).unwrap();
    let [MemoryRange { start: 0x1000, end: 0x2000, kind }] = ranges[..] else {
        panic!("{ranges:?}")
    };
    kind
}

#[test]
fn types_mean_what_they_mean_once_boot_services_have_ended() {
    let kinds: Vec<_> = (0..17).map(|class| kind(class, WB)).collect();
    let [u, n, r, a] = [Usable, Reserved, Runtime, Acpi];
    assert_eq!(kinds, [n, u, u, u, u, r, r, u, n, a, a, n, n, n, n, n, n]);
    assert_eq!(kind(0x8000_0000, WB), Reserved);
}

#[test]
fn memory_that_can_t_be_cached_or_is_set_apart_isn_t_used_and_runtime_s_is_runtime_s() {
    assert_eq!(kind(7, 0), Reserved);
    assert_eq!(kind(7, 0xF), Usable);
    assert_eq!(kind(7, WB | SP), Reserved);
    assert_eq!(kind(7, WB | RT), Runtime);
    assert_eq!([kind(11, RT), kind(12, RT)], [Reserved; 2]);
}

#[test]
fn descriptors_are_as_long_as_the_firmware_says() {
    for stride in [40, 48, 56] {
        let bytes = [
            descriptor(7, 0x3000, 2, WB, stride),
            descriptor(5, 0x1000, 1, WB, stride),
            descriptor(4, 0x2000, 1, WB, stride),
        ];
        let expected = [
            MemoryRange { start: 0x1000, end: 0x2000, kind: Runtime },
            MemoryRange { start: 0x2000, end: 0x5000, kind: Usable },
        ];
        assert_eq!(read(bytes.concat(), stride as u32).unwrap(), expected);
    }
    for stride in [0, 39, 4097] {
        assert!(matches!(read(vec![0; 80], stride), Err(Error::Field { .. })), "{stride}");
    }
    // A part of a descriptor at the end is none.
    assert_eq!(read(descriptor(7, 0x1000, 1, WB, 40)[..39].to_vec(), 40), Ok(vec![]));
}

#[test]
fn more_descriptors_than_any_firmware_has_are_refused_unread() {
    let mut map = MemoryMap::new();
    let result = add_descriptors(&Pieces::default(), AT, 40 * 4097, 40, &mut map);
    assert!(matches!(result, Err(Error::Field { found: 4097, .. })), "{result:?}");
    let result = add_descriptors(&Pieces::default(), AT, 40 * 4096, 40, &mut map);
    assert!(matches!(result, Err(Error::Unreadable { .. })), "{result:?}");
}

#[test]
fn a_number_of_pages_beyond_the_last_address_is_no_memory() {
    assert_eq!(read(descriptor(7, 0x1000, u64::MAX, WB, 40), 40), Ok(vec![]));
}

const TABLE: u64 = 0x10_0000;
const SERVICES: u64 = 0x10_1000;
const FUNCTION: u64 = 0x10_2345;

fn tables() -> Pieces {
    let table = |signature: &[u8; 8], at: usize, pointer: u64| {
        let mut bytes = vec![0; 136];
        bytes[..8].copy_from_slice(signature);
        bytes[at..at + 8].copy_from_slice(&pointer.to_le_bytes());
        bytes
    };
    Pieces::default()
        .with(TABLE, table(b"IBI SYST", 88, SERVICES))
        .with(SERVICES, table(b"RUNTSERV", 104, FUNCTION))
}

#[test]
fn reset_system_is_found_where_runtime_services_lie_and_nowhere_else() {
    let with = |kinds: [MemoryKind; 3]| {
        let mut map = MemoryMap::new();
        for (page, kind) in [TABLE, SERVICES, FUNCTION & !0xFFF].into_iter().zip(kinds) {
            map.add(page, page + 0x1000, kind).unwrap();
        }
        reset_system(&tables(), TABLE, &map)
    };
    assert_eq!(with([Runtime; 3]), Some(FUNCTION));
    for other in [Usable, Acpi, Reserved] {
        assert_eq!(with([other, Runtime, Runtime]), None);
        assert_eq!(with([Runtime, other, Runtime]), None);
        assert_eq!(with([Runtime, Runtime, other]), None);
    }
}

#[test]
fn what_isn_t_signed_as_a_table_of_efi_s_is_none() {
    let mut map = MemoryMap::new();
    map.add(TABLE, TABLE + 0x3000, Runtime).unwrap();
    for wrong in 0..2 {
        let mut tables = tables();
        tables.0[wrong].1[0] ^= 1;
        assert_eq!(reset_system(&tables, TABLE, &map), None);
    }
    assert_eq!(reset_system(&tables(), TABLE + 8, &map), None);
    assert_eq!(reset_system(&tables(), u64::MAX - 4, &map), None);
}
