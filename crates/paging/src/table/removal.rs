//! Taking mappings out of a table, and tables that map nothing.
//!
//! Guarantees: what is retired is linked nowhere, and for each table of it an address that it
//! translated is in the [`Flush`]'s range, so that no cache of the hardware's leads there once that
//! is invalidated. [`Table::prune`] looks at each entry of a table once, and at none of an empty
//! table's neighbours.

use super::{Range, Table, shift, size};
use crate::flush::Flush;
use crate::format::{Entry, Format};
use crate::frames::Frames;
use crate::{Error, Memory};

/// What becomes of a table that reaches beyond what is unmapped, and maps nothing any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    Retired,
    Kept,
}

/// An unmapping under way.
struct Removal {
    range: Range,
    emptied: Emptied,
    spare: Frames,
    flush: Flush,
}

impl<F: Format> Table<F> {
    /// Unmaps what is mapped in the `len` bytes at `va`; holes are fine.
    ///
    /// Large pages that stick out are split, which can need up to two frames at either end. Table
    /// frames that become empty are freed by [`Flush::done`].
    pub fn unmap<M: Memory>(&mut self, mem: &mut M, va: u64, len: u64) -> Result<Flush, Error> {
        self.remove(mem, va, len, Emptied::Retired)
    }

    /// As [`Table::unmap`], but a table that reaches beyond the range stays, even if nothing is
    /// mapped in it any more: mapping something there again needs no frame, and nobody looks
    /// through its entries. Until [`Table::prune`] it is in the way of a large page.
    pub fn vacate<M: Memory>(&mut self, mem: &mut M, va: u64, len: u64) -> Result<Flush, Error> {
        self.remove(mem, va, len, Emptied::Kept)
    }

    /// Takes out the tables in which nothing is mapped, of those that reach into the `len` bytes at
    /// `va`. Takes time in proportion to the tables there.
    pub fn prune<M: Memory>(&mut self, mem: &mut M, va: u64, len: u64) -> Result<Flush, Error> {
        let range = self.range(va, len)?;
        let mut flush = Flush::default();
        self.prune_below(mem, (self.root, self.format.levels(), 0), range, &mut flush);
        self.frames -= flush.retired();
        Ok(flush)
    }

    fn remove<M: Memory>(
        &mut self,
        mem: &mut M,
        va: u64,
        len: u64,
        emptied: Emptied,
    ) -> Result<Flush, Error> {
        let range = self.range(va, len)?;
        if emptied == Emptied::Kept
            && let Some(flush) = self.remove_one(mem, range)
        {
            return Ok(flush);
        }
        let needed = self.splits(mem, range);
        let spare = Frames::reserve(mem, needed, F::PHYSICAL_BITS)?;
        let mut removal = Removal { range, emptied, spare, flush: Flush::default() };
        self.clear(mem, (self.root, self.format.levels(), 0), &mut removal)?;
        self.frames = self.frames + needed - removal.flush.retired();
        Ok(removal.flush)
    }

    /// Removes what is mapped in the range if one entry says all of that: a page that the range is,
    /// or the lack of any.
    fn remove_one<M: Memory>(&self, mem: &mut M, range: Range) -> Option<Flush> {
        let slot = self.find(mem, range.start, 1);
        let (first, last) =
            (range.start & !(size(slot.level) - 1), range.start | (size(slot.level) - 1));
        let mut flush = Flush::default();
        match slot.entry {
            Entry::Leaf { .. } if (first, last) == (range.start, range.last) => {
                mem.write(slot.address, 0);
                self.touch(&mut flush, first, slot.level);
                Some(flush)
            }
            Entry::Empty if range.last <= last => Some(flush),
            _ => None,
        }
    }

