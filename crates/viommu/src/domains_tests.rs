//! The real tables, walked as a unit walks them: what is mapped is found, what was unmapped is
//! flushed before its frames are used again, and no frame is lost.

use crate::*;
use paging::audit::{Cursor, Region as Allowed};
use paging::{AmdV1, Dma, Memory, PageSize, VtdSecondLevel};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const HOST: u64 = 1 << 30;
const BYTES: u64 = 8 << 20;

/// Frames, of which a few are free.
#[derive(Default)]
struct Frames {
    words: BTreeMap<u64, u64>,
    free: Vec<u64>,
    used: BTreeSet<u64>,
}

impl Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        assert!(self.used.contains(&(pa & !0xFFF)), "a word of no table's frame");
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn write(&mut self, pa: u64, value: u64) {
        self.words.insert(pa, value);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        self.used.insert(frame);
        (0..512).for_each(|word| {
            self.words.remove(&(frame + 8 * word));
        });
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        assert!(self.used.remove(&frame));
        self.free.push(frame);
    }
}

/// Units that were told what.
#[derive(Default)]
struct Units {
    led: BTreeMap<usize, Option<(u16, u64)>>,
    flushed: Vec<(u16, (u64, u64), bool)>,
    fails: bool,
}

impl Hardware for Units {
    fn lead(&mut self, endpoint: usize, to: Option<(u16, u64)>) -> bool {
        self.led.insert(endpoint, to);
        !self.fails
    }

    fn flush(&mut self, id: u16, range: (u64, u64), added: bool) -> bool {
        self.flushed.push((id, range, added));
        !self.fails
    }
}

const BOTH: Access = Access::READ.union(Access::WRITE);

fn domains(format: Dma, largest: PageSize, frames: u64) -> (Domains, Frames) {
    let mut memory = Frames { free: (1..=frames).map(|n| n << 12).collect(), ..Frames::default() };
    let domains = Domains::new(&mut memory, (format, largest), 2, (1, 0xABC000), 7).unwrap();
    (domains, memory)
}

fn formats() -> impl Strategy<Value = Dma> {
    prop::sample::select(vec![
        Dma::Amd(AmdV1::FourLevels),
        Dma::Amd(AmdV1::ThreeLevels),
        Dma::Vtd(VtdSecondLevel::FourLevels),
        Dma::Vtd(VtdSecondLevel::ThreeLevels),
    ])
}

/// All of a table leads into the guest's memory, by frames that are its own.
fn is_sound(domains: &Domains, memory: &Frames, place: usize) -> bool {
    let (_, _, outline) = domains.outline(place).unwrap();
    let allowed = [Allowed { va: None, pa: HOST, len: BYTES, access: BOTH }];
    let is_table = |frame| memory.used.contains(&frame);
    let mut at = Cursor::default();
    loop {
        let read = |pa| memory.read(pa);
        match outline.audit(read, &mut at, 10_000, &allowed, is_table, || Some(())) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => return false,
        }
    }
}

proptest! {
    #[test]
    fn tables_lead_inside_and_lose_no_frame(
        format in formats(),
        large: bool,
        all in prop::collection::vec((0_usize..2, 0_u64..1024, 1_u64..600, 0_u64..2048, 0_u8..4), 1..30),
    ) {
        let largest = if large { PageSize::Size2M } else { PageSize::Size4K };
        let (mut domains, mut memory) = domains(format, largest, 24);
        let mut units = Units::default();
        for (place, page, pages, to, what) in all {
            let (at, bytes, to) = (page * PAGE, pages * PAGE, HOST + to * PAGE);
            let mut acting =
                Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
            match what {
                0 => drop(acting.unmap(place, at, bytes)),
                1 => acting.clear(place),
                _ if to + bytes <= HOST + BYTES => drop(acting.map(place, at, to, bytes, BOTH)),
                _ => {}
            }
            prop_assert!(is_sound(&domains, &memory, place));
        }
        for place in 0..2 {
            let mut acting =
                Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
            acting.clear(place);
        }
        prop_assert_eq!(memory.used.len(), 2, "the roots are left");
    }
}

#[test]
fn what_is_unmapped_is_flushed_as_a_whole() {
    let (mut domains, mut memory) = domains(Dma::Amd(AmdV1::FourLevels), PageSize::Size2M, 24);
    let mut units = Units::default();
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    acting.map(1, 0x40_0000, HOST, 4 << 20, BOTH).unwrap();
    acting.unmap(1, 0x40_0000, PAGE).unwrap();
    // All of the large page: it was split.
    let wanted = [(8, (0x40_0000, 4 << 20), true), (8, (0x40_0000, 2 << 20), false)];
    assert_eq!(units.flushed, wanted);
}

#[test]
fn frames_that_a_unit_may_still_walk_are_given_up() {
    let (mut domains, mut memory) = domains(Dma::Amd(AmdV1::FourLevels), PageSize::Size4K, 24);
    let mut units = Units::default();
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    acting.map(0, 0, HOST, PAGE, BOTH).unwrap();
    let mut failing = Units { fails: true, ..Units::default() };
    acting.hardware = &mut failing;
    assert_eq!(acting.unmap(0, 0, PAGE), Err(Refused::Failed));
    assert_eq!((memory.used.len(), memory.free.len()), (2 + 3, 24 - 5));
}

