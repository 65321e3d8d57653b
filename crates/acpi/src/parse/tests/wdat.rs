//! The watchdog that a WDAT describes.

use super::*;

/// An instruction: action, kind, then the generic address (space, bits, shift, access, address),
/// value and mask.
fn step(action: u8, kind: u8, generic: (u8, u8, u8, u8, u64), value: u32, mask: u32) -> Vec<u8> {
    let (space, bits, shift, access, address) = generic;
    let mut bytes = vec![action, kind, 0, 0, space, bits, shift, access];
    bytes.extend(address.to_le_bytes());
    bytes.extend([value, mask].iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

fn wdat(numbers: [u32; 3], flags: u8, count: u32, steps: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![32, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0];
    body.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    body.extend([flags, 0, 0, 0]);
    body.extend(count.to_le_bytes());
    body.extend(steps.concat());
    table(b"WDAT", &body)
}

fn read(table: Vec<u8>) -> Option<Result<Watchdog, Error>> {
    probe(&machine(&[madt(&ONE_CPU), table]), RSDP_AT).unwrap().watchdog
}

fn registers(generics: &[(u8, u8, u8, u8, u64)]) -> Vec<Option<WatchdogRegister>> {
    let steps: Vec<_> = generics.iter().map(|generic| step(8, 0, *generic, 0, 1)).collect();
    let found = read(wdat([1, 9, 1], 1, steps.len() as u32, &steps)).unwrap().unwrap();
    found.instructions.iter().map(|step| step.operation.map(|(_, register)| register)).collect()
}

#[test]
fn a_watchdog_is_read_whole() {
    let steps = [
        step(8, 0, (1, 16, 11, 2, 0x668), 0, 1),
        step(5, 1, (0, 32, 0, 3, 0xFED0_0004), 0, 0x3FF),
        step(11, 0x82, (1, 16, 11, 2, 0x668), 1, 1),
        step(1, 2, (1, 16, 0, 2, 0x660), 1, 0xFFFF),
        step(6, 3, (1, 16, 0, 2, 0x672), 0, 0x3FF),
    ];
    let found = read(wdat([600, 1023, 2], 0x81, 5, &steps)).unwrap().unwrap();
    assert_eq!((found.period_ms, found.least_count, found.most_count), (600, 2, 1023));
    let at = |place, width, shift| WatchdogRegister { place, width, shift };
    let control = at(Place::Port(0x668), 2, 11);
    let what: Vec<_> = found.instructions.iter().map(|s| (s.action, s.operation)).collect();
    let write = |preserve| Operation::Write { preserve };
    assert_eq!(
        what,
        [
            (8, Some((Operation::Compare, control))),
            (5, Some((Operation::Count, at(Place::Memory(0xFED0_0004), 4, 0)))),
            (11, Some((write(true), control))),
            (1, Some((write(false), at(Place::Port(0x660), 2, 0)))),
            (6, None),
        ]
    );
    assert_eq!((found.instructions[3].value, found.instructions[3].mask), (1, 0xFFFF));
}

#[test]
fn a_register_out_of_reach_is_none() {
    let found = registers(&[
        (1, 8, 0, 0, 0xFFFF),
        (1, 16, 0, 2, 0xFFFE),
        (0, 32, 31, 0, 0x1000),
        // Beyond the ports, no address, another space, no alignment, a field outside, 64 bits.
        (1, 16, 0, 2, 0xFFFF),
        (1, 8, 0, 1, 0),
        (2, 8, 0, 1, 0x10),
        (0, 32, 0, 3, 0x1002),
        (0, 8, 8, 1, 0x1000),
        (0, 64, 0, 4, 0x1000),
    ]);
    assert!(found[..3].iter().all(Option::is_some) && found[3..].iter().all(Option::is_none));
}

#[test]
fn one_that_is_off_is_not_there_and_a_wrong_table_costs_the_watchdog_alone() {
    assert_eq!(read(wdat([1, 9, 1], 0x80, 0, &[])), None);
    assert_eq!(read(wdat([1, 9, 9], 1, 0, &[])).unwrap().unwrap().instructions, []);
    let offset = 48;
    for numbers in [[0, 9, 1], [1, 9, 10]] {
        let error = read(wdat(numbers, 1, 0, &[])).unwrap().unwrap_err();
        assert!(matches!(error, Error::Inconsistent { offset: at, .. } if at == offset), "{error}");
    }
    let error = read(wdat([1, 9, 1], 1, 2, &[step(1, 2, (1, 8, 0, 1, 1), 0, 0)])).unwrap();
    assert!(matches!(error, Err(Error::Short { offset: 92, .. })), "{error:?}");
    let error = read(wdat([1, 9, 1], 1, 129, &[])).unwrap();
    assert!(matches!(error, Err(Error::TooMany { most: 128, .. })), "{error:?}");
    assert!(read(table(b"WDAT", &[])).unwrap().is_err());
}
