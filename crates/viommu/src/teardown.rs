//! Optimistic teardown (vIOMMU, USENIX ATC 2011): what a guest unmaps stays mapped for a while, so
//! that mapping it there again costs nothing.
//!
//! A virtio-iommu is told of each mapping; a VT-d unit finds one in the guest's tables
//! ([`Viommu::come_back`]).
//!
//! Guarantees: what waits is torn down by calls of [`Viommu::tear_down`] at or after its time, each
//! of which waits for the unit a bounded number of times; before anything else is mapped there,
//! before it is unmapped again, when an endpoint joins its domain, and when the last leaves it; and
//! when there are no frames, of which it has some. At most [`MOST`] unmappings wait; then the
//! oldest is torn down for the next. Until then an endpoint reaches what it reached, which is the
//! guest's own memory. What would cut a large page never waits, since that may fail; nor does
//! anything in a domain that is blocked.
//!
//! Doesn't guarantee that a device which the guest doesn't trust finds nothing there at once: a
//! guest has that by asking for nothing optimistic.

use crate::{Done, LARGE_PAGE, PAGE, Refused, Tables, Viommu};
use alloc::collections::VecDeque;
use paging::Access;

/// Unmappings that wait at most: the smaller of the paper's two variants.
pub const MOST: usize = 256;
/// Larger ranges are torn down at once.
const LARGEST: u64 = 64 * PAGE;

/// So many are torn down in one call.
const AT_ONCE: usize = 16;

/// An unmapping that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    place: usize,
    first: u64,
    bytes: u64,
    /// Where it leads, in the machine's memory.
    to: u64,
    access: Access,
}

impl Waiting {
    fn overlaps(&self, place: usize, first: u64, bytes: u64) -> bool {
        // Within what tables translate, so that neither sum overflows.
        self.place == place && self.first < first + bytes && first < self.first + self.bytes
    }
}

/// What became of unmappings that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Teardowns {
    /// Bytes that the guest mapped there again as they were.
    pub came_back: u64,
    /// Bytes that were unmapped in the end.
    pub carried_out: u64,
}

/// Pages are counted by so many bits of their numbers.
const BUCKETS: usize = 256;

/// Those that wait, the oldest first, each with the instant by which it is carried out; and how
/// many of their pages have each number's lowest bits, so that most looks for one needn't search.
#[derive(Debug)]
struct List {
    waiting: VecDeque<(u64, Waiting)>,
    pages: [u16; BUCKETS],
}

impl List {
    fn new(most: usize) -> Self {
        List { waiting: VecDeque::with_capacity(most), pages: [0; BUCKETS] }
    }

    fn push(&mut self, until: u64, waiting: Waiting) {
        self.count(&waiting, u16::wrapping_add);
        self.waiting.push_back((until, waiting));
    }

    fn remove(&mut self, at: usize) -> Option<Waiting> {
        let (_, waiting) = self.waiting.remove(at)?;
        self.count(&waiting, u16::wrapping_sub);
        Some(waiting)
    }

    /// At most [`MOST`] × 64 pages wait, so that none wraps.
    fn count(&mut self, of: &Waiting, how: fn(u16, u16) -> u16) {
        for page in (of.first..of.first + of.bytes).step_by(PAGE as usize) {
            if let Some(count) = self.pages.get_mut(bucket(page)) {
                *count = how(*count, 1);
            }
        }
    }

    /// May something wait in this range, of whatever domain?
    fn may_have(&self, first: u64, bytes: u64) -> bool {
        let counts = |page: u64| self.pages.get(bucket(page)).is_some_and(|count| *count > 0);
        !self.waiting.is_empty()
            && (bytes >= BUCKETS as u64 * PAGE
                || (first..first + bytes).step_by(PAGE as usize).any(counts))
    }
}

fn bucket(page: u64) -> usize {
    (page / PAGE) as usize % BUCKETS
}

