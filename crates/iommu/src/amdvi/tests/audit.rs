//! The look from outside: what calls made is never found wrong, and each thing that must not be is.

use super::model::{FEATURES, FIRST_FRAME, Model};
use super::{ROOT, Unit, bdf, domain, on, route};
use crate::amdvi::registers::*;
use crate::amdvi::{device, interrupt};
use crate::audit::{Cursor, Entry, Finding};
use crate::{Alias, Bdf, Domain, Firmware, InterruptRoute, Remapping};
use proptest::prelude::*;
use proptest::test_runner::Config;

type Found = Result<bool, Finding>;

/// Whole passes, so many entries at a time.
fn pass(mut look: impl FnMut(&mut Cursor) -> Found) -> Vec<Finding> {
    let (mut cursor, mut found) = (Cursor::default(), Vec::new());
    loop {
        match look(&mut cursor) {
            Ok(true) => return found,
            Ok(false) => {}
            Err(finding) => found.push(finding),
        }
        if cursor == Cursor::default() {
            return found;
        }
    }
}

fn interrupts(
    (model, unit): (&Model, &Unit<Model, Model>),
    step: u32,
    allowed: impl Fn(Entry, InterruptRoute) -> bool,
) -> Vec<Finding> {
    let (outline, allowed) = (unit.outline(), &allowed);
    pass(|cursor| {
        let judge = |entry: Entry| Some(move |route| allowed(entry, route));
        outline.audit_interrupts(&mut model.clone(), cursor, step, judge)
    })
}

fn devices(
    (model, unit): (&Model, &Unit<Model, Model>),
    allowed: impl Fn(Bdf, Domain) -> bool,
) -> Vec<Finding> {
    let outline = unit.outline();
    pass(|cursor| outline.audit_devices(&mut model.clone(), cursor, 10_000, &allowed))
}

fn entry(device: u16, index: u16) -> Entry {
    Entry { table: Some(bdf(device)), index }
}

/// Writes behind the driver's back.
fn scribble(model: &Model, pa: u64, (low, high): (u64, u64)) {
    let at = (pa - FIRST_FRAME) as usize / 8;
    model.with(|state| state.cpu[at..at + 2].copy_from_slice(&[low, high]));
}

/// Addresses of the halves of an id's entry, and of its interrupt table.
fn places(model: &Model, id: u16) -> (u64, u64, u64) {
    model.with(|state| {
        let at = (state.device_table & !0xFFF) + u64::from(id) * 32;
        (at, at + 16, state.ram(at + 16) & 0x000F_FFFF_FFFF_F000)
    })
}

#[test]
fn each_interrupt_entry_that_must_not_be_is_named() {
    let (model, mut unit) = on(FEATURES);
    unit.allocate_irtes(bdf(0x18), 1).unwrap();
    let index = unit.allocate_irtes(bdf(0x20), 1).unwrap();
    let mine = route(0x20, 0x41);
    unit.set_irte(index, mine).unwrap();
    let allowed = |e, r| (e, r) == (entry(0x20, index), mine);
    assert_eq!(interrupts((&model, &unit), 3, allowed), []);
    let (.., table) = places(&model, 0x20);
    let another = Finding::Route { entry: entry(0x20, index), route: mine };
    assert_eq!(interrupts((&model, &unit), 3, |_, _| false), [another], "an entry of another's");
    assert_eq!(another.device(), Some(bdf(0x20)));

    let encoded = interrupt::encode(mine).unwrap();
    scribble(&model, table + 200 * 16, encoded);
    let stray = Finding::Route { entry: entry(0x20, 200), route: mine };
    assert_eq!(interrupts((&model, &unit), 3, allowed), [stray], "nobody's");
    scribble(&model, table + 200 * 16, (encoded.0 & !1, encoded.1));

    // Elsewhere, another vector.
    let elsewhere = InterruptRoute { destination: 1, ..mine };
    for changed in [elsewhere, route(0x20, 0x42)] {
        scribble(&model, table, interrupt::encode(changed).unwrap());
        let found = Finding::Route { entry: entry(0x20, index), route: changed };
        assert_eq!(interrupts((&model, &unit), 1, allowed), [found]);
    }
    // Every other bit of it: type, mode, posted to a guest, reserved ones, an exception's vector.
    let (low, high) = encoded;
    let bits = (1..8).chain(32..64).map(|bit| (low ^ 1 << bit, high));
    let rest = (8..56).map(|bit| (low, high ^ 1 << bit)).chain([(low, high & !0xFF | 3)]);
    for (low, high) in bits.chain(rest) {
        scribble(&model, table, (low, high));
        let found = Finding::Malformed { entry: entry(0x20, index), low, high };
        assert_eq!(interrupts((&model, &unit), 256, allowed), [found]);
    }
}

