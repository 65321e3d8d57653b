//! One translation of two.

use super::Walked;
use paging::{Access, Mapping};

/// A page as the CPU is to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its physical address, a multiple of its size.
    pub pa: u64,
    /// log2 of its bytes: 12, 21 or 30.
    pub shift: u32,
    /// What L2 may do.
    pub access: Access,
}

impl Page {
    /// The page for `address` without what is at `other`, which the CPU isn't to have: if both are
    /// in this one, the smallest.
    pub fn apart_from(self, address: u64, other: u64) -> Page {
        const SMALLEST: u32 = 12;
        if self.shift == SMALLEST || address >> self.shift != other >> self.shift {
            return self;
        }
        let within = address & ((1 << self.shift) - 1) & !((1 << SMALLEST) - 1);
        Page { pa: self.pa | within, shift: SMALLEST, ..self }
    }
}

/// L1's page and the host's page for the same byte, as one: as large as the smaller one, with what
/// both allow. None: nothing is allowed, which no fault of L1's tells.
pub fn compose(walked: &Walked, own: &Mapping) -> Option<Page> {
    if !own.access.contains(Access::READ) {
        return None;
    }
    let shift = walked.shift.min(own.size.trailing_zeros());
    let mut access = Access::READ;
    access.set(Access::WRITE, walked.write && own.access.contains(Access::WRITE));
    access.set(Access::EXECUTE, walked.execute && own.access.contains(Access::EXECUTE));
    access.set(Access::UNCACHED, walked.uncached || own.access.contains(Access::UNCACHED));
    Some(Page { pa: own.pa & !((1 << shift) - 1), shift, access })
}
