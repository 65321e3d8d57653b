//! Records of chains in flight, in memory that outlives this program: which chains of a split ring
//! were taken and not answered. The layout and the order of stores are those of QEMU's
//! `docs/interop/vhost-user.rst` ("Inflight I/O tracking", split virtqueues), so that any back end
//! that keeps them can go on.
//!
//! A chain that is answered right after it was taken needs no record: until it is published, the
//! ring itself says that it wasn't answered. So two rules spare such chains all stores:
//! - What is published together was recorded, all of it, or nothing of it was.
//! - Before a chain is recorded, all chains that were completed are published.
//!
//! Guarantees, if both are kept and the program ends at any point: a chain that was recorded is
//! handed out again if and only if its answer isn't visible to the driver; the number of chains
//! handed out plus the used index is the place in the available ring to go on from. Records of
//! whatever content make no access outside of them, and no head beyond the queue's size.

use crate::{Head, Position, State};
use arrayvec::ArrayVec;
use thiserror::Error;
use window::Span;

/// Bytes before the first entry, and of an entry; a ring's part is a multiple of 64 bytes.
const HEADER: u64 = 16;
const ENTRY: u64 = 16;
const ALIGNMENT: u64 = 64;
/// Offsets in the header.
const VERSION: u64 = 8;
const ELEMENTS: u64 = 10;
const LAST_HEAD: u64 = 12;
const USED_INDEX: u64 = 14;
/// Offsets in an entry: the first word is a byte that is 1 in flight, and the next head of a batch
/// in the last two bytes.
const NEXT: u64 = 6;
const COUNTER: u64 = 8;

/// Why records can't be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadRecords {
    /// They are shorter than the ring needs.
    #[error("the records in flight have no room for the ring")]
    Short,
    /// They are of a layout that isn't known.
    #[error("the records in flight are of version {0}, which isn't known")]
    Version(u16),
    /// There are requests in flight of a ring of another size.
    #[error("the records in flight are of a ring of {0} elements")]
    Size(u16),
    /// Their lists don't fit together.
    #[error("the records in flight contradict each other")]
    Contradict,
}

/// The records of one split ring of at most `N` elements.
#[derive(Debug)]
pub struct Records<const N: usize> {
    span: Span,
    /// The counter of the next chain that is recorded.
    counter: u64,
    /// The last head of the batch, or the one before.
    last: u16,
    /// By heads: it is recorded.
    recorded: [bool; N],
    /// Recorded chains that were completed and aren't published.
    batch: ArrayVec<u16, N>,
    /// Chains that an earlier program left, the first one last.
    left: ArrayVec<u16, N>,
}

impl<const N: usize> Records<N> {
    /// Bytes of the records of a ring of so many elements.
    pub const fn bytes(elements: u16) -> u64 {
        (HEADER + ENTRY * elements as u64).next_multiple_of(ALIGNMENT)
    }

    /// Goes on with records, or begins them if they are all zeroes, for a ring of `size` elements
    /// whose used index is `used`. Returns the state to go on with, too: chains that were left are
    /// in flight in it, and come by [`Self::next_left`].
    ///
    /// # Errors
    ///
    /// [`BadRecords`]; nothing was written then.
    pub fn open(span: Span, size: u16, used: u16) -> Result<(Self, State<N>), BadRecords> {
        let mut records = Records {
            span,
            counter: 0,
            last: 0,
            recorded: [false; N],
            batch: ArrayVec::new(),
            left: ArrayVec::new(),
        };
        if span.len() < Self::bytes(size) || usize::from(size) > N {
            return Err(BadRecords::Short);
        }
        match records.get(VERSION) {
            0 => records.begin(size, used),
            1 if records.get(ELEMENTS) == size => records.go_on(size, used),
            1 => {
                let elements = records.get(ELEMENTS);
                let room = (span.len() - HEADER) / ENTRY;
                if (0..elements).any(|head| u64::from(head) < room && records.in_flight(head)) {
                    return Err(BadRecords::Size(elements));
                }
                records.begin(size, used);
            }
            version => return Err(BadRecords::Version(version)),
        }
        let mut in_flight = [0; N];
        for head in &records.left {
            if let Some(place) = in_flight.get_mut(usize::from(*head)) {
                *place = 1;
            }
        }
        let at = |index| Position { index, wrap: true };
        let next = used.wrapping_add(records.left.len() as u16);
        Ok((records, State { available: at(next), used: at(used), in_flight }))
    }

    fn begin(&mut self, size: u16, used: u16) {
        self.set(VERSION, 0);
        for head in 0..size {
            self.clear(head);
        }
        self.set(ELEMENTS, size);
        self.set(LAST_HEAD, 0);
        self.set(USED_INDEX, used);
        self.set(VERSION, 1);
    }