#[test]
fn each_device_entry_that_must_not_be_is_named() {
    let (model, mut unit) = on(FEATURES);
    let given = domain(3, ROOT, 4);
    unit.attach(bdf(0x120), given).unwrap();
    unit.allocate_irtes(bdf(0x120), 1).unwrap();
    let allowed = |device: Bdf, domain| (device, domain) == (bdf(0x120), given);
    assert_eq!(devices((&model, &unit), allowed), []);
    let elsewhere = Finding::Domain { device: bdf(0x120), domain: given };
    assert_eq!(devices((&model, &unit), |_, domain| domain.root != ROOT), [elsewhere]);
    for (id, normal) in [(0x120, device::translated(given)), (0xFFFF, unit.devices.denied())] {
        let (dma, interrupts, table) = places(&model, id);
        let (low, high) = normal;
        // Each bit: V, TV, the mode, the root, IR, IW, the domain, and those that let more pass.
        for bit in 0..128 {
            let (low, high) = match bit {
                0..64 => (low ^ 1 << bit, high),
                _ => (low, high ^ 1 << (bit - 64)),
            };
            scribble(&model, dma, (low, high));
            let found = devices((&model, &unit), allowed);
            let named = matches!(
                found[..],
                [Finding::Context { device, .. } | Finding::Domain { device, .. }]
                    if device == bdf(id)
            );
            assert!(named, "{id:#x}, bit {bit}: {found:?}");
        }
        scribble(&model, dma, normal);
        let (low, high) = if table == 0 { (1, 0) } else { device::remapped(table) };
        let changes = [(low & !1, high), (low ^ 1 << 60, high), (low | 1 << 58, high)];
        for (low, high) in changes.into_iter().chain([(low ^ 1 << 12, high), (low, high | 1)]) {
            scribble(&model, interrupts, (low, high));
            let found = Finding::Interrupts { device: bdf(id), low, high };
            assert_eq!(devices((&model, &unit), allowed), [found]);
            assert_eq!(found.device(), Some(bdf(id)));
        }
        scribble(&model, interrupts, (low, high));
    }
    assert_eq!(devices((&model, &unit), allowed), []);
}

/// The id that another's requests carry may do what that one may, and no more.
#[test]
fn an_id_of_a_bridge_is_judged_by_who_is_behind_it() {
    let model = Model::new(FEATURES);
    let alias = |device| Alias { device: bdf(device), requester: bdf(0x100) };
    let firmware = Firmware { aliases: vec![alias(0x108), alias(0x110)], ..Firmware::default() };
    let mut unit = Unit::enable(model.clone(), model.clone(), Remapping::On, &firmware).unwrap();
    let given = domain(3, ROOT, 4);
    unit.attach(bdf(0x110), given).unwrap();
    assert_eq!(devices((&model, &unit), |device, d| (device, d) == (bdf(0x110), given)), []);
    let found = |id| Finding::Domain { device: bdf(id), domain: given };
    assert_eq!(devices((&model, &unit), |_, _| false), [found(0x100), found(0x110)]);
    // Their entries stand in one table, and each is its owner's.
    for source in [0x108, 0x110] {
        let index = unit.allocate_irtes(bdf(source), 1).unwrap();
        unit.set_irte(index, route(source, 0x41)).unwrap();
    }
    let owned = |e: Entry, r: InterruptRoute| Some(r.source) == e.table;
    assert_eq!(interrupts((&model, &unit), 7, owned), []);
    let mut seen = Vec::new();
    let outline = unit.outline();
    let judge = |entry| {
        seen.push(entry);
        Some(|_| true)
    };
    let all = outline.audit_interrupts(&mut model.clone(), &mut Cursor::default(), 256, judge);
    assert_eq!((all, seen), (Ok(true), vec![entry(0x108, 0), entry(0x110, 1)]));
    assert_eq!(devices((&model, &unit), |_, _| true), []);
}

