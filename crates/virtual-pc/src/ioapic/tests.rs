//! The IOAPIC's delivery rules, case by case and against a random guest.

use super::*;
use crate::message::{DeliveryMode, Trigger};
use proptest::prelude::*;

const READ: Read<'_> = &Message::from_redirection;

fn program(io: &mut Ioapic, pin: u8, entry: u64) -> Messages {
    io.write(READ, SELECT, u32::from(REDIRECTION + 2 * pin + 1));
    io.write(READ, WINDOW, (entry >> 32) as u32);
    io.write(READ, SELECT, u32::from(REDIRECTION + 2 * pin));
    io.write(READ, WINDOW, entry as u32)
}

fn read_back(io: &mut Ioapic, pin: u8) -> u64 {
    io.write(READ, SELECT, u32::from(REDIRECTION + 2 * pin + 1));
    let high = u64::from(io.read(WINDOW));
    io.write(READ, SELECT, u32::from(REDIRECTION + 2 * pin));
    high << 32 | u64::from(io.read(WINDOW))
}

#[test]
fn linux_sees_24_pins_version_0x20_all_masked() {
    let mut io = Ioapic::new();
    io.write(READ, SELECT, 1);
    assert_eq!(io.read(WINDOW), 0x0017_0020);
    for pin in 0..24 {
        assert_eq!(read_back(&mut io, pin), 0x1_0000);
    }
    io.write(READ, SELECT, 0);
    io.write(READ, WINDOW, 0xFFFF_FFFF);
    assert_eq!(io.read(WINDOW), 0x0F00_0000);
}

/// VT-d 5.0, 5.1.5.1: the format in bit 48, the index in 63:49 and 11.
#[test]
fn an_entry_that_is_remapped_keeps_all_of_its_index() {
    let mut io = Ioapic::new();
    let entry = 0x7ABC << 49 | 1 << 48 | 1 << 11 | 4;
    program(&mut io, 4, entry);
    assert_eq!(read_back(&mut io, 4), entry);
    let read: Read<'_> = &|found| {
        assert_eq!(found, entry);
        Message::from_redirection(0x31)
    };
    assert_eq!(io.raise(read, 4).map(|sent| sent.vector), Some(0x31));
}

#[test]
fn an_edge_sends_once_and_a_masked_one_is_lost() {
    let mut io = Ioapic::new();
    assert_eq!(io.raise(READ, 4), None);
    assert!(program(&mut io, 4, 3 << 56 | 0x31).is_empty(), "the lost edge stays lost");
    let sent = io.set_level(READ, 4, true).unwrap();
    assert_eq!((sent.vector, sent.destination, sent.logical), (0x31, 3, false));
    assert_eq!((sent.delivery, sent.trigger), (DeliveryMode::Fixed, Trigger::Edge));
    assert_eq!(io.set_level(READ, 4, true), None);
    assert_eq!(io.raise(READ, 4), None, "the line is still high: no edge");
    assert!(io.raise(READ, 4).is_some());
    assert!(io.eoi(READ, 0x31).is_empty());
}

#[test]
fn a_level_waits_for_its_eoi_and_sends_again_while_asserted() {
    let mut io = Ioapic::new();
    io.set_level(READ, 9, true);
    let sent = program(&mut io, 9, LEVEL | 0x52);
    assert_eq!(sent[0].trigger, Trigger::Level, "asserted before it was unmasked");
    assert_eq!(read_back(&mut io, 9) & REMOTE_IRR, REMOTE_IRR);
    assert_eq!(io.set_level(READ, 9, true), None);
    assert!(io.eoi(READ, 0x53).is_empty(), "another vector");
    assert_eq!(io.write(READ, EOI, 0x52).len(), 1);
    io.set_level(READ, 9, false);
    assert!(io.eoi(READ, 0x52).is_empty());
    assert_eq!(read_back(&mut io, 9) & REMOTE_IRR, 0);
}

#[test]
fn pins_that_wait_at_once_wait_each_for_its_own() {
    for order in [[3, 9, 23], [23, 9, 3], [9, 3, 23]] {
        let mut io = Ioapic::new();
        let vector = |pin: usize| 0x50 + pin as u8;
        for pin in order {
            program(&mut io, pin as u8, LEVEL | u64::from(vector(pin)));
            assert!(io.set_level(READ, pin, true).is_some());
        }
        for pin in order {
            io.set_level(READ, pin, false);
            assert!(io.eoi(READ, vector(pin)).is_empty());
            assert_eq!(read_back(&mut io, pin as u8) & REMOTE_IRR, 0, "pin {pin}");
            assert_eq!(io.owed >> pin & 1, 0, "an EOI isn't looked up for pin {pin} any more");
        }
        assert_eq!(io.owed, 0);
        assert!(order.iter().all(|pin| io.set_level(READ, *pin, true).is_some()), "nobody waits");
    }
}

