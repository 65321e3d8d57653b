//! The SPCR, and that a damaged one costs the console alone.

use super::*;

/// A table of this revision and length with these fields in it.
fn spcr(revision: u8, length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut body = vec![0; length - 36];
    for (at, bytes) in fields {
        body[at - 36..at - 36 + bytes.len()].copy_from_slice(bytes);
    }
    let mut bytes = table(b"SPCR", &body);
    bytes[8] = revision;
    fix_sum(&mut bytes, 9);
    bytes
}

/// A generic address: space, bits, access size.
fn base(space: u8, bits: u8, access: u8, address: u64) -> Vec<u8> {
    [&[space, bits, 0, access][..], &address.to_le_bytes()].concat()
}

fn console(spcr: Vec<u8>) -> Option<Result<SerialPort, Error>> {
    probe(&machine(&[madt(&ONE_CPU), spcr]), RSDP_AT).unwrap().console
}

/// What a table of revision 2 says whose address is this.
fn at(base: &[u8]) -> Option<Result<SerialRegisters, Error>> {
    console(spcr(2, 80, &[(40, base)])).map(|port| port.map(|port| port.registers))
}

#[test]
fn com1_as_most_firmware_has_it() {
    let fields: [(usize, &[u8]); 3] =
        [(40, &base(1, 8, 0, 0x3F8)), (58, &[7]), (64, &[0xFF, 0xFF, 0xFF, 0xFF])];
    let registers = SerialRegisters::Ports(0x3F8);
    let port = SerialPort { registers, baud: Some(115_200), clock: None, function: None };
    for (revision, length) in [(1, 80), (2, 80), (3, 76), (3, 80), (4, 80), (4, 90)] {
        assert_eq!(console(spcr(revision, length, &fields)), Some(Ok(port)), "{revision}");
    }
}

#[test]
fn registers_in_memory_have_a_stride_and_a_width() {
    let memory =
        |address, stride, width| Some(Ok(SerialRegisters::Memory { address, stride, width }));
    assert_eq!(at(&base(0, 8, 1, 0xFEDC_9001)), memory(0xFEDC_9001, 1, 1));
    assert_eq!(at(&base(0, 32, 3, 0xFEDC_9000)), memory(0xFEDC_9000, 4, 4));
    assert_eq!(at(&base(0, 32, 0, 0xFEDC_9000)), memory(0xFEDC_9000, 4, 1));
    assert_eq!(at(&base(0, 16, 1, 0xFEDC_9000)), memory(0xFEDC_9000, 2, 1));
    assert_eq!(at(&base(0, 0, 2, 1 << 40)), memory(1 << 40, 2, 2));
    assert_eq!(at(&base(0, 8, 1, u64::MAX - 8)), memory(u64::MAX - 8, 1, 1));
}

#[test]
fn registers_that_can_t_be_are_told_of() {
    let needed = |base: &[u8]| match at(base) {
        Some(Err(Error::Inconsistent { table: "SPCR", offset: 40, needed })) => needed,
        other => panic!("{other:?}"),
    };
    assert_eq!(needed(&base(1, 8, 1, 0xFFF9)), "eight I/O ports below 10000h");
    assert_eq!(needed(&base(1, 8, 1, 0x1_03F8)), "eight I/O ports below 10000h");
    assert_eq!(at(&base(1, 8, 1, 0xFFF8)), Some(Ok(SerialRegisters::Ports(0xFFF8))));
    for (bits, access) in [(64, 3), (24, 1), (32, 4), (32, 9), (32, 255)] {
        let base = base(0, bits, access, 0xFEDC_9000);
        assert_eq!(needed(&base), "registers of 8, 16 or 32 bits", "{bits} {access}");
    }
    assert_eq!(needed(&base(0, 32, 3, 0xFEDC_9002)), "an aligned address");
    assert_eq!(needed(&base(0, 8, 1, u64::MAX - 7)), "an end below 2^64");
}

