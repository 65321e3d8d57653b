//! Devices whose requests carry another's id.

use super::model::{Done, FEATURES, Model};
use super::{ROOT, bdf, domain, route};
use crate::amdvi::Unit;
use crate::audit::{Cursor, Entry};
use crate::{Alias, Error, Firmware, InterruptRoute, Remapping};

/// Two devices behind a bridge that speaks for them, and one beside it.
const BRIDGE: u16 = 0x0100;
const FIRST: u16 = 0x0108;
const SECOND: u16 = 0x0110;
const OTHER: u16 = 0x0200;

fn behind_a_bridge() -> (Model, Unit<Model, Model>) {
    with_aliases(&[(SECOND, BRIDGE), (BRIDGE, BRIDGE), (FIRST, BRIDGE)])
}

fn with_aliases(pairs: &[(u16, u16)]) -> (Model, Unit<Model, Model>) {
    let model = Model::new(FEATURES);
    let alias = |(device, id): &(u16, u16)| Alias { device: bdf(*device), requester: bdf(*id) };
    let aliases = pairs.iter().map(alias).collect();
    let firmware = Firmware { aliases, ..Firmware::default() };
    let unit = Unit::enable(model.clone(), model.clone(), Remapping::On, &firmware).unwrap();
    model.with(|state| state.done.clear());
    (model, unit)
}

#[test]
fn both_ids_of_a_device_lead_to_its_domain() {
    let (model, mut unit) = behind_a_bridge();
    let to = domain(3, ROOT, 4);
    unit.attach(bdf(FIRST), to).unwrap();
    model.assert_settled();
    model.with(|state| {
        // In any order, but before the pages.
        state.done[..2].sort_by_key(|done| *done == Done::Device(FIRST));
        let expected = [Done::Device(BRIDGE), Done::Device(FIRST), Done::AllPages(3)];
        assert_eq!(state.done, expected);
    });
    let domains = |model: &Model| [BRIDGE, FIRST, SECOND, OTHER].map(|id| model.domain(id));
    assert_eq!(domains(&model), [Some(to), Some(to), None, None]);
    unit.detach(bdf(FIRST)).unwrap();
    model.assert_settled();
    assert_eq!(domains(&model), [None; 4]);
}

#[test]
fn devices_with_one_id_share_a_domain_or_are_refused() {
    let (model, mut unit) = behind_a_bridge();
    let to = domain(3, ROOT, 4);
    unit.attach(bdf(FIRST), to).unwrap();
    let refused = Error::Shared { device: bdf(SECOND), requester: bdf(BRIDGE) };
    for other in [domain(4, ROOT, 4), domain(3, ROOT + 0x1000, 4), domain(3, ROOT, 3)] {
        assert_eq!(unit.attach(bdf(SECOND), other), Err(refused));
    }
    assert_eq!(
        refused.to_string(),
        "device 01:02.0 can't be told from another by the IOMMU (requester 01:00.0), which is \
         attached to another domain"
    );
    let bridge = Error::Shared { device: bdf(BRIDGE), requester: bdf(BRIDGE) };
    assert_eq!(unit.attach(bdf(BRIDGE), domain(4, ROOT, 4)), Err(bridge));
    assert_eq!(model.domain(SECOND), None);
    assert_eq!(unit.attach(bdf(SECOND), to), Ok(()));
    assert_eq!(unit.attach(bdf(OTHER), domain(4, ROOT, 4)), Ok(()));
    // What one loses, the other has lost: the promise is that the domain is out of reach.
    unit.detach(bdf(FIRST)).unwrap();
    assert_eq!([BRIDGE, FIRST].map(|id| model.domain(id)), [None, None]);
    assert_eq!(model.domain(SECOND), Some(to));
    unit.detach(bdf(SECOND)).unwrap();
    assert_eq!(model.domain(SECOND), None);
    model.assert_settled();
}

