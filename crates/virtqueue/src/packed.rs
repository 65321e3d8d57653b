//! The packed ring (2.8): one ring of descriptors, written by both sides, and a word of each side
//! that says which events it wants.
//!
//! A chain takes as many places in the ring as it has descriptors. Its used descriptor takes one,
//! and the places behind it are skipped. Since chains are completed in any order, a used descriptor
//! overwrites descriptors of other chains that are in flight: they are never read again.
use crate::chain::Taking;
use crate::descriptor::{self, INDIRECT, NEXT, Packed, WRITE};
use crate::error::Area;
use crate::event::{self, Calls};
use crate::{
    Broken, Chain, Features, Head, Layout, LayoutError, MAX_SIZE, Position, SEGMENTS, State,
};
use sync::{Ordering, fence};
use window::{Outside, Span, Window};

mod backlog;
mod one;

/// Flags of a descriptor: available if equal to the driver's wrap counter, and the other not;
/// used if both are equal to the device's.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Flags of event suppression (2.8.10): for one descriptor; the low half of the word says which.
/// 0 is for all, 1 for none.
const ONE: u16 = 2;
const EVENT_FLAGS: u16 = 3;
const EVENT_WRAP: u16 = 1 << 15;

/// A queue with a packed ring. What the methods do is said at [`Queue`](crate::Queue).
#[derive(Debug)]
pub struct PackedQueue<const N: usize> {
    ring: Span,
    driver_events: Span,
    device_events: Span,
    size: u16,
    indirect: bool,
    event_index: bool,
    /// The next descriptor to take.
    next: Position,
    /// The next used descriptor to write.
    used: Position,
    /// The first used descriptor that isn't published: its place, and what is to be stored there.
    first: Option<(u16, u64)>,
    /// Places that used descriptors take which aren't published.
    unpublished: u16,
    /// Descriptors in the ring of all chains in flight: no more than the size.
    outstanding: u16,
    calls: Calls,
    /// By buffer IDs: the descriptors in the ring of a chain in flight, else 0.
    in_flight: [u16; N],
}

impl<const N: usize> PackedQueue<N> {
    pub(crate) fn new(
        window: &Window,
        layout: Layout,
        features: Features,
        state: State<N>,
    ) -> Result<Self, LayoutError> {
        let Layout { size, descriptors, driver, device } = layout;
        if size == 0 || size > MAX_SIZE || usize::from(size) > N {
            return Err(LayoutError::Size(size));
        }
        let mut queue = PackedQueue {
            ring: Area::Descriptors.span(
                window,
                descriptors,
                16,
                u64::from(size) * descriptor::BYTES,
            )?,
            driver_events: Area::Driver.span(window, driver, 4, 4)?,
            device_events: Area::Device.span(window, device, 4, 4)?,
            size,
            indirect: features.indirect,
            event_index: features.event_index,
            next: state.available,
            used: state.used,
            first: None,
            unpublished: 0,
            outstanding: 0,
            calls: Calls::default(),
            in_flight: [0; N],
        };
        queue.go_on(state)?;
        Ok(queue)
    }

    /// Goes on from this state, of which nothing is known.
    pub(crate) fn go_on(&mut self, state: State<N>) -> Result<(), LayoutError> {
        self.outstanding = outstanding(self.size, &state).ok_or(LayoutError::State)?;
        (self.next, self.used, self.in_flight) = (state.available, state.used, state.in_flight);
        Ok(())
    }

    #[inline]
    pub(crate) fn available(&self) -> Result<u16, Broken> {
        let word = self.ring.load_u64_acquire(Packed::flags_at(self.next.index))?;
        Ok(self.is_available(word).into())
    }

    /// Whether the descriptor at the next place with this word is available.
    #[inline]
    fn is_available(&self, word: u64) -> bool {
        self.next.is_available(Packed::flags_of(word))
    }

