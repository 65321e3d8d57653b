//! The split ring (2.7): a table of descriptors, the available ring, the used ring.
//!
//! Indices count on to 2^16; the ring's size is a power of two, so that the low bits are the place.
pub mod edge;
mod one;

use crate::descriptor;
use crate::error::Area;
use crate::event::{self, Calls};
use crate::framed::{Framed, Seen, framed};
use crate::{Broken, Chain, Features, Head, Layout, LayoutError, MAX_SIZE, Position, State};
use sync::{Ordering, fence};
use window::{Outside, Ring, Span, Window};

/// Offsets in both rings: flags, index, elements.
const FLAGS: u64 = 0;
const INDEX: u64 = 2;
const RING: u64 = 4;
/// Bytes of an element of the available ring, and of the used ring.
const AVAILABLE: u64 = 2;
const USED: u64 = 8;

/// A queue with split rings. What the methods do is said at [`Queue`](crate::Queue).
#[derive(Debug)]
pub struct SplitQueue<const N: usize> {
    descriptors: Span,
    used_ring: Span,
    /// The same, element by element, and the driver's index.
    heads: Ring<[u64; 2]>,
    index: Ring<u16>,
    available: Ring<u16>,
    /// Which calls the driver wishes: its event index, or its flags.
    wish: Ring<u16>,
    completed: Ring<[u32; 2]>,
    /// The index of the used ring.
    shown: Ring<u16>,
    size: u16,
    indirect: bool,
    event_index: bool,
    /// Kicks aren't wanted; with the event index since it was written at this index.
    suppressed: Option<u16>,
    /// The next element of the available ring to take.
    next: u16,
    /// The driver's index when it was last loaded, checked: what is up to it may be taken.
    offered: u16,
    /// The next element of the used ring to write.
    used: u16,
    /// What the driver sees of it.
    published: u16,
    calls: Calls,
    /// By heads: 1 if the chain is in flight.
    in_flight: [u16; N],
}