#[test]
fn a_domain_that_another_lost_is_not_replaced() {
    let (model, mut unit) = behind_a_bridge();
    unit.attach(bdf(FIRST), domain(3, ROOT, 4)).unwrap();
    unit.attach(bdf(SECOND), domain(3, ROOT, 4)).unwrap();
    unit.detach(bdf(FIRST)).unwrap();
    // The second's requests may carry the bridge's id, too.
    let refused = Error::Shared { device: bdf(FIRST), requester: bdf(BRIDGE) };
    assert_eq!(unit.attach(bdf(FIRST), domain(4, ROOT, 4)), Err(refused));
    assert_eq!(model.domain(BRIDGE), None);
    unit.detach(bdf(SECOND)).unwrap();
    assert_eq!(unit.attach(bdf(FIRST), domain(4, ROOT, 4)), Ok(()));
}

/// A bridge behind a bridge, in any order of allocation; and a device with two names.
#[test]
fn connected_ids_share_a_table() {
    let chain = [(FIRST, BRIDGE), (BRIDGE, OTHER)];
    let fork = [(FIRST, BRIDGE), (FIRST, OTHER)];
    let circle = [(FIRST, BRIDGE), (BRIDGE, OTHER), (OTHER, FIRST)];
    let orders = [[FIRST, BRIDGE, OTHER], [OTHER, BRIDGE, FIRST], [BRIDGE, FIRST, OTHER]];
    let all = [&chain[..], &fork, &circle];
    for (pairs, order) in all.into_iter().flat_map(|pairs| orders.map(|order| (pairs, order))) {
        let (model, mut unit) = with_aliases(pairs);
        for (n, id) in order.into_iter().enumerate() {
            let index = unit.allocate_irtes(bdf(id), 1).unwrap();
            assert_eq!(usize::from(index), n);
            unit.set_irte(index, route(id, 0x41 + n as u8)).unwrap();
        }
        model.assert_settled();
        for (n, by) in order.into_iter().enumerate() {
            let route = |id| Some(route(id, 0x41 + n as u8));
            assert_eq!(model.route(by, n as u16), route(by), "{pairs:?}");
            for (_, other) in pairs.iter().filter(|pair| pair.0 == by) {
                assert_eq!(model.route(*other, n as u16), route(*other), "{pairs:?}");
            }
        }
        let judge = |e: Entry| Some(move |route: InterruptRoute| Some(route.source) == e.table);
        let (outline, mut mem) = (unit.outline(), model.clone());
        let devices =
            outline.audit_devices(&mut mem, &mut Cursor::default(), 1 << 16, |_, _| false);
        let interrupts = outline.audit_interrupts(&mut mem, &mut Cursor::default(), 1 << 16, judge);
        assert_eq!((devices, interrupts), (Ok(true), Ok(true)));
    }
}

#[test]
fn devices_with_one_id_share_a_table_and_no_entry() {
    let (model, mut unit) = behind_a_bridge();
    let indices = [FIRST, SECOND, OTHER].map(|id| unit.allocate_irtes(bdf(id), 2).unwrap());
    assert_eq!(indices, [0, 2, 0]);
    unit.set_irte(0, route(FIRST, 0x41)).unwrap();
    unit.set_irte(2, route(SECOND, 0x42)).unwrap();
    unit.set_irte(0, route(OTHER, 0x43)).unwrap();
    model.assert_settled();
    for id in [BRIDGE, FIRST, SECOND] {
        assert_eq!(model.route(id, 0), Some(route(id, 0x41)));
        assert_eq!(model.route(id, 2), Some(route(id, 0x42)));
    }
    assert_eq!(model.route(OTHER, 0), Some(route(OTHER, 0x43)));
    // By whichever id it was cached.
    unit.set_irte(0, route(FIRST, 0x51)).unwrap();
    model.assert_settled();
    let gone = |index| Err(Error::NotAllocated { index });
    assert_eq!(unit.set_irte(0, route(SECOND, 0x44)), gone(0));
    assert_eq!(unit.clear_irte(bdf(FIRST), 2), gone(2));
    assert_eq!(unit.clear_irte(bdf(BRIDGE), 2), gone(2));
    // Given back by one, it may be the other's.
    unit.release_irtes(bdf(FIRST), 0, 2).unwrap();
    assert_eq!(unit.allocate_irtes(bdf(SECOND), 2), Ok(0));
    assert_eq!(unit.set_irte(1, route(SECOND, 0x44)), Ok(()));
    assert_eq!(unit.set_irte(1, route(FIRST, 0x44)), gone(1));
}