    #[inline]
    pub(crate) fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        self.take_noting(window, chain, 0, |_| ())
    }

    /// The same, and `note` is told each descriptor that is read in the ring; so many fewer than
    /// the ring has place for, as they are `kept`.
    #[inline]
    pub(crate) fn take_noting(
        &mut self,
        window: &Window,
        chain: &mut Chain,
        kept: u16,
        note: impl FnMut(&Packed),
    ) -> Result<bool, Broken> {
        let Some(first) = self.first_available()? else { return Ok(false) };
        self.take_any(window, first, chain, kept, note)?;
        Ok(true)
    }

    /// The descriptor at the next place, if it is available.
    #[inline]
    fn first_available(&self) -> Result<Option<Packed>, Broken> {
        // The acquiring load of the first flags orders what is read of the rest of the chain.
        let index = self.next.index;
        let word = self.ring.load_u64_acquire(Packed::flags_at(index))?;
        if !self.is_available(word) {
            return Ok(None);
        }
        Ok(Some(Packed::read(&self.ring, index, word)?))
    }

    /// Takes the chain that begins with this descriptor. `note` is told each one that is read in
    /// the ring, whose places are fewer by those `kept`.
    #[inline(never)]
    fn take_any(
        &mut self,
        window: &Window,
        first: Packed,
        chain: &mut Chain,
        kept: u16,
        mut note: impl FnMut(&Packed),
    ) -> Result<(), Broken> {
        let room = self.size.saturating_sub(self.outstanding).saturating_sub(kept);
        let mut at = self.next;
        let read = |before| {
            let mut read = first;
            if before != 0 {
                at = at.step(1, self.size);
                let word = self.ring.load_u64(Packed::flags_at(at.index))?;
                read = Packed::read(&self.ring, at.index, word)?;
            }
            note(&read);
            Ok(read)
        };
        let mut taking = chain.begin(window);
        let (id, count) = walk(room, self.indirect, &mut taking, read)?;
        // `N` isn't less than the size.
        match self.in_flight.get_mut(usize::from(id)) {
            Some(in_flight) if id < self.size => {
                if *in_flight != 0 {
                    return Err(Broken::InFlight(id));
                }
                *in_flight = count;
            }
            _ => return Err(Broken::Index(id)),
        }
        taking.finish(id);
        self.outstanding = self.outstanding.wrapping_add(count);
        self.next = self.next.step(count, self.size);
        Ok(())
    }

    /// Reads a chain in flight anew, whose `count` descriptors are told by `read`.
    #[cfg(any(test, feature = "records"))]
    pub(crate) fn take_again(
        &self,
        window: &Window,
        head: Head,
        count: u16,
        read: impl FnMut(u16) -> Result<Packed, Outside>,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        if self.in_flight.get(usize::from(head.0)) != Some(&count) {
            return Err(Broken::Index(head.0));
        }
        let mut taking = chain.begin(window);
        walk(count, self.indirect, &mut taking, read)?;
        taking.finish(head.0);
        Ok(())
    }

    #[inline]
    pub(crate) fn complete(&mut self, head: Head, written: u32) {
        let count = match self.in_flight.get_mut(usize::from(head.0)) {
            Some(in_flight) if *in_flight != 0 => core::mem::take(in_flight),
            _ => return,
        };
        self.outstanding = self.outstanding.wrapping_sub(count);
        self.write_used(head.0, count, written);
    }

    /// Writes the used descriptor of a chain of so many places.
    #[inline(always)]
    fn write_used(&mut self, id: u16, count: u16, written: u32) {
        let write = if written != 0 { WRITE } else { 0 };
        let word = Packed::word(written, id, self.used.used_flags() | write);
        // The driver looks at the first one before any behind it, so the first is stored last.
        if self.first.is_none() {
            self.first = Some((self.used.index, word));
        } else {
            self.store(self.used.index, word);
        }
        self.unpublished = self.unpublished.saturating_add(count);
        self.used = self.used.step(count, self.size);
    }

    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        let Some((index, word)) = self.first.take() else {
            return;
        };
        self.store(index, word);
        self.calls.published(core::mem::take(&mut self.unpublished));
    }

    #[inline]
    pub(crate) fn wants_call(&mut self) -> bool {
        if !self.calls.due() {
            return false;
        }
        let steps = self.calls.ask();
        // What was published is visible before the wish is looked at: the driver does it the other
        // way round, so that one of the two sees the other (2.8.22).
        fence(Ordering::SeqCst);
        let Ok(wish) = self.driver_events.load_u32(0) else {
            return false;
        };
        let (place, flags) = (wish as u16, (wish >> 16) as u16 & EVENT_FLAGS);
        match flags {
            event::NONE => false,
            ONE if self.event_index => {
                let index = place & !EVENT_WRAP;
                // One of the round before is behind by a ring.
                let behind = (place & EVENT_WRAP != 0) != self.used_published().wrap;
                let index = if behind { index.wrapping_sub(self.size) } else { index };
                event::passed(index, self.used_published().index, steps)
            }
            _ => true,
        }
    }

    /// The place behind the last used descriptor that is published.
    #[inline]
    fn used_published(&self) -> Position {
        match self.first {
            None => self.used,
            // Completed since: the first of them is where the published ones end.
            Some((index, word)) => {
                Position { index, wrap: Packed::flags_of(word) & AVAILABLE != 0 }
            }
        }
    }

    #[inline]
    pub(crate) fn call_withheld(&mut self) {
        self.calls.withheld();
    }

    #[inline]
    pub(crate) fn call_due(&self) -> bool {
        self.calls.due()
    }

    pub(crate) fn suppress_kicks(&mut self) {
        self.set_events(0, event::NONE);
    }

    pub(crate) fn enable_kicks(&mut self) -> Result<u16, Broken> {
        if self.event_index {
            let wrap = if self.next.wrap { EVENT_WRAP } else { 0 };
            self.set_events(self.next.index | wrap, ONE);
        } else {
            self.set_events(0, 0);
        }
        // The wish is visible before the flags are looked at: the driver does it the other way
        // round, so that one of the two sees the other (2.8.21.2).
        fence(Ordering::SeqCst);
        self.available()
    }

    /// Says which kicks are wanted. The driver may read it at once, so it is one store.
    fn set_events(&self, place: u16, flags: u16) {
        let word = u32::from(place) | u32::from(flags) << 16;
        wrote(self.device_events.store_u32(0, word));
    }

    pub(crate) fn state(&self) -> State<N> {
        State { available: self.next, used: self.used, in_flight: self.in_flight }
    }

    /// What a descriptor's flags say is seen after all stores before it.
    #[inline]
    fn store(&self, index: u16, word: u64) {
        #[cfg(test)]
        if !crate::fuel::burn() {
            return;
        }
        wrote(self.ring.store_u64_release(Packed::flags_at(index), word));
    }

    /// Whether the ring shows at this place, of the driver's round, what the driver put there.
    #[cfg(any(test, feature = "records"))]
    pub(crate) fn shows_available(&self, at: Position) -> bool {
        let word = self.ring.load_u64(Packed::flags_at(at.index));
        word.is_ok_and(|word| at.is_available(Packed::flags_of(word)))
    }

    /// Takes back used descriptors that weren't published, which an earlier program stored at the
    /// places of chains in flight. What the driver had put there was read.
    #[cfg(any(test, feature = "records"))]
    pub(crate) fn take_back(&self) {
        let mut at = self.used;
        for _ in 0..self.outstanding {
            let word = self.ring.load_u64(Packed::flags_at(at.index)).unwrap_or(0);
            if Packed::flags_of(word) & (AVAILABLE | USED) == at.used_flags() {
                self.store(at.index, Packed::word(0, 0, at.available_flags()));
            }
            at = at.step(1, self.size);
        }
    }

    #[inline]
    pub(crate) fn is_unpublished(&self) -> bool {
        self.unpublished != 0
    }

    /// How many places used descriptors take that aren't published.
    #[cfg(any(test, feature = "records"))]
    pub(crate) fn unpublished(&self) -> u16 {
        self.unpublished
    }

    #[inline]
    pub(crate) fn used(&self) -> Position {
        self.used
    }

    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.size
    }
}

