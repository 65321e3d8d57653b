//! The queue that a server serves, with its records: answers, and what the driver sees of them.
//!
//! Guarantees: what is published together was recorded, all of it, or nothing of it was; a chain is
//! recorded when nothing waits to be published.

use thiserror::Error;
use virtqueue::{Head, Queue, SplitQueue};
use window::Span;

use crate::keeping::Keep;
use crate::outcome::Statistics;
use crate::request::{Rules, Status};

/// Why a queue can't be served any more. The driver must reset the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The ring is.
    #[error(transparent)]
    Ring(#[from] virtqueue::Broken),
    /// A chain has no writable byte, so that it can't be answered.
    #[error("a request has no room for its status byte")]
    NoStatus,
}

/// The queue that is served, and what was negotiated for it.
#[derive(Debug)]
pub struct Running<const RING: usize, K> {
    pub queue: Queue<RING>,
    pub keep: K,
    pub rules: Rules,
    pub broken: Option<Broken>,
}

impl<const RING: usize, K: Keep> Running<RING, K> {
    /// Requests that an earlier server left: by the records, or those that the queue has itself.
    #[inline]
    pub fn left(&self) -> u16 {
        match &self.queue {
            _ if !K::KEEPS => 0,
            Queue::Split(_) => self.keep.left(),
            queue => self.keep.left() + queue.left(),
        }
    }

    /// Are there any?
    #[inline]
    pub fn has_left(&self) -> bool {
        K::KEEPS && self.left() > 0
    }

    /// The next one of them.
    pub fn next_left(&mut self) -> Option<Head> {
        self.keep.next_left().or_else(|| self.queue.next_left())
    }

    #[inline(always)]
    pub fn publish(&mut self, last: Head) {
        match &mut self.queue {
            queue if !K::KEEPS => queue.publish(),
            Queue::Split(queue) => publish(queue, &mut self.keep, last),
            _ => self.publish_other(last),
        }
    }

    #[inline(never)]
    fn publish_other(&mut self, last: Head) {
        if self.queue.is_unpublished() {
            self.keep.publishing(last);
            self.queue.publish();
            self.keep.published(self.queue.used().index);
        }
    }

    /// A chain that was taken isn't answered at once.
    #[inline]
    pub fn keep(&mut self, head: Head) {
        if K::KEEPS {
            self.publish(head);
            self.keep.take(head);
        }
    }

    /// Stores the status byte, and puts the chain into the used ring, with this length.
    #[inline(always)]
    pub fn answer(
        &mut self,
        head: Head,
        byte: &Span,
        status: Status,
        len: u32,
        statistics: &mut Statistics,
    ) {
        // The span is a byte of its own: the store can't be outside of it.
        let _ = byte.store_u8(0, status as u8);
        self.queue.complete(head, len);
        statistics.answered(status);
    }
}

/// As [`Running::publish`], of a split ring.
#[inline]
pub fn publish<const RING: usize, K: Keep>(queue: &mut SplitQueue<RING>, keep: &mut K, last: Head) {
    if queue.is_unpublished() {
        keep.publishing(last);
        queue.publish();
        keep.published(queue.used().index);
    }
}
