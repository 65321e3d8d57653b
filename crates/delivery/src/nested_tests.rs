//! Events of all types, as the manual has them and as QEMU reports them.

use super::*;
use proptest::prelude::*;

const HIDDEN: VectorSet = VectorSet::of(&[0xF1]);

fn event(kind: u64, vector: u8) -> Interruption {
    Interruption(1 << 31 | kind << 8 | u64::from(vector))
}

fn fault(vector: u8, error_code: u32) -> Raised {
    Raised { vector, error_code, address: 0 }
}

fn absent(vector: u8) -> Raised {
    fault(NOT_PRESENT, u32::from(vector) * 8 + 2)
}

#[test]
fn a_physical_interrupt_is_told_by_the_local_apic_whatever_type_is_reported() {
    for kind in [INTERRUPT, EXCEPTION] {
        let e = event(kind, 0xF1);
        let reflected = classify(e, absent(0xF1), &HIDDEN, |v| v == 0xF1);
        assert_eq!(reflected, DeliveryFault::Reflected(0xF1));
        let injected = classify(e, absent(0xF1), &HIDDEN, |_| false);
        assert_eq!(injected, DeliveryFault::HiddenGate(0xF1));
    }
}

#[test]
fn int_n_is_never_a_physical_interrupt() {
    let e = event(SOFTWARE, 0xF1);
    let found = classify(e, absent(0xF1), &HIDDEN, |_| true);
    assert_eq!(found, DeliveryFault::HiddenGate(0xF1));
    let found = classify(event(SOFTWARE, 0x55), absent(0x55), &HIDDEN, |_| true);
    let error_code = 0x55 * 8 + 2;
    assert_eq!(found, DeliveryFault::Genuine { error_code, interrupt: None });
}

#[test]
fn a_page_that_is_missing_is_no_hidden_gate() {
    for kind in [INTERRUPT, SOFTWARE] {
        let found = classify(event(kind, 0xF1), fault(PAGE_FAULT, 0), &HIDDEN, |_| true);
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
            let found = classify(event(EXCEPTION, first), fault(second, 0x5A), &HIDDEN, |_| false);
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
        for kind in [INTERRUPT, EXCEPTION] {
            let found = classify(event(kind, vector), absent(vector), &HIDDEN, |_| true);
            let error_code = u32::from(vector) * 8 + 3;
            assert_eq!(found, DeliveryFault::Genuine { error_code, interrupt: Some(vector) });
        }
    }
    let found = classify(event(EXCEPTION, 6), absent(6), &HIDDEN, |_| false);
    assert_eq!(found, DeliveryFault::Genuine { error_code: 6 * 8 + 3, interrupt: None });
    for vector in [BREAKPOINT, OVERFLOW] {
        assert_eq!(
            classify(event(EXCEPTION, vector), absent(vector), &HIDDEN, |_| false),
            DeliveryFault::Genuine { error_code: u32::from(vector) * 8 + 2, interrupt: None },
            "INT3 and INTO are the program's own"
        );
    }
    // Not valid: the rest is stale, whatever it says.
    assert_eq!(
        classify(Interruption(0x340), fault(NOT_PRESENT, 0x18), &HIDDEN, |_| true),
        DeliveryFault::Genuine { error_code: 0x18, interrupt: None }
    );
}

#[test]
fn a_trap_is_delivered_again() {
    let debug = Again::Exception { vector: 1, error_code: None };
    assert_eq!(event(EXCEPTION, 1).again(|_| false), debug);
}

/// An event from outside or by the host, as it is raised.
fn raised() -> impl Strategy<Value = Again> {
    prop_oneof![
        (FIRST_INTERRUPT..).prop_map(Again::Interrupt),
        Just(Again::Nmi),
        (0..NO_EXCEPTION, any::<Option<u32>>())
            .prop_filter("INT3, INTO and NMI", |(v, _)| !(2..=4).contains(v))
            .prop_map(|(vector, error_code)| Again::Exception { vector, error_code }),
    ]
}

/// EXITINTINFO by the manual, or as QEMU has it.
fn reported(event: Again, qemu: bool) -> Interruption {
    let (kind, vector, code) = match event {
        Again::Nothing => return Interruption(0),
        Again::Interrupt(vector) => (INTERRUPT, vector, None),
        Again::Nmi => (NMI, NON_MASKABLE, None),
        Again::Exception { vector, error_code } => (EXCEPTION, vector, error_code),
    };
    let kind = if qemu { EXCEPTION } else { kind };
    let code = code.map_or(0, |c| 1 << 11 | u64::from(c) << 32);
    Interruption(1 << 31 | kind << 8 | code | u64::from(vector))
}

proptest! {
    #[test]
    fn what_was_being_delivered_is_delivered_again(event in raised(), qemu: bool) {
        // In service is what the guest takes from its local APIC, and an exception is no interrupt.
        let physical = |v| event == Again::Interrupt(v);
        prop_assert_eq!(reported(event, qemu).again(physical), event);
    }

    #[test]
    fn what_the_program_does_again_isnt(vector: u8, rest: u64) {
        let rest = rest & !(7 << 8 | 0xFF) | 1 << 31;
        prop_assert_eq!(Interruption(rest | SOFTWARE << 8 | u64::from(vector)).again(|_| true), Again::Nothing);
        for by_instruction in [BREAKPOINT, OVERFLOW] {
            let event = Interruption(rest | EXCEPTION << 8 | u64::from(by_instruction));
            prop_assert_eq!(event.again(|_| true), Again::Nothing);
        }
    }

    #[test]
    fn nothing_comes_of_nothing(stale: u64) {
        prop_assert_eq!(Interruption(stale & !(1 << 31)).again(|_| true), Again::Nothing);
    }
}
