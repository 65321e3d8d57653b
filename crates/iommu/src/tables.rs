//! Memory the unit reads: written back by hand where it doesn't snoop the CPU's caches.

use crate::{Error, Memory};

/// The memory of one unit's tables.
pub struct Tables<M> {
    mem: M,
    coherent: bool,
}

impl<M: Memory> Tables<M> {
    pub fn new(mem: M, coherent: bool) -> Self {
        Tables { mem, coherent }
    }

    /// From now on, it snoops, or doesn't.
    pub fn set_coherent(&mut self, coherent: bool) {
        self.coherent = coherent;
    }

    /// Whether it snoops.
    pub fn coherent(&self) -> bool {
        self.coherent
    }

    pub fn allocate(&mut self, frames: u64) -> Result<u64, Error> {
        let pa = self.mem.allocate(frames).ok_or(Error::OutOfMemory { frames })?;
        self.write_back(pa, frames * 0x1000);
        Ok(pa)
    }

    /// Frames in a row full of one entry of so many words, which divides a frame's.
    pub fn allocate_filled(&mut self, frames: u64, entry: &[u64]) -> Result<u64, Error> {
        let pa = self.mem.allocate(frames).ok_or(Error::OutOfMemory { frames })?;
        let words = (pa..pa + frames * 0x1000).step_by(8);
        for (at, word) in words.zip(entry.iter().cycle()) {
            // The frames are zero.
            if *word != 0 {
                self.mem.write64(at, *word);
            }
        }
        self.write_back(pa, frames * 0x1000);
        Ok(pa)
    }

    pub fn read(&mut self, pa: u64) -> u64 {
        self.mem.read64(pa)
    }

    pub fn write(&mut self, pa: u64, value: u64) {
        self.mem.write64(pa, value);
        self.write_back(pa, 8);
    }

    /// Two words, low and high; nobody writes them meanwhile.
    pub fn read_pair(&mut self, pa: u64) -> (u64, u64) {
        (self.mem.read64(pa), self.mem.read64(pa + 8))
    }

    /// Two words by one store, low and high.
    pub fn write_pair(&mut self, pa: u64, (low, high): (u64, u64)) {
        self.mem.write128(pa, low, high);
        self.write_back(pa, 16);
    }

    fn write_back(&mut self, pa: u64, bytes: u64) {
        if !self.coherent {
            self.mem.write_back(pa, bytes);
        }
    }
}
