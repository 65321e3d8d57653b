//! How a disk is served where that is to be compared with how disks are served.

use crate::Micros;
use core::ops::RangeInclusive;
use serde::{Deserialize, Serialize};

/// Thresholds of completions a second. Beyond them 1/`rate` is shorter than a microsecond, in which
/// a plan's times are told.
pub const COALESCE_RATES: RangeInclusive<u32> = 1..=1_000_000;
/// Epochs, in microseconds. In shorter ones a load that is worth coalescing completes too little to
/// tell it from chance; in longer ones a load that came or went stays unseen for too long.
pub const EPOCHS: RangeInclusive<u32> = 1_000..=10_000_000;

/// What is wrong with how interrupts are coalesced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoalesceProblem {
    /// A threshold below which nothing is.
    #[error("0 is out of range; use 1 to {}", u16::MAX)]
    NoneInFlight,
    /// A threshold of completions that can't be.
    #[error(
        "{0} is out of range; use {first} to {last}",
        first = COALESCE_RATES.start(), last = COALESCE_RATES.end()
    )]
    Rate(u32),
    /// An epoch that tells nothing, or too late.
    #[error(
        "{} is out of range; use {} to {}",
        Micros(*.0), Micros(*EPOCHS.start()), Micros(*EPOCHS.end())
    )]
    Epoch(u32),
    /// An epoch that ends before a completion of the rate comes.
    #[error(
        "in {} not one completion comes at rate = {rate}; use {} or more",
        Micros(*.epoch), Micros(*.longest)
    )]
    ShortEpoch {
        /// Microseconds.
        epoch: u32,
        /// Completions a second.
        rate: u32,
        /// 1/`rate`, in microseconds.
        longest: u32,
    },
    /// A deferral that the rate cuts.
    #[error(
        "{} is too much: with rate = {rate} nothing is held back for longer than {}; use that or less",
        Micros(*.deferral), Micros(*.longest)
    )]
    LongDeferral {
        /// Microseconds.
        deferral: u32,
        /// Completions a second.
        rate: u32,
        /// 1/`rate`, in microseconds.
        longest: u32,
    },
}

/// Ways of the engine that a plan may turn off for one disk, and a time that a null device takes.
/// Nothing is turned off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The driver tells of new requests, each time by an exit, as a guest of a classical host does:
    /// a queue that was found empty is polled again when it is kicked.
    pub kicks: bool,
    /// Packed rings are offered, too: both sides write the same lines, which is slower on two
    /// cores.
    pub packed: bool,
    /// Which completions are worth an interrupt.
    pub coalesce: Coalesce,
    /// Microseconds that a disk without content takes for each request, one after the other.
    pub latency_us: u32,
}

/// How interrupts are coalesced, after vIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coalesce {
    /// Every completion that the driver wants to be told of is told at once.
    Off,
    /// With these parameters.
    On(Coalescing),
}

/// vIC's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Requests in flight below which every completion is told.
    pub in_flight: u16,
    /// Completions a second below which every one is; 1/`rate` s is how long one is held back.
    pub rate: u32,
    /// Microseconds after which the ratio is computed anew.
    pub epoch_us: u32,
    /// Microseconds from one interrupt to the next for a vCPU whose core another one has.
    pub deferral_us: u32,
    /// The ratio goes further than the paper's where that costs no completions.
    pub adapted: bool,
}

impl Coalescing {
    /// The paper's.
    pub const USUAL: Coalescing = Coalescing {
        in_flight: 4,
        rate: 2_000,
        epoch_us: 200_000,
        deferral_us: 100,
        adapted: false,
    };

    /// Microseconds for which a completion is held back at most: 1/`rate`.
    pub fn longest_us(&self) -> u32 {
        1_000_000 / self.rate.max(1)
    }

    /// Thresholds that can be reached, and times that mean something beside 1/`rate`: an epoch that
    /// is shorter ends before the rate's first completion, and a longer deferral is cut by it.
    pub(crate) fn check(&self) -> Result<(), (&'static str, CoalesceProblem)> {
        let longest = self.longest_us();
        match () {
            () if self.in_flight == 0 => Err(("coalesce.in_flight", CoalesceProblem::NoneInFlight)),
            () if !COALESCE_RATES.contains(&self.rate) => {
                Err(("coalesce.rate", CoalesceProblem::Rate(self.rate)))
            }
            () if !EPOCHS.contains(&self.epoch_us) => {
                Err(("coalesce.epoch", CoalesceProblem::Epoch(self.epoch_us)))
            }
            () if self.epoch_us < longest => {
                let (epoch, rate) = (self.epoch_us, self.rate);
                Err(("coalesce.epoch", CoalesceProblem::ShortEpoch { epoch, rate, longest }))
            }
            () if self.deferral_us > longest => {
                let (deferral, rate) = (self.deferral_us, self.rate);
                Err((
                    "coalesce.deferral",
                    CoalesceProblem::LongDeferral { deferral, rate, longest },
                ))
            }
            () => Ok(()),
        }
    }
}

impl Default for Coalesce {
    /// On, as the paper has it.
    fn default() -> Self {
        Coalesce::On(Coalescing::USUAL)
    }
}
