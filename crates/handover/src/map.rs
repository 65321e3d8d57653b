//! The machine's memory as its firmware tells it: sorted, disjoint, and merged.
//!
//! Guarantees: ranges ascend and don't overlap, and no two that touch are of one kind; of the
//! kinds that a byte was given, it has the worst. The limit [`MAX_RANGES`] holds for what is
//! left after merging, not for what the firmware lists.

use crate::Error;
use arrayvec::ArrayVec;
use core::ops::Range;

/// The most ranges that are kept. Firmware lists up to some hundreds, a tenth of which are left.
pub const MAX_RANGES: usize = 256;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// What is below belongs to the firmware, but for one page in which the other cores start.
pub const LOW_MEMORY: u64 = 1 << 20;

/// The first page, with the interrupt vectors of real mode and the BIOS data area.
const FIRST_PAGE_END: u64 = PAGE;
/// Some firmware writes below this while it suspends or resets; the page in which cores start is
/// taken from above, if there is one.
const AVOIDED: u64 = 64 << 10;

/// What memory may be used for, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Anything.
    Usable,
    /// As usable, but the hypervisor or its boot image lies there.
    Loaded,
    /// Reading the firmware's tables in it; some of it is the firmware's own (ACPI NVS).
    Acpi,
    /// Nothing but calls of the firmware's runtime services, whose code and data it is.
    Runtime,
    /// Nothing; it may be memory, registers, or broken.
    Reserved,
}

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// What it may be used for.
    pub kind: MemoryKind,
}

/// The ranges that the firmware lists, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMap {
    ranges: ArrayVec<MemoryRange, MAX_RANGES>,
}

impl MemoryMap {
    /// Nothing.
    pub fn new() -> Self {
        MemoryMap::default()
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[MemoryRange] {
        &self.ranges
    }

    /// Adds a range; where there is one already, the worse kind is believed. An error leaves the
    /// map as it was.
    pub fn add(&mut self, start: u64, end: u64, kind: MemoryKind) -> Result<(), Error> {
        if self.ranges.last().is_none_or(|last| last.end <= start) {
            return self.push(start, end, kind);
        }
        let mut map = MemoryMap::new();
        // What of the new range is placed yet ends here.
        let mut at = start;
        for old in &self.ranges {
            map.push(at, old.start.min(end), kind)?;
            at = at.max(old.start.min(end));
            let (both, both_end) = (old.start.max(start), old.end.min(end));
            if both < both_end {
                map.push(old.start, both, old.kind)?;
                map.push(both, both_end, old.kind.max(kind))?;
                map.push(both_end, old.end, old.kind)?;
                at = both_end;
            } else {
                map.push(old.start, old.end, old.kind)?;
            }
        }
        map.push(at, end, kind)?;
        *self = map;
        Ok(())
    }

    /// Makes of the bytes of `start..end` that are of one kind another one; how many that was. An
    /// error leaves the map as it was.
    pub(crate) fn turn(
        &mut self,
        Range { start, end }: Range<u64>,
        from: MemoryKind,
        to: MemoryKind,
    ) -> Result<u64, Error> {
        let mut map = MemoryMap::new();
        let mut turned = 0;
        for old in &self.ranges {
            let (at, until) = (old.start.max(start), old.end.min(end));
            if old.kind == from && at < until {
                map.push(old.start, at, from)?;
                map.push(at, until, to)?;
                map.push(until, old.end, from)?;
                turned += until - at;
            } else {
                map.push(old.start, old.end, old.kind)?;
            }
        }
        *self = map;
        Ok(turned)
    }

    /// Adds `length` bytes from `start`. Usable memory beyond the last address is a lie and left
    /// out; what is worse is taken up to there.
    pub fn add_bytes(&mut self, start: u64, length: u64, kind: MemoryKind) -> Result<(), Error> {
        match start.checked_add(length) {
            Some(end) => self.add(start, end, kind),
            None if kind == MemoryKind::Usable => Ok(()),
            None => self.add(start, u64::MAX, kind),
        }
    }

    /// Appends a range that begins where the last one ends, or later; empty ones vanish.
    fn push(&mut self, start: u64, end: u64, kind: MemoryKind) -> Result<(), Error> {
        if start >= end {
            return Ok(());
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == start && last.kind == kind => last.end = end,
            _ => {
                let range = MemoryRange { start, end, kind };
                self.ranges.try_push(range).map_err(|_| Error::TooManyRanges)?;
            }
        }
        Ok(())
    }

    /// The whole pages of that kind, as (first byte, byte after the last), ascending and apart.
    pub fn pages(&self, kind: MemoryKind) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().filter(move |range| range.kind == kind).filter_map(|range| {
            let start = range.start.checked_next_multiple_of(PAGE)?;
            let end = range.end & !(PAGE - 1);
            (start < end).then_some((start, end))
        })
    }

    /// The whole pages above [`LOW_MEMORY`] that may be used for anything.
    pub fn free_pages(&self) -> impl Iterator<Item = (u64, u64)> {
        let above = |(start, end): (u64, u64)| (start.max(LOW_MEMORY), end);
        self.pages(MemoryKind::Usable).map(above).filter(|(start, end)| start < end)
    }

    /// The usable page below [`LOW_MEMORY`] in which the other cores start, in real mode.
    pub fn startup_page(&self) -> Option<u64> {
        let below = |(start, end): (u64, u64)| {
            let start = start.max(FIRST_PAGE_END);
            (start < end.min(LOW_MEMORY)).then_some((start, end.min(LOW_MEMORY)))
        };
        let low = || self.pages(MemoryKind::Usable).filter_map(below);
        let liked = low().find(|(_, end)| *end > AVOIDED).map(|(start, _)| start.max(AVOIDED));
        liked.or_else(|| low().next().map(|(start, _)| start))
    }

    /// Whether there is memory among these addresses, as far as the map says; what is reserved may
    /// be registers.
    pub fn has_memory(&self, addresses: &Range<u64>) -> bool {
        let memory = |range: &MemoryRange| range.kind != MemoryKind::Reserved;
        let touches = |r: &MemoryRange| r.start.max(addresses.start) < r.end.min(addresses.end);
        self.ranges.iter().any(|range| memory(range) && touches(range))
    }

    /// Whether the map lists every byte of `start..end`, and each as one that `allowed` accepts.
    pub fn covers(&self, start: u64, end: u64, allowed: impl Fn(MemoryKind) -> bool) -> bool {
        let reaches = self.ranges.iter().fold(start, |at, range| {
            if range.start <= at && at < range.end && allowed(range.kind) { range.end } else { at }
        });
        start <= end && reaches >= end
    }
}
