//! A hostile guest on the real unit's tables: what its devices reach, by tables or caches, is what
//! its own tables say, or said until the last invalidation, or waits for no longer than it may.

use super::super::at::{FAULT_STATUS, QUEUE, QUEUE_ERROR, QUEUED, TRANSLATES};
use super::machine::{ALL, CONTEXT_TABLE, CONTEXTS, ROOT_TABLE, domain, pages};
use super::real::{Real, To, inside};
use crate::tests::model::ENDPOINTS;
use crate::{Change, PAGE};
use paging::PageSize;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const LONGEST: u64 = 100;
pub(super) const LARGE: u64 = 2 << 20;
const OTHER_ROOT: u64 = 0x6000;
const OTHER_CONTEXTS: u64 = 0x7000;
/// Addresses that are looked at, and that the guest plays with: near the edges of tables.
const NEAR: [u64; 6] = [0, LARGE, 2 * LARGE, 1 << 30, 1 << 39, 0xFEE0_0000];
const PAGES: [u64; 8] = [0, 1, 2, 3, 5, 64, 510, 511];

#[derive(Clone, Debug)]
enum Do {
    /// Root, place, page, where to, rights.
    Small(usize, usize, usize, u64, u64),
    Run(usize, usize, u64, u64, u64),
    Large(usize, usize, u64, u64),
    /// A page that is invalidated at once, where it leads to, and how, if it does.
    Now(usize, u64, u64),
    /// An entry above, of this level: its rights, or nothing.
    Above(usize, usize, u32, u64),
    /// A table of another root's.
    Share(usize, usize, usize),
    Pages(u16, usize, usize, u64, bool),
    Domain(u16, bool),
    All(bool),
    /// Table of contexts, endpoint, root, id; or what isn't there, or passes.
    Context(bool, usize, usize, u16, u8),
    Contexts,
    SetRoot(bool),
    Translate(bool),
    Requeue,
    Wrong(u64, u64),
    Time(u64),
    Touch,
    Reset(bool),
}

fn dos() -> impl Strategy<Value = Do> {
    // Few of each, so that the same comes back.
    let root = || prop_oneof![4 => Just(0_usize), 1 => Just(1)];
    let near = || prop_oneof![6 => Just(0_usize), 1 => 0..NEAR.len()];
    let page = || prop_oneof![6 => 0..2_usize, 1 => 0..PAGES.len()];
    let id = || prop_oneof![4 => Just(1_u16), 1 => 2..4_u16];
    let to = || prop_oneof![9 => Just(0x400_u64), 2 => Just(0x401), 1 => 0x600..0x620_u64, 1 => Just(0x800_u64)];
    let rights = || prop_oneof![4 => Just(0_u64), 5 => Just(3_u64), 1 => 1..3_u64];
    prop_oneof![
        9 => (root(), near(), page(), to(), rights()).prop_map(|(r, n, p, t, w)| Do::Small(r, n, p, t, w)),
        5 => (root(), near(), 1..65_u64, 0..2_u64, rights()).prop_map(|(r, n, l, t, w)| Do::Run(r, n, l, t, w)),
        30 => (page(), to(), rights()).prop_map(|(p, t, w)| Do::Now(p, t, w)),
        3 => (root(), near(), 1..5_u64, rights()).prop_map(|(r, n, t, w)| Do::Large(r, n, t, w)),
        2 => (root(), near(), 1..4_u32, 0..4_u64).prop_map(|(r, n, l, w)| Do::Above(r, n, l, w)),
        1 => (root(), near(), near()).prop_map(|(r, a, b)| Do::Share(r, a, b)),
        12 => (id(), near(), page(), prop_oneof![3 => Just(0_u64), 2 => 1..7_u64, 3 => Just(9_u64), 1 => 10..37_u64], any::<bool>())
            .prop_map(|(i, n, p, o, by)| Do::Pages(i, n, p, o, by)),
        2 => (id(), any::<bool>()).prop_map(|(i, by)| Do::Domain(i, by)),
        1 => any::<bool>().prop_map(Do::All),
        4 => (any::<bool>(), 0..3_usize, root(), id(), 0..8_u8).prop_map(|(t, e, r, i, h)| Do::Context(t, e, r, i, h)),
        4 => Just(Do::Contexts),
        1 => any::<bool>().prop_map(Do::SetRoot),
        1 => any::<bool>().prop_map(Do::Translate),
        1 => Just(Do::Requeue),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(a, b)| Do::Wrong(a, b)),
        9 => (0..LONGEST).prop_map(Do::Time),
        4 => Just(Do::Touch),
        1 => any::<bool>().prop_map(Do::Reset),
    ]
}

