//! Records of requests in flight, for a server that may end at any time and be gone on with. The
//! hypervisor's keeps none, and pays nothing for it. Those of packed rings are the queue's own.

use virtqueue::{Head, Records};

/// What keeps them. The rules of [`Records`] are the server's to keep.
pub trait Keep {
    /// Does it keep any?
    const KEEPS: bool = false;

    /// How many requests an earlier server left.
    #[inline]
    fn left(&self) -> u16 {
        0
    }

    /// The next one of them.
    fn next_left(&mut self) -> Option<Head> {
        None
    }

    /// Are there requests that were recorded and completed, and aren't published?
    #[inline]
    fn has_batch(&self) -> bool {
        false
    }

    /// A request is in flight.
    fn take(&mut self, _: Head) {}

    /// One that may have been recorded is completed.
    fn complete(&mut self, _: Head) {}

    /// What was completed is going to be published; this was the last one taken.
    fn publishing(&mut self, _: Head) {}

    /// It was, up to this used index.
    fn published(&mut self, _: u16) {}
}

/// None are kept.
impl Keep for () {}

/// They are kept if there is memory for them, by the queue or by these of a split ring.
impl<const N: usize> Keep for Option<Records<N>> {
    const KEEPS: bool = true;

    #[inline]
    fn left(&self) -> u16 {
        self.as_ref().map_or(0, Records::left)
    }

    fn next_left(&mut self) -> Option<Head> {
        self.as_mut()?.next_left()
    }

    #[inline]
    fn has_batch(&self) -> bool {
        self.as_ref().is_some_and(Records::has_batch)
    }

    #[inline]
    fn take(&mut self, head: Head) {
        self.iter_mut().for_each(|records| records.take(head));
    }

    #[inline]
    fn complete(&mut self, head: Head) {
        self.iter_mut().for_each(|records| records.complete(head));
    }

    #[inline]
    fn publishing(&mut self, last: Head) {
        if let Some(records) = self {
            records.publishing(last);
        }
    }

    #[inline]
    fn published(&mut self, used: u16) {
        if let Some(records) = self {
            records.published(used);
        }
    }
}
