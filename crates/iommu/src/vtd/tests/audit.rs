//! The look from outside: what calls made is never found wrong, and each thing that must not be is.

use super::model::{CAP, ECAP, Model};
use super::{ROOT, bdf, on, route};
use crate::vtd::audit::{Cursor, Finding};
use crate::vtd::{Unit, interrupt};
use crate::{Delivery, DomainId, InterruptRoute};
use proptest::prelude::*;

fn interrupts(
    unit: &mut Unit<Model, Model>,
    step: u32,
    allowed: impl Fn(u16, InterruptRoute) -> bool,
) -> Vec<Finding> {
    let (mut cursor, mut found) = (Cursor::default(), Vec::new());
    loop {
        match unit.audit_interrupts(&mut cursor, step, &allowed) {
            Ok(true) => return found,
            Ok(false) => {}
            Err(finding) => found.push(finding),
        }
        if cursor == Cursor::default() {
            return found;
        }
    }
}

fn contexts(
    unit: &mut Unit<Model, Model>,
    allowed: impl Fn(u16, u16, u64) -> bool,
) -> Vec<Finding> {
    let (mut cursor, mut found) = (Cursor::default(), Vec::new());
    loop {
        let judge = |device: crate::Bdf, domain: DomainId, root| {
            allowed(device.requester_id(), domain.0, root)
        };
        match unit.audit_contexts(&mut cursor, 1000, judge) {
            Ok(true) => return found,
            Ok(false) => {}
            Err(finding) => found.push(finding),
        }
        if cursor == Cursor::default() {
            return found;
        }
    }
}

/// Writes an entry behind the driver's back.
fn scribble(model: &Model, index: u16, (low, high): (u64, u64)) {
    model.with(|state| {
        let at = (state.irta & !0xFFF) + u64::from(index) * 16;
        state.cpu.insert(at, low);
        state.cpu.insert(at + 8, high);
    });
}

#[test]
fn each_entry_that_must_not_be_is_named() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    let mine = route(0x20, 0x41);
    unit.set_irte(index, mine).unwrap();
    let allowed = |i, r| (i, r) == (index, mine);
    assert_eq!(interrupts(&mut unit, 3, allowed), []);
    assert_eq!(
        interrupts(&mut unit, 3, |_, _| false),
        [Finding::Route { index, route: mine }],
        "an entry of another's"
    );

    let (low, high) = interrupt::encode(mine);
    scribble(&model, 200, (low, high));
    assert_eq!(interrupts(&mut unit, 3, allowed), [Finding::Unowned { index: 200 }]);
    scribble(&model, 200, (0, high));

    // Elsewhere, another vector, an exception's, NMI, and any device's.
    for changed in [
        InterruptRoute { destination: 1, ..mine },
        InterruptRoute { delivery: Delivery::Fixed(0x42), ..mine },
        InterruptRoute { delivery: Delivery::Fixed(3), ..mine },
        InterruptRoute { delivery: Delivery::Nmi, ..mine },
        InterruptRoute { source: bdf(0x28), ..mine },
    ] {
        scribble(&model, index, interrupt::encode(changed));
        assert_eq!(interrupts(&mut unit, 1, allowed), [Finding::Route { index, route: changed }]);
    }
    let unverified = (low, high & 0xFFFF);
    scribble(&model, index, unverified);
    let found = Finding::Malformed { index, low, high: unverified.1 };
    assert_eq!(interrupts(&mut unit, 256, allowed), [found]);
    assert!(found.to_string().ends_with("which is none of this driver's"));
}

#[test]
fn each_context_that_must_not_be_is_named() {
    let (model, mut unit) = on(CAP, ECAP);
    unit.attach(bdf(0x120), DomainId(3), ROOT, 4).unwrap();
    let allowed = |device, domain, root| (device, domain, root) == (0x120, 3, ROOT);
    assert_eq!(contexts(&mut unit, allowed), []);
    assert_eq!(
        contexts(&mut unit, |_, domain, _| domain == 4),
        [Finding::Domain { device: bdf(0x120), domain: DomainId(3), root: ROOT }]
    );
    // Pass-through (TT = 2).
    model.with(|state| {
        let at = (state.cpu[&(state.rtaddr + 16)] & !0xFFF) + 0x20 * 16;
        *state.cpu.get_mut(&at).unwrap() |= 2 << 2;
    });
    let low = ROOT | 1 | 2 << 2;
    let found = Finding::Context { device: bdf(0x120), low, high: 3 << 8 | 2 };
    assert_eq!(contexts(&mut unit, allowed), [found]);
}

proptest! {
    /// Whatever the driver was asked to do, the look finds what was asked for.
    #[test]
    fn the_drivers_own_work_is_as_it_should_be(
        steps in prop::collection::vec((0u16..4, 0u16..6, 16u8..20, any::<bool>()), 0..40),
        step in 1u32..300,
    ) {
        let (_, mut unit) = on(CAP, ECAP);
        let first = unit.allocate_irtes(4).unwrap();
        let mut routed = [None; 4];
        for (n, device, vector, clear) in steps {
            if clear {
                unit.clear_irte(first + n).unwrap();
                routed[usize::from(n)] = None;
            } else {
                unit.set_irte(first + n, route(device, vector)).unwrap();
                routed[usize::from(n)] = Some(route(device, vector));
            }
        }
        let allowed = |i: u16, r| routed.get(usize::from(i - first)) == Some(&Some(r));
        prop_assert_eq!(interrupts(&mut unit, step, allowed), []);
    }
}