#[test]
fn registers_that_are_not_there_read_zero_and_take_nothing() {
    let mut io = Ioapic::new();
    io.write(READ, SELECT, 0);
    io.write(READ, WINDOW, 0x0A00_0000);
    io.write(READ, SELECT, 2);
    assert_eq!(io.read(WINDOW), 0x0A00_0000, "the arbitration id is the id");
    let before = io.clone();
    for register in [1, 2, 3, 0x0F, 0x40, 0x41, 0xFF] {
        io.write(READ, SELECT, register);
        assert_eq!(io.read(SELECT), register);
        assert!(register < 3 || io.read(WINDOW) == 0, "{register:#x}");
        assert!(io.write(READ, WINDOW, 0x0500_0031).is_empty());
    }
    assert_eq!((io.id, io.entries), (before.id, before.entries));
    assert_eq!([0x04, 0x20, EOI].map(|offset| io.read(offset)), [0; 3]);
}

#[test]
fn a_visit_to_edge_mode_clears_remote_irr() {
    let mut io = Ioapic::new();
    program(&mut io, 9, LEVEL | 0x52);
    assert!(io.set_level(READ, 9, true).is_some());
    program(&mut io, 9, MASKED | 0x52);
    assert_eq!(program(&mut io, 9, LEVEL | 0x52).len(), 1);
}

#[test]
fn what_a_guest_may_not_send_is_not_sent() {
    let mut io = Ioapic::new();
    for entry in [0x441, 0x0F, 0x741] {
        for mode in [0, LEVEL] {
            program(&mut io, 2, mode | entry);
            assert_eq!(io.raise(READ, 2), None, "{entry:#x}");
            assert!(io.redirection(READ, 2).unwrap().is_err());
            assert_eq!(read_back(&mut io, 2) & REMOTE_IRR, 0);
        }
    }
    assert_eq!(io.raise(READ, 24), None);
    assert_eq!(io.raise(READ, usize::MAX), None);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32),
    Level(usize, bool),
    Pulse(usize),
    Eoi(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = prop_oneof![Just(SELECT), Just(WINDOW), Just(EOI), any::<u32>()];
    let value = prop_oneof![0u32..0x48, any::<u32>(), (0x20u32..0x24).prop_map(|v| v | 0x8000)];
    let step = prop_oneof![
        4 => (offset, value).prop_map(|(o, v)| Step::Write(o, v)),
        2 => (0usize..26, any::<bool>()).prop_map(|(p, l)| Step::Level(p, l)),
        1 => (0usize..26).prop_map(Step::Pulse),
        1 => (0x20u8..0x24).prop_map(Step::Eoi),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn a_level_pin_never_sends_twice_without_an_eoi(steps in steps()) {
        let mut io = Ioapic::new();
        for step in steps {
            let before = io.clone();
            let sent: Vec<Message> = match step {
                Step::Write(o, v) => io.write(READ, o, v).to_vec(),
                Step::Level(p, l) => io.set_level(READ, p, l).into_iter().collect(),
                Step::Pulse(p) => io.raise(READ, p).into_iter().collect(),
                Step::Eoi(v) => io.eoi(READ, v).to_vec(),
            };
            let levels = sent.iter().filter(|m| m.trigger == Trigger::Level).count();
            let newly = (0..PINS)
                .filter(|p| io.entries[*p] & REMOTE_IRR != 0)
                .filter(|p| before.entries[*p] & REMOTE_IRR == 0)
                .count();
            let acknowledged = matches!(step, Step::Eoi(_) | Step::Write(EOI, _));
            prop_assert!(levels == newly || acknowledged);
            for pin in 0..PINS {
                let waiting = io.entries[pin] & REMOTE_IRR != 0;
                prop_assert!(!waiting || io.entries[pin] & LEVEL != 0);
                prop_assert_eq!(io.owed >> pin & 1 != 0, waiting, "pin {}", pin);
            }
        }
    }

    #[test]
    fn entries_read_back_what_can_be_written(pin in 0u8..24, entry: u64) {
        let mut io = Ioapic::new();
        program(&mut io, pin, entry);
        prop_assert_eq!(read_back(&mut io, pin), entry & WRITABLE);
        for other in (0..24).filter(|o| *o != pin) {
            prop_assert_eq!(read_back(&mut io, other), MASKED);
        }
    }
}