impl Position {
    /// Whether a descriptor here with these flags is available.
    #[inline]
    fn is_available(self, flags: u16) -> bool {
        flags & (AVAILABLE | USED) == self.available_flags()
    }

    #[inline]
    fn available_flags(self) -> u16 {
        if self.wrap { AVAILABLE } else { USED }
    }

    #[inline]
    fn used_flags(self) -> u16 {
        if self.wrap { AVAILABLE | USED } else { 0 }
    }

    /// The place so many descriptors on, at most a round.
    #[inline]
    pub(crate) fn step(self, count: u16, size: u16) -> Position {
        // Neither is more than 2^15.
        let index = self.index.wrapping_add(count);
        if index < size {
            return Position { index, wrap: self.wrap };
        }
        Position { index: index.wrapping_sub(size), wrap: !self.wrap }
    }
}

/// Takes the descriptors of a chain, which `read` tells one after the other, and which are no more
/// than there is `room` for: its buffer ID, which is in the last one, and how many they are.
#[inline]
fn walk(
    room: u16,
    indirect: bool,
    chain: &mut Taking<'_>,
    mut read: impl FnMut(u16) -> Result<Packed, Outside>,
) -> Result<(u16, u16), Broken> {
    for before in 0..room.min(SEGMENTS as u16) {
        let Packed { address, len, id, flags } = read(before)?;
        let count = before + 1;
        if flags & INDIRECT != 0 {
            if !indirect || flags & NEXT != 0 || before != 0 {
                return Err(Broken::Indirect);
            }
            descriptor::packed_table(address, len, chain)?;
            return Ok((id, count));
        }
        chain.push(address, len, flags & WRITE != 0)?;
        if flags & NEXT == 0 {
            return Ok((id, count));
        }
    }
    Err(if room < SEGMENTS as u16 { Broken::Overrun } else { Broken::TooLong })
}

/// The descriptors in flight in this state, if a queue of this size can be in it: they are what is
/// between the two positions.
fn outstanding<const N: usize>(size: u16, state: &State<N>) -> Option<u16> {
    let State { available, used, in_flight } = state;
    if available.index >= size || used.index >= size {
        return None;
    }
    let (known, others) = in_flight.split_at_checked(size.into())?;
    let round = if available.wrap == used.wrap { 0 } else { size };
    let between = available.index.wrapping_add(round).checked_sub(used.index)?;
    let taken: u64 = known.iter().map(|count| u64::from(*count)).sum();
    let right = between <= size && taken == u64::from(between) && others.iter().all(|c| *c == 0);
    right.then_some(between)
}

/// A store to the rings, whose places `new` has checked.
#[inline]
fn wrote(stored: Result<(), Outside>) {
    debug_assert!(stored.is_ok(), "the rings have the size that was checked");
}
