//! For how long the CPU keeps L1's global interrupt flag.
//!
//! While it does, CLGI and STGI have no exit, and each of L1's interrupts has one; else it is the
//! other way round. Which is better depends on what L1 does next, so it is rented until it would
//! have been cheaper to buy: between two VMRUNs no more than one interrupt more than the best that
//! could be done exits, and none at all if there is but one.

/// What is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// One came, with the flag set, since VMRUN, or since that was given up.
    came: bool,
}

impl Keep {
    /// VMRUN.
    pub fn ran(&mut self) {
        self.came = false;
    }

    /// An interrupt came while L1 ran and the CPU keeps the flag, which is `set`. Is it to go on?
    pub fn goes_on(&mut self, set: bool) -> bool {
        // While it is clear, STGI will exit if the CPU doesn't keep it.
        if !set {
            return true;
        }
        self.came = !self.came;
        self.came
    }
}

#[cfg(test)]
mod tests {
    use super::Keep;
    use proptest::prelude::*;

    /// Between two VMRUNs, with CLGI before the second: the exits for so many interrupts.
    fn exits(keep: &mut Keep, interrupts: u32) -> u32 {
        let (mut kept, mut exits) = (true, 0);
        for _ in 0..interrupts {
            exits += u32::from(kept);
            kept = kept && keep.goes_on(true);
        }
        keep.ran();
        exits + u32::from(!kept)
    }

    proptest! {
        #[test]
        fn one_more_than_the_best_at_most(between in prop::collection::vec(0u32..5, 1..20)) {
            let mut keep = Keep::default();
            for interrupts in between {
                // Kept all the time, or given up at the first.
                let best = interrupts.min(2);
                let took = exits(&mut keep, interrupts);
                prop_assert!(took <= best + u32::from(interrupts > 1), "{interrupts}: {took}");
            }
        }
    }

    #[test]
    fn a_clear_flag_is_kept() {
        let mut keep = Keep::default();
        assert!((0..5).all(|_| keep.goes_on(false)));
        assert!(keep.goes_on(true) && keep.goes_on(false));
        assert!(!keep.goes_on(true), "the second one");
        assert!(keep.goes_on(true), "kept anew");
        keep.ran();
        assert!(keep.goes_on(true) && !keep.goes_on(true));
    }
}
