//! Memory that a model of an IOMMU shares with the driver.

use iommu::Memory;
use std::{cell::RefCell, rc::Rc};

/// Where it begins.
const BASE: u64 = 1 << 30;

/// Frames that were allocated; any other access panics.
#[derive(Clone, Default)]
pub struct Frames(Rc<RefCell<Vec<u64>>>);

impl Frames {
    fn with<R>(&self, pa: u64, f: impl FnOnce(&mut u64) -> R) -> R {
        let at = pa.checked_sub(BASE).filter(|offset| offset.is_multiple_of(8));
        let mut words = self.0.borrow_mut();
        let word = at.and_then(|offset| words.get_mut(offset as usize / 8));
        f(word.unwrap_or_else(|| panic!("{pa:#x} isn't memory that was allocated")))
    }
}

impl Memory for Frames {
    fn read64(&mut self, pa: u64) -> u64 {
        self.with(pa, |word| *word)
    }

    fn write64(&mut self, pa: u64, value: u64) {
        self.with(pa, |word| *word = value);
    }

    fn write128(&mut self, pa: u64, low: u64, high: u64) {
        assert!(pa.is_multiple_of(16));
        self.write64(pa, low);
        self.write64(pa + 8, high);
    }

    fn write_back(&mut self, _: u64, _: u64) {}

    fn allocate(&mut self, frames: u64) -> Option<u64> {
        let mut words = self.0.borrow_mut();
        let at = BASE + 8 * words.len() as u64;
        let more = words.len() + 512 * frames as usize;
        words.resize(more, 0);
        Some(at)
    }
}
