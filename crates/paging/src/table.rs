//! [`Table`]: a multi-level page table of any [`Format`].
//!
//! Guarantees:
//! - A call that fails has changed nothing: all frames a change needs are allocated before its
//!   first write.
//! - No table but the root is ever empty, so a table uses no more frames than its mappings need:
//!   unless [`Table::vacate`] leaves some, until [`Table::prune`].
//! - Hardware that walks the table during a call sees each page as it was or as it will be: a table
//!   is complete before the one write that links it.
//!
//! Does not guarantee coalescing: pages that were split stay split until they are unmapped.

pub mod audit;
mod removal;

use crate::flush::Flush;
use crate::format::{Access, Entry, Format};
use crate::frames::Frames;
use crate::{Error, Memory};

/// The largest page a table may use: what the hardware has and its user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Size4K,
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl PageSize {
    /// The level whose entries map pages of this size.
    fn level(self) -> u32 {
        match self {
            Self::Size4K => 1,
            Self::Size2M => 2,
            Self::Size1G => 3,
        }
    }
}

/// What an address maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The physical address of the very address that was asked for, its offset in the page
    /// included.
    pub pa: u64,
    /// What the hardware allows, in so far as the format can tell.
    pub access: Access,
    /// Size in bytes of the page that maps it.
    pub size: u64,
}

const PAGE: u64 = 0x1000;

/// log2 of the bytes an entry at `level` covers.
const fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

/// Bytes an entry at `level` covers.
const fn size(level: u32) -> u64 {
    1 << shift(level)
}

/// Address of the entry for `input` in the table at `frame`.
pub(crate) const fn entry_address(frame: u64, level: u32, input: u64) -> u64 {
    frame | (input >> shift(level) & 0x1FF) << 3
}

/// Input addresses, stripped of their sign extension: `last` is below 2^57.
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    last: u64,
}

/// Where a walk ended.
struct Slot {
    level: u32,
    address: u64,
    entry: Entry,
}

/// A page to map: `level` says how large.
#[derive(Clone, Copy)]
struct Page {
    input: u64,
    pa: u64,
    level: u32,
}

/// A page table with its root. It must end in [`Table::release`]: dropping it leaks its frames.
#[derive(Debug)]
pub struct Table<F: Format> {
    format: F,
    root: u64,
    /// Highest level that may hold leaves.
    largest: u32,
    frames: u64,
}

impl<F: Format> Table<F> {
    /// An empty table that uses pages up to `largest`.
    pub fn new<M: Memory>(mem: &mut M, format: F, largest: PageSize) -> Result<Self, Error> {
        let levels = format.levels();
        if !(1..=5).contains(&levels) {
            return Err(Error::Levels { levels });
        }
        let mut spare = Frames::reserve(mem, 1, F::PHYSICAL_BITS)?;
        let root = spare.take(mem).ok_or(Error::NoFrame { needed: 1 })?;
        Ok(Self { format, root, largest: largest.level().min(levels), frames: 1 })
    }

    /// Physical address of the root table.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The format, for what else depends on it (the number of levels, say).
    pub fn format(&self) -> &F {
        &self.format
    }

    /// Number of table frames in use, the root included.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Maps `len` bytes at `va` to the memory at `pa`, with the largest pages that fit.
    ///
    /// Refuses what is misaligned, out of range, or overlaps a mapping, or, for a large page, a
    /// table that [`Table::vacate`] left. Takes time in proportion to the number of pages.
    pub fn map<M: Memory>(
        &mut self,
        mem: &mut M,
        va: u64,
        pa: u64,
        len: u64,
        access: Access,
    ) -> Result<(), Error> {
        let range = self.range(va, len)?;
        self.check_target(pa, len, access)?;

        let mut needed = 0;
        let mut previous: Option<u64> = None;
        // Of a single page, where it goes.
        let mut only = None;
        for page in self.pages(range, pa) {
            let slot = self.find(mem, page.input, page.level);
            if slot.entry != Entry::Empty {
                return Err(Error::Overlap { va: self.va(page.input), size: size(page.level) });
            }
            // A table at level - 1 is missing, and the page before didn't need the same one.
            needed += (page.level + 1..=slot.level)
                .filter(|&l| previous.is_none_or(|p| p >> shift(l) != page.input >> shift(l)))
                .count() as u64;
            only = previous.is_none().then_some(slot);
            previous = Some(page.input);
        }

        let mut spare = Frames::reserve(mem, needed, F::PHYSICAL_BITS)?;
        for page in self.pages(range, pa) {
            let slot = only.take().unwrap_or_else(|| self.find(mem, page.input, page.level));
            self.place(mem, &mut spare, &slot, page, access)?;
        }
        self.frames += needed;
        Ok(())
    }

    /// Maps the 4 KiB page at `va` to `pa`, whatever was there, and says what that was.
    ///
    /// One write changes the translation. A large page is split around the page; calling `replace`
    /// with the mapping returned restores the translation, though not the large page.
    pub fn replace<M: Memory>(
        &mut self,
        mem: &mut M,
        va: u64,
        pa: u64,
        access: Access,
    ) -> Result<(Option<Mapping>, Flush), Error> {
        let Range { start: input, .. } = self.range(va, PAGE)?;
        self.check_target(pa, PAGE, access)?;
        let slot = self.find(mem, input, 1);
        let needed = u64::from(slot.level - 1);
        let mut spare = Frames::reserve(mem, needed, F::PHYSICAL_BITS)?;
        self.place(mem, &mut spare, &slot, Page { input, pa, level: 1 }, access)?;
        self.frames += needed;

        let mut flush = Flush::default();
        let old = Self::mapping(&slot, input);
        if old.is_some() {
            self.touch(&mut flush, input, slot.level);
        }
        Ok((old, flush))
    }

