//! Records of a packed ring's chains in flight, in memory that outlives this program. The layout
//! and the order of stores are those of QEMU's `docs/interop/vhost-user.rst` ("Inflight I/O
//! tracking", packed virtqueues), so that any back end that keeps them can go on.
//!
//! Used descriptors overwrite those of chains in flight, so a record has a chain's descriptors, and
//! every chain is recorded when it is taken. The entries are in lists: the free ones, and those of
//! each chain. What is published together changes them by three groups of stores: links and places
//! that only count if the ring shows it, the ring itself, and what makes them count whatever the
//! ring shows.
//!
//! Guarantees, if the program ends at any store: a chain that was taken is handed out again if and
//! only if the driver doesn't see its answer. Records that another program wrote are read once, and
//! checked: whatever is in them, no access leaves them, and no chain is longer than the ring.

use crate::descriptor::Packed;
use crate::{BadRecords, Head, Position, State};
use arrayvec::ArrayVec;
use core::cmp::Reverse;
use window::{Outside, Span};

/// Bytes before the first entry, and of an entry; a ring's part is a multiple of 64 bytes.
const HEADER: u64 = 32;
const ENTRY: u64 = 32;
const ALIGNMENT: u64 = 64;
/// Offsets in the header. The first free entry and the used place are there twice: as they are when
/// what is going to be published counts, and as they were before.
const VERSION: u64 = 8;
const ELEMENTS: u64 = 10;
const FREE: u64 = 12;
const USED: u64 = 16;
/// Offsets in an entry. The first word is a byte that is 1 in flight, and by 16 bits each the next
/// entry, the chain's last one and how many it has; the third has ID, flags and length.
const NEXT: u64 = 2;
const COUNTER: u64 = 8;
const WORD: u64 = 16;
const ADDRESS: u64 = 24;

/// A chain in flight, as its entries.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    first: u16,
    last: u16,
    /// None if this is 0.
    count: u16,
}

/// The records of one packed ring of at most `N` elements.
#[derive(Debug)]
pub struct PackedRecords<const N: usize> {
    span: Span,
    size: u16,
    /// The counter of the next chain that is taken.
    counter: u64,
    /// The links, as they are in the memory.
    next: [u16; N],
    /// The first free entry; `size` or more if there is none.
    free: u16,
    /// What is taken at the moment.
    taking: Kept,
    /// Where its next descriptor goes.
    place: u16,
    /// By buffer IDs.
    chains: [Kept; N],
    /// Chains that were completed and aren't published.
    batch: ArrayVec<Kept, N>,
    /// Where used descriptors go on, of what is published.
    used: Position,
    /// Chains that an earlier program left, the first one last.
    left: ArrayVec<u16, N>,
}

impl<const N: usize> PackedRecords<N> {
    /// Bytes of the records of a ring of so many elements.
    pub const fn bytes(elements: u16) -> u64 {
        (HEADER + ENTRY * elements as u64).next_multiple_of(ALIGNMENT)
    }

    /// Goes on with records of a ring of `size` elements; or begins them, for a ring that goes on
    /// from `state`, if there are none, or nothing is in flight in those of another size.
    /// `is_available`: whether the ring shows, at a place of the driver's round, what the driver
    /// put there. Returns the state to go on with, too: chains that were left are in flight in it,
    /// and come by [`Self::next_left`].
    ///
    /// # Errors
    ///
    /// [`BadRecords`].
    pub fn open(
        span: Span,
        size: u16,
        state: State<N>,
        is_available: impl Fn(Position) -> bool,
    ) -> Result<(Self, State<N>), BadRecords> {
        let mut records = PackedRecords {
            span,
            size,
            counter: 0,
            next: [0; N],
            free: 0,
            taking: Kept::default(),
            place: 0,
            chains: [Kept::default(); N],
            batch: ArrayVec::new(),
            used: state.used,
            left: ArrayVec::new(),
        };
        if span.len() < Self::bytes(size) || usize::from(size) > N {
            return Err(BadRecords::Short);
        }
        let in_flight = match records.get(VERSION) {
            0 => None,
            1 if records.get(ELEMENTS) == size => Some(records.go_on(is_available)?),
            1 => {
                let elements = records.get(ELEMENTS);
                let room = (span.len() - HEADER) / ENTRY;
                let mut there = (0..elements).take_while(|at| u64::from(*at) < room);
                if there.any(|at| records.is_in_flight(at)) {
                    return Err(BadRecords::Size(elements));
                }
                None
            }
            version => return Err(BadRecords::Version(version)),
        };
        let Some(in_flight) = in_flight else {
            records.begin();
            return Ok((records, state));
        };
        let taken: u16 = in_flight.iter().sum();
        let (used, available) = (records.used, records.used.step(taken, size));
        Ok((records, State { available, used, in_flight }))
    }

