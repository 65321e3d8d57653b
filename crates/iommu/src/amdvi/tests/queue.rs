//! The command buffer: what ends it, and that it goes round.

use super::model::{Done, FEATURES, Model};
use super::{ROOT, bdf, domain, on, route};
use crate::amdvi::Unit;
use crate::amdvi::queue::Command;
use crate::pages::Pages;
use crate::{DomainId, Error, Range, Request};

#[test]
fn after_a_failed_invalidation_nothing_is_begun_any_more() {
    for refusal in [None, Some(5), Some(6)] {
        let (model, mut unit) = on(FEATURES);
        unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
        let index = unit.allocate_irtes(bdf(8), 1).unwrap();
        unit.set_irte(index, route(8, 0x40)).unwrap();
        model.with(|state| (state.queue_deaf, state.refuses) = (refusal.is_none(), refusal));
        let error = unit.detach(bdf(8)).unwrap_err();
        match refusal {
            None => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
            Some(_) => assert!(matches!(error, Error::InvalidationFailed { .. }), "{error}"),
        }
        assert_eq!(model.domain(8), None, "the entry itself is gone");
        model.with(|state| (state.queue_deaf, state.runs) = (false, u64::MAX));
        assert_eq!(unit.attach(bdf(8), domain(2, ROOT, 4)), Err(error));
        assert_eq!(unit.detach(bdf(8)), Err(error));
        assert_eq!(unit.flush(DomainId(1), Range::All), Err(error));
        assert_eq!(unit.flush(DomainId(1), Range::Bytes { address: 0, bytes: 0 }), Err(error));
        assert_eq!(unit.set_irte(index, route(8, 0x41)), Err(error));
        assert_eq!(unit.update_irte(index, route(8, 0x41)), Err(error));
        assert_eq!(unit.clear_irte(bdf(8), index), Err(error));
        assert_eq!(unit.release_irtes(bdf(8), index, 1), Err(error));
        assert_eq!(unit.allocate_irtes(bdf(8), 1), Err(error));
        assert_eq!(unit.drain(), Err(error));
        assert_eq!(model.route(8, index), Some(route(8, 0x40)));
    }
}

/// QEMU's logs a command that it doesn't know, and goes on to the wait after it.
#[test]
fn a_command_that_was_skipped_is_no_success() {
    let refused = |first: fn(&Model, &mut Unit<Model, Model>) -> Result<(), Error>| {
        let (model, mut unit) = on(FEATURES);
        unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
        model.with(|state| (state.refuses, state.goes_on) = (Some(5), true));
        let failed = |result| matches!(result, Err(Error::InvalidationFailed { .. }));
        assert!(failed(first(&model, &mut unit)));
        assert!(failed(unit.attach(bdf(9), domain(1, ROOT, 4))));
        let mut faults = Vec::new();
        unit.faults(|fault| faults.push((fault.source, fault.request)));
        faults
    };
    let told = refused(|_, unit| unit.detach(bdf(8)));
    assert!(matches!(told[..], [(source, Request::Command(_))] if source == bdf(0)), "{told:?}");
    // Whoever looks for faults takes nothing from whoever waits.
    let told = refused(|model, unit| {
        let range = Range::Bytes { address: 0, bytes: 1 };
        model.with(|state| (state.queue_deaf, state.goes_on) = (false, true));
        let index = unit.allocate_irtes(bdf(9), 1);
        unit.faults(|fault| assert!(matches!(fault.request, Request::Command(_))));
        index.map(drop).and_then(|()| unit.flush(DomainId(1), range))
    });
    assert_eq!(told, []);
}

/// An update that nobody waited for yet is refused, and faults are looked for first.
#[test]
fn looking_for_faults_hides_no_failure() {
    let (model, mut unit) = on(FEATURES);
    let index = unit.allocate_irtes(bdf(8), 1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    model.with(|state| (state.refuses, state.goes_on) = (Some(5), true));
    unit.update_irte(index, route(8, 0x41)).unwrap();
    model.with(|state| state.answer(3));
    let mut found = 0;
    unit.faults(|fault| found += u32::from(fault.code == 5));
    assert_eq!(found, 1);
    assert!(matches!(unit.drain(), Err(Error::InvalidationFailed { .. })));
}

/// Nor do records that were told before.
#[test]
fn a_failure_after_other_events_is_none_the_less_one() {
    let (model, mut unit) = on(FEATURES);
    unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
    model.with(|state| state.log(2 << 60 | 0x18, 0x7000));
    let mut found = 0;
    unit.faults(|_| found += 1);
    model.with(|state| {
        state.log(2 << 60 | 0x20, 0x7000);
        (state.refuses, state.goes_on) = (Some(5), true);
    });
    assert!(matches!(unit.detach(bdf(8)), Err(Error::InvalidationFailed { .. })));
    unit.faults(|_| found += 1);
    assert_eq!(found, 3);
}

/// Bit by bit as the manual's figures have it (48882, 2.4.2, 2.4.3, 2.4.5, 2.4.8).
#[test]
fn commands_are_the_manuals() {
    let id = DomainId(0xABCD);
    let block = |page, order| Command::Pages(id, Pages::Block { page, order });
    for (what, low, high) in [
        (Command::Device(0x1234), 0x2000_0000_0000_1234, 0),
        (Command::Interrupts(0x1234), 0x5000_0000_0000_1234, 0),
        (Command::All, 0x8000_0000_0000_0000, 0),
        (Command::Pages(id, Pages::All), 0x3000_ABCD_0000_0000, 0x7FFF_FFFF_FFFF_F003),
        (block(0xF_1234_5678, 0), 0x3000_ABCD_0000_0000, 0xF123_4567_8002),
        (block(0xF_1234_5678, 1), 0x3000_ABCD_0000_0000, 0xF123_4567_8003),
        (block(0xF_1234_5678, 2), 0x3000_ABCD_0000_0000, 0xF123_4567_9003),
        (block(0xF_1234_5600, 9), 0x3000_ABCD_0000_0000, 0xF123_456F_F003),
        (block(0, 39), 0x3000_ABCD_0000_0000, 0x0003_FFFF_FFFF_F003),
    ] {
        assert_eq!(what.words(), (low, high), "{what:?}");
    }
}

#[test]
fn the_buffer_goes_round() {
    let (model, mut unit) = on(FEATURES);
    for n in 0..1000u64 {
        unit.flush(DomainId(1), Range::Bytes { address: n << 12, bytes: 1 }).unwrap();
        model.assert_settled();
        model.with(|state| assert_eq!(state.done.pop(), Some(Done::Pages(1, n, 1))));
    }
}

/// A wait costs as long as the unit takes; the buffer is used to its end before there is one, and
/// never overtakes the unit.
#[test]
fn nobody_waits_while_there_is_room() {
    let (model, mut unit) = on(FEATURES);
    let index = unit.allocate_irtes(bdf(8), 1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    let head = || model.with(|state| state.command_head);
    let start = head();
    model.with(|state| state.done.clear());
    // The frame has room for 256: one stays empty, one is the wait's.
    for n in 0..1000u32 {
        unit.update_irte(index, route(8, 0x41 + (n % 2) as u8)).unwrap();
        assert_eq!(head() == start, n < 254, "after {n}");
        model.with(|state| assert_ne!((state.command_tail + 16) % 0x1000, state.command_head));
    }
    unit.drain().unwrap();
    model.assert_settled();
    model.with(|state| assert_eq!(state.done.len(), 1000));
}