#[test]
fn endpoints_are_led_to_roots_by_their_ids() {
    let (mut domains, mut memory) =
        domains(Dma::Vtd(VtdSecondLevel::ThreeLevels), PageSize::Size1G, 9);
    let root = domains.outline(1).unwrap().1;
    let mut units = Units::default();
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    for (endpoint, to) in [Reach::Nothing, Reach::Memory, Reach::Domain(1)].into_iter().enumerate()
    {
        acting.lead(endpoint, to).unwrap();
    }
    assert_eq!(acting.lead(3, Reach::Domain(2)), Err(Refused::Failed));
    let led: Vec<_> = units.led.into_values().collect();
    assert_eq!(led, [None, Some((1, 0xABC000)), Some((8, root))]);
    let shape = domains.shape(&[8; 9], &[], 3);
    assert_eq!((shape.last, shape.pages, shape.large), ((1 << 39) - 1, 3 * 512, true));
    assert_eq!((shape.reserved, shape.endpoints.len()), (&[MESSAGES][..], MAX_ENDPOINTS));
}

const LARGE: u64 = 2 << 20;

/// Tables stay where a guest was, and it misses none of them elsewhere, in another domain neither.
#[test]
fn a_guest_that_was_in_many_places_is_refused_nothing() {
    let format = Dma::Vtd(VtdSecondLevel::ThreeLevels);
    let (mut domains, mut memory) = domains(format, PageSize::Size2M, 8);
    let mut units = Units::default();
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    for n in 0..100 {
        let (place, at) = (n as usize % 2, n * LARGE);
        assert_eq!(acting.map(place, at, HOST, PAGE, BOTH), Ok(()), "{n}");
        assert_eq!(acting.unmap(place, at, PAGE), Ok(()), "{n}");
    }
    // In the way of a large page there is a table; and none is left for what stays of that page.
    assert_eq!(acting.map(0, 98 * LARGE, HOST, LARGE, BOTH), Ok(()));
    for n in 0.. {
        let done = acting.map(1, n * LARGE, HOST, PAGE, BOTH);
        assert_eq!(done, Ok(()));
        assert_eq!(acting.unmap(1, n * LARGE, PAGE), Ok(()));
        let all = acting.memory.allocate();
        match all {
            Some(frame) => acting.memory.free(frame),
            None => break,
        }
    }
    assert_eq!(acting.unmap(0, 98 * LARGE, PAGE), Ok(()));
    assert_eq!(acting.run(0, 98 * LARGE + PAGE, LARGE - PAGE), Some((HOST + PAGE, BOTH)));
}

/// What is refused for want of frames looks through the tables once, until something is unmapped.
#[test]
fn a_look_for_empty_tables_is_paid_by_an_unmapping() {
    let format = Dma::Vtd(VtdSecondLevel::ThreeLevels);
    let (mut domains, mut memory) = domains(format, PageSize::Size2M, 24);
    let mut units = Units::default();
    let mut refused = |page: u64| {
        let mut acting =
            Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
        let done = acting.map(0, page * LARGE, HOST, PAGE, BOTH);
        (done.is_err(), acting.domains.take_words())
    };
    // Two roots, a table of the second level.
    for n in 0..21 {
        assert!(!refused(n).0);
    }
    assert!(refused(21).1 < 100, "nothing was unmapped yet");
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    acting.map(0, PAGE, HOST, PAGE, BOTH).unwrap();
    acting.unmap(0, PAGE, PAGE).unwrap();
    acting.domains.take_words();
    let mut refused = |page: u64| {
        let mut acting =
            Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
        let done = acting.map(0, page * LARGE, HOST, PAGE, BOTH);
        (done, acting.domains.take_words())
    };
    let (done, words) = refused(21);
    assert!(done == Err(Refused::Full) && words > 2 * 512, "{done:?}, {words} words");
    let (done, words) = refused(21);
    assert!(done == Err(Refused::Full) && words < 100, "{done:?}, {words} words");
}

/// A unit may still go to an empty table that was taken out while it wasn't told.
#[test]
fn empty_tables_that_a_unit_may_still_walk_are_given_up() {
    let format = Dma::Vtd(VtdSecondLevel::ThreeLevels);
    let (mut domains, mut memory) = domains(format, PageSize::Size2M, 4);
    let mut units = Units::default();
    let mut acting = Acting { domains: &mut domains, memory: &mut memory, hardware: &mut units };
    acting.map(0, 0, HOST, PAGE, BOTH).unwrap();
    acting.unmap(0, 0, PAGE).unwrap();
    let mut failing = Units { fails: true, ..Units::default() };
    acting.hardware = &mut failing;
    assert_eq!(acting.map(0, LARGE, HOST, PAGE, BOTH), Err(Refused::Failed));
    assert_eq!(failing.flushed, [(7, (0, PAGE), false)]);
    assert_eq!((memory.used.len(), memory.free.len()), (4, 0));
}