/// A domain by the guest's tables: its root, its number.
type Id = (u64, u16);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    Nothing,
    Memory(u16),
    Domain(Id),
}

#[derive(Default)]
struct Known {
    /// What the guest's tables said since the last invalidation, by pages.
    seen: BTreeMap<u64, BTreeSet<Option<To>>>,
    /// What may wait, and until when.
    waits: BTreeMap<u64, (u64, BTreeSet<To>)>,
    /// What the tables of the unit may still have.
    had: BTreeMap<u64, BTreeSet<Option<To>>>,
}

pub(super) struct Play {
    pub(super) real: Real,
    pub(super) roots: [u64; 2],
    root: u64,
    on: bool,
    is_in: [In; 3],
    domains: BTreeMap<Id, Known>,
    longest: u64,
}

fn looked_at() -> impl Iterator<Item = u64> {
    NEAR.into_iter().flat_map(|near| PAGES.into_iter().map(move |page| near + page * PAGE))
}

impl Play {
    pub(super) fn new(frames: u64, largest: PageSize, longest: u64) -> Play {
        let mut real = Real::new(frames, largest, longest);
        let roots = [real.table(), real.table()];
        real.put(ROOT_TABLE, CONTEXT_TABLE | 1);
        real.put(OTHER_ROOT, OTHER_CONTEXTS | 1);
        for endpoint in 0..3 {
            set_context(
                &real,
                CONTEXT_TABLE,
                endpoint,
                roots[endpoint % 2] | 1,
                (endpoint as u64 + 1) << 8 | 2,
            );
        }
        let (is_in, domains) = ([In::Memory(0); 3], BTreeMap::new());
        let mut play = Play { real, roots, root: ROOT_TABLE, on: false, is_in, domains, longest };
        play.switch_on();
        play
    }

    fn switch_on(&mut self) {
        self.real.switch_on();
        (self.root, self.on) = (ROOT_TABLE, true);
        self.is_in = [In::Nothing; 3];
        self.contexts();
    }

    fn now(&self, root: u64) -> BTreeMap<u64, Option<To>> {
        looked_at().map(|at| (at, self.real.lookup(root, at))).collect()
    }

    /// The guest has written to its tables.
    fn wrote(&mut self) {
        let ids: Vec<Id> = self.domains.keys().copied().collect();
        for id in ids {
            let now = self.now(id.0);
            let known = self.domains.get_mut(&id).unwrap();
            for (at, to) in now {
                known.seen.entry(at).or_default().insert(to);
            }
        }
    }

    /// A range of a domain is as the tables say.
    fn invalidated(&mut self, id: Id, first: u64, last: u64) {
        let now = self.now(id.0);
        let until = self.real.now + self.longest;
        let known = self.domains.get_mut(&id).unwrap();
        for (at, to) in now.into_iter().filter(|(at, _)| (first..=last).contains(at)) {
            let before = known.had.insert(at, [to].into()).unwrap_or_default();
            let before =
                before.into_iter().chain(known.seen.insert(at, [to].into()).unwrap_or_default());
            known.waits.remove(&at);
            let was: BTreeSet<To> = before.flatten().collect();
            // Of several it isn't known which one there was: the test is the weaker.
            if to.is_none() && self.longest > 0 {
                known.waits.insert(at, (until, was));
            }
        }
    }

    fn matching(&self, number: Option<u16>) -> Vec<Id> {
        self.domains.keys().copied().filter(|id| number.is_none_or(|n| n == id.1)).collect()
    }

    fn is_blocked(&self, id: Id) -> bool {
        (0..3).any(|e| self.is_in[e] == In::Domain(id) && self.real.units.led[e].is_none())
    }

    /// Contexts are looked at.
    fn contexts(&mut self) {
        for endpoint in 0..3 {
            let wanted = if self.on { self.context(endpoint) } else { In::Nothing };
            let was = self.is_in[endpoint];
            if was == wanted {
                continue;
            }
            self.is_in[endpoint] = wanted;
            if let In::Domain(id) = was
                && !self.is_in.contains(&was)
            {
                self.domains.remove(&id);
            }
            if let In::Domain(id) = wanted {
                let now = self.now(id.0);
                let known = self.domains.entry(id).or_insert_with(|| {
                    let now: BTreeMap<_, BTreeSet<_>> =
                        now.into_iter().map(|(at, to)| (at, [to].into())).collect();
                    Known { seen: now, ..Known::default() }
                });
                known.waits.clear();
            }
        }
    }

