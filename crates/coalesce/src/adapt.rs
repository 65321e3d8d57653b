//! The map from commands in flight to a ratio, adapted to the load: what the paper leaves open
//! (section 3.1 has one map for all, its parameters by hand).
//!
//! How far interrupts may be spread depends on the device. One that serves a command after the
//! other goes on while half of them wait to be told; one that serves all at once has fewer to serve
//! for each that waits. So the map is tried out: while completions don't fall by more than 1/32 in
//! an epoch, its denominators are doubled, up to [`MOST`] times; else they are halved again, and
//! left alone for a while, longer each time.
//!
//! Guarantees: a ratio that goes beyond the paper's withholds no more than half of what is in
//! flight, and no more than are completed in the bound of the delay at the rate of the last epoch.
//! Else it is the paper's, which may withhold more than that bound lets pass by; the deadline holds
//! anyway.

use crate::Ratio;

/// The most that the paper's denominators are multiplied by.
pub(crate) const MOST: u32 = 8;
/// Epochs without a try after one that cost completions: at first, and at the most.
const PATIENCE: (u16, u16) = (8, 512);

/// How far one queue goes.
#[derive(Clone, Debug)]
pub(crate) struct Adaptation {
    /// What the paper's denominators are multiplied by, 1 to [`MOST`].
    stretch: u32,
    /// Completions a second in the epoch before.
    before: u64,
    /// The epoch that ends began with a larger stretch.
    tries: bool,
    /// Epochs until the next try, and after one that fails.
    rest: u16,
    patience: u16,
}

impl Adaptation {
    pub const fn new() -> Self {
        Adaptation { stretch: 1, before: 0, tries: false, rest: 0, patience: PATIENCE.0 }
    }

    /// An epoch ended, with so many completions a second. What the denominators are multiplied by
    /// in the next one.
    pub fn epoch(&mut self, rate: u64) -> u32 {
        let fell = u128::from(rate) * 32 < u128::from(self.before) * 31;
        self.before = rate;
        self.rest = self.rest.saturating_sub(1);
        if self.tries && fell {
            self.stretch = (self.stretch / 2).max(1);
            self.rest = self.patience;
            self.patience = self.patience.saturating_mul(2).min(PATIENCE.1);
            self.tries = false;
        } else {
            self.tries = self.rest == 0 && self.stretch < MOST;
            if self.tries {
                self.stretch *= 2;
            }
        }
        self.stretch
    }

    /// The load is none to be coalesced: what was learned of it is forgotten.
    pub fn forget(&mut self) {
        *self = Adaptation::new();
    }
}

/// The map of an epoch: `within`, completions in the bound of the delay at its rate.
pub(crate) fn ratio(in_flight: u32, threshold: u32, stretch: u32, within: u64) -> Ratio {
    let paper = Ratio::of(in_flight, threshold);
    let far = u64::from(in_flight) * u64::from(stretch) / (2 * u64::from(threshold));
    let skip_up = far.min(u64::from(in_flight / 2)).min(within) as u32;
    // Never more interrupts than by the paper's.
    let spreads = u64::from(skip_up) * u64::from(paper.count_up) > u64::from(paper.skip_up);
    if stretch > 1 && spreads { Ratio { count_up: 1, skip_up } } else { paper }
}
