//! vIC under any settings, completions and clocks.
//!
//! As long as the clock goes forward and the caller asks whether something is due, nothing is
//! withheld for longer than the bound, nor with few commands in flight, and while nothing is due
//! the verdicts are those of the paper's listings.
#![no_main]

use arbitrary::Arbitrary;
use coalesce::{Coalescer, Map, Settings, Verdict};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    paper: bool,
    adapted: bool,
    ticks_per_second: u64,
    iops_threshold: u64,
    cif_threshold: u16,
    epoch: u64,
    ipi_deferral: u64,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    /// As many completions, so far apart.
    Complete {
        count: u8,
        ticks: u32,
        in_flight: u16,
    },
    Pass {
        ticks: u32,
    },
    Defer,
    Settle,
    Clock {
        now: u64,
    },
}

/// The listings as they are printed, for a rate that is known.
struct Listing {
    count_up: u32,
    skip_up: u32,
    counter: u32,
}

impl Listing {
    fn completed(&mut self, in_flight: u32, threshold: u32) -> Verdict {
        if in_flight < threshold {
            self.counter = 1;
            Verdict::Deliver
        } else if self.counter < self.count_up {
            self.counter += 1;
            Verdict::Deliver
        } else if self.counter >= self.skip_up {
            self.counter = 1;
            Verdict::Deliver
        } else {
            self.counter += 1;
            Verdict::Withhold
        }
    }
}

fuzz_target!(|input: Input| {
    let settings = Settings {
        ticks_per_second: input.ticks_per_second,
        iops_threshold: input.iops_threshold,
        cif_threshold: input.cif_threshold,
        epoch: input.epoch,
        ipi_deferral: input.ipi_deferral,
        map: if input.adapted { Map::Adapted } else { Map::Paper },
    };
    let settings = if input.paper { Settings::paper(1_000_000_000) } else { settings };
    let threshold = u32::from(settings.cif_threshold).max(1);
    let longest = u128::from(settings.longest());
    let mut coalescer = Coalescer::new(settings, 0);
    let mut listing = Listing { count_up: 1, skip_up: 1, counter: 1 };
    let mut now = 0_u64;
    // When the first of those that are withheld was completed, while the clock goes forward.
    let mut withheld: Option<u64> = None;
    for call in input.calls {
        match call {
            Call::Complete { count, ticks, in_flight } => {
                for _ in 0..count {
                    now = now.wrapping_add(ticks.into());
                    let was_due = coalescer.due(now);
                    let verdict = coalescer.completed(now, in_flight.into());
                    let ratio = coalescer.ratio();
                    (listing.count_up, listing.skip_up) = (ratio.count_up, ratio.skip_up);
                    let expected = listing.completed(in_flight.into(), threshold);
                    let expected = if was_due { Verdict::Deliver } else { expected };
                    assert_eq!(verdict, expected);
                    if verdict == Verdict::Deliver {
                        coalescer.delivered(now);
                        withheld = None;
                        if was_due {
                            listing.counter = 1;
                        }
                    } else {
                        assert!(u32::from(in_flight) >= threshold);
                        withheld = withheld.or(Some(now));
                    }
                }
            }
            Call::Pass { ticks } => {
                now = now.wrapping_add(ticks.into());
                if coalescer.due(now) {
                    coalescer.delivered(now);
                    assert!(coalescer.deadline().is_none() && !coalescer.due(now));
                    withheld = None;
                    listing.counter = 1;
                } else if let Some(since) = withheld {
                    assert!(u128::from(now.wrapping_sub(since)) < longest);
                }
            }
            Call::Defer => {
                if coalescer.defer_ipi(now) {
                    let rest = coalescer.deadline().expect("it is withheld").wrapping_sub(now);
                    assert!(u128::from(rest) <= longest);
                    withheld = withheld.or(Some(now));
                }
            }
            Call::Settle => {
                coalescer.settled();
                withheld = None;
            }
            Call::Clock { now: then } => {
                now = then;
                withheld = None;
            }
        }
    }
});
