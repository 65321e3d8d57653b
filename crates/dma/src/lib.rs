//! Page tables for DMA of either vendor's format, with one copy of the code for all that has them.
//!
//! Guarantees what [`paging::Table`] does. Who changes one has the units forget what they cached of
//! it. Built for size: what maps memory at boot, and what a guest's own IOMMU asks for.
#![no_std]
#![forbid(unsafe_code)]

use core::cell::Cell;
use paging::audit::Outline;
use paging::{Access, Dma, Error, Flush, Memory, PageSize, Table};

/// A table with its root.
#[derive(Debug)]
pub struct DmaTable {
    table: Table<Dma>,
    words: Cell<u64>,
}

/// Words of a frame, which is zeroed when it is taken, and may be looked through as a whole.
const WORDS: u64 = 512;

/// Any memory, and how many of its words were read and written.
struct Any<'a>(&'a mut dyn Memory, &'a Cell<u64>);

impl Memory for Any<'_> {
    fn read(&self, pa: u64) -> u64 {
        self.1.set(self.1.get() + 1);
        self.0.read(pa)
    }

    fn write(&mut self, pa: u64, value: u64) {
        self.1.set(self.1.get() + 1);
        self.0.write(pa, value);
    }

    fn is_zero(&self, frame: u64) -> bool {
        self.1.set(self.1.get() + WORDS);
        self.0.is_zero(frame)
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.0.allocate()?;
        self.1.set(self.1.get() + WORDS);
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        self.0.free(frame);
    }
}

impl DmaTable {
    /// An empty table that uses pages up to `largest`.
    pub fn new(mem: &mut dyn Memory, format: Dma, largest: PageSize) -> Result<Self, Error> {
        let words = Cell::new(0);
        let table = Table::new(&mut Any(mem, &words), format, largest)?;
        Ok(DmaTable { table, words })
    }

    /// Physical address of the root table.
    pub fn root(&self) -> u64 {
        self.table.root()
    }

    /// Its outline.
    pub fn outline(&self) -> Outline<Dma> {
        self.table.outline()
    }

    /// How many words of it were read and written since this was last asked.
    pub fn take_words(&mut self) -> u64 {
        self.words.take()
    }

    /// As [`Table::map`].
    pub fn map(
        &mut self,
        mem: &mut dyn Memory,
        at: u64,
        pa: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Error> {
        self.table.map(&mut Any(mem, &self.words), at, pa, len, access)
    }

    /// As [`Table::vacate`].
    pub fn vacate(&mut self, mem: &mut dyn Memory, at: u64, len: u64) -> Result<Flush, Error> {
        self.table.vacate(&mut Any(mem, &self.words), at, len)
    }

    /// As [`Table::prune`].
    pub fn prune(&mut self, mem: &mut dyn Memory, at: u64, len: u64) -> Result<Flush, Error> {
        self.table.prune(&mut Any(mem, &self.words), at, len)
    }

    /// Where a range leads and how, if all of it is mapped to one run.
    pub fn run(&self, mem: &mut dyn Memory, at: u64, bytes: u64) -> Option<(u64, Access)> {
        let (mem, end) = (Any(mem, &self.words), at.checked_add(bytes)?);
        let first = self.table.lookup(&mem, at)?;
        let mut next = at;
        while next < end {
            let found = self.table.lookup(&mem, next)?;
            if found.access != first.access || found.pa != first.pa.checked_add(next - at)? {
                return None;
            }
            next = (next / found.size + 1).checked_mul(found.size)?;
        }
        Some((first.pa, first.access))
    }

    /// What was unmapped is flushed: as [`Flush::done`].
    pub fn reuse(mem: &mut dyn Memory, duty: Flush) {
        duty.done(&mut Any(mem, &Cell::new(0)));
    }
}