impl<const N: usize> SplitQueue<N> {
    /// The queue, as [`Queue::new`](crate::Queue::new) makes it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn new(
        window: &Window,
        layout: Layout,
        features: Features,
        state: State<N>,
    ) -> Result<Self, LayoutError> {
        let Layout { size, descriptors, driver, device } = layout;
        if !size.is_power_of_two() || size > MAX_SIZE || usize::from(size) > N {
            return Err(LayoutError::Size(size));
        }
        let elements = u64::from(size);
        let event = if features.event_index { 2 } else { 0 };
        let (next, used) = (state.available.index, state.used.index);
        let taken = state.in_flight.iter().take(size.into()).filter(|count| **count == 1).count();
        let others = state.in_flight.iter().filter(|count| **count != 0).count();
        if taken != usize::from(next.wrapping_sub(used)) || others != taken {
            return Err(LayoutError::State);
        }
        let descriptors =
            Area::Descriptors.span(window, descriptors, 16, elements * descriptor::BYTES)?;
        let available_ring =
            Area::Driver.span(window, driver, 2, RING + elements * AVAILABLE + event)?;
        let used_ring = Area::Device.span(window, device, 4, RING + elements * USED + event)?;
        let wish = if features.event_index { RING + elements * AVAILABLE } else { FLAGS };
        let rings = (
            (descriptors.ring(0, size), available_ring.ring(INDEX, 1)),
            (available_ring.ring(RING, size), available_ring.ring(wish, 1)),
            (used_ring.ring(RING, size), used_ring.ring(INDEX, 1)),
        );
        let (
            (Some(heads), Some(index)),
            (Some(available), Some(wish)),
            (Some(completed), Some(shown)),
        ) = rings
        else {
            // The areas have that size, and are aligned.
            return Err(LayoutError::Size(size));
        };
        Ok(SplitQueue {
            descriptors,
            used_ring,
            heads,
            index,
            available,
            wish,
            completed,
            shown,
            size,
            indirect: features.indirect,
            event_index: features.event_index,
            suppressed: None,
            next,
            offered: next,
            used,
            published: used,
            calls: Calls::default(),
            in_flight: state.in_flight,
        })
    }

    #[inline]
    pub(crate) fn available(&self) -> Result<u16, Broken> {
        let offered = self.index.load_acquire(0);
        let waiting = offered.wrapping_sub(self.next);
        if waiting > self.size { Err(Broken::Jumped) } else { Ok(waiting) }
    }

    /// Whether chains wait that the index showed when it was last loaded.
    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.offered != self.next
    }

    /// As [`Queue::take`](crate::Queue::take).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        let Some(head) = self.next_head()? else { return Ok(false) };
        let words = self.heads.load(head);
        descriptor::split_chain(window, &self.descriptors, words, head, self.indirect, chain)?;
        self.took(head);
        Ok(true)
    }

    /// Whether chains may lie in tables of their own.
    #[inline]
    pub fn has_tables(&self) -> bool {
        self.indirect
    }

    /// Takes the next chain if it is of three buffers, with a header of `H` bytes and a trailer of
    /// `T`, and lies as most do: in a table of its own if `TABLE`, which isn't to be asked for if
    /// there can't be any; else in the ring's. It is to be used or held before another one is
    /// taken ([`Self::use_framed`], [`Self::hold_framed`]). Any other chain is put into `untaken`,
    /// which was none, and is for [`take_other`](Self::take_other), to be asked next.
    #[inline(always)]
    pub fn take_framed<const H: u32, const T: u32, const TABLE: bool>(
        &mut self,
        window: &Window,
        untaken: &mut Option<Seen>,
    ) -> Option<Framed> {
        let head = match self.next_head() {
            Ok(Some(head)) => head,
            Ok(None) => return None,
            Err(_) => {
                // `take_other` says it again.
                *untaken = Some(Seen::default());
                return None;
            }
        };
        let words = self.heads.load(head);
        let framed = framed::<H, T, TABLE>(window, &self.heads, words, head, untaken)?;
        self.next = self.next.wrapping_add(1);
        Some(framed)
    }

    /// Writes the chain that was just taken to the ring as used, as
    /// [`Queue::complete`](crate::Queue::complete) does.
    #[inline(always)]
    pub fn use_framed(&mut self, framed: &Framed, written: u32) {
        self.completed.store(self.used, [framed.head.0.into(), written]);
        self.used = self.used.wrapping_add(1);
    }

    /// The chain that was just taken isn't used yet: it is in flight, as if
    /// [`Queue::take`](crate::Queue::take) had taken it.
    #[inline]
    pub fn hold_framed(&mut self, framed: &Framed) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(framed.head.0)) {
            *in_flight = 1;
        }
    }

    /// Takes the chain that [`take_framed`](Self::take_framed) didn't take, as
    /// [`Queue::take`](crate::Queue::take) does.
    ///
    /// # Errors
    ///
    /// As for that.
    pub fn take_other(
        &mut self,
        seen: &Seen,
        window: &Window,
        chain: &mut Chain,
    ) -> Result<bool, Broken> {
        let (head, [words, behind @ ..]) = (seen.head, &*seen.words) else {
            return self.take(window, chain);
        };
        let (ring, indirect) = (&self.descriptors, self.indirect);
        descriptor::split_walk(window, ring, *words, behind, head, indirect, chain)?;
        self.took(head);
        Ok(true)
    }

    /// The head of the next chain, if one is offered. It isn't taken.
    #[inline(always)]
    fn next_head(&mut self) -> Result<Option<u16>, Broken> {
        if self.offered == self.next {
            // The acquiring load of the index orders what is read of all chains up to it.
            let waiting = self.available()?;
            if waiting == 0 {
                return Ok(None);
            }
            self.offered = self.next.wrapping_add(waiting);
        }
        let head = self.available.load(self.next);
        // `N` isn't less than the size.
        let in_flight = self.in_flight.get(usize::from(head)).copied();
        if head >= self.size || in_flight.is_none() {
            return Err(Broken::Index(head));
        }
        if in_flight != Some(0) {
            return Err(Broken::InFlight(head));
        }
        Ok(Some(head))
    }

    /// The next chain, which has this head, is in flight.
    #[inline(always)]
    fn took(&mut self, head: u16) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(head)) {
            *in_flight = 1;
        }
        self.next = self.next.wrapping_add(1);
    }

    pub(crate) fn take_again(
        &mut self,
        window: &Window,
        head: Head,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        match self.in_flight.get(usize::from(head.0)) {
            Some(1) => {
                let words = self.heads.load(head.0);
                let descriptors = &self.descriptors;
                descriptor::split_chain(window, descriptors, words, head.0, self.indirect, chain)
            }
            _ => Err(Broken::Index(head.0)),
        }
    }

    /// As [`Queue::is_unpublished`](crate::Queue::is_unpublished).
    #[inline]
    pub fn is_unpublished(&self) -> bool {
        self.used != self.published
    }

    /// As [`Queue::used`](crate::Queue::used).
    #[inline]
    pub fn used(&self) -> Position {
        Position { index: self.used, wrap: true }
    }

    /// As [`Queue::complete`](crate::Queue::complete).
    #[inline]
    pub fn complete(&mut self, head: Head, written: u32) {
        match self.in_flight.get_mut(usize::from(head.0)) {
            Some(in_flight) if *in_flight != 0 => *in_flight = 0,
            _ => return,
        }
        self.completed.store(self.used, [head.0.into(), written]);
        self.used = self.used.wrapping_add(1);
    }

    /// As [`Queue::publish`](crate::Queue::publish).
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.used == self.published {
            return;
        }
        self.shown.store_release(0, self.used);
        self.calls.published(self.used.wrapping_sub(self.published));
        self.published = self.used;
        if let Some(since) = self.suppressed
            && self.event_index
            && self.next.wrapping_sub(since) >= event::RENEW
        {
            self.suppress_kicks();
        }
    }

    /// As [`Queue::publish_and_ask`](crate::Queue::publish_and_ask).
    #[inline(always)]
    pub fn publish_and_ask(&mut self, asks: bool) -> bool {
        self.publish();
        asks && self.wants_call()
    }

    #[inline(always)]
    pub(crate) fn wants_call(&mut self) -> bool {
        if !self.calls.due() {
            return false;
        }
        let steps = self.calls.ask();
        // What was published is visible before the wish is looked at: the driver does it the other
        // way round, so that one of the two sees the other (2.7.7.2).
        fence(Ordering::SeqCst);
        let wish = self.wish.load(0);
        match self.event_index {
            true => event::passed(wish, self.published, steps),
            false => wish & event::NONE == 0,
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
        self.suppressed = Some(self.next);
        if self.event_index {
            self.set_event(self.next.wrapping_add(event::FAR));
        } else {
            wrote(self.used_ring.store_u16(FLAGS, event::NONE));
        }
    }

    pub(crate) fn enable_kicks(&mut self) -> Result<u16, Broken> {
        self.suppressed = None;
        if self.event_index {
            self.set_event(self.next);
        } else {
            wrote(self.used_ring.store_u16(FLAGS, 0));
        }
        // The wish is visible before the index is looked at: the driver does it the other way
        // round, so that one of the two sees the other (2.7.13.4).
        fence(Ordering::SeqCst);
        self.available()
    }

    /// Asks for a kick when the element of this index becomes available.
    fn set_event(&self, index: u16) {
        wrote(self.used_ring.store_u16(RING + u64::from(self.size) * USED, index));
    }

    pub(crate) fn state(&self) -> State<N> {
        State {
            available: Position { index: self.next, wrap: true },
            used: Position { index: self.used, wrap: true },
            in_flight: self.in_flight,
        }
    }

    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.size
    }
}

/// A store to the rings, whose places `new` has checked.
#[inline]
fn wrote(stored: Result<(), Outside>) {
    debug_assert!(stored.is_ok(), "the rings have the size that was checked");
}
