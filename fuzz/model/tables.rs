//! The real IOMMU as targets have it that change its tables: frames for them, and units that do as
//! they are told.

use paging::Memory;
use std::collections::BTreeMap;
use viommu_device::Hardware;

/// How many frames there are, from the second page on.
pub const FRAMES: u64 = 40;

/// Frames of tables, at 1 to [`FRAMES`].
pub struct Frames {
    pub words: BTreeMap<u64, u64>,
    pub free: Vec<u64>,
}

impl Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        assert!((1..=FRAMES).contains(&(pa >> 12)) && pa % 8 == 0);
        self.words.get(&pa).copied().unwrap_or(0)
    }

    fn write(&mut self, pa: u64, value: u64) {
        assert!((1..=FRAMES).contains(&(pa >> 12)) && pa % 8 == 0);
        self.words.insert(pa, value);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        self.words.retain(|pa, _| pa >> 12 != frame >> 12);
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        assert!(!self.free.contains(&frame));
        self.free.push(frame);
    }
}

pub struct Units(pub [Option<(u16, u64)>; 2]);

impl Hardware for Units {
    fn lead(&mut self, endpoint: usize, to: Option<(u16, u64)>) -> bool {
        self.0[endpoint] = to;
        true
    }

    fn flush(&mut self, id: u16, (_, bytes): (u64, u64), _added: bool) -> bool {
        assert!((7..9).contains(&id) && bytes > 0);
        true
    }
}
