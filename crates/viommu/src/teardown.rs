//! Optimistic teardown (vIOMMU, USENIX ATC 2011): what a guest unmaps stays mapped for a while, so
//! that mapping it there again costs nothing.
//!
//! Guarantees: what waits is torn down by calls of [`Viommu::tear_down`] at or after its time, each
//! of which waits for the unit a bounded number of times; before anything else is mapped there,
//! before it is unmapped again, and when an endpoint joins or leaves its domain. At most [`MOST`]
//! unmappings wait; then the oldest is torn down for the next. Until then an endpoint reaches what
//! it reached, which is the guest's own memory.
//!
//! Doesn't guarantee that a device which the guest doesn't trust finds nothing there at once: a
//! guest has that by asking for nothing optimistic.

use crate::{Done, PAGE, Refused, Tables, Viommu};
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

/// Those that wait, the oldest first, each with the instant by which it is carried out.
#[derive(Debug)]
pub(crate) struct Teardown {
    longest: u64,
    waiting: VecDeque<(u64, Waiting)>,
    now: u64,
    counts: Teardowns,
}

impl Teardown {
    /// With so many ticks for each; 0: none waits. Allocates what it ever needs.
    pub fn new(longest: u64) -> Self {
        let most = if longest > 0 { MOST } else { 0 };
        let (waiting, counts) = (VecDeque::with_capacity(most), Teardowns::default());
        Teardown { longest, waiting, now: 0, counts }
    }

    /// Its domain's tables are empty.
    pub fn forget(&mut self, place: usize) {
        self.waiting.retain(|(_, waiting)| waiting.place != place);
    }
}

impl Viommu {
    /// Requests are carried out at this instant, in ticks.
    pub fn set_time(&mut self, now: u64) {
        self.teardown.now = now;
    }

    /// By when [`Viommu::tear_down`] is to be called.
    pub fn due(&self) -> Option<u64> {
        self.teardown.waiting.front().map(|(until, _)| *until)
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
        if let Some((_, w)) = self.teardown.waiting.pop_front() {
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
        while let Some((_, waiting)) = self.teardown.waiting.get(at).copied() {
            if which(&waiting) {
                self.teardown.waiting.remove(at);
                self.carry_out(tables, &waiting);
            } else {
                at += 1;
            }
        }
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
        let found = self.teardown.waiting.iter().rposition(|(_, waiting)| *waiting == wanted);
        if let Some(at) = found {
            self.teardown.waiting.remove(at);
            self.teardown.counts.came_back += bytes;
            return Ok(());
        }
        match tables.map(place, first, to, bytes, access) {
            Err(Refused::Taken) => self.settle(tables, |w| w.overlaps(place, first, bytes)),
            // What waits has frames.
            Err(Refused::Full) if !self.teardown.waiting.is_empty() => {
                self.settle(tables, |_| true);
            }
            done => return Ok(done?),
        }
        Ok(tables.map(place, first, to, bytes, access)?)
    }

    /// Unmaps a range, or has it wait if all of it leads to one run.
    pub(crate) fn unmap_run(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
    ) -> Done {
        self.settle(tables, |w| w.overlaps(place, first, bytes));
        let waits = self.teardown.longest > 0 && bytes <= LARGEST;
        let Some((to, access)) = waits.then(|| tables.run(place, first, bytes)).flatten() else {
            return Ok(tables.unmap(place, first, bytes)?);
        };
        if self.teardown.waiting.len() >= MOST {
            self.tear_down_oldest(tables);
        }
        let until = self.teardown.now.wrapping_add(self.teardown.longest);
        self.teardown.waiting.push_back((until, Waiting { place, first, bytes, to, access }));
        Ok(())
    }
}