    fn go_on(&mut self, size: u16, used: u16) {
        self.last = self.get(LAST_HEAD);
        // The last batch was shown, and its records may still say that it is in flight. More than a
        // ring's worth is another ring's index: nothing of that was shown.
        let shown = used.wrapping_sub(self.get(USED_INDEX));
        let mut head = self.last;
        for _ in 0..if shown <= size { shown } else { 0 } {
            if head >= size {
                break;
            }
            self.clear(head);
            head = self.get(entry(head) + NEXT);
        }
        self.set(USED_INDEX, used);
        // Each counter is loaded once: who shares the memory may write it meanwhile, and a sort
        // whose keys change may panic.
        let mut left = ArrayVec::<(u64, u16), N>::new();
        for head in 0..size {
            if self.in_flight(head) {
                let counter = self.span.load_u64(entry(head) + COUNTER).unwrap_or(0);
                let _ = left.try_push((counter, head));
                self.recorded[usize::from(head)] = true;
            }
        }
        sort::by_key(&mut left, |(counter, _)| core::cmp::Reverse(*counter));
        self.counter = left.first().map_or(0, |(counter, _)| *counter).wrapping_add(1);
        self.left = left.into_iter().map(|(_, head)| head).collect();
    }

    /// The next chain that an earlier program left, in the order in which it took them. It is
    /// recorded already.
    pub fn next_left(&mut self) -> Option<Head> {
        self.left.pop().map(Head)
    }

    /// How many such chains there are still.
    #[inline]
    pub fn left(&self) -> u16 {
        self.left.len() as u16
    }

    /// Are there chains that were recorded and completed, and aren't published?
    #[inline]
    pub fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// A chain is in flight. What was completed is published.
    pub fn take(&mut self, head: Head) {
        // One that was left keeps its place in the order.
        let is_new = |recorded: &&mut bool| !**recorded;
        let Some(recorded) = self.recorded.get_mut(usize::from(head.0)).filter(is_new) else {
            return;
        };
        *recorded = true;
        self.store_u64(entry(head.0) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store_u64(entry(head.0), 1);
    }

    /// A chain that was recorded is completed. All that isn't published was recorded.
    pub fn complete(&mut self, head: Head) {
        let is_recorded = |recorded: &&mut bool| **recorded;
        let Some(recorded) = self.recorded.get_mut(usize::from(head.0)).filter(is_recorded) else {
            return;
        };
        *recorded = false;
        self.set(entry(head.0) + NEXT, self.last);
        self.last = head.0;
        self.set(LAST_HEAD, head.0);
        let _ = self.batch.try_push(head.0);
    }

    /// What was completed is going to be published. `last`: the last chain that was taken, which is
    /// only asked for if nothing of it was recorded.
    #[inline]
    pub fn publishing(&mut self, last: Head) {
        if self.has_batch() {
            return;
        }
        // Who goes on with this may look for a batch: it finds one chain, which isn't in flight.
        let Head(mut head) = last;
        if !self.is_free(head) {
            head = self.any_free();
        }
        let room = (self.span.len() - HEADER) / ENTRY;
        if u64::from(head) < room {
            self.set(entry(head) + NEXT, head);
            self.last = head;
            self.set(LAST_HEAD, head);
        }
    }

    /// It was published, up to this used index.
    #[inline]
    pub fn published(&mut self, used: u16) {
        if self.has_batch() {
            self.clear_batch();
        }
        self.set(USED_INDEX, used);
    }

    #[inline(never)]
    fn clear_batch(&mut self) {
        for at in 0..self.batch.len() {
            self.clear(self.batch[at]);
        }
        self.batch.clear();
    }

    #[cold]
    #[inline(never)]
    fn any_free(&self) -> u16 {
        (0..N as u16).find(|head| self.is_free(*head)).unwrap_or(0)
    }

    #[inline]
    fn is_free(&self, head: u16) -> bool {
        self.recorded.get(usize::from(head)) == Some(&false)
    }

    fn in_flight(&self, head: u16) -> bool {
        self.span.load_u64(entry(head)).is_ok_and(|word| word & 0xff == 1)
    }

    /// It isn't in flight. The next head stays, which is needed until the index is stored.
    fn clear(&self, head: u16) {
        let word = u64::from(self.get(entry(head) + NEXT)) << 48;
        self.store_u64(entry(head), word);
    }

    fn get(&self, at: u64) -> u16 {
        self.span.load_u16(at).unwrap_or(0)
    }

    /// Stores in this order are seen in this order by whoever comes after this program.
    #[inline]
    fn set(&self, at: u64, word: u16) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        let stored = self.span.store_u16_release(at, word);
        debug_assert!(stored.is_ok(), "the records have the length that was checked");
    }

    #[inline]
    fn store_u64(&self, at: u64, word: u64) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        let stored = self.span.store_u64_release(at, word);
        debug_assert!(stored.is_ok(), "the records have the length that was checked");
    }
}

fn entry(head: u16) -> u64 {
    HEADER + ENTRY * u64::from(head)
}