    fn context(&self, endpoint: usize) -> In {
        let table = self.real.get(self.root);
        let at = (table & !0xFFF) + 16 * u64::from(ENDPOINTS[endpoint]);
        let (low, high) = (self.real.get(at), self.real.get(at + 8));
        match low >> 2 & 3 {
            _ if low & 1 == 0 || table & 1 == 0 => In::Nothing,
            0 if high & 7 == 2 => In::Domain((low & !0xFFF, (high >> 8) as u16)),
            2 => In::Memory((high >> 8) as u16),
            _ => In::Nothing,
        }
    }

    fn act(&mut self, what: &Do) {
        match *what {
            Do::Small(r, n, p, to, rights) => {
                let entry = self.real.entry(self.roots[r], NEAR[n] + PAGES[p] * PAGE, 0);
                self.real.put(entry, if rights == 0 { 0 } else { (to * PAGE) | rights });
                self.wrote();
            }
            Do::Now(p, to, rights) => {
                self.act(&Do::Small(0, 0, p, to, rights));
                self.act(&Do::Pages(1, 0, p, 0, false));
            }
            Do::Run(r, n, len, to, rights) => {
                for page in 0..len {
                    let entry = self.real.entry(self.roots[r], NEAR[n] + page * PAGE, 0);
                    let word = if rights == 0 { 0 } else { ((0x400 + to + page) * PAGE) | rights };
                    self.real.put(entry, word);
                }
                self.wrote();
            }
            Do::Large(r, n, to, rights) => {
                let entry = self.real.entry(self.roots[r], NEAR[n], 1);
                self.real.put(entry, if rights == 0 { 0 } else { to << 21 | 1 << 7 | rights });
                self.wrote();
            }
            Do::Above(r, n, level, rights) => {
                let entry = self.real.entry(self.roots[r], NEAR[n], level);
                let word = self.real.get(entry);
                self.real.put(entry, if rights == 0 { 0 } else { word & !3 | rights });
                self.wrote();
            }
            Do::Share(r, from, to) => {
                let from = self.real.entry(self.roots[1 - r], NEAR[from], 1);
                let word = self.real.get(from);
                let to = self.real.entry(self.roots[r], NEAR[to], 1);
                self.real.put(to, word);
                self.wrote();
            }
            Do::Pages(id, n, p, order, by_register) => {
                let size = PAGE << order;
                let at = (NEAR[n] + PAGES[p] * PAGE) & !(size - 1);
                let ids: Vec<Id> = self.matching(Some(id));
                let open = |play: &Play, id: Id| !play.is_blocked(id) || at == 0 && order == 36;
                let ids: Vec<Id> = ids.into_iter().filter(|id| open(self, *id)).collect();
                if by_register {
                    self.real.ask_register(3, id, at | order);
                } else if !self.real.ask(&[pages(id, at, order)]) {
                    return;
                }
                ids.into_iter().for_each(|id| self.invalidated(id, at, at + (size - 1)));
            }
            Do::Domain(id, by_register) => {
                if by_register {
                    self.real.ask_register(2, id, 0);
                } else if !self.real.ask(&[domain(id)]) {
                    return;
                }
                self.matching(Some(id)).into_iter().for_each(|id| self.invalidated(id, 0, !0));
            }
            Do::All(by_register) => {
                if by_register {
                    self.real.ask_register(1, 0, 0);
                } else if !self.real.ask(&[ALL]) {
                    return;
                }
                self.matching(None).into_iter().for_each(|id| self.invalidated(id, 0, !0));
            }
            Do::Context(other, endpoint, r, id, how) => {
                let table = if other { OTHER_CONTEXTS } else { CONTEXT_TABLE };
                let low = match how {
                    0 => 0,
                    1 => 2 << 2 | 1,
                    2 => self.roots[r] | 5,
                    _ => self.roots[r] | 1,
                };
                set_context(&self.real, table, endpoint, low, u64::from(id) << 8 | 2);
            }
            Do::Contexts => {
                if self.real.ask(&[CONTEXTS]) {
                    self.contexts();
                }
            }
            Do::SetRoot(other) => {
                self.root = if other { OTHER_ROOT } else { ROOT_TABLE };
                let rest = QUEUED | if self.on { TRANSLATES } else { 0 };
                self.real.set_root(self.root, rest);
            }
            Do::Translate(on) => {
                self.real.command(QUEUED | if on { TRANSLATES } else { 0 });
                if on != self.on {
                    self.on = on;
                    self.contexts();
                }
            }
            Do::Requeue => {
                let rest = if self.on { TRANSLATES } else { 0 };
                self.real.command(rest);
                self.real.registers().write(QUEUE as u64, 8, 0x3000);
                self.real.registers().write(0x88, 4, 0);
                self.real.tail = 0;
                self.real.command(rest | QUEUED);
            }
            Do::Wrong(low, high) => {
                let low = [low & !0xFFF, low & !0xFFF | 3, low & !0xFFF | 0xF, 2 | 3 << 4]
                    [low as usize % 4];
                let high = if low & 0xF == 2 { high | 0x3F } else { high };
                assert!(!self.real.ask(&[[low, high]]));
                let head = self.real.registers().get(0x80);
                self.real.put(0x3000 + u64::from(head), 5);
                self.real.registers().write(FAULT_STATUS as u64, 4, QUEUE_ERROR.into());
                self.real.run();
            }
            Do::Time(ticks) => self.real.pass_time(ticks),
            Do::Touch => self.real.touch(),
            Do::Reset(closes) => {
                if closes {
                    self.real.change(Change::Close);
                    assert_eq!(self.real.units.led, [None; 3]);
                }
                self.real.change(Change::Restart);
                self.domains.clear();
                assert_eq!(self.real.device.due(), None);
                assert_eq!(self.real.units.led.map(|to| to.map(|to| to.0)), [Some(1); 3]);
                self.switch_on();
            }
        }
    }

