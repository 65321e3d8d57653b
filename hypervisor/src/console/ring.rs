//! A queue of bytes from one core to another, without locks.
//!
//! Guarantees: with one writer and one reader at a time, bytes come out in
//! order and whole pushes only; neither side ever waits for the other. The
//! writer learns whether the reader had seen everything before, and so may be
//! asleep; no push goes unseen between a reader's look and its sleep.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};

/// The queue. Positions count all bytes ever written and read; they wrap.
pub struct Ring {
    bytes: Box<[AtomicU8]>,
    written: AtomicUsize,
    read: AtomicUsize,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It's in, behind bytes that the reader hasn't seen.
    Queued,
    /// It's in, and the reader had read everything: wake it.
    Wake,
    /// There was no room, and nothing of it is in.
    Full,
}

impl Ring {
    /// A ring for `capacity` bytes, a power of two.
    pub fn new(capacity: usize) -> Ring {
        debug_assert!(capacity.is_power_of_two());
        Ring {
            bytes: (0..capacity).map(|_| AtomicU8::new(0)).collect(),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        }
    }

    fn slot(&self, position: usize) -> Option<&AtomicU8> {
        self.bytes.get(position & (self.bytes.len() - 1))
    }

    /// Bytes waiting; for the writer an upper bound, for the reader a lower one.
    pub fn len(&self) -> usize {
        self.written.load(Ordering::Acquire).wrapping_sub(self.read.load(Ordering::Acquire))
    }

    /// Writer: appends the parts as one, or nothing.
    pub fn push(&self, parts: &[&[u8]]) -> Pushed {
        let total = parts.iter().map(|p| p.len()).sum::<usize>();
        if total > self.bytes.len() - self.len() {
            return Pushed::Full;
        }
        let start = self.written.load(Ordering::Relaxed);
        for (i, byte) in parts.iter().flat_map(|p| p.iter()).enumerate() {
            if let Some(slot) = self.slot(start.wrapping_add(i)) {
                slot.store(*byte, Ordering::Relaxed);
            }
        }
        self.written.store(start.wrapping_add(total), Ordering::Release);
        // Either the reader sees the new position before it sleeps, or we see that it had caught
        // up.
        fence(Ordering::SeqCst);
        if self.read.load(Ordering::Relaxed) == start { Pushed::Wake } else { Pushed::Queued }
    }

    /// Reader: copies waiting bytes and leaves them in; how many. Starts `skip` bytes in.
    pub fn peek(&self, skip: usize, buffer: &mut [u8]) -> usize {
        let read = self.read.load(Ordering::Relaxed).wrapping_add(skip);
        let waiting = self.len().saturating_sub(skip).min(buffer.len());
        for (i, byte) in buffer.iter_mut().take(waiting).enumerate() {
            if let Some(slot) = self.slot(read.wrapping_add(i)) {
                *byte = slot.load(Ordering::Relaxed);
            }
        }
        waiting
    }

    /// Reader: forgets that many waiting bytes.
    pub fn consume(&self, count: usize) {
        let count = count.min(self.len());
        self.read.store(self.read.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// Reader, before it sleeps: whether nothing is waiting.
    pub fn is_drained(&self) -> bool {
        fence(Ordering::SeqCst);
        self.len() == 0
    }
}
