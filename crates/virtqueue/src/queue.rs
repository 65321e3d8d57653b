//! A queue of either kind of ring, with or without records and a log.
//!
//! Guarantees: what the crate does; which kind it is costs one branch, and a split ring is asked
//! first. Decides nothing itself.

#[cfg(any(test, feature = "log"))]
use crate::logged::{Log, LoggedQueue};
#[cfg(any(test, feature = "records"))]
use crate::recorded::RecordedQueue;
use crate::{
    Broken, Chain, DEFAULT_SIZE, Edge, Features, Head, Layout, LayoutError, PackedQueue, Position,
    Seen, SplitQueue, State,
};
use window::Window;

/// One queue of at most `N` elements. The type says `N`, so a binding may need it:
/// `let queue: Queue = Queue::new(…)?`.
#[derive(Debug)]
pub enum Queue<const N: usize = DEFAULT_SIZE> {
    /// With the rings of 2.7.
    Split(SplitQueue<N>),
    /// With the ring of 2.8.
    Packed(PackedQueue<N>),
    /// The same, with records of what is in flight.
    #[cfg(any(test, feature = "records"))]
    Recorded(alloc::boxed::Box<RecordedQueue<N>>),
    /// Either, with a log of what it changes.
    #[cfg(any(test, feature = "log"))]
    Logged(alloc::boxed::Box<LoggedQueue<N>>),
}

impl<const N: usize> Queue<N> {
    /// The queue that the driver laid out, from this state on. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if it can't be served.
    pub fn new(
        window: &Window,
        layout: Layout,
        features: Features,
        state: State<N>,
    ) -> Result<Queue<N>, LayoutError> {
        if features.packed {
            PackedQueue::new(window, layout, features, state).map(Queue::Packed)
        } else {
            SplitQueue::new(window, layout, features, state).map(Queue::Split)
        }
    }

    /// The same queue, which was laid out so, and logs what it changes from now on. Nothing is in
    /// flight, or it is taken again.
    #[cfg(any(test, feature = "log"))]
    pub fn logged(self, layout: Layout, log: Log) -> Queue<N> {
        Queue::Logged(LoggedQueue::new(self, layout, log))
    }

    /// How many chains wait, by one load. Packed: 1 if there are any, since no index says how many
    /// (`docs/design.md`, *Rings*; [`backlog`](Queue::backlog)).
    ///
    /// # Errors
    ///
    /// [`Broken::Jumped`] if more are offered than the ring holds.
    #[inline]
    pub fn available(&self) -> Result<u16, Broken> {
        match self {
            Queue::Split(queue) => queue.available(),
            other => other.available_other(),
        }
    }