    fn check(&self, fits: bool) {
        for (endpoint, is_in) in self.is_in.iter().enumerate() {
            let led = self.real.units.led[endpoint];
            let (by_tables, cached) = self.real.reached(endpoint);
            for (to, _) in by_tables.values().chain(cached.values().flatten()) {
                assert!(inside(*to), "{to:#x} isn't the guest's");
            }
            let id = match is_in {
                _ if !self.on => {
                    assert_eq!(led.map(|to| to.0), Some(1));
                    continue;
                }
                In::Nothing => {
                    assert_eq!(led, None);
                    continue;
                }
                In::Memory(_) => {
                    assert_eq!(led.map(|to| to.0), Some(1));
                    continue;
                }
                In::Domain(id) => *id,
            };
            if led.is_none() {
                assert!(!fits, "it is blocked, though all fits");
                continue;
            }
            let known = &self.domains[&id];
            for at in looked_at() {
                let (seen, now) = (&known.seen[&at], by_tables.get(&at));
                let mut may: BTreeSet<To> = seen.iter().flatten().copied().collect();
                if let Some((until, to)) = known.waits.get(&at)
                    && *until > self.real.now
                {
                    may.extend(to);
                }
                if let Some(now) = now {
                    assert!(may.contains(now), "{at:#x} leads to {now:x?}, not {may:x?}");
                }
                if let Some(of_cache) = cached.get(&at) {
                    assert!(
                        of_cache.is_subset(&may),
                        "{at:#x} is cached as {of_cache:x?}, not {may:x?}"
                    );
                }
                if seen.len() == 1 && !seen.contains(&None) && fits {
                    assert!(now.is_some(), "{at:#x} isn't mapped, and should be as {seen:x?}");
                }
            }
        }
    }
}

fn set_context(real: &Real, table: u64, endpoint: usize, low: u64, high: u64) {
    let at = table + 16 * u64::from(ENDPOINTS[endpoint]);
    real.put(at, low);
    real.put(at + 8, high);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_hostile_guest_s_devices_reach_what_they_may(
        all in prop::collection::vec(dos(), 1..90),
        longest in prop_oneof![1 => Just(0), 3 => Just(LONGEST)],
        few: bool,
        largest in prop::sample::select(vec![PageSize::Size4K, PageSize::Size2M, PageSize::Size1G]),
    ) {
        let mut play = Play::new(if few { 8 } else { 200 }, largest, longest);
        let free = 200_usize;
        for what in &all {
            play.act(what);
            play.check(!few);
            prop_assert!(play.real.worst.0 < 200_000, "{:?}", play.real.worst);
        }
        play.real.pass_time(LONGEST);
        play.check(!few);
        play.real.change(Change::Close);
        let free = if few { 8 } else { free };
        prop_assert_eq!(play.real.frames.free.len(), free, "a frame was lost");
    }
}
