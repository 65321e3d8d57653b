//! The driver's side of a split ring, as light as one can be: every request's descriptors are
//! written once, and go round.
//!
//! Up to [`DIRECT`] requests have chains of three descriptors, more have an indirect table each.
//! Rings are of [`ELEMENTS`]; each request is of [`BLOCK`] bytes.

use anyhow::{Context as _, Result, bail};
use std::sync::atomic::{Ordering, fence};
use window::Span;

/// Elements of a ring.
pub const ELEMENTS: u16 = 256;
/// The most requests at a time.
pub const MOST: u16 = 128;
/// The most that have chains in the ring itself.
pub const DIRECT: u16 = ELEMENTS / 3;
/// Bytes of a request's data.
pub const BLOCK: u64 = 4096;

/// What is where, in bytes.
pub const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
/// A header, and the status behind it, in a line of the cache.
const HEADERS: u64 = 0x4000;
const LINE: u64 = 64;
const STATUS: u64 = 16;
const TABLES: u64 = 0x8000;
const DATA: u64 = 0x1_0000;
/// All of it.
pub const BYTES: u64 = DATA + MOST as u64 * BLOCK;

/// In both rings: the index, what follows it; an element of the used ring.
const INDEX: u64 = 2;
const RING: u64 = 4;
const USED_ELEMENT: u64 = 8;
/// The driver's event index is behind the available ring, the device's behind the used ring.
const USED_EVENT: u64 = AVAILABLE + RING + 2 * ELEMENTS as u64;
const AVAILABLE_EVENT: u64 = USED + RING + USED_ELEMENT * ELEMENTS as u64;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A ring and what its requests ask for.
pub struct Ring {
    memory: Span,
    event_index: bool,
    /// Descriptors of a request in the ring.
    each: u32,
    depth: u16,
    available: u16,
    used: u16,
    blocks: u64,
    random: u64,
    /// When each request was made available.
    sent: Vec<u64>,
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    /// Requests that were answered.
    pub answered: u32,
    /// Of those, with another status than that all is well.
    pub failed: u32,
    /// The device wants to be told of new ones.
    pub kick: bool,
}

impl Ring {
    /// A ring in this memory with `depth` requests, of a disk of so many blocks.
    pub fn new(
        memory: Span,
        depth: u16,
        write: bool,
        event_index: bool,
        blocks: u64,
        seed: u64,
    ) -> Result<Ring> {
        if depth == 0 || depth > MOST || blocks == 0 || memory.len() < BYTES {
            bail!(
                "there can be 1 to {MOST} requests of {BLOCK} bytes, and not {depth} of {blocks} blocks"
            );
        }
        let indirect = depth > DIRECT;
        let ring = Ring {
            memory,
            event_index,
            each: if indirect { 1 } else { 3 },
            depth,
            available: 0,
            used: 0,
            blocks,
            random: seed | 1,
            sent: vec![0; depth.into()],
        };
        for slot in 0..u64::from(depth) {
            let line = HEADERS + slot * LINE;
            let (table, first) = if indirect {
                (TABLES + slot * LINE, 0)
            } else {
                (DESCRIPTORS + slot * 48, slot as u16 * 3)
            };
            let data_flags = NEXT | if write { 0 } else { WRITE };
            ring.describe(table, line, 16, NEXT, first + 1)?;
            ring.describe(table + 16, DATA + slot * BLOCK, BLOCK as u32, data_flags, first + 2)?;
            ring.describe(table + 32, line + STATUS, 1, WRITE, 0)?;
            if indirect {
                ring.describe(DESCRIPTORS + slot * 16, table, 48, INDIRECT, 0)?;
            }
            ring.memory.store_u32(line, u32::from(write))?;
        }
        Ok(ring)
    }

    fn describe(&self, at: u64, address: u64, len: u32, flags: u16, next: u16) -> Result<()> {
        let last = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.store_u64(at, address)?;
        self.memory.store_u64(at + 8, last)?;
        Ok(())
    }