    fn begin(&mut self) {
        self.set(VERSION, 0);
        for at in 0..self.size {
            self.store(entry(at), u64::from(at + 1) << (8 * NEXT));
            self.link(at, at + 1);
        }
        self.set(ELEMENTS, self.size);
        self.store_free(0, 0);
        self.store_used(self.used, self.used);
        self.set(VERSION, 1);
    }

    /// By buffer IDs, how many descriptors each chain has in flight.
    fn go_on(&mut self, is_available: impl Fn(Position) -> bool) -> Result<[u16; N], BadRecords> {
        let (now, before) = (self.get(FREE), self.get(FREE + 2));
        let word = self.load(USED);
        let place = |half: u32| Position {
            index: (word >> (16 * half)) as u16,
            wrap: (word >> (32 + 8 * half)) as u8 != 0,
        };
        let (used, used_before) = (place(0), place(1));
        if used.index >= self.size || used_before.index >= self.size {
            return Err(BadRecords::Contradict);
        }
        // What was to be published together counts if the driver sees the first of it.
        let is_published = used != used_before && !is_available(used_before);
        (self.free, self.used) = if is_published { (now, used) } else { (before, used_before) };
        self.store_free(self.free, self.free);
        self.store_used(self.used, self.used);
        for at in 0..self.size {
            self.link(at, self.get(entry(at) + NEXT));
        }
        let (mut seen, mut count, mut at) = ([false; N], 0_u16, self.free);
        while let Some(place) = seen.get_mut(usize::from(at)).filter(|seen| !**seen)
            && at < self.size
        {
            *place = true;
            count += 1;
            // It was taken by halves, or is published.
            if self.is_in_flight(at) {
                self.store(entry(at), u64::from(self.next_of(at)) << (8 * NEXT));
            }
            at = self.next_of(at);
        }
        let mut in_flight = [0; N];
        let mut left = ArrayVec::<(u64, u16), N>::new();
        for first in 0..self.size {
            let word = self.load(entry(first));
            if word as u8 != 1 || seen.get(usize::from(first)) == Some(&true) {
                continue;
            }
            let kept = Kept { first, last: (word >> 32) as u16, count: (word >> 48) as u16 };
            let id = self.walk(kept, &mut seen).ok_or(BadRecords::Contradict)?;
            count = count.saturating_add(kept.count);
            let places = (in_flight.get_mut(usize::from(id)), self.chains.get_mut(usize::from(id)));
            let (Some(in_flight @ 0), Some(chain)) = places else {
                return Err(BadRecords::Contradict);
            };
            (*in_flight, *chain) = (kept.count, kept);
            // Each counter is loaded once: who shares the memory may write it meanwhile, and a
            // sort whose keys change may panic.
            let _ = left.try_push((self.load(entry(first) + COUNTER), id));
        }
        if count != self.size {
            return Err(BadRecords::Contradict);
        }
        left.sort_unstable_by_key(|(counter, _)| Reverse(*counter));
        self.counter = left.first().map_or(0, |(counter, _)| *counter).wrapping_add(1);
        self.left = left.into_iter().map(|(_, id)| id).collect();
        Ok(in_flight)
    }

    /// Notes the entries of a chain as `seen`: its buffer ID, if it is one of the ring.
    fn walk(&self, kept: Kept, seen: &mut [bool; N]) -> Option<u16> {
        let (mut at, mut last) = (kept.first, None);
        for _ in 0..kept.count.min(self.size) {
            let place = seen.get_mut(usize::from(at)).filter(|seen| !**seen && at < self.size)?;
            *place = true;
            (last, at) = (Some(at), self.next_of(at));
        }
        let id = (self.load(entry(kept.last.min(self.size - 1)) + WORD)) as u16;
        (last == Some(kept.last) && kept.count <= self.size && id < self.size).then_some(id)
    }

    /// The next chain that an earlier program left, in the order in which it took them.
    pub fn next_left(&mut self) -> Option<Head> {
        self.left.pop().map(Head)
    }

    /// How many such chains there are still.
    #[inline]
    pub fn left(&self) -> u16 {
        self.left.len() as u16
    }

    /// The descriptors of a chain in flight: how many, and what tells the next one of them.
    pub fn descriptors(
        &self,
        id: u16,
    ) -> Option<(u16, impl FnMut(u16) -> Result<Packed, Outside> + '_)> {
        let kept = self.chains.get(usize::from(id)).filter(|kept| kept.count != 0)?;
        let mut at = kept.first;
        let read = move |_| {
            let place = entry(at);
            at = self.next_of(at);
            // As it is in a ring, but for the order within the word.
            let word = self.span.load_u64(place + WORD)?;
            let (id, flags) = (word as u16, (word >> 16) as u16);
            let address = self.span.load_u64(place + ADDRESS)?;
            Ok(Packed { address, len: (word >> 32) as u32, id, flags })
        };
        Some((kept.count, read))
    }

