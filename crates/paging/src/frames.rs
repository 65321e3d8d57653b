//! A list of frames that holds no memory of its own: each frame's first word names the next.
//!
//! Frames wait here before they are linked into a table and after they are unlinked from one. The
//! word is an aligned address, which no format takes for a present entry, so even hardware that
//! still walks an unlinked frame finds it empty.

use crate::{Error, Memory};

/// Frames that belong to a table or a flush but are linked nowhere. Dropping it leaks them.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: u64,
    count: u64,
}

impl Frames {
    /// Allocates `count` frames, or none.
    pub fn reserve<M: Memory>(mem: &mut M, count: u64, bits: u32) -> Result<Self, Error> {
        let mut frames = Self::default();
        for _ in 0..count {
            let error = match mem.allocate() {
                Some(frame) if frame & 0xFFF == 0 && frame >> bits == 0 => {
                    frames.push(mem, frame);
                    continue;
                }
                Some(frame) => {
                    mem.free(frame);
                    Error::BadFrame { frame }
                }
                None => Error::NoFrame { needed: count },
            };
            frames.free(mem);
            return Err(error);
        }
        Ok(frames)
    }

    /// Adds a frame.
    pub fn push<M: Memory>(&mut self, mem: &mut M, frame: u64) {
        mem.write(frame, self.head);
        self.head = frame;
        self.count += 1;
    }

    /// Removes a frame, zeroed if it was so but for its first word.
    pub fn take<M: Memory>(&mut self, mem: &mut M) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        let frame = self.head;
        self.head = mem.read(frame);
        mem.write(frame, 0);
        Some(frame)
    }

    /// Gives all frames back.
    pub fn free<M: Memory>(mut self, mem: &mut M) {
        while let Some(frame) = self.take(mem) {
            mem.free(frame);
        }
    }

    /// How many frames are in the list.
    pub fn count(&self) -> u64 {
        self.count
    }
}
