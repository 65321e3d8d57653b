//! What is reported of blocked requests, and where the unit sends its interrupt.

use super::model::FEATURES;
use super::{Model, Unit, bdf, enable, on};
use crate::amdvi::fault_pending;
use crate::amdvi::registers::*;
use crate::{Delivery, Error, Fault, Message, Remapping, Request};

fn log(model: &Model, low: u64, high: u64) {
    model.with(|state| state.log(low, high));
}

fn told(unit: &mut Unit<Model, Model>) -> Vec<Fault> {
    let mut faults = Vec::new();
    assert!(!unit.faults(|fault| faults.push(fault)));
    faults
}

#[test]
fn reports_each_event_once() {
    let (model, mut unit) = on(FEATURES);
    assert!(!fault_pending(&mut model.clone()));
    // A write of what isn't there, a read that isn't allowed, an interrupt, a reserved bit.
    log(&model, 2 << 60 | 1 << 53 | 3 << 32 | 0x18, 0xABCD_E123);
    log(&model, 2 << 60 | 1 << 54 | 1 << 52 | 0x0100, 0x1000);
    log(&model, 2 << 60 | 1 << 51 | 1 << 53 | 0x20, 0xFEE0_1000);
    log(&model, 2 << 60 | 1 << 55 | 1 << 52 | 0x20, 0x3000);
    log(&model, 3 << 60 | 0x28, 0x10_0000);
    log(&model, 7 << 60 | 0x30, 0x10_0000);
    log(&model, 0xF << 60 | 0x38, 0);
    assert!(fault_pending(&mut model.clone()));
    let texts: Vec<_> = told(&mut unit).iter().map(Fault::to_string).collect();
    assert_eq!(
        texts,
        [
            "a write of page 0xabcde000 by device 00:03.0 was blocked: \
             it has no domain, or its domain no page there (0x2)",
            "a read of page 0x1000 by device 01:00.0 was blocked: \
             its domain may not do that there (0x2)",
            "an interrupt by a message to 0xfee01000 by device 00:04.0 was blocked: \
             it has no such interrupt (0x2)",
            "a read of page 0x3000 by device 00:04.0 was blocked: \
             an entry that was read for it is invalid (0x2)",
            "a request by device 00:05.0 was blocked: the device table can't be read (0x3)",
            "device 00:06.0 didn't complete an invalidation in time: nobody waits for it",
            "a request by device 00:07.0 was blocked: for a reason this driver doesn't know (0xf)",
        ]
    );
    assert!(!fault_pending(&mut model.clone()));
    assert_eq!(told(&mut unit), []);
}

#[test]
fn a_command_that_failed_is_no_device_s() {
    let (model, mut unit) = on(FEATURES);
    log(&model, 6 << 60, 0x18_1234);
    let faults = told(&mut unit);
    assert_eq!((faults[0].source, faults[0].request), (bdf(0), Request::Command(0x18_1230)));
    assert_eq!(
        faults[0].to_string(),
        "the command at 0x181230 failed: the unit can't read it (0x6)"
    );
    assert!(matches!(unit.drain(), Err(Error::InvalidationFailed { .. })));
}

/// Each kind that the manual has for this driver's tables is told in its own words.
#[test]
fn reasons_differ() {
    let reason = |low: u64| {
        let (model, mut unit) = on(FEATURES);
        log(&model, low, 0);
        told(&mut unit)[0].reason
    };
    let unknown = reason(0xE << 60);
    let mut known: Vec<_> = (1..=8).map(|code| reason(code << 60)).collect();
    known.extend([51, 55].map(|bit| reason(2 << 60 | 1 << bit)));
    known.extend([reason(2 << 60 | 5 << 52), unknown]);
    assert_eq!([reason(9 << 60), reason(0xA << 60)], [unknown; 2]);
    known.sort_unstable();
    known.dedup();
    assert_eq!(known.len(), 8 + 3 + 1);
}

/// A log goes round, and one that is full is emptied and goes on.
#[test]
fn a_full_log_goes_on() {
    let (model, mut unit) = on(FEATURES);
    let mut next = 0;
    for round in 0..5u16 {
        for n in 0..100 {
            log(&model, 2 << 60 | u64::from(round * 100 + n), 0);
        }
        for fault in told(&mut unit) {
            assert_eq!(fault.source, bdf(next));
            next += 1;
        }
    }
    assert_eq!(next, 500);
    for full in 0..3 {
        for n in 0..300 {
            log(&model, 2 << 60 | n, full << 12);
        }
        assert!(fault_pending(&mut model.clone()));
        let mut found = Vec::new();
        assert!(unit.faults(|fault| found.push(fault.source)), "there were more");
        assert_eq!(found, (0..255).map(bdf).collect::<Vec<_>>());
        assert!(!fault_pending(&mut model.clone()));
        // It logs again, as soon as it answers.
        model.with(|state| state.answer(5));
        log(&model, 2 << 60 | 0x77, 0);
        assert_eq!(told(&mut unit).len(), 1);
        model.with(|state| assert_eq!(state.sticky, 0));
    }
}