/// What waits, and for how long.
#[derive(Debug)]
pub(crate) struct Teardown {
    longest: u64,
    list: List,
    now: u64,
    /// Nothing begins to wait.
    strict: bool,
    counts: Teardowns,
}

impl Teardown {
    /// With so many ticks for each; 0: none waits. Allocates what it ever needs.
    pub fn new(longest: u64) -> Self {
        let list = List::new(if longest > 0 { MOST } else { 0 });
        Teardown { longest, list, now: 0, strict: false, counts: Teardowns::default() }
    }

    /// Its domain's tables are empty.
    pub fn forget(&mut self, place: usize) {
        while let Some(at) = self.list.waiting.iter().position(|(_, w)| w.place == place) {
            self.list.remove(at);
        }
    }
}

impl Viommu {
    /// Requests are carried out at this instant, in ticks.
    pub fn set_time(&mut self, now: u64) {
        self.teardown.now = now;
    }

    /// Whether what is unmapped from here on is gone at once: for who doesn't look by when it is
    /// due.
    pub fn set_strict(&mut self, strict: bool) {
        self.teardown.strict = strict;
    }

    /// By when [`Viommu::tear_down`] is to be called.
    pub fn due(&self) -> Option<u64> {
        self.teardown.list.waiting.front().map(|(until, _)| *until)
    }

    /// What became of those that waited.
    pub fn teardowns(&self) -> Teardowns {
        self.teardown.counts
    }

    /// Tears down what is due at the instant that was set last, or some of it: then
    /// [`Viommu::due`] says so.
    #[inline(never)]
    pub fn tear_down(&mut self, tables: &mut dyn Tables) {
        let now = self.teardown.now;
        for _ in 0..AT_ONCE {
            if self.due().is_none_or(|until| (now.wrapping_sub(until) as i64) < 0) {
                break;
            }
            self.tear_down_oldest(tables);
        }
    }

    fn tear_down_oldest(&mut self, tables: &mut dyn Tables) {
        if let Some(w) = self.teardown.list.remove(0) {
            self.carry_out(tables, &w);
        }
    }

    /// The guest was answered long ago, so that it isn't told if the unit fails. What that may have
    /// cached leads to the guest's own memory.
    fn carry_out(&mut self, tables: &mut dyn Tables, w: &Waiting) {
        self.teardown.counts.carried_out += w.bytes;
        let _ = tables.unmap(w.place, w.first, w.bytes);
    }

    /// Tears down all that waits in a domain.
    pub(crate) fn tear_down_all(&mut self, tables: &mut dyn Tables, place: usize) {
        self.settle(tables, |waiting| waiting.place == place);
    }

    fn settle(&mut self, tables: &mut dyn Tables, which: impl Fn(&Waiting) -> bool) {
        let mut at = 0;
        while let Some((_, waiting)) = self.teardown.list.waiting.get(at).copied() {
            if which(&waiting) {
                self.teardown.list.remove(at);
                self.carry_out(tables, &waiting);
            } else {
                at += 1;
            }
        }
    }

    /// Tears down what waits in a range, and beyond it if that is one with it.
    fn settle_in(&mut self, tables: &mut dyn Tables, place: usize, (first, bytes): (u64, u64)) {
        if self.teardown.list.may_have(first, bytes) {
            self.settle(tables, |w| w.overlaps(place, first, bytes));
        }
    }

    /// All of this range is mapped as the guest has it now: what waits there comes back. False: it
    /// is to be mapped all the same, as a part of what waited there has been torn down with what
    /// lies outside.
    pub(crate) fn come_back(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
    ) -> bool {
        if !self.teardown.list.may_have(first, bytes) {
            return true;
        }
        let inside = |w: &Waiting| first <= w.first && w.first + w.bytes <= first + bytes;
        let mut all = self.teardown.list.waiting.iter();
        if all.any(|(_, w)| w.overlaps(place, first, bytes) && !inside(w)) {
            self.settle_in(tables, place, (first, bytes));
            return false;
        }
        let here = |(_, w): &(u64, Waiting)| w.overlaps(place, first, bytes);
        while let Some(at) = self.teardown.list.waiting.iter().rposition(here) {
            let back = self.teardown.list.remove(at).map_or(0, |w| w.bytes);
            self.teardown.counts.came_back += back;
        }
        true
    }

