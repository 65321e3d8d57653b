//! The look from outside: what calls made is never found wrong, and each thing that must not be is.

use super::model::{CAP, ECAP, Model};
use super::{ROOT, bdf, domain, on, route};
use crate::audit::{Cursor, Entry, Expected, Finding};
use crate::vtd::posted::{self, Posted};
use crate::vtd::registers::{CFI, IRE, TE};
use crate::vtd::{Unit, interrupt};
use crate::{Bdf, Delivery, Domain, DomainId, InterruptRoute};
use proptest::prelude::*;

/// Whole passes over interrupts, so many entries at a time.
fn interrupts(
    (model, unit): (&Model, &mut Unit<Model, Model>),
    step: u32,
    allowed: impl Fn(u16, InterruptRoute) -> bool,
) -> Vec<Finding> {
    let (outline, mut cursor, mut found) = (unit.outline(), Cursor::default(), Vec::new());
    let allowed = &allowed;
    loop {
        let judge = |entry: Entry| Some(move |route| allowed(entry.index, route));
        match outline.audit_interrupts(&mut model.clone(), &mut cursor, step, judge) {
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
    (model, unit): (&Model, &mut Unit<Model, Model>),
    allowed: impl Fn(u16, Domain) -> bool,
) -> Vec<Finding> {
    let (outline, mut cursor, mut found) = (unit.outline(), Cursor::default(), Vec::new());
    loop {
        let judge = |device: Bdf, domain| allowed(device.requester_id(), domain);
        match outline.audit_devices(&mut model.clone(), &mut cursor, 1000, judge) {
            Ok(true) => return found,
            Ok(false) => {}
            Err(finding) => found.push(finding),
        }
        if cursor == Cursor::default() {
            return found;
        }
    }
}

fn entry(index: u16) -> Entry {
    Entry { table: None, index }
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
    assert_eq!(interrupts((&model, &mut unit), 3, allowed), []);
    assert_eq!(
        interrupts((&model, &mut unit), 3, |_, _| false),
        [Finding::Route { entry: entry(index), route: mine }],
        "an entry of another's"
    );

    let (low, high) = interrupt::encode(mine);
    scribble(&model, 200, (low, high));
    let stray = Finding::Route { entry: entry(200), route: mine };
    assert_eq!(interrupts((&model, &mut unit), 3, allowed), [stray], "nobody's");
    assert_eq!(stray.device(), Some(mine.source));
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
        assert_eq!(
            interrupts((&model, &mut unit), 1, allowed),
            [Finding::Route { entry: entry(index), route: changed }]
        );
    }
    let unverified = (low, high & 0xFFFF);
    scribble(&model, index, unverified);
    let found = Finding::Malformed { entry: entry(index), low, high: unverified.1 };
    assert_eq!(interrupts((&model, &mut unit), 256, allowed), [found]);
    assert!(found.to_string().ends_with("which is none of this driver's"));
}

/// Nobody writes one: its interrupts would go by a descriptor that nobody made.
#[test]
fn an_entry_in_posted_format_is_malformed() {
    let (model, mut unit) = on(CAP, ECAP);
    let index = unit.allocate_irtes(1).unwrap();
    unit.set_irte(index, route(0x20, 0x41)).unwrap();
    let entry_of = Posted { source: bdf(0x20), vector: 0x41, urgent: false, descriptor: 0x5000 };
    let (low, high) = posted::encode(entry_of).unwrap();
    scribble(&model, index, (low, high));
    let found = Finding::Malformed { entry: entry(index), low, high };
    assert_eq!(interrupts((&model, &mut unit), 256, |_, _| true), [found]);
}

#[test]
fn each_context_that_must_not_be_is_named() {
    let (model, mut unit) = on(CAP, ECAP);
    unit.attach(bdf(0x120), domain(3, ROOT, 4)).unwrap();
    let given = domain(3, ROOT, 4);
    let allowed = |device, domain| (device, domain) == (0x120, given);
    assert_eq!(contexts((&model, &mut unit), allowed), []);
    assert_eq!(
        contexts((&model, &mut unit), |_, domain| domain.id == DomainId(4)),
        [Finding::Domain { device: bdf(0x120), domain: given }]
    );
    // Pass-through (TT = 2).
    model.with(|state| {
        let at = (state.cpu[&(state.rtaddr + 16)] & !0xFFF) + 0x20 * 16;
        *state.cpu.get_mut(&at).unwrap() |= 2 << 2;
    });
    let low = ROOT | 1 | 2 << 2;
    let found = Finding::Context { device: bdf(0x120), low, high: 3 << 8 | 2 };
    assert_eq!(contexts((&model, &mut unit), allowed), [found]);
}

#[test]
fn an_entry_that_cant_be_judged_now_is_judged_later() {
    let (model, mut unit) = on(CAP, ECAP);
    let first = unit.allocate_irtes(2).unwrap();
    unit.set_irte(first + 1, route(0x20, 0x41)).unwrap();
    let (outline, mut cursor) = (unit.outline(), Cursor::default());
    let mut look = |now: bool| {
        let judge = |_| now.then_some(|_| false);
        let found = outline.audit_interrupts(&mut model.clone(), &mut cursor, 1000, judge);
        (found, cursor)
    };
    let (found, there) = look(false);
    assert_eq!(found, Ok(false));
    assert_eq!(look(false), (Ok(false), there), "it isn't passed over");
    assert!(matches!(look(true).0, Err(Finding::Route { entry: e, .. }) if e == entry(first + 1)));
    assert_eq!(look(true), (Ok(true), Cursor::default()));
    // It may be gone by the time that it can be judged.
    let gone = |entry: Entry| {
        scribble(&model, entry.index, (0, 0));
        Some(|_| false)
    };
    let found = outline.audit_interrupts(&mut model.clone(), &mut Cursor::default(), 1000, gone);
    assert_eq!(found, Ok(true));
}

#[test]
fn a_context_table_that_the_host_didnt_make_is_named_and_not_read() {
    let (model, mut unit) = on(CAP, ECAP);
    unit.attach(bdf(0x120), domain(3, ROOT, 4)).unwrap();
    let outline = unit.outline();
    // Memory that isn't the unit's: the model would tell of a read.
    let elsewhere = 0xDEAD_B000 | 1;
    for bus in [1, 2] {
        let entry = |model: &Model| model.with(|s| s.rtaddr + bus * 16);
        let (at, was) = (entry(&model), model.with(|s| s.cpu.get(&(s.rtaddr + bus * 16)).copied()));
        model.with(|state| state.cpu.insert(at, elsewhere));
        let mut cursor = Cursor::default();
        let found = outline.audit_devices(&mut model.clone(), &mut cursor, 1 << 16, |_, _| true);
        assert_eq!(found, Err(Finding::Bus { bus: bus as u8, entry: elsewhere }));
        let rest = outline.audit_devices(&mut model.clone(), &mut cursor, 1 << 16, |_, _| true);
        assert_eq!(rest, Ok(true), "and the rest is looked at");
        model.with(|state| state.cpu.insert(at, was.unwrap_or(0)));
    }
}

/// What was found in the middle of a bus leads to the next bus, not to the rest of this one.
#[test]
fn a_table_that_is_exchanged_amid_the_look_is_named_once() {
    let (model, mut unit) = on(CAP, ECAP);
    unit.attach(bdf(0x120), domain(3, ROOT, 4)).unwrap();
    let (outline, mut cursor) = (unit.outline(), Cursor::default());
    let mut look =
        |entries| outline.audit_devices(&mut model.clone(), &mut cursor, entries, |_, _| true);
    // All of bus 0 counts as one, then six functions of bus 1.
    assert_eq!(look(7), Ok(false));
    let at = model.with(|state| state.rtaddr + 16);
    model.with(|state| state.cpu.insert(at, 0xDEAD_B001));
    assert_eq!(look(1), Err(Finding::Bus { bus: 1, entry: 0xDEAD_B001 }));
    assert_eq!(look(253), Ok(false));
    assert_eq!(look(1), Ok(true), "254 buses were left");
}

#[test]
fn a_unit_that_doesnt_remap_everything_is_named() {
    let (model, mut unit) = on(CAP, ECAP);
    let outline = unit.outline();
    let look = || outline.audit_unit(&mut model.clone());
    assert_eq!(look(), Ok(()));
    for bits in [TE, IRE, CFI] {
        model.with(|state| state.gsts ^= bits);
        assert!(matches!(look(), Err(Finding::Off { .. })), "{bits:#x}");
        model.with(|state| state.gsts ^= bits);
    }
    model.with(|state| state.rtaddr ^= 0x1000);
    assert!(look().is_err());
    model.with(|state| (state.rtaddr, state.irta) = (state.rtaddr ^ 0x1000, state.irta ^ 0x1000));
    assert!(look().is_err());
}

proptest! {
    /// Whatever the driver was asked to do, the look finds what was asked for.
    #[test]
    fn the_drivers_own_work_is_as_it_should_be(
        steps in prop::collection::vec((0u16..4, 0u16..6, 16u8..20, any::<bool>()), 0..40),
        step in 1u32..300,
    ) {
        let (model, mut unit) = on(CAP, ECAP);
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
        prop_assert_eq!(interrupts((&model, &mut unit), step, allowed), []);
    }

    /// A route is right if all of it is: whoever changes one thing is found out.
    #[test]
    fn one_thing_that_is_wrong_is_enough(
        id: u16, destination: u32, vector in 16u8.., wrong in 0u8..5, other in 1u16..,
    ) {
        let expected = Expected { source: bdf(id), destination };
        let right = InterruptRoute { source: bdf(id), destination, delivery: Delivery::Fixed(vector) };
        prop_assert!(expected.allows(right, |v| v == vector));
        let changed = match wrong {
            0 => InterruptRoute { source: bdf(id ^ other), ..right },
            1 => InterruptRoute { destination: destination ^ u32::from(other), ..right },
            2 => InterruptRoute { delivery: Delivery::Nmi, ..right },
            3 => InterruptRoute { delivery: Delivery::Fixed(vector ^ 0x80), ..right },
            _ => right,
        };
        prop_assert!(!expected.allows(changed, |v| wrong < 4 && v == vector));
    }
}