    /// A chain is going to be taken.
    #[inline]
    pub fn begin_chain(&mut self) {
        self.taking = Kept { first: self.free, last: self.free, count: 0 };
        self.place = self.free;
    }

    /// Its next descriptor, as it was read.
    #[inline]
    pub fn descriptor(&mut self, read: &Packed) {
        // There are as many entries as places in the ring, and the ring has one for it.
        if self.place >= self.size {
            return;
        }
        let at = entry(self.place);
        let word = u64::from(read.id) | u64::from(read.flags) << 16 | u64::from(read.len) << 32;
        self.store(at + WORD, word);
        self.store(at + ADDRESS, read.address);
        (self.taking.last, self.taking.count) = (self.place, self.taking.count + 1);
        self.place = self.next_of(self.place);
    }

    /// It was taken, and has this buffer ID.
    #[inline]
    pub fn take(&mut self, id: Head) {
        let Kept { first, last, count } = self.taking;
        self.store(entry(first) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        let lists = u64::from(self.next_of(first)) << 16 | u64::from(last) << 32;
        self.store(entry(first), 1 | lists | u64::from(count) << 48);
        self.free = self.place;
        // From here on it counts.
        self.store_free(self.free, self.free);
        if let Some(chain) = self.chains.get_mut(usize::from(id.0)) {
            *chain = self.taking;
        }
    }

    /// It is completed.
    #[inline]
    pub fn complete(&mut self, id: Head) {
        let chain = self.chains.get_mut(usize::from(id.0)).map(core::mem::take);
        if let Some(chain) = chain.filter(|chain| chain.count != 0) {
            let _ = self.batch.try_push(chain);
        }
    }

    /// What was completed is going to be published; used descriptors go on at `used` then.
    pub fn publishing(&mut self, used: Position) {
        let before = self.free;
        for at in 0..self.batch.len() {
            let Kept { first, last, .. } = self.batch[at];
            self.link(last, self.free);
            self.set(entry(last) + NEXT, self.free);
            self.free = first;
        }
        self.store_free(self.free, before);
        self.store_used(used, self.used);
    }

    /// It was published.
    pub fn published(&mut self, used: Position) {
        for at in 0..self.batch.len() {
            let Kept { first, last, count } = self.batch[at];
            let lists = u64::from(self.next_of(first)) << 16 | u64::from(last) << 32;
            self.store(entry(first), lists | u64::from(count) << 48);
        }
        self.batch.clear();
        self.store_free(self.free, self.free);
        self.used = used;
        self.store_used(used, used);
    }

    fn is_in_flight(&self, at: u16) -> bool {
        self.load(entry(at)) as u8 == 1
    }

    #[inline]
    fn next_of(&self, at: u16) -> u16 {
        self.next.get(usize::from(at)).copied().unwrap_or(u16::MAX)
    }

    #[inline]
    fn link(&mut self, at: u16, to: u16) {
        if let Some(place) = self.next.get_mut(usize::from(at)) {
            *place = to;
        }
    }

    fn get(&self, at: u64) -> u16 {
        self.span.load_u16(at).unwrap_or(0)
    }

    fn load(&self, at: u64) -> u64 {
        self.span.load_u64(at).unwrap_or(0)
    }

    /// The first free entry, and as it was before: both at once.
    #[inline]
    fn store_free(&self, now: u16, before: u16) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        stored(self.span.store_u32_release(FREE, u32::from(now) | u32::from(before) << 16));
    }

    /// Where used descriptors go on, and as it was before: both at once.
    #[inline]
    fn store_used(&self, now: Position, before: Position) {
        let places = u64::from(now.index) | u64::from(before.index) << 16;
        let wraps = u64::from(now.wrap) << 32 | u64::from(before.wrap) << 40;
        self.store(USED, places | wraps);
    }

    /// Stores in this order are seen in this order by whoever comes after this program.
    #[inline]
    fn set(&self, at: u64, word: u16) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        stored(self.span.store_u16_release(at, word));
    }

    #[inline]
    fn store(&self, at: u64, word: u64) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        stored(self.span.store_u64_release(at, word));
    }
}

#[inline]
fn stored(stored: Result<(), Outside>) {
    debug_assert!(stored.is_ok(), "the records have the length that was checked");
}

#[inline]
fn entry(at: u16) -> u64 {
    HEADER + ENTRY * u64::from(at)
}
