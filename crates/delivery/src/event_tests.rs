//! Events of all kinds.

use super::EventKind::{Exception, Interrupt, Software};
use super::*;
use proptest::prelude::*;

const HIDDEN: VectorSet = VectorSet::of(&[0xF1]);

fn event(kind: EventKind, vector: u8) -> Event {
    Event { kind, vector, error_code: None }
}

fn fault(vector: u8, error_code: u32) -> Raised {
    Raised { vector, error_code, address: 0 }
}

fn absent(vector: u8) -> Raised {
    fault(NOT_PRESENT, u32::from(vector) * 8 + 2)
}

#[test]
fn a_physical_interrupt_is_told_by_the_local_apic_whatever_type_is_reported() {
    for kind in [Interrupt, Exception] {
        let e = event(kind, 0xF1);
        let reflected = classify(Some(e), absent(0xF1), &HIDDEN, |v| v == 0xF1);
        assert_eq!(reflected, DeliveryFault::Reflected(0xF1));
        let injected = classify(Some(e), absent(0xF1), &HIDDEN, |_| false);
        assert_eq!(injected, DeliveryFault::HiddenGate(0xF1));
    }
}

/// A task priority that rises as an interrupt arrives leaves the vector of nothing.
#[test]
fn a_spurious_interrupt_is_given_to_nobody() {
    let hidden = VectorSet::of(&[0xF1, SPURIOUS]);
    for kind in [Interrupt, Exception] {
        let e = Some(event(kind, SPURIOUS));
        let beyond = fault(PROTECTION, u32::from(SPURIOUS) * 8 + 2);
        let found = |in_service| classify(e, beyond, &hidden, move |v| v == in_service);
        assert_eq!(found(0x40), DeliveryFault::Spurious);
        assert_eq!(found(SPURIOUS), DeliveryFault::Reflected(SPURIOUS), "a device's");
    }
    let e = Some(event(Software, SPURIOUS));
    let found = classify(e, absent(SPURIOUS), &hidden, |_| false);
    assert_eq!(found, DeliveryFault::HiddenGate(SPURIOUS));
}

#[test]
fn int_n_is_never_a_physical_interrupt() {
    let e = event(Software, 0xF1);
    let found = classify(Some(e), absent(0xF1), &HIDDEN, |_| true);
    assert_eq!(found, DeliveryFault::HiddenGate(0xF1));
    let found = classify(Some(event(Software, 0x55)), absent(0x55), &HIDDEN, |_| true);
    let error_code = 0x55 * 8 + 2;
    assert_eq!(found, DeliveryFault::Genuine { error_code, interrupt: None });
}

#[test]
fn a_page_that_is_missing_is_no_hidden_gate() {
    for kind in [Interrupt, Software] {
        let found = classify(Some(event(kind, 0xF1)), fault(PAGE_FAULT, 0), &HIDDEN, |_| true);
        assert!(matches!(found, DeliveryFault::Genuine { error_code: 0, .. }), "{found:?}");
    }
}

/// APM vol. 2, 8.2.9: what becomes of a second exception in the delivery of a first.
#[test]
fn double_faults_are_those_of_the_manual() {
    const FAULTS: [u8; 5] = [10, 11, 12, 13, 14];
    for second in FAULTS {
        for first in (0..32).filter(|v| *v != NON_MASKABLE) {
            let contributory = |v: u8| v == 0 || (10..=13).contains(&v);
            let expected = match (first, second) {
                (8, _) => Some(DeliveryFault::TripleFault),
                (14, _) => Some(DeliveryFault::DoubleFault),
                (a, b) if contributory(a) && contributory(b) => Some(DeliveryFault::DoubleFault),
                _ => None,
            };
            let found =
                classify(Some(event(Exception, first)), fault(second, 0x5A), &HIDDEN, |_| false);
            match expected {
                Some(e) => assert_eq!(found, e, "{second} in the delivery of {first}"),
                None => assert!(matches!(found, DeliveryFault::Genuine { .. }), "{found:?}"),
            }
        }
    }
}

#[test]
fn the_guests_own_absent_gate_is_its_own_fault() {
    for vector in [0x10, 0x13, 0x1F, 0x20, 0x41] {
        for kind in [Interrupt, Exception] {
            let found = classify(Some(event(kind, vector)), absent(vector), &HIDDEN, |_| true);
            let error_code = u32::from(vector) * 8 + 3;
            assert_eq!(found, DeliveryFault::Genuine { error_code, interrupt: Some(vector) });
        }
    }
    let found = classify(Some(event(Exception, 6)), absent(6), &HIDDEN, |_| false);
    assert_eq!(found, DeliveryFault::Genuine { error_code: 6 * 8 + 3, interrupt: None });
    for vector in [BREAKPOINT, OVERFLOW] {
        assert_eq!(
            classify(Some(event(Exception, vector)), absent(vector), &HIDDEN, |_| false),
            DeliveryFault::Genuine { error_code: u32::from(vector) * 8 + 2, interrupt: None },
            "INT3 and INTO are the program's own"
        );
    }
    assert_eq!(
        classify(None, fault(NOT_PRESENT, 0x18), &HIDDEN, |_| true),
        DeliveryFault::Genuine { error_code: 0x18, interrupt: None }
    );
}

#[test]
fn a_trap_is_delivered_again() {
    let debug = Event::exception(1, None);
    assert_eq!(debug.again(), Some(debug));
}

/// An event from outside or by the host.
fn raised() -> impl Strategy<Value = Event> {
    prop_oneof![
        (FIRST_INTERRUPT..).prop_map(Event::interrupt),
        Just(Event::nmi()),
        (0..32u8, any::<Option<u32>>())
            .prop_filter("INT3, INTO and NMI", |(v, _)| !(2..=4).contains(v))
            .prop_map(|(vector, error_code)| Event::exception(vector, error_code)),
    ]
}

proptest! {
    #[test]
    fn what_was_being_delivered_is_delivered_again(event in raised()) {
        prop_assert_eq!(event.again(), Some(event));
    }

    #[test]
    fn what_the_program_does_again_isnt(vector: u8) {
        prop_assert_eq!(event(Software, vector).again(), None);
        for by_instruction in [BREAKPOINT, OVERFLOW] {
            prop_assert_eq!(event(Exception, by_instruction).again(), None);
        }
    }
}
