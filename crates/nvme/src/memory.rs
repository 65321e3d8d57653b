//! The memory that the driver and the controller share: where each part of it is.

use window::Span;

use crate::prp::{LIST, PAGE};
use crate::ring::Ring;
use crate::slots::SLOTS;

/// Entries of the admin queues.
const ADMIN_ENTRIES: u16 = 64;
/// Entries of the I/O queues.
pub const ENTRIES: u16 = SLOTS as u16 + 1;
/// The number of the I/O queues.
pub const IO: u16 = 1;
/// Buffers for data that can't be a command's where it is.
pub const BOUNCES: u64 = 4;
/// Bytes of one: a piece of a request.
pub const BOUNCE: u64 = blk::PIECE_DATA as u64;

/// What a controller needs: from a page's start on.
pub const BYTES: u64 = {
    let (submissions, completions) = Ring::bytes(ENTRIES);
    3 * PAGE + submissions + completions + LISTS + BOUNCES * BOUNCE
};
const LISTS: u64 = ENTRIES as u64 * LIST;

/// The parts.
#[derive(Debug)]
pub struct Shared {
    /// The admin queues.
    pub admin: Ring,
    /// The I/O queues.
    pub io: Ring,
    /// A page for what Identify tells.
    pub data: Span,
    /// A list for each slot.
    lists: Span,
    /// All buffers, one after the other.
    pub bounces: Span,
}

impl Shared {
    /// Out of [`BYTES`] bytes that begin at a page's start. Nothing if they aren't, or don't.
    pub fn new(memory: Span) -> Option<Self> {
        if memory.len() < BYTES || !memory.dma().is_multiple_of(PAGE) {
            return None;
        }
        let mut at = 0;
        let mut next = |bytes: u64| {
            let span = memory.sub(at, bytes);
            at += bytes.next_multiple_of(PAGE);
            span
        };
        let (submissions, completions) = Ring::bytes(ADMIN_ENTRIES);
        let admin = Ring::new(0, ADMIN_ENTRIES, next(submissions)?, next(completions)?);
        let data = next(PAGE)?;
        let (submissions, completions) = Ring::bytes(ENTRIES);
        let io = Ring::new(IO, ENTRIES, next(submissions)?, next(completions)?);
        Some(Self { admin, io, data, lists: next(LISTS)?, bounces: next(BOUNCES * BOUNCE)? })
    }

    /// The list of a slot.
    #[inline]
    pub fn list(&self, slot: u8) -> Option<Span> {
        self.lists.sub(u64::from(slot) * LIST, LIST)
    }
}
