//! A submission queue and its completion queue (NVM Express Base Specification 2.0, 3.3), in
//! memory.
//!
//! Guarantees: an entry is whole in memory before the doorbell tells of it; a completion is read
//! after its phase bit was seen, each word once; the controller's words lead to no place outside of
//! the rings. It doesn't guarantee room: the owner has fewer commands under way than there are
//! entries, and the controller reads an entry before it completes it (3.3.1.2).

use core::sync::atomic::{Ordering, fence};

use window::Span;

use crate::command::{Command, WORDS};
use crate::registers::{Registers, doorbells};

/// Bytes of a submission queue's entry.
const SUBMISSION: u64 = 64;
/// Bytes of a completion queue's entry.
const COMPLETION: u64 = 16;

/// A completion (3.3.3.2), as the controller wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The command's identifier.
    pub id: u16,
    /// The submission queue's.
    pub queue: u16,
    /// Status code and type, and what else the field has above the phase bit.
    pub status: u16,
}

impl Entry {
    /// Status code (bits 7:0) and type (10:8): 0 is success (3.3.3.2.1).
    pub fn code(self) -> u16 {
        self.status & 0x7FF
    }
}

/// The pair of one number.
#[derive(Debug)]
pub struct Ring {
    number: u16,
    entries: u16,
    submissions: Span,
    completions: Span,
    /// Where the next command goes, and what the controller was told of that.
    tail: u16,
    told_tail: u16,
    /// Where the next completion comes, and what the controller was told of that.
    head: u16,
    told_head: u16,
    /// The phase bit of completions that are new.
    phase: bool,
}

impl Ring {
    /// Bytes of both queues of so many entries.
    pub const fn bytes(entries: u16) -> (u64, u64) {
        (entries as u64 * SUBMISSION, entries as u64 * COMPLETION)
    }

    /// The pair in this memory, of the sizes of [`Self::bytes`].
    pub fn new(number: u16, entries: u16, submissions: Span, completions: Span) -> Self {
        Self {
            number,
            entries,
            submissions,
            completions,
            tail: 0,
            told_tail: 0,
            head: 0,
            told_head: 0,
            phase: true,
        }
    }

    /// Empty, as a controller that was just enabled has it. It must not have the memory before.
    pub fn reset(&mut self) {
        self.submissions.fill(0);
        self.completions.fill(0);
        let Self { number, entries, submissions, completions, .. } = *self;
        *self = Self::new(number, entries, submissions, completions);
    }

    /// Entries of each.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Where devices have the submission queue and the completion queue.
    pub fn places(&self) -> (u64, u64) {
        (self.submissions.dma(), self.completions.dma())
    }

    /// Puts a command in. The controller is told by [`Self::tell`].
    #[inline]
    pub fn push(&mut self, command: Command, id: u16) {
        let at = u64::from(self.tail) * SUBMISSION;
        let words: [u64; WORDS] = command.with_id(id);
        // Within the ring and aligned, as the tail is below the number of entries.
        let _ = self.submissions.store_u64_all(at, words);
        self.tail = self.after(self.tail);
    }

    /// Tells the controller of what changed, by one write each.
    #[inline]
    pub fn tell(&mut self, registers: &mut impl Registers, stride: u32) {
        let (tail, head) = doorbells(self.number, stride);
        if self.told_head != self.head {
            self.told_head = self.head;
            registers.write32(head, self.head.into());
        }
        if self.told_tail != self.tail {
            self.told_tail = self.tail;
            fence(Ordering::Release);
            registers.write32(tail, self.tail.into());
        }
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<Entry> {
        // SQHD and SQID, then the identifier, the phase bit and the status.
        let word = self.completions.load_u64_acquire(u64::from(self.head) * COMPLETION + 8).ok()?;
        if (word >> 48 & 1 != 0) != self.phase {
            return None;
        }
        self.head = self.after(self.head);
        self.phase ^= self.head == 0;
        Some(Entry {
            id: (word >> 32) as u16,
            queue: (word >> 16) as u16,
            status: (word >> 49) as u16,
        })
    }

    fn after(&self, place: u16) -> u16 {
        if place + 1 == self.entries { 0 } else { place + 1 }
    }
}
