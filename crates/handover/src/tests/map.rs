//! Firmware's ranges in any order, overlapping and split, against a model that has one kind a page.

use crate::{Error, LOW_MEMORY, MAX_RANGES, MemoryKind, MemoryMap, MemoryRange, PAGE};
use proptest::prelude::*;

use MemoryKind::{Acpi, Loaded, Reserved, Runtime, Usable};

/// The model's addresses: these pages, from 0 on. It reaches beyond [`LOW_MEMORY`].
const PAGES: u64 = 300;

fn map(ranges: &[(u64, u64, MemoryKind)]) -> MemoryMap {
    let mut map = MemoryMap::new();
    for (start, end, kind) in ranges {
        map.add(*start, *end, *kind).unwrap();
    }
    map
}

fn kinds() -> impl Strategy<Value = MemoryKind> {
    prop::sample::select(vec![Usable, Usable, Loaded, Acpi, Runtime, Reserved])
}

/// Ranges of whole pages.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64, MemoryKind)>> {
    let range = (0..PAGES, 0..40u64, kinds());
    let range = range
        .prop_map(|(start, length, kind)| (start * PAGE, (start + length).min(PAGES) * PAGE, kind));
    prop::collection::vec(range, 0..40)
}

/// The worst kind of each page.
fn model(ranges: &[(u64, u64, MemoryKind)]) -> Vec<Option<MemoryKind>> {
    let covering = |page: u64| {
        let covers = move |range: &&(u64, u64, _)| range.0 <= page * PAGE && page * PAGE < range.1;
        ranges.iter().filter(covers).map(|range| range.2).max()
    };
    (0..PAGES).map(covering).collect()
}

fn pages_of(model: &[Option<MemoryKind>], kind: MemoryKind) -> Vec<u64> {
    (0..PAGES).filter(|page| model[*page as usize] == Some(kind)).collect()
}

fn singly(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    ranges.flat_map(|(start, end)| start / PAGE..end / PAGE).collect()
}

