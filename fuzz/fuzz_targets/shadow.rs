//! The shadow IDT, from any page and any IDTR, and what a fault in a delivery is taken for.
//!
//! A host-owned vector never has a present gate, every other byte is the guest's, and an event is
//! taken for the host's only if it can be.
#![no_main]

use arbitrary::Arbitrary;
use delivery::{
    DeliveryFault, Event, EventKind, GATE_BYTES, PAGE_BYTES, Raised, SPURIOUS, VectorSet, build,
    classify, gate_present, suitable,
};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    long_mode: bool,
    base: u64,
    limit: u16,
    hidden: Vec<u8>,
    gates: Vec<(u8, u64, u64)>,
    events: Vec<(u64, u32)>,
    in_service: Vec<u8>,
}

fn check_shadow(input: &Input, hidden: &VectorSet) {
    let offset = input.base as usize % PAGE_BYTES;
    let mut guest = [0; PAGE_BYTES];
    for (vector, low, high) in &input.gates {
        let gate = low.to_le_bytes().into_iter().chain(high.to_le_bytes());
        let place = guest.iter_mut().skip(offset + usize::from(*vector) * GATE_BYTES);
        place.zip(gate).for_each(|(to, byte)| *to = byte);
    }
    let mut shadow = [0x55; PAGE_BYTES];
    build(&guest, offset, hidden, &mut shadow);
    for vector in 0..=255_u8 {
        let start = offset + usize::from(vector) * GATE_BYTES;
        let (Some(old), Some(new)) =
            (guest.get(start..start + GATE_BYTES), shadow.get(start..start + GATE_BYTES))
        else {
            break;
        };
        if hidden.contains(vector) {
            assert!(!gate_present(&shadow, offset, vector));
            // An absent interrupt gate with the guest's DPL: #NP, not #GP.
            assert_eq!((new[5] & 0x9F, new[5] & 0x60), (0x0E, old[5] & 0x60));
            assert!(new[..5] == old[..5] && new[6..] == old[6..]);
        } else {
            assert_eq!(new, old);
        }
    }
    assert_eq!(shadow[..offset], guest[..offset]);
    if suitable(input.long_mode, input.base, input.limit, hidden).is_ok() {
        let end = usize::from(input.limit) + 1;
        assert!(input.long_mode && offset + end <= PAGE_BYTES);
        assert!(hidden.iter().all(|vector| (usize::from(vector) + 1) * GATE_BYTES <= end));
    }
}

/// Any event, or none.
fn event_of(bits: u64) -> Option<Event> {
    let kind = match bits >> 8 & 7 {
        0 => EventKind::Interrupt,
        2 => EventKind::Nmi,
        3 => EventKind::Exception,
        _ => EventKind::Software,
    };
    let error_code = (bits >> 11 & 1 != 0).then_some((bits >> 32) as u32);
    (bits >> 31 & 1 != 0).then_some(Event { kind, vector: bits as u8, error_code })
}

fuzz_target!(|input: Input| {
    let hidden = VectorSet::of(&input.hidden.iter().map(|v| v | 0x20).collect::<Vec<u8>>());
    check_shadow(&input, &hidden);
    let in_service = VectorSet::of(&input.in_service);
    for (event, error_code) in &input.events {
        // #TS to #PF.
        let vector = 10 + (*event >> 16) as u8 % 5;
        let event = event_of(*event);
        let raised = Raised { vector, error_code: *error_code, address: 0 };
        let found = classify(event, raised, &hidden, |vector| in_service.contains(vector));
        match found {
            DeliveryFault::Reflected(vector) => {
                assert!(event.is_some_and(|e| !e.software() && vector == e.vector));
                assert!(hidden.contains(vector) && in_service.contains(vector));
            }
            DeliveryFault::Spurious => {
                assert!(event.is_some_and(|e| !e.software() && e.vector == SPURIOUS));
                assert!(hidden.contains(SPURIOUS) && !in_service.contains(SPURIOUS));
            }
            DeliveryFault::HiddenGate(vector) => {
                assert!(event.is_some_and(|e| vector == e.vector) && hidden.contains(vector));
            }
            DeliveryFault::Genuine { error_code: given, interrupt } => {
                assert_eq!(given & !1, error_code & !1);
                assert!(interrupt.is_none_or(|vector| vector >= 16));
            }
            DeliveryFault::DoubleFault | DeliveryFault::TripleFault => {
                assert!(event.is_some_and(|e| !e.software() && e.vector < 32));
            }
        }
    }
});
