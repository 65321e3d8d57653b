//! A queue with a packed ring that records what is in flight, and goes on by records.
//!
//! Guarantees: whenever the program ends, whoever goes on hands out the chains again that the
//! driver doesn't see as used, and no other; to the driver it looks as if they had only been taken.

use crate::packed_records::PackedRecords;
use crate::{
    BadRecords, Broken, Chain, Features, Head, Layout, LayoutError, PackedQueue, Queue, State,
};
use alloc::boxed::Box;
use thiserror::Error;
use window::{Span, Window};

/// Why a queue with records can't be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotRecorded {
    /// The rings can't.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The records can't be gone on with.
    #[error(transparent)]
    Records(#[from] BadRecords),
}

/// A queue with a packed ring and records. What the methods do is said at [`Queue`].
#[derive(Debug)]
pub struct RecordedQueue<const N: usize> {
    queue: PackedQueue<N>,
    records: PackedRecords<N>,
}

impl<const N: usize> Queue<N> {
    /// The packed queue that the driver laid out, with records: from where they say on if there are
    /// some, else from this state on, in which nothing is in flight. What they say was left comes
    /// by [`Queue::next_left`].
    ///
    /// # Errors
    ///
    /// [`NotRecorded`] if it can't be served.
    pub fn recorded(
        window: &Window,
        layout: Layout,
        features: Features,
        state: State<N>,
        records: Span,
    ) -> Result<Queue<N>, NotRecorded> {
        let queue = RecordedQueue::new(window, layout, features, state, records)?;
        Ok(Queue::Recorded(Box::new(queue)))
    }
}

impl<const N: usize> RecordedQueue<N> {
    pub(crate) fn new(
        window: &Window,
        layout: Layout,
        features: Features,
        state: State<N>,
        records: Span,
    ) -> Result<Self, NotRecorded> {
        let start = State::at_reset(features);
        let mut queue = PackedQueue::new(window, layout, features, start)?;
        let shows = |at| queue.shows_available(at);
        let (records, state) = PackedRecords::open(records, layout.size, state, shows)?;
        queue.go_on(state)?;
        queue.take_back();
        Ok(RecordedQueue { queue, records })
    }

    #[inline]
    pub(crate) fn take(&mut self, window: &Window, chain: &mut Chain) -> Result<bool, Broken> {
        let RecordedQueue { queue, records } = self;
        records.begin_chain();
        // What was completed keeps its entries until it is published. A driver that keeps to the
        // standard doesn't offer its places again before.
        let kept = queue.unpublished();
        let taken = queue.take_noting(window, chain, kept, |read| records.descriptor(read))?;
        if taken {
            records.take(chain.head());
        }
        Ok(taken)
    }

    pub(crate) fn take_again(
        &mut self,
        window: &Window,
        head: Head,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        let (count, read) = self.records.descriptors(head.0).ok_or(Broken::Index(head.0))?;
        self.queue.take_again(window, head, count, read, chain)
    }

    #[inline]
    pub(crate) fn complete(&mut self, head: Head, written: u32) {
        self.queue.complete(head, written);
        self.records.complete(head);
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.queue.is_unpublished() {
            self.records.publishing(self.queue.used());
            self.queue.publish();
            self.records.published(self.queue.used());
        }
    }

    pub(crate) fn next_left(&mut self) -> Option<Head> {
        self.records.next_left()
    }

    #[inline]
    pub(crate) fn left(&self) -> u16 {
        self.records.left()
    }

    /// The queue without its records, for what they don't tell of.
    #[inline]
    pub(crate) fn inner(&self) -> &PackedQueue<N> {
        &self.queue
    }

    /// The same, for what changes nothing that they tell of.
    #[inline]
    pub(crate) fn inner_mut(&mut self) -> &mut PackedQueue<N> {
        &mut self.queue
    }
}
