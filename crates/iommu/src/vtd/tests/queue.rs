//! The queue: what ends it, what a device does to it, and that it goes round.

use super::model::{CAP, Done, ECAP, capabilities};
use super::{ROOT, bdf, domain, on, route};
use crate::vtd::queue::Invalidation;
use crate::vtd::registers::{FSTS_STICKY, ICE, IQE, ITE, PFO};
use crate::{DomainId, Error, Range, Request};

#[test]
fn after_a_failed_invalidation_nothing_is_begun_any_more() {
    for failure in [0, IQE] {
        let (model, mut unit) = on(CAP, ECAP);
        unit.attach(bdf(8), domain(1, ROOT, 4)).unwrap();
        let index = unit.allocate_irtes(1).unwrap();
        unit.set_irte(index, route(8, 0x40)).unwrap();
        model.with(|state| match failure {
            0 => state.queue_deaf = true,
            _ => state.queue_fails = true,
        });
        let error = unit.detach(bdf(8)).unwrap_err();
        match failure {
            0 => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
            status => assert_eq!(error, Error::InvalidationFailed { status }),
        }
        assert_eq!(model.context(8), None, "the entry itself is gone");
        // Even when the unit comes to itself again.
        model.with(|state| (state.queue_deaf, state.queue_fails, state.fsts) = (false, false, 0));
        assert_eq!(unit.attach(bdf(8), domain(2, ROOT, 4)), Err(error));
        assert_eq!(unit.detach(bdf(8)), Err(error));
        assert_eq!(unit.flush(DomainId(1), Range::All), Err(error));
        assert_eq!(unit.flush(DomainId(1), Range::Bytes { address: 0, bytes: 0 }), Err(error));
        assert_eq!(unit.set_irte(index, route(8, 0x41)), Err(error));
        assert_eq!(unit.clear_irte(index), Err(error));
        assert_eq!(unit.release_irtes(index, 1), Err(error));
        assert_eq!(model.irte(index), Some(route(8, 0x40)));
    }
}

/// What a device can send: completions that nobody waits for, without end.
#[test]
fn completions_of_devices_fail_nothing_and_are_reported() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    model.with(|state| {
        state.completes = true;
        state.iqercd = 0x18 << 48 | 0x20 << 32;
    });
    for n in 0..300 {
        unit.set_irte(index, route(8, 0x40 + n as u8 % 100)).unwrap();
        unit.update_irte(index, route(8, 0x30)).unwrap();
        unit.drain().unwrap();
        model.assert_settled();
    }
    model.with(|state| state.completes = false);
    assert!(crate::vtd::fault_pending(&mut model.clone()));
    let mut faults = Vec::new();
    assert!(!unit.faults(|fault| faults.push(fault)));
    assert_eq!(faults.len(), 1);
    assert_eq!((faults[0].source, faults[0].request), (bdf(0x18), Request::Completion));
    assert_eq!(
        faults[0].to_string(),
        "a completion of an invalidation by device 00:03.0 was dropped: \
         nobody asked it to invalidate anything"
    );
    // Units before revision 3 don't say which.
    model.with(|state| (state.iqercd, state.fsts) = (0, state.fsts | ICE));
    unit.faults(|fault| {
        assert!(fault.to_string().contains("by a device that the unit doesn't name"))
    });
    model.with(|state| assert_eq!(state.fsts, 0, "else the unit sends no interrupt any more"));
    assert!(!crate::vtd::fault_pending(&mut model.clone()));
    unit.faults(|fault| panic!("{fault}"));
}

/// A time-out stops the queue, and drops the waits: neither a route nor a wait is lost by that.
#[test]
fn a_time_out_of_a_device_is_cleared_and_the_wait_repeated() {
    for times_out in 1..8 {
        let (model, mut unit) = on(CAP, ECAP);
        let index = unit.allocate_irtes(1).unwrap();
        model.with(|state| (state.times_out, state.iqercd) = (times_out, 0x18 << 48 | 0x20 << 32));
        model.with(|state| state.done.clear());
        unit.set_irte(index, route(8, 0x41)).unwrap();
        model.assert_settled();
        model.with(|state| {
            assert_eq!(state.done, [Done::InterruptEntry(index)]);
            assert_eq!(state.fsts & ITE, 0);
        });
        let mut faults = Vec::new();
        unit.faults(|fault| faults.push(fault));
        let found: Vec<_> = faults.iter().map(|f| (f.source, f.request)).collect();
        assert_eq!(found, [(bdf(0x20), Request::TimeOut)]);
        assert_eq!(
            faults[0].to_string(),
            "device 00:04.0 didn't complete an invalidation in time: nobody waits for it"
        );
        unit.faults(|fault| panic!("{fault}"));
    }
    // Without end it is a unit that doesn't answer.
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    model.with(|state| state.times_out = u32::MAX);
    let error = Err(Error::InvalidationFailed { status: ITE });
    assert_eq!(unit.set_irte(index, route(8, 0x41)), error);
    assert_eq!(unit.drain(), error);
}

