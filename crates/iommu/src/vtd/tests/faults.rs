//! What is reported of blocked requests, and where the unit sends its interrupt.

use super::model::{CAP, ECAP};
use super::on;
use crate::vtd::fault_pending;
use crate::vtd::registers::{FECTL_IM, PFO};
use crate::{Delivery, Fault, Request};

#[test]
fn reports_each_fault_once() {
    let (model, mut unit) = on(CAP | 3 << 40, ECAP);
    model.with(|state| {
        state.records[0] = (0xABCD_E000, 1 << 63 | 5 << 32 | 0x18);
        state.records[2] = (0x1000, 3 << 62 | 2 << 32 | 0x0100);
        state.records[3] = (77 << 48, 1 << 63 | 0x26 << 32 | 0x20);
        state.fsts = PFO;
    });
    let mut faults = Vec::new();
    assert!(unit.faults(|fault| faults.push(fault)));
    let texts: Vec<_> = faults.iter().map(Fault::to_string).collect();
    assert_eq!(
        texts,
        [
            "a write of page 0xabcde000 by device 00:03.0 was blocked: \
             its domain has no writable page there (0x5)",
            "a read of page 0x1000 by device 01:00.0 was blocked: it isn't attached (0x2)",
            "an interrupt by entry 77 by device 00:04.0 was blocked: \
             the interrupt entry belongs to another device (0x26)",
        ]
    );
    assert_eq!(faults[1].request, Request::Read(0x1000));
    assert!(!unit.faults(|fault| panic!("{fault}")));
}

/// One record, and no bit beside that which says so.
#[test]
fn a_lone_fault_is_pending_and_reported() {
    let (model, mut unit) = on(CAP, ECAP);
    assert!(!fault_pending(&mut model.clone()));
    model.with(|state| state.records[0] = (0x7000, 1 << 63 | 5 << 32 | 0x18));
    assert!(fault_pending(&mut model.clone()));
    let mut faults = Vec::new();
    assert!(!unit.faults(|fault| faults.push(fault.request)));
    assert_eq!(faults, [Request::Write(0x7000)]);
    assert!(!fault_pending(&mut model.clone()));
    // An overflow alone is worth a look, too: else nothing is recorded any more.
    model.with(|state| state.fsts = PFO);
    assert!(fault_pending(&mut model.clone()));
    assert!(unit.faults(|fault| panic!("{fault}")));
    model.with(|state| assert_eq!(state.fsts, 0));
}

/// VT-d 11.4.11 to 11.4.13: the low byte of an x2APIC id in the address, the rest above it.
#[test]
fn faults_are_sent_where_it_was_said() {
    let (model, mut unit) = on(CAP, ECAP);
    for (destination, delivery, registers) in [
        (0, Delivery::Fixed(0x31), (0x31, 0xFEE0_0000, 0)),
        (0xFE, Delivery::Nmi, (0x400, 0xFEEF_E000, 0)),
        (0x1234_5678, Delivery::Fixed(0xFF), (0xFF, 0xFEE7_8000, 0x1234_5600)),
    ] {
        unit.mask_faults(true);
        model.with(|state| assert_eq!(state.fectl, FECTL_IM));
        unit.send_faults(destination, delivery);
        model.with(|state| {
            assert_eq!((state.fedata, state.feaddr, state.feuaddr), registers);
            assert_eq!(state.fectl, 0);
        });
    }
}

/// Each reason that the manual has for this driver's tables (7.1.3, 5.1.4.1) is told in its own
/// words.
#[test]
fn reasons_differ() {
    let reason = |code: u64| {
        let (model, mut unit) = on(CAP, ECAP);
        model.with(|state| state.records[0] = (0, 1 << 63 | code << 32));
        let mut reasons = Vec::new();
        unit.faults(|fault| reasons.push(fault.reason));
        reasons[0]
    };
    let unknown = reason(0x7F);
    let mut known: Vec<_> = (1..=0x0D).chain(0x20..=0x26).map(reason).collect();
    assert!([0, 0x0E, 0x1F, 0x27].iter().all(|code| reason(*code) == unknown));
    known.push(unknown);
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), 13 + 7 + 1);
}
