//! A disk's ring, as light as one can be: every request's descriptors are written once, and go
//! round.
//!
//! Up to [`DIRECT`] requests have chains of three descriptors, more have an indirect table each.
//! Each request is of [`BLOCK`] bytes.

use crate::line::{AVAILABLE, DESCRIPTORS, ELEMENTS, INDEX, Line, RING, USED, USED_ELEMENT};
use anyhow::{Context as _, Result, bail};
use std::time::Duration;
use window::Span;

/// The most requests at a time.
pub const MOST: u16 = 128;
/// The most that have chains in the ring itself.
pub const DIRECT: u16 = ELEMENTS / 3;
/// Bytes of a request's data.
pub const BLOCK: u64 = 4096;

/// What is where behind the ring, in bytes.
/// A header, and the status behind it, in a line of the cache.
pub const HEADERS: u64 = 0x4000;
pub const LINE: u64 = 64;
pub const STATUS: u64 = 16;
const TABLES: u64 = 0x8000;
pub const DATA: u64 = 0x1_0000;
/// All of it.
pub const BYTES: u64 = DATA + MOST as u64 * BLOCK;

/// Flags of descriptors.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A ring and what its requests ask for.
pub struct Ring {
    memory: Span,
    line: Line,
    /// Descriptors of a request in the ring.
    each: u32,
    depth: u16,
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
            line: Line::new(memory, event_index),
            each: if indirect { 1 } else { 3 },
            depth,
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
            ring.line.describe(table, line, 16, NEXT, first + 1)?;
            ring.line.describe(
                table + 16,
                DATA + slot * BLOCK,
                BLOCK as u32,
                data_flags,
                first + 2,
            )?;
            ring.line.describe(table + 32, line + STATUS, 1, WRITE, 0)?;
            if indirect {
                ring.line.describe(DESCRIPTORS + slot * 16, table, 48, INDIRECT, 0)?;
            }
            ring.memory.store_u32(line, u32::from(write))?;
        }
        Ok(ring)
    }

    /// Makes all requests available.
    pub fn begin(&mut self, now: u64) -> Result<Pass> {
        for slot in 0..self.depth {
            self.offer(slot, now)?;
        }
        Ok(Pass { kick: self.line.publish()?, ..Pass::default() })
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
        self.line.offer(slot * self.each as u16)?;
        if let Some(sent) = self.sent.get_mut(usize::from(slot)) {
            *sent = now;
        }
        Ok(())
    }

    /// Takes what was answered, and asks again; after a pause, if there is one. `now` is asked for
    /// once if there is anything, and once more behind a pause, and `latency` told of each.
    #[inline]
    pub fn pass(
        &mut self,
        now: impl Fn() -> u64,
        pause: Option<Duration>,
        mut latency: impl FnMut(u64),
    ) -> Result<Pass> {
        let index = self.line.used()?;
        let mut pass = Pass::default();
        let Some(mut next) = self.line.next(index)? else { return Ok(pass) };
        let came = now();
        let again = pause.map_or(came, |pause| {
            std::thread::sleep(pause);
            now()
        });
        loop {
            let slot = next.0 / self.each;
            let sent =
                self.sent.get(slot as usize).context("the device answered what wasn't asked")?;
            latency(came.saturating_sub(*sent));
            let status = self.memory.load_u32(HEADERS + u64::from(slot) * LINE + STATUS)?;
            pass.failed += u32::from(status & 0xff != 0);
            pass.answered += 1;
            self.offer(slot as u16, again)?;
            match self.line.next(index)? {
                Some(more) => next = more,
                None => break,
            }
        }
        pass.kick = self.line.publish()?;
        Ok(pass)
    }

    /// Calls are wanted from now on, or not. Whether something was answered meanwhile.
    pub fn want_calls(&self, wanted: bool) -> Result<bool> {
        self.line.want_calls(wanted)
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
