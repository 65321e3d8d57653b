//! Encodings that must survive a round trip, and what must hold after any calls in any order.

use super::model::{Done, FEATURES, Model};
use super::{ROOT, bdf, domain, on, route};
use crate::amdvi::registers::COHERENT;
use crate::amdvi::{Unit, device, interrupt};
use crate::{Alias, Delivery, DomainId, Firmware, InterruptRoute, Range, Remapping};
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::collections::BTreeMap;

proptest! {
    #[test]
    fn entries_survive_encoding(source: u16, destination: u32, vector in 16u8.., bit in 0u32..128) {
        let delivery = Delivery::Fixed(vector);
        let route = InterruptRoute { source: bdf(source), destination, delivery };
        let (low, high) = interrupt::encode(route).unwrap();
        prop_assert_eq!(interrupt::decode(bdf(source), (low, high)), Some(route));
        // Another bit is another route, or none.
        let other = (u128::from(high) << 64 | u128::from(low)) ^ 1 << bit;
        let other = (other as u64, (other >> 64) as u64);
        prop_assert_ne!(interrupt::decode(bdf(source), other), Some(route));
    }

    #[test]
    fn domains_survive_encoding(id: u16, frame in 0u64..1 << 40, levels in 1u8..=6) {
        let to = domain(id, frame << 12, levels);
        prop_assert_eq!(device::domain(device::translated(to)), Some(to));
    }
}

/// Devices of two buses; two of them behind the first's id.
const DEVICES: [u16; 6] = [0x08, 0x0109, 0x10, 0x0111, 0x18, 0x0119];

fn with_aliases(lacks: u64) -> (Model, Unit<Model, Model>) {
    let model = Model::new(FEATURES);
    model.with(|state| state.lacks = lacks);
    let alias = |device| Alias { device: bdf(device), requester: bdf(DEVICES[0]) };
    let aliases = vec![alias(DEVICES[1]), alias(DEVICES[2])];
    let firmware = Firmware { aliases, ..Firmware::default() };
    let unit = Unit::enable(model.clone(), model.clone(), Remapping::On, &firmware).unwrap();
    (model, unit)
}

fn requester(n: usize) -> u16 {
    DEVICES[if n < 3 { 0 } else { n }]
}

proptest! {
    #![proptest_config(Config { cases: 48, ..Config::default() })]

    /// No page that was asked to be forgotten stays, and others of the domain may.
    #[test]
    fn flushed_pages_cover_the_range(
        ranges in prop::collection::vec((any::<u64>(), 0u32..64, any::<u64>(), 0u32..64), 1..20),
    ) {
        let (model, mut unit) = on(FEATURES);
        for (address, shift, bytes, smaller) in ranges {
            let (address, bytes) = (address >> shift, bytes >> smaller);
            let last = address.saturating_add(bytes.saturating_sub(1)) >> 12;
            let within = [address >> 12, (address >> 12).midpoint(last), last];
            model.with(|state| {
                state.pages = within.iter().map(|page| (3, *page)).collect();
                state.pages.extend(within.iter().map(|page| (4, *page)));
            });
            unit.flush(DomainId(3), Range::Bytes { address, bytes }).unwrap();
            model.assert_settled();
            model.with(|state| {
                let left = state.pages.iter().filter(|(of, _)| *of == 3).count();
                assert!(left == 0 || bytes == 0, "{address:#x} {bytes:#x}");
                assert!(state.pages.iter().any(|(of, _)| *of == 4));
                // Nor more than the smallest aligned block around it.
                if let Some(Done::Pages(_, first, count)) = state.done.pop() {
                    let order = u64::BITS - (address >> 12 ^ last).leading_zeros();
                    assert_eq!((count, first), (1 << order, last >> order << order));
                }
            });
        }
    }

    /// Whatever is done in whatever order: no stale cache afterwards, the tables say what was
    /// asked, and the unit never saw a domain or a route that nobody asked for. That it never saw
    /// an entry that lets anything else pass, nor half of one, the model sees to.
    #[test]
    fn any_sequence_leaves_nothing_stale(
        coherent: bool,
        steps in prop::collection::vec((0u8..6, 0usize..6, 1u16..4, 16u8..20), 1..40),
    ) {
        let (model, mut unit) = with_aliases(if coherent { 0 } else { COHERENT });
        let mut attached = BTreeMap::new();
        // By id, what it reaches.
        let mut reached: BTreeMap<u16, u16> = BTreeMap::new();
        let mut allocated: BTreeMap<usize, u16> = BTreeMap::new();
        let mut routed: BTreeMap<(u16, u16), InterruptRoute> = BTreeMap::new();
        let mut asked = Vec::new();
        for (step, n, of, vector) in steps {
            let device = bdf(DEVICES[n]);
            let ids = [DEVICES[n], requester(n)];
            match step {
                0 => {
                    let result = unit.attach(device, domain(of, ROOT, 3));
                    let other = |(m, domain): (&usize, &u16)| {
                        *m == n || requester(*m) == requester(n) && *domain != of
                    };
                    prop_assert_eq!(result.is_err(), attached.iter().any(other));
                    if result.is_ok() {
                        attached.insert(n, of);
                        reached.extend(ids.map(|id| (id, of)));
                    }
                }
                1 => {
                    let was = attached.remove(&n).is_some();
                    prop_assert_eq!(unit.detach(device).is_ok(), was);
                    if was {
                        reached.retain(|id, _| !ids.contains(id));
                    }
                }
                2 => {
                    if let Some(index) = allocated.get(&n) {
                        unit.release_irtes(device, *index, 1).unwrap();
                        routed.remove(&(requester(n), *index));
                        allocated.remove(&n);
                    } else {
                        allocated.insert(n, unit.allocate_irtes(device, 1).unwrap());
                    }
                }
                3 | 4 => {
                    let index = allocated.get(&n).copied().unwrap_or(7);
                    let route = route(DEVICES[n], vector);
                    let result = match step {
                        3 => unit.set_irte(index, route),
                        _ => unit.update_irte(index, route).and_then(|()| unit.drain()),
                    };
                    prop_assert_eq!(result.is_ok(), allocated.contains_key(&n));
                    if result.is_ok() {
                        asked.push((requester(n), index, route.delivery));
                        routed.insert((requester(n), index), route);
                    }
                }
                _ => {
                    let index = allocated.get(&n).copied().unwrap_or(7);
                    let result = unit.clear_irte(device, index);
                    prop_assert_eq!(result.is_ok(), allocated.contains_key(&n));
                    routed.remove(&(requester(n), index));
                }
            }
            model.assert_settled();
            for id in DEVICES {
                let found = model.domain(id).map(|domain| domain.id.0);
                prop_assert_eq!(found, reached.get(&id).copied());
            }
            for ((id, index), route) in &routed {
                let found = model.route(*id, *index).map(|r| (r.destination, r.delivery));
                prop_assert_eq!(found, Some((route.destination, route.delivery)));
            }
        }
        model.with(|state| {
            for (id, index, route) in &state.routes_seen {
                let id = DEVICES.iter().position(|other| other == id).map(requester).unwrap();
                assert!(asked.contains(&(id, *index, route.delivery)), "{id:#x} {index} {route:?}");
            }
            let seen = |d: &(u16, crate::Domain)| (1..4).contains(&d.1.id.0) && d.1.root == ROOT;
            assert!(state.domains_seen.iter().all(seen));
        });
    }
}
