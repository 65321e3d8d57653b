//! The ratio by a device's own throttle: of a device that a guest drives itself, the host sees no
//! completions one by one, but may set how far apart the device's interrupts are.
//!
//! An interval of s/(c·rate) lets a device with `rate` completions a second interrupt as often as
//! a ratio of c/s does. The commands in flight are what the device has queued, or what it moved one
//! way for each thing that it moved the other way: who gets an answer to every 16th frame has that
//! many under way. So who asks and waits for each answer has one in flight, whatever his rate.
//!
//! Guarantees: an interval is [`Settings::longest`] at most, and none at all with fewer commands in
//! flight or completions a second than the thresholds. Whatever the device counts, nothing panics.

use crate::adapt::{self, Adaptation};
use crate::{Map, Ratio, Settings, elapsed};

/// What a device did in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Things that came to its guest.
    pub received: u32,
    /// Things that its guest sent.
    pub sent: u32,
    /// What waits to be sent now.
    pub queued: u32,
}

impl Traffic {
    /// The completions of the way that has more of them.
    fn completions(&self) -> u32 {
        self.received.max(self.sent)
    }

    /// CIF, as far as such a device tells.
    fn in_flight(&self) -> u32 {
        let answers = self.received.min(self.sent).max(1);
        self.queued.max(self.completions() / answers)
    }
}

/// How far apart a device's interrupts are to be.
#[derive(Clone, Debug)]
pub struct Throttle {
    settings: Settings,
    epoch_start: u64,
    adaptation: Adaptation,
}

impl Throttle {
    /// The first epoch begins now; [`Settings::ipi_deferral`] means nothing here.
    pub const fn new(settings: Settings, now: u64) -> Self {
        Throttle { settings, epoch_start: now, adaptation: Adaptation::new() }
    }

    /// Is the epoch over?
    pub const fn is_over(&self, now: u64) -> bool {
        elapsed(self.epoch_start, now) > self.settings.epoch
    }

    /// It is, and this was done in it. Gives the interval until the next one is over, in ticks; 0:
    /// every completion may interrupt.
    pub fn epoch(&mut self, now: u64, traffic: Traffic) -> u64 {
        let settings = &self.settings;
        let ticks = elapsed(self.epoch_start, now).max(1);
        self.epoch_start = now;
        let completions = u128::from(traffic.completions());
        let have = completions * u128::from(settings.ticks_per_second);
        if completions == 0 || have < u128::from(settings.iops_threshold) * u128::from(ticks) {
            self.adaptation.forget();
            return 0;
        }
        let (in_flight, longest) = (traffic.in_flight(), settings.longest());
        let threshold = u32::from(settings.cif_threshold.max(1));
        let ratio = match settings.map {
            Map::Paper => Ratio::of(in_flight, threshold),
            Map::Adapted => {
                let of = |per: u64| {
                    let count = completions * u128::from(per) / u128::from(ticks);
                    u64::try_from(count).unwrap_or(u64::MAX)
                };
                let stretch = self.adaptation.epoch(of(settings.ticks_per_second));
                adapt::ratio(in_flight, threshold, stretch, of(longest))
            }
        };
        if ratio == Ratio::ALL {
            return 0;
        }
        let apart = u128::from(ticks) * u128::from(ratio.skip_up)
            / (completions * u128::from(ratio.count_up));
        u64::try_from(apart).unwrap_or(u64::MAX).min(longest)
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