    /// How many pages must be split so that none sticks out of `range`.
    fn splits<M: Memory>(&self, mem: &M, range: Range) -> u64 {
        let (start, end) = (range.start, range.last + 1);
        let within = |edge: u64, level: u32| edge & (size(level) - 1) != 0;
        // The levels at which `edge` lies inside a page, or inside a part of one yet to be split.
        let cuts = |edge: u64| {
            let slot = self.find(mem, edge, 1);
            let top = if matches!(slot.entry, Entry::Leaf { .. }) { slot.level } else { 1 };
            (2..=top).filter(move |&l| within(edge, l))
        };
        let shared = |l: u32| within(start, l) && start >> shift(l) == end >> shift(l);
        (cuts(start).count() + cuts(end).filter(|&l| !shared(l)).count()) as u64
    }

    /// Removes what the range covers from the `table` (frame, level, first address).
    fn clear<M: Memory>(
        &self,
        mem: &mut M,
        table: (u64, u32, u64),
        removal: &mut Removal,
    ) -> Result<(), Error> {
        let (frame, level, base) = table;
        let range = removal.range;
        let low = range.start.max(base) - base;
        let high = range.last.min(base + (size(level) << 9) - 1) - base;
        for index in low >> shift(level)..=high >> shift(level) {
            let first = base + index * size(level);
            let last = first + (size(level) - 1);
            let covered = range.start <= first && last <= range.last;
            let address = frame | index << 3;
            match self.format.decode(level, mem.read(address)) {
                Entry::Leaf { .. } if covered => {
                    mem.write(address, 0);
                    self.touch(&mut removal.flush, first, level);
                }
                Entry::Leaf { pa, access } if level > 1 => {
                    let next = self.take(mem, &mut removal.spare)?;
                    self.fill(mem, next, level - 1, pa, access);
                    self.clear(mem, (next, level - 1, first), removal)?;
                    mem.write(address, self.format.table(level, next));
                    self.touch(&mut removal.flush, first, level);
                }
                Entry::Table(next) if level > 1 => {
                    self.clear(mem, (next, level - 1, first), removal)?;
                    let looks = removal.emptied == Emptied::Retired;
                    if covered || looks && mem.is_zero(next) {
                        self.retire(mem, (address, next), (first, last), &mut removal.flush);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes out empty tables below the `table` (frame, level, first address). Says whether it is
    /// empty then.
    fn prune_below<M: Memory>(
        &self,
        mem: &mut M,
        (frame, level, base): (u64, u32, u64),
        range: Range,
        flush: &mut Flush,
    ) -> bool {
        if level == 1 {
            return mem.is_zero(frame);
        }
        let mut is_empty = true;
        for index in 0..512 {
            let first = base + index * size(level);
            let last = first + (size(level) - 1);
            let reaches = range.start <= last && first <= range.last;
            let address = frame | index << 3;
            match self.format.decode(level, mem.read(address)) {
                Entry::Empty => {}
                Entry::Table(next)
                    if reaches && self.prune_below(mem, (next, level - 1, first), range, flush) =>
                {
                    self.retire(mem, (address, next), (first, last), flush);
                }
                _ => is_empty = false,
            }
        }
        is_empty
    }

    /// Takes out the empty table at `next`, which translated `first` to `last` and is linked by the
    /// entry at `address`.
    fn retire<M: Memory>(
        &self,
        mem: &mut M,
        (address, next): (u64, u64),
        (first, last): (u64, u64),
        flush: &mut Flush,
    ) {
        mem.write(address, 0);
        flush.retire(mem, next);
        // Nothing was mapped in it lately: an address of it is enough for what leads there.
        if !flush.reaches(self.va(first), self.va(last)) {
            self.touch(flush, first, 1);
        }
    }

    /// Adds the page at `level` that holds `input` to what must be invalidated.
    pub(super) fn touch(&self, flush: &mut Flush, input: u64, level: u32) {
        let first = input & !(size(level) - 1);
        flush.touch(self.va(first), self.va(first | (size(level) - 1)));
    }
}
