//! Which memory is near which processors.

use super::*;
use crate::NearMemory;

fn srat(structures: &[u8]) -> Vec<u8> {
    table(b"SRAT", &[&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], structures].concat())
}

fn processor(id: u8, domain: u32, enabled: u8) -> Vec<u8> {
    let [low, rest @ ..] = domain.to_le_bytes();
    [&[0, 16, low, id, enabled, 0, 0, 0, 0][..], &rest, &[0; 4]].concat()
}

fn x2apic(id: u32, domain: u32, enabled: u8) -> Vec<u8> {
    let mut bytes = vec![2, 24, 0, 0];
    bytes.extend([domain, id, u32::from(enabled), 0, 0].iter().flat_map(|w| w.to_le_bytes()));
    bytes
}

fn memory(start: u64, length: u64, domain: u32, enabled: u8) -> Vec<u8> {
    let mut bytes = vec![1, 40];
    bytes.extend(domain.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend([start, length].iter().flat_map(|w| w.to_le_bytes()));
    bytes.extend([0, 0, 0, 0, enabled, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn read(structures: &[Vec<u8>]) -> Result<Affinity, Error> {
    let tables = [madt(&[0, 8, 0, 0, 1, 0, 0, 0]), srat(&structures.concat())];
    probe(&machine(&tables), RSDP_AT)?.affinity.unwrap()
}

#[test]
fn cores_and_memory_have_their_domain() {
    let all = [
        processor(1, 0x0102_0304, 1),
        processor(2, 5, 0),
        x2apic(300, 7, 1),
        x2apic(301, 7, 0),
        memory(0x1000, 0x2000, 7, 1),
        memory(0x9000, 0x1000, 7, 0),
        memory(0xF000, u64::MAX, 8, 1),
    ];
    let found = read(&all).unwrap();
    assert_eq!(found.cores, [(1, 0x0102_0304), (300, 7)]);
    let near = |start, end, domain| NearMemory { start, end, domain };
    assert_eq!(found.memory, [near(0x1000, 0x3000, 7), near(0xF000, u64::MAX, 8)]);
    assert_eq!(found.of(300), Some(7));
    assert_eq!(found.of(301), None);
    assert_eq!(found.near(7).collect::<Vec<_>>(), [(0x1000, 0x3000)]);
}

#[test]
fn structures_that_are_cut_short_are_told_of() {
    for cut in [1, 15] {
        let short = processor(1, 0, 1)[..cut].to_vec();
        assert!(read(&[short]).is_err(), "{cut}");
    }
    let mut small = memory(0, 1, 0, 1);
    small[1] = 20;
    assert!(read(&[small]).is_err());
    let error = read(&vec![x2apic(1, 1, 1); 4097]).unwrap_err();
    assert_eq!(error, Error::TooMany { table: "SRAT", what: "processors", most: 4096 });
}
