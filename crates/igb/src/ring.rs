//! The descriptors of a queue (datasheet, 7.1.5 and 7.2.2), each with a buffer of its own.
//!
//! Guarantees: a descriptor leads to its own buffer, in the queue's memory, whatever was written
//! back to it. What was written back is read once, as one word.

use window::{Outside, Span};

/// Descriptors of a queue. One of them is never the controller's, to tell full from empty.
pub const ENTRIES: u32 = 256;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Bytes of all of them.
pub const RING_BYTES: u64 = ENTRIES as u64 * DESCRIPTOR;
/// Bytes of a buffer.
pub const BUFFER: u64 = 2048;
/// Bytes of a ring and its buffers.
pub const BYTES: u64 = RING_BYTES + ENTRIES as u64 * BUFFER;

/// In what is written back: the descriptor is done (DD), in receive descriptors.
const RECEIVED: u64 = 1;
/// The frame ends here (EOP).
const END: u64 = 1 << 1;
/// It arrived damaged (RXE).
const DAMAGED: u64 = 1 << 31;
/// Where its length is.
const LENGTH: u32 = 32;
/// The descriptor is done (DD), in transmit descriptors.
const SENT: u64 = 1 << 32;

/// A queue's memory.
#[derive(Debug)]
pub struct Ring {
    ring: Span,
    buffers: Span,
}

/// What was written back for a buffer of the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The bytes that it says there are.
    pub bytes: u32,
    /// The frame ends here.
    pub end: bool,
    /// It is whole.
    pub good: bool,
}

/// The entry behind this one.
pub fn after(entry: u32) -> u32 {
    (entry + 1) % ENTRIES
}

impl Ring {
    /// In [`BYTES`] bytes.
    pub fn new(memory: &Span) -> Option<Self> {
        let ring = memory.sub(0, RING_BYTES)?;
        Some(Ring { ring, buffers: memory.sub(RING_BYTES, ENTRIES as u64 * BUFFER)? })
    }

    /// Where the controller finds it.
    pub fn dma(&self) -> u64 {
        self.ring.dma()
    }

    /// Its bytes.
    pub fn bytes(&self) -> u32 {
        self.ring.len() as u32
    }

    /// An entry's buffer.
    pub fn buffer(&self, entry: u32) -> Result<Span, Outside> {
        self.buffers.sub(u64::from(entry) * BUFFER, BUFFER).ok_or(Outside)
    }

    /// Puts these two words into an entry. The tail is written later, and orders these stores.
    pub fn set(&self, entry: u32, [first, second]: [u64; 2]) -> Result<(), Outside> {
        let at = u64::from(entry) * DESCRIPTOR;
        self.ring.store_u64(at, first)?;
        self.ring.store_u64(at + 8, second)
    }

    /// Has an entry lead to its buffer again: for a frame to be received, or with what is to be
    /// done with it.
    pub fn offer(&self, entry: u32, what: u64) -> Result<(), Outside> {
        self.set(entry, [self.buffer(entry)?.dma(), what])
    }

    fn written_back(&self, entry: u32) -> Result<u64, Outside> {
        self.ring.load_u64_acquire(u64::from(entry) * DESCRIPTOR + 8)
    }

    /// What arrived in the entry's buffer, if anything.
    pub fn arrived(&self, entry: u32) -> Option<Arrived> {
        let word = self.written_back(entry).ok().filter(|word| word & RECEIVED != 0)?;
        let bytes = u32::from((word >> LENGTH) as u16);
        Some(Arrived { bytes, end: word & END != 0, good: word & DAMAGED == 0 })
    }

    /// Was the entry's frame sent?
    pub fn is_sent(&self, entry: u32) -> bool {
        self.written_back(entry).is_ok_and(|word| word & SENT != 0)
    }
}
