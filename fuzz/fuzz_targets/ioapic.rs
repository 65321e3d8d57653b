//! The IOAPIC under a guest that writes its registers and devices that drive its pins.
//!
//! Only deliverable messages come out, masked pins send nothing, and a level pin that is asserted
//! and may send is always waiting for its EOI: no interrupt is lost, none is sent twice.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::ioapic::{Ioapic, PINS, Read};
use virtual_pc::message::{Message, Trigger};

const READ: Read<'_> = &Message::from_redirection;
const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;

#[derive(Arbitrary, Debug)]
enum Step {
    Read(u32),
    Write(u32, u32),
    /// A redirection register by pin and half.
    Entry(u8, bool, u32),
    Level(u8, bool),
    Raise(u8),
    Eoi(u8),
}

/// A redirection entry as the guest reads it.
fn entry(ioapic: &Ioapic, pin: usize) -> u64 {
    let mut ioapic = ioapic.clone();
    let mut half = |register: usize| {
        ioapic.write(READ, 0, register as u32);
        u64::from(ioapic.read(0x10))
    };
    half(0x10 + 2 * pin) | half(0x11 + 2 * pin) << 32
}

fn level_message(entry: u64) -> bool {
    entry & (LEVEL | MASKED) == LEVEL
}

fn check(before: &Ioapic, after: &Ioapic, asserted: &[bool; PINS], sent: &[Message]) {
    let mut newly_waiting = 0;
    for (pin, asserted) in asserted.iter().enumerate() {
        let (old, new) = (entry(before, pin), entry(after, pin));
        let waits = new & REMOTE_IRR != 0;
        assert!(!waits || new & LEVEL != 0, "an edge pin waits for no EOI");
        let deliverable = after.redirection(READ, pin).is_some_and(|message| message.is_ok());
        if *asserted && level_message(new) && deliverable {
            assert!(waits, "pin {pin}: an interrupt is lost");
        }
        newly_waiting += usize::from(waits && old & REMOTE_IRR == 0);
    }
    let level = sent.iter().filter(|message| message.trigger == Trigger::Level).count();
    assert!(newly_waiting <= level, "waits for an interrupt that wasn't sent");
    for message in sent {
        assert!(message.vector >= 16 && message.destination <= 0xFF && !message.redirection_hint);
        let by = |pin| {
            after.redirection(READ, pin) == Some(Ok(*message)) && entry(after, pin) & MASKED == 0
        };
        assert!((0..PINS).any(by), "{message:?} is no unmasked pin's");
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut ioapic = Ioapic::new();
    let mut asserted = [false; PINS];
    for step in steps {
        let before = ioapic.clone();
        let sent: Vec<Message> = match step {
            Step::Read(offset) => {
                ioapic.read(offset);
                vec![]
            }
            Step::Write(offset, value) => ioapic.write(READ, offset, value).to_vec(),
            Step::Entry(pin, high, value) => {
                let register = 0x10 + 2 * u32::from(pin % PINS as u8) + u32::from(high);
                assert!(ioapic.write(READ, 0, register).is_empty());
                ioapic.write(READ, 0x10, value).to_vec()
            }
            Step::Level(pin, level) => {
                let pin = usize::from(pin) % (PINS + 2);
                let was = asserted.get_mut(pin).map(|was| std::mem::replace(was, level));
                let sent = ioapic.set_level(READ, pin, level);
                // Nothing comes of a line that doesn't rise, or of one that isn't there.
                let rises = level && was == Some(false);
                assert!(rises || sent.is_none());
                sent.into_iter().collect()
            }
            Step::Raise(pin) => {
                let pin = usize::from(pin) % (PINS + 2);
                let sent = ioapic.raise(READ, pin);
                if let Some(was) = asserted.get_mut(pin) {
                    assert!(!*was || sent.is_none());
                    *was = false;
                }
                sent.into_iter().collect()
            }
            Step::Eoi(vector) => {
                let sent = ioapic.eoi(READ, vector);
                assert!(sent.iter().all(|message| message.vector == vector));
                sent.to_vec()
            }
        };
        check(&before, &ioapic, &asserted, &sent);
    }
});