#[test]
fn an_entry_that_cant_be_judged_now_is_judged_later() {
    let (model, mut unit) = on(FEATURES);
    let first = unit.allocate_irtes(bdf(0x20), 2).unwrap();
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
    let at = entry(0x20, first + 1);
    assert!(matches!(look(true).0, Err(Finding::Route { entry, .. }) if entry == at));
    assert_eq!(look(true), (Ok(true), Cursor::default()));
    // It may be gone by the time that it can be judged.
    let (.., table) = places(&model, 0x20);
    let gone = |_| {
        scribble(&model, table + 16, (0, 0));
        Some(|_| false)
    };
    let found = outline.audit_interrupts(&mut model.clone(), &mut Cursor::default(), 1000, gone);
    assert_eq!(found, Ok(true));
}

#[test]
fn without_tables_there_is_nothing_to_see() {
    let (model, unit) = on(FEATURES);
    assert_eq!(interrupts((&model, &unit), 1, |_, _| false), []);
    let model = Model::new(0);
    let mut unit = super::enable(&model, Remapping::Off).unwrap();
    unit.allocate_irtes(bdf(8), 1).unwrap();
    unit.set_irte(0, route(8, 0x41)).unwrap();
    assert_eq!(interrupts((&model, &unit), 9, |e, r| (e, r) == (entry(8, 0), route(8, 0x41))), []);
    assert_eq!(devices((&model, &unit), |_, _| false), []);
}

#[test]
fn a_unit_that_doesnt_confine_everything_is_named() {
    let (model, unit) = on(FEATURES);
    let outline = unit.outline();
    let look = || outline.audit_unit(&mut model.clone());
    assert_eq!(look(), Ok(()));
    for bit in [ENABLE, COMMAND_BUFFER, WIDE_ENTRIES, X2APIC, SEGMENTS, ROUTING] {
        model.with(|state| state.control ^= bit);
        let found = look().unwrap_err();
        assert!(matches!(found, Finding::Open { .. }), "{bit:#x}");
        assert!(found.to_string().ends_with("it doesn't confine every device by the host's table"));
        assert_eq!(found.device(), None);
        model.with(|state| state.control ^= bit);
    }
    // What changes while it works.
    model.with(|state| state.control ^= EVENT_LOG | EVENT_INTERRUPT | X2APIC_OWN);
    assert_eq!(look(), Ok(()));
    for change in [0x1000, 1] {
        model.with(|state| state.device_table ^= change);
        assert!(look().is_err());
        model.with(|state| state.device_table ^= change);
        model.with(|state| state.exclusion.0 = change);
        assert_eq!(look().is_err(), change == 1, "a range that isn't in force");
    }
}

proptest! {
    #![proptest_config(Config { cases: 32, ..Config::default() })]

    /// Whatever the driver was asked to do, the look finds what was asked for.
    #[test]
    fn the_drivers_own_work_is_as_it_should_be(
        steps in prop::collection::vec((0u16..4, 0u16..3, 16u8..20, any::<bool>()), 0..40),
        step in 1u32..300,
    ) {
        let (model, mut unit) = on(FEATURES);
        let sources = [0u16, 0x108, 0x210];
        for id in sources {
            unit.allocate_irtes(bdf(id), 4).unwrap();
        }
        let mut routed = [[None; 4]; 3];
        for (n, of, vector, clear) in steps {
            let (of, source) = (usize::from(of), sources[usize::from(of)]);
            let route = (!clear).then(|| route(source, vector));
            match route {
                Some(route) => unit.set_irte(n, route).unwrap(),
                None => unit.clear_irte(bdf(source), n).unwrap(),
            }
            routed[of][usize::from(n)] = route;
        }
        let allowed = |e: Entry, r| {
            let of = sources.iter().position(|id| Some(bdf(*id)) == e.table);
            of.is_some_and(|of| routed[of].get(usize::from(e.index)) == Some(&Some(r)))
        };
        prop_assert_eq!(interrupts((&model, &unit), step, allowed), []);
        prop_assert_eq!(devices((&model, &unit), |_, _| false), []);
    }
}
