//! Pages of devices' registers that the host leaves open to L1, as far as L1 maps them for L2.
//!
//! Guarantees: none is known any more once the host's own tables for L1 have changed, if whoever
//! changes them says so before the page is another's. Whoever says so also gives up the trees when
//! [`Registers::forget`] tells that they may have such a page.

use paging::Mapping;

/// A device has some pages that matter: its doorbells, and what its interrupt handler reads.
const KNOWN: usize = 8;

/// The pages that were asked for lately.
#[derive(Debug, Default)]
pub struct Registers {
    known: [Option<(u64, Mapping)>; KNOWN],
    /// How many were ever learnt since all were forgotten.
    learnt: usize,
}

impl Registers {
    /// The host's page for L1's `gpa`, if it is known.
    pub fn find(&self, gpa: u64) -> Option<Mapping> {
        let mut pages = self.known.iter().flatten();
        let (_, page) = pages.find(|(base, page)| gpa & !(page.size - 1) == *base)?;
        Some(Mapping { pa: page.pa | gpa & (page.size - 1), ..*page })
    }

    /// The host has this at L1's `gpa`.
    pub fn learn(&mut self, gpa: u64, page: Mapping) {
        let inside = page.size - 1;
        self.known[self.learnt % KNOWN] =
            Some((gpa & !inside, Mapping { pa: page.pa & !inside, ..page }));
        self.learnt = self.learnt.wrapping_add(1).max(1);
    }

    /// The host's tables for L1 change. True: some tree may have such a page.
    pub fn forget(&mut self) -> bool {
        core::mem::take(self).learnt > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paging::Access;

    const DEVICE: Access = Access::READ.union(Access::WRITE).union(Access::UNCACHED);

    fn page(pa: u64, size: u64) -> Mapping {
        Mapping { pa, access: DEVICE, size }
    }

    #[test]
    fn a_page_is_known_until_all_are_forgotten() {
        let mut registers = Registers::default();
        assert!(!registers.forget(), "no tree has any");
        registers.learn(0xE000_1234, page(0x9000_5234, 0x1000));
        registers.learn(0xE020_0008, page(0x9040_0008, 0x20_0000));
        assert_eq!(registers.find(0xE000_1FFF), Some(page(0x9000_5FFF, 0x1000)));
        assert_eq!(registers.find(0xE03F_F000), Some(page(0x905F_F000, 0x20_0000)));
        assert_eq!([0xE000_0FFF, 0xE000_2000, 0xE040_0000].map(|at| registers.find(at)), [None; 3]);
        assert!(registers.forget());
        assert_eq!(registers.find(0xE000_1234), None);
        assert!(!registers.forget());
    }

    #[test]
    fn the_oldest_goes_first_and_trees_may_have_it_still() {
        let mut registers = Registers::default();
        (0..=KNOWN as u64).for_each(|n| registers.learn(n << 12, page(n << 12, 0x1000)));
        assert_eq!(registers.find(0), None);
        assert!((1..=KNOWN as u64).all(|n| registers.find(n << 12).is_some()));
        registers.learnt = usize::MAX;
        registers.learn(0, page(0, 0x1000));
        assert!(registers.forget(), "however many there were");
    }
}