    /// Makes all requests available.
    pub fn begin(&mut self, now: u64) -> Result<Pass> {
        for slot in 0..self.depth {
            self.offer(slot, now)?;
        }
        Ok(Pass { kick: self.publish(0)?, ..Pass::default() })
    }

    #[inline]
    fn offer(&mut self, slot: u16, now: u64) -> Result<()> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let block = (u128::from(self.random) * u128::from(self.blocks)) >> 64;
        let line = HEADERS + u64::from(slot) * LINE;
        self.memory.store_u64(line + 8, block as u64 * (BLOCK / 512))?;
        self.memory.store_u32(line + STATUS, 0xff)?;
        let place = u64::from(self.available % ELEMENTS);
        let head = slot * self.each as u16;
        self.memory.store_u16(AVAILABLE + RING + 2 * place, head)?;
        self.available = self.available.wrapping_add(1);
        if let Some(sent) = self.sent.get_mut(usize::from(slot)) {
            *sent = now;
        }
        Ok(())
    }

    /// Publishes what is available since `old`. Whether the device wants to be told.
    #[inline]
    fn publish(&self, old: u16) -> Result<bool> {
        self.memory.store_u16_release(AVAILABLE + INDEX, self.available)?;
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = self.memory.load_u16(AVAILABLE_EVENT)?;
            let behind = self.available.wrapping_sub(event).wrapping_sub(1);
            return Ok(behind < self.available.wrapping_sub(old));
        }
        Ok(self.memory.load_u16(USED)? & 1 == 0)
    }

    /// Takes what was answered, and asks again. `now` is asked for once if there is anything, and
    /// `latency` told of each.
    #[inline]
    pub fn pass(
        &mut self,
        now: impl FnOnce() -> u64,
        mut latency: impl FnMut(u64),
    ) -> Result<Pass> {
        let index = self.memory.load_u16_acquire(USED + INDEX)?;
        let mut pass = Pass::default();
        if index == self.used {
            return Ok(pass);
        }
        let (now, old) = (now(), self.available);
        while self.used != index {
            let place = u64::from(self.used % ELEMENTS);
            let id = self.memory.load_u32(USED + RING + USED_ELEMENT * place)?;
            let slot = id / self.each;
            let sent =
                self.sent.get(slot as usize).context("the device answered what wasn't asked")?;
            latency(now.saturating_sub(*sent));
            let status = self.memory.load_u32(HEADERS + u64::from(slot) * LINE + STATUS)?;
            pass.failed += u32::from(status & 0xff != 0);
            pass.answered += 1;
            self.used = self.used.wrapping_add(1);
            self.offer(slot as u16, now)?;
        }
        pass.kick = self.publish(old)?;
        Ok(pass)
    }

    /// Calls are wanted from now on, or not. Whether something was answered meanwhile.
    pub fn want_calls(&self, wanted: bool) -> Result<bool> {
        self.memory.store_u16(AVAILABLE, u16::from(!wanted))?;
        // One behind what was taken comes last of all.
        let event = if wanted { self.used } else { self.used.wrapping_sub(1) };
        self.memory.store_u16(USED_EVENT, event)?;
        fence(Ordering::SeqCst);
        Ok(self.memory.load_u16_acquire(USED + INDEX)? != self.used)
    }
}

/// The least that a device can do: answers whatever is available.
pub struct Echo {
    memory: Span,
    at: u16,
}

impl Echo {
    pub fn new(memory: Span) -> Echo {
        Echo { memory, at: 0 }
    }

    /// Answers all that is there.
    #[inline]
    pub fn pass(&mut self) -> Result<()> {
        let index = self.memory.load_u16_acquire(AVAILABLE + INDEX)?;
        if index == self.at {
            return Ok(());
        }
        while self.at != index {
            let place = u64::from(self.at % ELEMENTS);
            let head = self.memory.load_u16(AVAILABLE + RING + 2 * place)?;
            self.memory.store_u32(USED + RING + USED_ELEMENT * place, head.into())?;
            self.at = self.at.wrapping_add(1);
        }
        self.memory.store_u16_release(USED + INDEX, index)?;
        Ok(())
    }
}
