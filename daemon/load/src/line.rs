//! The driver's side of a split ring of [`ELEMENTS`], whose descriptors are written once.

use anyhow::Result;
use std::sync::atomic::{Ordering, fence};
use window::Span;

/// Elements of a ring.
pub const ELEMENTS: u16 = 256;
/// What is where, in bytes from the ring's start, and all of it.
pub const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
pub const LINE_BYTES: u64 = 0x3000;

/// In both rings: the index, what follows it; an element of the used ring.
pub const INDEX: u64 = 2;
pub const RING: u64 = 4;
pub const USED_ELEMENT: u64 = 8;
/// The driver's event index is behind the available ring, the device's behind the used ring.
const USED_EVENT: u64 = AVAILABLE + RING + 2 * ELEMENTS as u64;
const AVAILABLE_EVENT: u64 = USED + RING + USED_ELEMENT * ELEMENTS as u64;

/// A ring, at its start in this memory.
pub struct Line {
    memory: Span,
    event_index: bool,
    available: u16,
    published: u16,
    used: u16,
}

impl Line {
    pub fn new(memory: Span, event_index: bool) -> Line {
        Line { memory, event_index, available: 0, published: 0, used: 0 }
    }

    /// Writes a descriptor, at this offset.
    pub fn describe(&self, at: u64, address: u64, len: u32, flags: u16, next: u16) -> Result<()> {
        let last = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.store_u64(at, address)?;
        self.memory.store_u64(at + 8, last)?;
        Ok(())
    }

    /// Makes the chain with this head available, once it is published.
    #[inline]
    pub fn offer(&mut self, head: u16) -> Result<()> {
        let place = u64::from(self.available % ELEMENTS);
        self.memory.store_u16(AVAILABLE + RING + 2 * place, head)?;
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    /// Publishes what is available. Whether the device wants to be told.
    #[inline]
    pub fn publish(&mut self) -> Result<bool> {
        let old = std::mem::replace(&mut self.published, self.available);
        self.memory.store_u16_release(AVAILABLE + INDEX, self.available)?;
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = self.memory.load_u16(AVAILABLE_EVENT)?;
            let behind = self.available.wrapping_sub(event).wrapping_sub(1);
            return Ok(behind < self.available.wrapping_sub(old));
        }
        Ok(self.memory.load_u16(USED)? & 1 == 0)
    }

    /// Up to where the device has used the ring, for [`Self::next`].
    #[inline]
    pub fn used(&self) -> Result<u16> {
        Ok(self.memory.load_u16_acquire(USED + INDEX)?)
    }

    /// The head of the next chain that was used, and the bytes that were written, up to this index.
    #[inline]
    pub fn next(&mut self, index: u16) -> Result<Option<(u32, u32)>> {
        if self.used == index {
            return Ok(None);
        }
        let at = USED + RING + USED_ELEMENT * u64::from(self.used % ELEMENTS);
        self.used = self.used.wrapping_add(1);
        Ok(Some((self.memory.load_u32(at)?, self.memory.load_u32(at + 4)?)))
    }

    /// Calls are wanted from now on, or not. Whether something was used meanwhile.
    pub fn want_calls(&self, wanted: bool) -> Result<bool> {
        self.memory.store_u16(AVAILABLE, u16::from(!wanted))?;
        // One behind what was taken comes last of all.
        let event = if wanted { self.used } else { self.used.wrapping_sub(1) };
        self.memory.store_u16(USED_EVENT, event)?;
        fence(Ordering::SeqCst);
        Ok(self.used()? != self.used)
    }
}
