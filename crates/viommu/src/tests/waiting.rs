//! Unmappings that wait: the device that has them wait against the same model.

use super::asks;
use super::model::{Ask, ENDPOINTS, Model, Pages, Unit, ask, shape};
use crate::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LONGEST: u64 = 100;
const WHOLE: u32 = 3;

/// A device with an endpoint in domain 7, whose unmappings wait.
fn attached() -> (Viommu, Unit) {
    let (mut device, mut unit) = (Viommu::new(shape(), LONGEST), Unit::new(100));
    done(&mut device, &mut unit, &[Ask::Attach(7, 0x10, 0)]);
    (device, unit)
}

/// Has it tear down all that is due.
fn tear_down(device: &mut Viommu, unit: &mut Unit, now: u64) {
    device.set_time(now);
    loop {
        let before = device.teardowns();
        device.tear_down(unit);
        if device.teardowns() == before {
            break;
        }
    }
}

fn done(device: &mut Viommu, unit: &mut Unit, all: &[Ask]) {
    for what in all {
        assert_eq!(ask(device, unit, what), Some(Status::Ok), "{what:?}");
    }
}

fn map(first: u64, pages: u64, to: u64) -> Ask {
    Ask::Map(7, first, first + pages * PAGE - 1, to, WHOLE)
}

fn unmap(first: u64, pages: u64) -> Ask {
    Ask::Unmap(7, first, first + pages * PAGE - 1)
}

proptest! {
    /// Answers are those of a device that waits for nothing. What an endpoint reaches besides is
    /// what it reached, for less than the time; then it is as the model has it.
    #[test]
    fn nothing_waits_for_longer(
        all in prop::collection::vec((asks(), 0_u64..LONGEST), 1..60),
        most in prop_oneof![Just(6_usize), Just(100)],
        start: u64,
    ) {
        let mut device = Viommu::new(shape(), LONGEST);
        let (mut unit, mut model, mut now) = (Unit::new(most), Model::new(), start);
        let mut was: BTreeMap<(u32, u64), (u64, (u64, Access))> = BTreeMap::new();
        for (what, ticks) in &all {
            now = now.wrapping_add(*ticks);
            tear_down(&mut device, &mut unit, now);
            for (number, (_, pages)) in &model.domains {
                was.extend(pages.iter().map(|(page, to)| ((*number, *page), (now, *to))));
            }
            for endpoint in 0..ENDPOINTS.len() {
                unit.cached[endpoint] = unit.translations(endpoint);
            }
            prop_assert_eq!(ask(&mut device, &mut unit, what), model.follow(what, most), "{:x?}", what);
            for (endpoint, id) in ENDPOINTS.iter().enumerate() {
                prop_assert!(unit.cached[endpoint].is_subset(&unit.translations(endpoint)));
                let Reach::Domain(place) = unit.reach[endpoint] else { continue };
                let number = model.attached[id];
                let (found, right): (&Pages, _) = (&unit.places[place], &model.domains[&number].1);
                for (page, to) in right {
                    prop_assert_eq!(found.get(page), Some(to), "after {:x?}", what);
                }
                for (page, to) in found.iter().filter(|(page, _)| !right.contains_key(page)) {
                    let (then, before) = was[&(number, *page)];
                    prop_assert!(before == *to && now.wrapping_sub(then) < LONGEST, "{:x?}", what);
                }
            }
            prop_assert!(device.due().is_none_or(|due| due.wrapping_sub(now) <= LONGEST));
        }
        tear_down(&mut device, &mut unit, now.wrapping_add(LONGEST));
        prop_assert_eq!(device.due(), None);
        for (endpoint, id) in ENDPOINTS.iter().enumerate() {
            if let Reach::Domain(place) = unit.reach[endpoint] {
                prop_assert_eq!(&unit.places[place], &model.domains[&model.attached[id]].1);
            }
        }
    }
}

#[test]
fn a_pair_that_comes_back_changes_nothing() {
    let (mut device, mut unit) = attached();
    done(&mut device, &mut unit, &[map(0x4000, 2, 0x8000)]);
    for _ in 0..10 {
        done(&mut device, &mut unit, &[unmap(0x4000, 2), map(0x4000, 2, 0x8000)]);
    }
    assert_eq!(unit.changes, 1);
    assert_eq!(device.teardowns(), Teardowns { came_back: 20 * PAGE, carried_out: 0 });
    device.set_time(2 * LONGEST);
    device.tear_down(&mut unit);
    assert_eq!((unit.changes, unit.places[0].len()), (1, 2), "it is mapped, and stays so");
}

