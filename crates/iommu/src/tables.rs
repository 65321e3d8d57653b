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

    pub fn allocate(&mut self, frames: u64) -> Result<u64, Error> {
        let pa = self.mem.allocate(frames).ok_or(Error::OutOfMemory { frames })?;
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

    fn write_back(&mut self, pa: u64, bytes: u64) {
        if !self.coherent {
            self.mem.write_back(pa, bytes);
        }
    }
}