proptest! {
    #[test]
    fn each_page_has_the_worst_kind_that_any_range_gives_it(ranges in ranges()) {
        let map = map(&ranges);
        let model = model(&ranges);
        for (page, expected) in model.iter().enumerate() {
            let at = page as u64 * PAGE;
            let found = map.ranges().iter().find(|r| r.start <= at && at < r.end);
            prop_assert_eq!(found.map(|r| r.kind), *expected, "page {}", page);
        }
        for kind in [Usable, Loaded, Acpi, Runtime, Reserved] {
            prop_assert_eq!(singly(map.pages(kind)), pages_of(&model, kind));
        }
        let above: Vec<_> =
            pages_of(&model, Usable).into_iter().filter(|p| *p >= LOW_MEMORY / PAGE).collect();
        prop_assert_eq!(singly(map.free_pages()), above);
    }

    #[test]
    fn a_kind_is_turned_where_it_is_and_nowhere_else(ranges in ranges(), a in 0..PAGES, b in 0..PAGES) {
        let (start, end) = (a.min(b), a.max(b));
        let mut map = map(&ranges);
        let mut model = model(&ranges);
        let mut turned = 0;
        for kind in model[start as usize..end as usize].iter_mut().filter(|k| **k == Some(Usable)) {
            *kind = Some(Acpi);
            turned += PAGE;
        }
        prop_assert_eq!(map.turn(start * PAGE..end * PAGE, Usable, Acpi), Ok(turned));
        for kind in [Usable, Loaded, Acpi, Runtime, Reserved] {
            prop_assert_eq!(singly(map.pages(kind)), pages_of(&model, kind));
        }
        for pair in map.ranges().windows(2) {
            let [a, b] = pair else { unreachable!() };
            prop_assert!(a.end < b.start || a.end == b.start && a.kind != b.kind, "{a:?} {b:?}");
        }
    }

    #[test]
    fn ranges_ascend_and_what_could_be_one_is_one(ranges in ranges()) {
        let map = map(&ranges);
        prop_assert!(map.ranges().iter().all(|r| r.start < r.end));
        for pair in map.ranges().windows(2) {
            let [a, b] = pair else { unreachable!() };
            prop_assert!(a.end < b.start || a.end == b.start && a.kind != b.kind, "{a:?} {b:?}");
        }
    }

    #[test]
    fn the_order_doesn_t_matter(ranges in ranges(), seed: u64) {
        let mut other = ranges.clone();
        other.sort_by_key(|r| (r.0 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        prop_assert_eq!(map(&ranges), map(&other));
    }

    #[test]
    fn what_is_covered_has_no_hole_and_no_other_kind(ranges in ranges(), a in 0..PAGES, b in 0..PAGES) {
        let (start, end) = (a.min(b), a.max(b));
        let model = model(&ranges);
        let expected = (start..end).all(|p| matches!(model[p as usize], Some(Usable | Acpi)));
        let allowed = |kind| matches!(kind, Usable | Acpi);
        prop_assert_eq!(map(&ranges).covers(start * PAGE, end * PAGE, allowed), expected);
        let other = |p: u64| model[p as usize].is_some_and(|kind| kind != Reserved);
        let memory = (start..end).any(other);
        prop_assert_eq!(map(&ranges).has_memory(&(start * PAGE..end * PAGE)), memory);
    }

    #[test]
    fn cores_start_in_a_usable_page_below_a_mebibyte(ranges in ranges()) {
        let model = model(&ranges);
        let low: Vec<_> = pages_of(&model, Usable).into_iter().filter(|p| (1..256).contains(p)).collect();
        let expected = low.iter().find(|p| **p >= 16).or(low.first());
        prop_assert_eq!(map(&ranges).startup_page(), expected.map(|page| page * PAGE));
    }

    #[test]
    fn a_page_is_whole_or_isn_t_used(start in 0..40 * PAGE, length in 0..20 * PAGE) {
        let map = map(&[(start, start + length, Usable)]);
        let inside = |p: &u64| start <= p * PAGE && (p + 1) * PAGE <= start + length;
        let expected: Vec<_> = (0..PAGES).filter(inside).collect();
        prop_assert_eq!(singly(map.pages(Usable)), expected);
    }
}

/// The limit is one of ranges that are left, and what is refused leaves the map as it was.
#[test]
fn many_descriptors_of_few_ranges_fit_and_too_many_ranges_don_t() {
    let mut merged = MemoryMap::new();
    for i in 0..10_000 {
        merged.add(i * PAGE, (i + 1) * PAGE, Usable).unwrap();
    }
    assert_eq!(merged.ranges(), [MemoryRange { start: 0, end: 10_000 * PAGE, kind: Usable }]);

    let mut apart = MemoryMap::new();
    for i in 0..MAX_RANGES as u64 {
        apart.add(2 * i * PAGE, (2 * i + 1) * PAGE, Usable).unwrap();
    }
    let before = apart.clone();
    assert_eq!(apart.add(1 << 40, 2 << 40, Usable), Err(Error::TooManyRanges));
    assert_eq!(apart.add(100, 200, Reserved), Err(Error::TooManyRanges));
    assert_eq!(apart, before);
    apart.add(0, 1 << 40, Usable).unwrap();
    assert_eq!(apart.ranges(), [MemoryRange { start: 0, end: 1 << 40, kind: Usable }]);
}

#[test]
fn a_length_beyond_the_last_address_is_no_memory_but_may_be_reserved() {
    let mut map = MemoryMap::new();
    map.add_bytes(1 << 32, u64::MAX, Usable).unwrap();
    assert_eq!(map.ranges(), []);
    map.add_bytes(1 << 32, u64::MAX, Reserved).unwrap();
    assert_eq!(map.ranges(), [MemoryRange { start: 1 << 32, end: u64::MAX, kind: Reserved }]);
    assert_eq!(map.pages(Usable).count(), 0);
}

#[test]
fn page_0_and_what_firmware_writes_to_are_avoided() {
    let page = |start: u64, end: u64| map(&[(start, end, Usable)]).startup_page();
    assert_eq!(page(0, 0xA_0000), Some(0x1_0000));
    assert_eq!(page(0, 0x8000), Some(0x1000));
    assert_eq!(page(0x9_F000, 0x9_FC00), None);
    assert_eq!(page(0xF_F000, 0x20_0000), Some(0xF_F000));
    assert_eq!(page(0, 0x1000), None);
    assert_eq!(page(0x10_0000, 0x20_0000), None);
}