/// Nobody waits when it happens; the queue stands still until somebody looks.
#[test]
fn a_time_out_between_requests_is_reported_once() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    model.with(|state| state.fsts = ITE | PFO);
    let mut faults = Vec::new();
    assert!(unit.faults(|fault| faults.push(fault.request)));
    assert_eq!(faults, [Request::TimeOut]);
    model.with(|state| assert_eq!(state.fsts, 0));
    model.with(|state| state.fsts = ITE);
    unit.set_irte(index, route(8, 0x41)).unwrap();
    model.assert_settled();
}

/// An error of the queue's stays for whoever waits for the queue.
#[test]
fn looking_for_faults_hides_no_failure() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    model.with(|state| (state.queue_fails, state.fsts) = (true, FSTS_STICKY));
    unit.faults(|fault| assert!(matches!(fault.request, Request::Completion | Request::TimeOut)));
    model.with(|state| assert_eq!(state.fsts & (IQE | ICE | ITE), IQE));
    assert!(!crate::vtd::fault_pending(&mut model.clone()), "nothing to report");
    let status = IQE;
    assert_eq!(unit.set_irte(index, route(8, 0x41)), Err(Error::InvalidationFailed { status }));
}

/// Bit by bit as the manual's figures have it (VT-d 6.5.2.1 to 6.5.2.3 and 6.5.2.7).
#[test]
fn descriptors_are_the_manuals() {
    use Invalidation::*;
    // CAP.DWD is bit 54, CAP.DRD bit 55.
    let capable = |write, read| capabilities(CAP & !(3 << 54) | write << 54 | read << 55, ECAP);
    let (id, device) = (DomainId(0xABCD), bdf(0x1234));
    let pages = IotlbPages { domain: id, page: 0xF_1234_5600, order: 8 };
    for (write, read) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let drains = write << 6 | read << 7;
        for (what, low, high) in [
            (ContextGlobal, 0x11, 0),
            (ContextDevice(id, device), 0x1234_ABCD_0031, 0),
            (IotlbGlobal, 0x12 | drains, 0),
            (IotlbDomain(id), 0xABCD_0022 | drains, 0),
            (pages, 0xABCD_0032 | drains, 0xF123_4560_0008),
            (InterruptGlobal, 0x04, 0),
            (InterruptEntry(0xFEDC), 0xFEDC_0000_0014, 0),
        ] {
            assert_eq!(what.descriptor(&capable(write, read)), (low, high), "{what:?}");
        }
    }
}

#[test]
fn the_queue_goes_round() {
    let (model, mut unit) = on(CAP, ECAP);
    for n in 0..1000u64 {
        unit.flush(DomainId(1), Range::Bytes { address: n << 12, bytes: 1 }).unwrap();
        model.assert_settled();
        let expected = Done::IotlbPages { domain: 1, address: n << 12, order: 0 };
        model.with(|state| assert_eq!(state.done.pop(), Some(expected)));
    }
}

/// A wait costs as long as the unit takes; the queue is used to its end before there is one.
#[test]
fn nobody_waits_while_there_is_room() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    let head = || model.with(|state| state.iqh);
    let start = head();
    // The page has 256 places: one stays empty, one is the wait's.
    for n in 0..254 {
        unit.update_irte(index, route(8, 0x41 + n % 2)).unwrap();
        assert_eq!(head(), start, "after {n}");
    }
    unit.update_irte(index, route(8, 0x41)).unwrap();
    assert_ne!(head(), start);
}

/// Requests that nobody waits for never fill it.
#[test]
fn the_queue_never_overtakes_the_unit() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    unit.set_irte(index, route(8, 0x40)).unwrap();
    model.with(|state| state.done.clear());
    for n in 0..1000u32 {
        unit.update_irte(index, route(8, 0x41 + (n % 2) as u8)).unwrap();
        model.with(|state| assert_ne!((state.iqt + 16) % 0x1000, state.iqh, "full"));
    }
    unit.drain().unwrap();
    model.assert_settled();
    model.with(|state| assert_eq!(state.done.len(), 1000));
}