/// The tail may be ahead of the record: one that never comes keeps nobody for ever.
#[test]
fn a_record_that_isn_t_written_is_told_as_that() {
    let (model, mut unit) = on(FEATURES);
    log(&model, 0x18, 0);
    log(&model, 2 << 60 | 0x20, 0);
    let faults = told(&mut unit);
    assert_eq!(faults[0].reason, "the unit didn't write the record in time");
    assert_eq!(faults[1].source, bdf(0x20));
    // Records of the round before don't count.
    (0..300).for_each(|n| {
        log(&model, 2 << 60 | n, 0);
        assert_eq!(told(&mut unit).len(), 1);
    });
    model.with(|state| {
        state.event_tail = (state.event_tail + 16) % 0x1000;
    });
    assert_eq!(told(&mut unit)[0].code, 0);
    // Nor does a tail beyond the log lead beyond it.
    for tail in [0x1000, 0x7_FFF0, u64::MAX] {
        model.with(|state| state.event_tail = tail);
        assert!(told(&mut unit).len() < 256);
    }
}

/// 48882, 3.4.10: an x2APIC id in two parts, and the vector.
#[test]
fn events_interrupt_where_it_was_said() {
    let (model, mut unit) = on(FEATURES);
    log(&model, 2 << 60, 0);
    model.with(|state| assert_eq!(state.interrupts, 0, "nobody said where to"));
    told(&mut unit);
    for (destination, vector, register) in [
        (0, 0x31, 0x31_0000_0000),
        (0x1234_5678, 0xFF, 0x1200_00FF_3456_7800),
        (u32::MAX - 1, 0x20, 0xFF00_0020_FFFF_FE00),
    ] {
        assert_eq!(unit.send_faults(destination, Delivery::Fixed(vector)), Ok(None));
        model.with(|state| {
            assert_eq!(state.xt_interrupt, register);
            let expected = EVENT_INTERRUPT | X2APIC_OWN;
            assert_eq!(state.control & expected, expected);
        });
    }
    // One each time, until they were looked for.
    for times in 1..3 {
        log(&model, 2 << 60, 0);
        log(&model, 2 << 60, 0);
        model.with(|state| assert_eq!(state.interrupts, times));
        assert_eq!(told(&mut unit).len(), 2);
    }
    unit.mask_faults(true);
    log(&model, 2 << 60, 0);
    model.with(|state| assert_eq!(state.interrupts, 2));
    assert_eq!(told(&mut unit).len(), 1);
    unit.mask_faults(false);
    log(&model, 2 << 60, 0);
    model.with(|state| assert_eq!(state.interrupts, 3));
    assert_eq!(unit.outline().audit_unit(&mut model.clone()), Ok(()));
}

#[test]
fn what_its_registers_can_t_say_goes_by_its_msi() {
    let message = |address, data| Ok(Some(Message { address, data }));
    let (model, mut unit) = on(FEATURES);
    assert_eq!(unit.send_faults(7, Delivery::Nmi), message(0xFEE0_7000, 0x400));
    model.with(|state| {
        let bits = state.control & (EVENT_INTERRUPT | X2APIC_OWN);
        assert_eq!((bits, state.xt_interrupt), (EVENT_INTERRUPT, 0));
    });
    let far = Err(Error::FaultInterrupt { destination: 255 });
    assert_eq!(unit.send_faults(255, Delivery::Nmi), far);
    assert_eq!(unit.send_faults(255, Delivery::Fixed(0x31)), Ok(None));
    model.with(|state| assert_ne!(state.control & X2APIC_OWN, 0));
    // Units without the register, and those that don't know x2APIC ids at all.
    let without = Model::new(FEATURES);
    without.with(|state| state.lacks = X2APIC_OWN);
    for (model, remapping) in [(without, Remapping::On), (Model::new(0), Remapping::Off)] {
        let mut unit = enable(&model, remapping).unwrap();
        let sent = unit.send_faults(254, Delivery::Fixed(0x31));
        assert_eq!(sent, message(0xFEEF_E000, 0x31));
        assert_eq!(unit.send_faults(255, Delivery::Fixed(0x31)), far);
    }
}