    /// Maps a run of the machine's memory. What waits there comes back, or goes first.
    pub(crate) fn map_run(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
        to: u64,
        access: Access,
    ) -> Done {
        let wanted = Waiting { place, first, bytes, to, access };
        let list = &mut self.teardown.list;
        let may = bytes <= LARGEST && list.may_have(first, bytes);
        let search = || list.waiting.iter().rposition(|(_, waiting)| *waiting == wanted);
        if let Some(at) = may.then(search).flatten() {
            list.remove(at);
            self.teardown.counts.came_back += bytes;
            return Ok(());
        }
        let map = |tables: &mut dyn Tables| tables.map(place, first, to, bytes, access);
        match map(tables) {
            Err(Refused::Taken) => self.settle_in(tables, place, (first, bytes)),
            Err(Refused::Full) => {}
            done => return Ok(done?),
        }
        self.with_frames(tables, map)
    }

    /// Does what may need frames: what waits has some.
    fn with_frames(
        &mut self,
        tables: &mut dyn Tables,
        mut what: impl FnMut(&mut dyn Tables) -> Result<(), Refused>,
    ) -> Done {
        match what(tables) {
            Err(Refused::Full) if !self.teardown.list.waiting.is_empty() => {
                self.settle(tables, |_| true);
                Ok(what(tables)?)
            }
            done => Ok(done?),
        }
    }

    /// Before all of a range is unmapped: what waits there needn't be torn down by itself, unless
    /// it reaches beyond. Did anything wait there?
    fn give_up_in(
        &mut self,
        tables: &mut dyn Tables,
        place: usize,
        (first, bytes): (u64, u64),
    ) -> bool {
        let mut did = false;
        if !self.teardown.list.may_have(first, bytes) {
            return did;
        }
        let is_inside = |w: &Waiting| w.first >= first && w.first + w.bytes <= first + bytes;
        let mut at = 0;
        while let Some((_, waiting)) = self.teardown.list.waiting.get(at).copied() {
            if !waiting.overlaps(place, first, bytes) {
                at += 1;
                continue;
            }
            did = true;
            self.teardown.list.remove(at);
            if is_inside(&waiting) {
                self.teardown.counts.carried_out += waiting.bytes;
            } else {
                self.carry_out(tables, &waiting);
            }
        }
        did
    }

    /// Unmaps a range, whatever of it waits.
    pub(crate) fn unmap_now(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
    ) -> Done {
        self.give_up_in(tables, place, (first, bytes));
        self.with_frames(tables, |tables| tables.unmap(place, first, bytes))
    }

    /// Unmaps a range, or has it wait if all of it leads to one run.
    pub(crate) fn unmap_run(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
    ) -> Done {
        // What waits already doesn't wait anew.
        let did_wait = self.give_up_in(tables, place, (first, bytes));
        let optimistic = self.teardown.longest > 0 && !self.teardown.strict && !did_wait;
        // What is taken out of a large page needs a frame, which is there now or isn't: later
        // nobody could be told.
        let mut cuts = |at: u64| tables.run(place, at & !(LARGE_PAGE - 1), LARGE_PAGE).is_some();
        let waits = optimistic
            && bytes <= LARGEST
            && !self.is_blocked(place)
            && !cuts(first)
            && !cuts(first + bytes - 1);
        let Some((to, access)) = waits.then(|| tables.run(place, first, bytes)).flatten() else {
            return self.with_frames(tables, |tables| tables.unmap(place, first, bytes));
        };
        if self.teardown.list.waiting.len() >= MOST {
            self.tear_down_oldest(tables);
        }
        let until = self.teardown.now.wrapping_add(self.teardown.longest);
        self.teardown.list.push(until, Waiting { place, first, bytes, to, access });
        Ok(())
    }
}
