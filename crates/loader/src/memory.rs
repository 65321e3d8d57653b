//! The guest's RAM below 4 GiB and what has been put there. Every piece of a plan
//! is claimed here, so that a plan can neither leave RAM nor overlap itself.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Blob, Error, GuestMachine, MAX_REGIONS, RegionKind};

/// Entry points are 32-bit, or use page tables that map this much.
pub const LIMIT: u64 = 1 << 32;
/// Tables and initrd stay off page 0: kernels keep it for the real-mode vectors, and
/// take an address of 0 for none.
pub const LOWEST: u64 = 0x1000;
const PAGE: u64 = 0x1000;

pub struct Memory {
    /// Sorted, disjoint, not adjacent.
    ram: Vec<Range<u64>>,
    /// Sorted by start. Reserved regions may overlap one another.
    taken: Vec<(Range<u64>, &'static str)>,
}

impl Memory {
    pub fn new(machine: &GuestMachine) -> Result<Self, Error> {
        if machine.regions.len() > MAX_REGIONS {
            return Err(Error::TooManyRegions(machine.regions.len()));
        }
        let mut ram: Vec<Range<u64>> = Vec::new();
        let mut taken = Vec::new();
        let mut regions = machine.regions.to_vec();
        sort::by_key(&mut regions, |region| region.start);
        for region in regions {
            let end = region.start.saturating_add(region.len).min(LIMIT);
            if region.start >= end {
                continue;
            }
            match (region.kind, ram.last_mut()) {
                (RegionKind::Ram, Some(last)) if region.start <= last.end => {
                    last.end = last.end.max(end);
                }
                (RegionKind::Ram, _) => ram.push(region.start..end),
                _ => taken.push((region.start..end, "memory the map reserves")),
            }
        }
        Ok(Self { ram, taken })
    }

    /// Takes exactly `start..start + size`.
    pub fn claim(&mut self, start: u64, size: u64, what: &'static str) -> Result<(), Error> {
        let end = start.saturating_add(size);
        if end > LIMIT {
            return Err(Error::NoAddress { what, start, end });
        }
        let top = self.ram.last().map_or(0, |last| last.end);
        if end > top {
            return Err(Error::TooLittleRam { what, start, end, top });
        }
        if !self.ram.iter().any(|ram| ram.start <= start && end <= ram.end) {
            return Err(Error::NotRam { what, start, end });
        }
        if let Some((range, other)) =
            self.taken.iter().find(|(range, _)| range.start < end && start < range.end)
        {
            let (other_start, other_end) = (range.start, range.end);
            return Err(Error::Overlap { what, start, end, other, other_start, other_end });
        }
        let position = self.taken.partition_point(|(range, _)| range.start < start);
        self.taken.insert(position, (start..end, what));
        Ok(())
    }

    /// Takes the lowest free piece in `within`, aligned to the power of two `align`.
    pub fn lowest(
        &mut self,
        size: u64,
        align: u64,
        within: Range<u64>,
        what: &'static str,
    ) -> Result<u64, Error> {
        let gaps = self.gaps(&within);
        let fit = |gap: &Range<u64>| {
            let at = gap.start.checked_next_multiple_of(align)?;
            (at.checked_add(size)? <= gap.end).then_some(at)
        };
        self.take(gaps.iter().find_map(fit), size, &gaps, within, what)
    }

    /// Takes the highest free pages in `within`.
    pub fn highest(
        &mut self,
        size: u64,
        within: Range<u64>,
        what: &'static str,
    ) -> Result<u64, Error> {
        let gaps = self.gaps(&within);
        let fit = |gap: &Range<u64>| {
            let at = gap.end.checked_sub(size)? & !(PAGE - 1);
            (at >= gap.start).then_some(at)
        };
        self.take(gaps.iter().rev().find_map(fit), size, &gaps, within, what)
    }

    /// Puts a generated table in the lowest free pages.
    pub fn blob(&mut self, bytes: Vec<u8>, what: &'static str) -> Result<Blob, Error> {
        let at = self.lowest(bytes.len() as u64, PAGE, LOWEST..LIMIT, what)?;
        Ok(Blob { at, bytes })
    }

    /// Bytes of RAM from `start` up to the first that is none, taken or not.
    pub fn contiguous(&self, start: u64) -> u64 {
        let Some(ram) = self.ram.iter().find(|ram| ram.contains(&start)) else { return 0 };
        ram.end - start
    }

    fn take(
        &mut self,
        at: Option<u64>,
        size: u64,
        gaps: &[Range<u64>],
        within: Range<u64>,
        what: &'static str,
    ) -> Result<u64, Error> {
        let Some(at) = at else {
            let Range { start, end } = within;
            let largest = gaps.iter().map(|gap| gap.end - gap.start).max().unwrap_or(0);
            // More RAM makes the piece at its end grow.
            let top = self.ram.last().map_or(0, |last| last.end);
            let grows = gaps.last().filter(|gap| gap.end == top).map_or(top, |gap| gap.start);
            let needed = grows.next_multiple_of(PAGE).saturating_add(size);
            return Err(if top < needed && needed <= end {
                Error::NoRoomYet { what, size, largest, needed }
            } else {
                Error::NoRoom { what, size, start, end, largest }
            });
        };
        self.claim(at, size, what)?;
        Ok(at)
    }

    /// The free pieces in `within`, sorted.
    fn gaps(&self, within: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        for ram in &self.ram {
            let mut start = ram.start.max(within.start);
            let end = ram.end.min(within.end);
            for (taken, _) in &self.taken {
                if taken.start >= end {
                    break;
                }
                if taken.start > start {
                    gaps.push(start..taken.start);
                }
                start = start.max(taken.end);
            }
            if start < end {
                gaps.push(start..end);
            }
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRegion;

    /// More RAM at its end is asked for only where it would do.
    #[test]
    fn room_is_promised_only_by_more_ram() {
        const MIB: u64 = 1 << 20;
        let ram = |len| MemoryRegion { start: MIB, len, kind: RegionKind::Ram };
        let lowest = |len, within| {
            let regions = [ram(len)];
            let mut memory = Memory::new(&GuestMachine { regions: &regions, rsdp: 0 }).unwrap();
            memory.lowest(2 * MIB, 2 * MIB, within, "it").unwrap_err()
        };
        let error = lowest(MIB, LOWEST..LIMIT);
        assert!(matches!(error, Error::NoRoomYet { needed, .. } if needed == 3 * MIB), "{error}");
        // As much as is needed is there: it is the alignment that has no room.
        let error = lowest(2 * MIB, LOWEST..LIMIT);
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
        // Nor does more help where it may not be.
        let error = lowest(MIB, LOWEST..3 * MIB - 1);
        assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    }
}