    /// What `va` maps to.
    pub fn lookup<M: Memory>(&self, mem: &M, va: u64) -> Option<Mapping> {
        let input = self.input(va)?;
        Self::mapping(&self.find(mem, input, 1), input)
    }

    /// Frees all table frames. No hardware may use the table, nor hold anything cached from it.
    pub fn release<M: Memory>(self, mem: &mut M) {
        self.free(mem, self.root, self.format.levels());
    }

    fn free<M: Memory>(&self, mem: &mut M, frame: u64, level: u32) {
        if level > 1 {
            for index in 0..512 {
                if let Entry::Table(next) = self.format.decode(level, mem.read(frame | index << 3))
                {
                    self.free(mem, next, level - 1);
                }
            }
        }
        mem.free(frame);
    }

    /// Width of the addresses translated.
    fn bits(&self) -> u32 {
        shift(self.format.levels()) + 9
    }

    /// `va` without its sign extension, if it is an address at all.
    fn input(&self, va: u64) -> Option<u64> {
        let input = va & ((1 << self.bits()) - 1);
        (self.va(input) == va).then_some(input)
    }

    /// The address whose significant bits are `input`.
    fn va(&self, input: u64) -> u64 {
        let unused = 64 - self.bits();
        if F::SIGNED { ((input << unused) as i64 >> unused) as u64 } else { input }
    }

    fn range(&self, va: u64, len: u64) -> Result<Range, Error> {
        if (va | len) & (PAGE - 1) != 0 || len == 0 {
            return Err(Error::Misaligned { address: va, len });
        }
        let range = || {
            let start = self.input(va)?;
            let last = self.input(va.checked_add(len - 1)?)?;
            // Not across the hole between the two canonical halves.
            (last.checked_sub(start)? == len - 1).then_some(Range { start, last })
        };
        range().ok_or(Error::OutOfRange { va, len, bits: self.bits() })
    }

    fn check_target(&self, pa: u64, len: u64, access: Access) -> Result<(), Error> {
        if pa & (PAGE - 1) != 0 {
            return Err(Error::Misaligned { address: pa, len });
        }
        if pa.checked_add(len - 1).is_none_or(|last| last >> F::PHYSICAL_BITS != 0) {
            return Err(Error::OutOfMemory { pa, len, bits: F::PHYSICAL_BITS });
        }
        if !self.format.accepts(access) {
            return Err(Error::Access { access });
        }
        Ok(())
    }

    /// The pages, each as large as alignment and rest allow, that map `range` to the memory at
    /// `pa`.
    fn pages(&self, range: Range, pa: u64) -> impl Iterator<Item = Page> + use<F> {
        let largest = self.largest;
        let mut input = range.start;
        core::iter::from_fn(move || {
            let rest = (range.last + 1).checked_sub(input).filter(|&rest| rest != 0)?;
            let pa = pa + (input - range.start);
            let fits = |l: u32| (input | pa) & (size(l) - 1) == 0 && rest >= size(l);
            let level = (2..=largest).rev().find(|&l| fits(l)).unwrap_or(1);
            let page = Page { input, pa, level };
            input += size(level);
            Some(page)
        })
    }

    /// Walks to the entry for `input` at level `stop`, or to where the table ends above it.
    fn find<M: Memory>(&self, mem: &M, input: u64, stop: u32) -> Slot {
        let mut level = self.format.levels();
        let mut frame = self.root;
        loop {
            let address = entry_address(frame, level, input);
            let entry = self.format.decode(level, mem.read(address));
            match entry {
                Entry::Table(next) if level > stop => {
                    frame = next;
                    level -= 1;
                }
                _ => return Slot { level, address, entry },
            }
        }
    }

    fn mapping(slot: &Slot, input: u64) -> Option<Mapping> {
        match slot.entry {
            Entry::Leaf { pa, access } => {
                let size = size(slot.level);
                Some(Mapping { pa: pa | input & (size - 1), access, size })
            }
            _ => None,
        }
    }

    /// Maps `page` under `slot`, which is where the walk to it ends. The tables in between are
    /// built from the lowest up, around the page that `slot` maps if it maps one, and linked last.
    fn place<M: Memory>(
        &self,
        mem: &mut M,
        spare: &mut Frames,
        slot: &Slot,
        page: Page,
        access: Access,
    ) -> Result<(), Error> {
        let mut entry = self.format.leaf(page.level, page.pa, access);
        for level in page.level..slot.level {
            let frame = self.take(mem, spare)?;
            if let Entry::Leaf { pa, access } = slot.entry {
                let within = page.input & (size(slot.level) - 1) & !(size(level + 1) - 1);
                self.fill(mem, frame, level, pa | within, access);
            }
            mem.write(entry_address(frame, level, page.input), entry);
            entry = self.format.table(level + 1, frame);
        }
        mem.write(slot.address, entry);
        Ok(())
    }

    /// A reserved frame. Every call reserves exactly what it takes, so there is always one.
    fn take<M: Memory>(&self, mem: &mut M, spare: &mut Frames) -> Result<u64, Error> {
        spare.take(mem).ok_or(Error::NoFrame { needed: 1 })
    }

    /// Makes the table at `frame` map contiguous memory from `pa` on.
    fn fill<M: Memory>(&self, mem: &mut M, frame: u64, level: u32, pa: u64, access: Access) {
        for index in 0..512 {
            mem.write(
                frame | index << 3,
                self.format.leaf(level, pa + index * size(level), access),
            );
        }
    }
}
