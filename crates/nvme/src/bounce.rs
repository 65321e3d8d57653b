//! Data that is copied, because no command can have it where it is: a buffer for each such
//! operation.
//!
//! A driver that lays out its requests as operating systems do never gets here: the spans then are
//! multiples of 4 and part between blocks.

use alloc::boxed::Box;
use arrayvec::ArrayVec;
use virtqueue::SEGMENTS;
use window::Span;

use crate::memory::{BOUNCE, BOUNCES};

#[derive(Debug)]
struct Buffer {
    memory: Span,
    used: bool,
    /// Where a read's data goes.
    into: ArrayVec<Span, SEGMENTS>,
}

/// All buffers.
#[derive(Debug)]
pub struct Bounces {
    buffers: Box<[Buffer]>,
}

impl Bounces {
    /// In this memory, one after the other.
    pub fn new(memory: Span) -> Self {
        let buffer = |at: u64| {
            let memory = memory.sub(at * BOUNCE, BOUNCE)?;
            Some(Buffer { memory, used: false, into: ArrayVec::new() })
        };
        Self { buffers: (0..BOUNCES).filter_map(buffer).collect() }
    }

    /// A buffer for data that is to be read into these spans, if one is free.
    pub fn for_read(&mut self, into: &[Span], bytes: u64) -> Option<(u8, Span)> {
        let (place, buffer) = self.free()?;
        buffer.into.clear();
        buffer.into.try_extend_from_slice(into).ok()?;
        let memory = buffer.memory.sub(0, bytes)?;
        buffer.used = true;
        Some((place, memory))
    }

    /// A buffer with these spans' data, if one is free.
    pub fn for_write(&mut self, from: &[Span], bytes: u64) -> Option<(u8, Span)> {
        let (place, buffer) = self.free()?;
        buffer.into.clear();
        let mut at = 0;
        for span in from {
            buffer.memory.sub(at, span.len())?.copy_from(span).ok()?;
            at += span.len();
        }
        let memory = buffer.memory.sub(0, bytes)?;
        buffer.used = true;
        Some((place, memory))
    }

    fn free(&mut self) -> Option<(u8, &mut Buffer)> {
        (0u8..).zip(self.buffers.iter_mut()).find(|(_, buffer)| !buffer.used)
    }

    /// Gives a buffer back. `arrived`: what a read was to read is there.
    pub fn done(&mut self, place: u8, arrived: bool) {
        let Some(buffer) = self.buffers.get_mut(usize::from(place)) else { return };
        buffer.used = false;
        let mut at = 0;
        for span in buffer.into.iter().filter(|_| arrived) {
            if let Some(part) = buffer.memory.sub(at, span.len()) {
                // As long as each other.
                let _ = span.copy_from(&part);
            }
            at += span.len();
        }
    }
}