    #[inline(never)]
    fn available_other(&self) -> Result<u16, Broken> {
        match self {
            Queue::Split(_) => Ok(0),
            Queue::Packed(queue) => queue.available(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().available(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().available(),
        }
    }

    /// How far its chains were taken, for looks at it from elsewhere until one more is. Rings that
    /// show that at one place have one: split ones without a log.
    #[inline]
    pub fn edge(&self) -> Option<Edge> {
        match self {
            Queue::Split(queue) => Some(queue.edge()),
            _ => None,
        }
    }

    /// How much waits, of which `waiting` is what [`available`](Queue::available) says and `before`
    /// what this said last, nothing having been taken since. Split: chains, as they are available.
    /// Packed: descriptors, by one load if nothing came, and by twice the bits of the ring's size
    /// at most. It is to be compared with what it says later.
    #[inline]
    pub fn backlog(&self, waiting: u16, before: u16) -> u16 {
        match self {
            Queue::Split(_) => waiting,
            other => other.backlog_other(waiting, before),
        }
    }

    #[inline(never)]
    fn backlog_other(&self, waiting: u16, before: u16) -> u16 {
        match self {
            Queue::Split(_) => waiting,
            Queue::Packed(queue) => queue.backlog(before),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().backlog(before),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().backlog(waiting, before),
        }
    }

    /// Whether it is known that chains wait, without a load. `false` says nothing.
    #[inline]
    pub fn is_offered(&self) -> bool {
        match self {
            Queue::Split(queue) => queue.is_offered(),
            Queue::Packed(_) => false,
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(_) => false,
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().is_offered(),
        }
    }

    /// Takes the next chain, if there is one. It is in flight from then on. Each descriptor is read
    /// once. `chain` is overwritten; if the answer isn't `Ok(true)` it says nothing.
    ///
    /// # Errors
    ///
    /// [`Broken`]: the queue isn't to be used any more.
    #[inline]
    pub fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        match self {
            Queue::Split(queue) => queue.take(window, chain),
            Queue::Packed(queue) => queue.take(window, chain),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.take(window, chain),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.take(window, chain),
        }
    }

    /// Takes the chain that [`SplitQueue::take_framed`] didn't take, as [`take`](Queue::take) does.
    ///
    /// # Errors
    ///
    /// As for `take`.
    pub fn take_other(
        &mut self,
        seen: &Seen,
        window: &Window,
        chain: &mut Chain,
    ) -> Result<bool, Broken> {
        match self {
            Queue::Split(queue) => queue.take_other(seen, window, chain),
            Queue::Packed(queue) => queue.take(window, chain),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.take(window, chain),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.take(window, chain),
        }
    }

    /// Reads a chain anew that is in flight in the state that this queue began with, as
    /// [`take`](Queue::take) does. Split rings have what it needs, and packed ones with records.
    ///
    /// # Errors
    ///
    /// As for `take`; [`Broken::Index`] if it isn't in flight.
    pub fn take_again(
        &mut self,
        window: &Window,
        head: Head,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        match self {
            Queue::Split(queue) => queue.take_again(window, head, chain),
            Queue::Packed(_) => Err(Broken::Index(head.0)),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.take_again(window, head, chain),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.take_again(window, head, chain),
        }
    }

    /// The next chain that an earlier program left, of a packed ring with records, in the order in
    /// which it took them. It is in flight, for [`take_again`](Queue::take_again).
    pub fn next_left(&mut self) -> Option<Head> {
        match self {
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.next_left(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner_mut().next_left(),
            _ => None,
        }
    }

    /// How many such chains there are still.
    #[inline]
    pub fn left(&self) -> u16 {
        match self {
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.left(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().left(),
            _ => 0,
        }
    }

    /// Writes a chain that was taken to the ring as used, with how many bytes were written to its
    /// writable spans. The driver sees it after [`publish`](Queue::publish). Chains may be
    /// completed in any order. If the head isn't in flight nothing is done.
    #[inline]
    pub fn complete(&mut self, head: Head, written: u32) {
        match self {
            Queue::Split(queue) => queue.complete(head, written),
            Queue::Packed(queue) => queue.complete(head, written),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.complete(head, written),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.complete(head, written),
        }
    }

    /// How many pages are marked in its log at most when this chain is completed, whatever was
    /// written to it.
    #[inline]
    pub fn log_pages(&self, chain: &Chain) -> u64 {
        match (self, chain) {
            #[cfg(any(test, feature = "log"))]
            (Queue::Logged(queue), chain) => queue.pages(chain),
            _ => 0,
        }
    }

    /// Shows the driver all that was completed, by one store. It also writes the event index anew
    /// now and then if kicks are suppressed.
    #[inline]
    pub fn publish(&mut self) {
        // Nearly all are; others have a call more.
        match self {
            Queue::Split(queue) => queue.publish(),
            other => other.publish_other(),
        }
    }

    #[inline(never)]
    fn publish_other(&mut self) {
        match self {
            Queue::Split(_) => {}
            Queue::Packed(queue) => queue.publish(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.publish(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.publish(),
        }
    }

    /// Is there anything to publish?
    #[inline]
    pub fn is_unpublished(&self) -> bool {
        match self {
            Queue::Split(queue) => queue.is_unpublished(),
            Queue::Packed(queue) => queue.is_unpublished(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().is_unpublished(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().is_unpublished(),
        }
    }

    /// The next element to complete.
    #[inline]
    pub fn used(&self) -> Position {
        match self {
            Queue::Split(queue) => queue.used(),
            Queue::Packed(queue) => queue.used(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().used(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.used(),
        }
    }

    /// Whether the driver wants a call (an interrupt) for what was published since this was last
    /// asked (2.7.7.2, 2.7.10, 2.8.10). False if nothing was. Who holds a call back (interrupt
    /// coalescing) doesn't ask until it may be sent, or says so after: [`call_withheld`].
    ///
    /// After the answer `false` the driver looks at the ring itself before it waits, so what was
    /// published up to then needs no call.
    ///
    /// [`call_withheld`]: Queue::call_withheld
    #[inline]
    pub fn wants_call(&mut self) -> bool {
        match self {
            Queue::Split(queue) => queue.wants_call(),
            other => other.wants_call_other(),
        }
    }

    /// As [`publish`](Queue::publish), then, if it `asks`, [`wants_call`](Queue::wants_call).
    #[inline(always)]
    pub fn publish_and_ask(&mut self, asks: bool) -> bool {
        match self {
            Queue::Split(queue) => queue.publish_and_ask(asks),
            other => other.publish_and_ask_other(asks),
        }
    }

    #[inline(never)]
    fn publish_and_ask_other(&mut self, asks: bool) -> bool {
        self.publish_other();
        asks && self.wants_call_other()
    }

    #[inline(never)]
    fn wants_call_other(&mut self) -> bool {
        match self {
            Queue::Split(_) => false,
            Queue::Packed(queue) => queue.wants_call(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner_mut().wants_call(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner_mut().wants_call(),
        }
    }

    /// The call of the last answer `true` isn't sent: what it was for counts again when the next
    /// one is asked for.
    #[inline]
    pub fn call_withheld(&mut self) {
        match self {
            Queue::Split(queue) => queue.call_withheld(),
            Queue::Packed(queue) => queue.call_withheld(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner_mut().call_withheld(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner_mut().call_withheld(),
        }
    }

    /// Whether something was published since [`wants_call`](Queue::wants_call) was last asked, or
    /// withheld.
    #[inline]
    pub fn call_due(&self) -> bool {
        match self {
            Queue::Split(queue) => queue.call_due(),
            Queue::Packed(queue) => queue.call_due(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().call_due(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().call_due(),
        }
    }

    /// Asks the driver for no kicks (notifications of the device) from now on: this queue is
    /// polled. With the event index of a split ring that is a wish for one far ahead, which
    /// moves on every 16,384 chains, so that the driver doesn't get there.
    pub fn suppress_kicks(&mut self) {
        match self {
            Queue::Split(queue) => queue.suppress_kicks(),
            Queue::Packed(queue) => queue.suppress_kicks(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner_mut().suppress_kicks(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.suppress_kicks(),
        }
    }

    /// Asks for a kick at the next chain, and looks again: how many chains wait, as
    /// [`available`](Queue::available) says. Only if none does may the caller stop polling; a kick
    /// comes then.
    ///
    /// # Errors
    ///
    /// As for [`available`](Queue::available).
    pub fn enable_kicks(&mut self) -> Result<u16, Broken> {
        match self {
            Queue::Split(queue) => queue.enable_kicks(),
            Queue::Packed(queue) => queue.enable_kicks(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner_mut().enable_kicks(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.enable_kicks(),
        }
    }

    /// What is needed to go on with the queue later, by [`Queue::new`]. Publish first: what was
    /// completed and not published counts as published in it. Chains that are in flight aren't
    /// taken again: they can be completed. Whether a call is due isn't in it: send one after.
    pub fn state(&self) -> State<N> {
        match self {
            Queue::Split(queue) => queue.state(),
            Queue::Packed(queue) => queue.state(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().state(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.state(),
        }
    }

    /// How many elements the ring has.
    #[inline]
    pub fn size(&self) -> u16 {
        match self {
            Queue::Split(queue) => queue.size(),
            Queue::Packed(queue) => queue.size(),
            #[cfg(any(test, feature = "records"))]
            Queue::Recorded(queue) => queue.inner().size(),
            #[cfg(any(test, feature = "log"))]
            Queue::Logged(queue) => queue.inner().size(),
        }
    }
}