#[test]
fn what_isn_t_a_16550_or_nowhere_is_no_console() {
    let kind = |kind: u8| console(spcr(2, 80, &[(36, &[kind]), (40, &base(1, 8, 1, 0x2F8))]));
    for there in [0, 1, 0x12] {
        assert!(matches!(kind(there), Some(Ok(_))), "{there}");
    }
    for other in [2, 3, 0x0E, 0x11, 0x13, 0xFF] {
        assert_eq!(kind(other), None, "{other}");
    }
    assert_eq!(at(&base(1, 8, 1, 0)), None, "switched off");
    assert_eq!(at(&base(0, 8, 1, 0)), None, "switched off");
    assert_eq!(at(&base(2, 8, 1, 0x3F8)), None, "configuration space");
}

#[test]
fn later_revisions_know_clock_and_rate() {
    let with = |revision, baud: u8, clock: u32, precise: u32| {
        let (clock, precise) = (clock.to_le_bytes(), precise.to_le_bytes());
        let fields: [(usize, &[u8]); 4] =
            [(40, &base(1, 8, 1, 0x3F8)), (58, &[baud]), (76, &clock), (80, &precise)];
        let port = console(spcr(revision, 90, &fields)).unwrap().unwrap();
        (port.baud, port.clock)
    };
    assert_eq!(with(2, 3, 48_000_000, 9), (Some(9_600), None));
    assert_eq!(with(3, 4, 48_000_000, 9), (Some(19_200), Some(48_000_000)));
    assert_eq!(with(4, 6, 0, 0), (Some(57_600), None));
    assert_eq!(with(4, 7, 1, 3_000_000), (Some(3_000_000), Some(1)));
    assert_eq!([0, 1, 2, 5, 8, 255].map(|baud| with(2, baud, 0, 0).0), [None; 6]);
}

#[test]
fn a_pci_function_is_named_by_its_place() {
    let with = |ids: [u8; 4], place: [u8; 3], segment: u8| {
        let fields: [(usize, &[u8]); 4] =
            [(40, &base(1, 8, 1, 0xE000)), (64, &ids), (68, &place), (75, &[segment])];
        console(spcr(2, 80, &fields)).unwrap().map(|port| port.function)
    };
    let there = SerialFunction { segment: 1, bus: 4, device: 31, function: 7 };
    assert_eq!(with([0x3C, 0x9D, 0x86, 0x80], [4, 31, 7], 1), Ok(Some(there)));
    assert_eq!(with([0xFF, 0xFF, 0x86, 0x80], [4, 3, 1], 1), Ok(None));
    assert_eq!(with([0x3C, 0x9D, 0xFF, 0xFF], [4, 3, 1], 1), Ok(None));
    assert_eq!(with([0; 4], [0; 3], 0), Ok(None));
    for place in [[0, 32, 0], [0, 0, 8]] {
        let error = with([0x3C, 0x9D, 0x86, 0x80], place, 0).unwrap_err();
        assert!(matches!(error, Error::Inconsistent { table: "SPCR", offset: 68, .. }));
    }
}

/// The machine is as it is without the table; the first of two counts.
#[test]
fn a_damaged_one_costs_the_console_alone() {
    let good = spcr(4, 90, &[(40, &base(1, 8, 1, 0x3F8))]);
    let without = probe(&machine(&[madt(&ONE_CPU)]), RSDP_AT).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        let mut found = probe(&machine(&[madt(&ONE_CPU), bad, good.clone()]), RSDP_AT).unwrap();
        match found.console.take() {
            Some(Err(_)) => assert!(at >= 4),
            // A damaged signature hides the table, and the second one counts.
            Some(Ok(_)) => assert!(at < 4, "byte {at}"),
            None => panic!("byte {at}"),
        }
        assert_eq!(found, without);
    }
    for length in 36..80 {
        let error = console(spcr(2, length, &[])).map(|port| port.is_err());
        // One that is cut before what says that it is switched off.
        assert_eq!(error, (length < 52).then_some(true), "{length}");
    }
}