#[test]
fn what_is_mapped_otherwise_is_torn_down_first() {
    let others = [map(0x4000, 2, 0x9000), map(0x4000, 1, 0x8000), map(0x3000, 2, 0x7000)];
    let read_only = Ask::Map(7, 0x4000, 0x5FFF, 0x8000, 1);
    for other in others.into_iter().chain([read_only]) {
        let (mut device, mut unit) = attached();
        done(&mut device, &mut unit, &[map(0x4000, 2, 0x8000), unmap(0x4000, 2), other]);
        assert_eq!(device.teardowns(), Teardowns { came_back: 0, carried_out: 2 * PAGE });
        assert_eq!(device.due(), None);
    }
}

#[test]
fn it_is_torn_down_at_its_time_and_not_before() {
    let (mut device, mut unit) = attached();
    device.set_time(u64::MAX - 10);
    done(&mut device, &mut unit, &[map(0, 1, 0), map(0x1000, 1, 0), unmap(0, 1)]);
    device.set_time(10);
    done(&mut device, &mut unit, &[unmap(0x1000, 1)]);
    for (now, left) in [(LONGEST - 12, 2), (LONGEST - 11, 1), (LONGEST + 9, 1), (LONGEST + 10, 0)] {
        device.set_time(now);
        device.tear_down(&mut unit);
        assert_eq!(unit.places[0].len(), left, "at {now}");
    }
}

#[test]
fn an_endpoint_that_joins_finds_nothing_that_waits() {
    let (mut device, mut unit) = attached();
    done(&mut device, &mut unit, &[map(0, 1, 0), unmap(0, 1), Ask::Attach(7, 0x18, 0)]);
    assert!(unit.places[0].is_empty());
}

#[test]
fn a_few_wait_and_no_large_ones() {
    let (mut device, mut unit) = (Viommu::new(shape(), LONGEST), Unit::new(2000));
    done(&mut device, &mut unit, &[Ask::Attach(7, 0x10, 0)]);
    for n in 0..MOST as u64 + 3 {
        done(&mut device, &mut unit, &[map(n * PAGE, 1, 0), unmap(n * PAGE, 1)]);
    }
    assert_eq!(unit.places[0].len(), MOST);
    assert_eq!(device.teardowns().carried_out, 3 * PAGE);
    device.set_time(LONGEST);
    device.tear_down(&mut unit);
    assert_eq!((unit.places[0].len(), device.due()), (MOST - 16, Some(LONGEST)));
    tear_down(&mut device, &mut unit, LONGEST);
    assert_eq!((unit.places[0].len(), device.due()), (0, None));
    let far = 1 << 30;
    for (pages, left) in [(65, 0), (64, 64)] {
        done(&mut device, &mut unit, &[map(far, pages, 0), unmap(far, pages)]);
        assert_eq!(unit.places[0].range(far..).count(), left);
    }
}

/// To tear it down later could fail, when there is no frame for the rest of the large page.
#[test]
fn what_cuts_a_large_page_is_gone_at_once() {
    let (mut device, mut unit) = (Viommu::new(shape(), LONGEST), Unit::new(2000));
    done(&mut device, &mut unit, &[Ask::Attach(7, 0x10, 0)]);
    let large = 2 << 20;
    for first in [large, large + 9 * PAGE, 2 * large - PAGE] {
        done(&mut device, &mut unit, &[map(large, 512, 0), unmap(first, 1)]);
        assert_eq!((unit.places[0].len(), device.due()), (511, None), "{first:#x}");
        done(&mut device, &mut unit, &[unmap(large, 512)]);
    }
}

#[test]
fn what_is_unmapped_again_is_gone_at_once() {
    let (mut device, mut unit) = attached();
    done(&mut device, &mut unit, &[map(0, 2, 0), unmap(0, 2), unmap(0, 2)]);
    assert_eq!((unit.places[0].len(), device.due()), (0, None));
    assert_eq!(device.teardowns(), Teardowns { came_back: 0, carried_out: 2 * PAGE });
}
