//! Intervals, and a device that keeps them.

use super::*;
use proptest::prelude::*;

/// Microseconds.
const SECOND: u64 = 1_000_000;

fn throttle(map: Map) -> Throttle {
    Throttle::new(Settings { map, ..Settings::paper(SECOND) }, 0)
}

fn after_one_epoch(received: u32, sent: u32, queued: u32) -> u64 {
    throttle(Map::Paper).epoch(SECOND, Traffic { received, sent, queued })
}

/// A device whose throttle begins with each interrupt, as an 82576's: how many interrupts so many
/// completions make, one each `period`, and the longest that one of them waits for its own.
fn device(period: u64, completions: u64, interval: u64) -> (u64, u64) {
    let (mut interrupts, mut free, mut pending, mut longest) = (0, 0, None, 0);
    for done in (0..completions).map(|i| i * period) {
        if let Some(since) = pending.filter(|_| free <= done) {
            longest = longest.max(free - since);
            (pending, interrupts, free) = (None, interrupts + 1, free + interval);
        }
        if pending.is_none() && free <= done {
            (interrupts, free) = (interrupts + 1, done + interval);
        } else {
            pending.get_or_insert(done);
        }
    }
    (interrupts, longest)
}

#[test]
fn below_the_thresholds_nothing_is_held_back() {
    assert_eq!(after_one_epoch(0, 0, 0), 0);
    assert_eq!(after_one_epoch(1_999, 0, 64), 0, "few a second");
    assert_eq!(after_one_epoch(40_000, 10_001, 3), 0, "three in flight");
    assert_ne!(after_one_epoch(40_000, 10_000, 0), 0, "four");
    let mut none = Throttle::new(Settings { iops_threshold: 0, ..Settings::paper(SECOND) }, 0);
    assert_eq!(none.epoch(SECOND, Traffic::default()), 0);
}

#[test]
fn who_waits_for_each_answer_is_never_held_back() {
    for rate in [1_000, 20_000, 1_000_000] {
        assert_eq!(after_one_epoch(rate, rate, 1), 0);
        assert_eq!(after_one_epoch(rate, rate / 2, 1), 0, "nor who acknowledges every other frame");
    }
}

#[test]
fn an_interval_is_the_ratio_at_the_rate() {
    // 64 in flight: 1/8 of 80,000 a second is one each 100 us.
    assert_eq!(after_one_epoch(80_000, 80_000, 64), 100);
    assert_eq!(after_one_epoch(80_000, 1_250, 0), 100);
    assert_eq!(after_one_epoch(1_250, 80_000, 0), 100);
    // 8 of 4: 3/4 of 50,000.
    assert_eq!(after_one_epoch(50_000, 50_000, 8), 26);
    // 1/8 of 4,000 would be one each 2 ms.
    assert_eq!(after_one_epoch(4_000, 0, 64), 500);
}

#[test]
fn the_paper_s_reduction_comes_out_and_the_bound_holds() {
    let interval = after_one_epoch(80_000, 80_000, 64);
    let (interrupts, longest) = device(12, 10_000, interval);
    assert!(interrupts * 10 <= 3 * 10_000, "{interrupts} of 10,000");
    assert!(longest <= interval, "{longest} of {interval} us");
    assert_eq!(device(12, 10_000, 0).0, 10_000);
}

#[test]
fn an_epoch_is_over_after_its_time() {
    let mut throttle = throttle(Map::Paper);
    assert!(!throttle.is_over(200_000) && throttle.is_over(200_001));
    throttle.epoch(200_001, Traffic::default());
    assert!(!throttle.is_over(400_001));
    assert!(!throttle.is_over(0), "a clock that goes back");
}

#[test]
fn the_adapted_map_goes_further_while_it_costs_nothing() {
    let load = Traffic { received: 8_000, sent: 8_000, queued: 16 };
    let mut throttle = throttle(Map::Adapted);
    let intervals: Vec<_> = (1..6).map(|i| throttle.epoch(i * SECOND / 10, load)).collect();
    assert!(intervals.is_sorted() && intervals[4] > intervals[0], "{intervals:?}");
    // By half of what is in flight at most: 8 at 80,000 a second.
    assert_eq!(intervals[4], 100);
    assert_eq!(throttle.epoch(6 * SECOND / 10, Traffic::default()), 0);
}

proptest! {
    #[test]
    fn no_interval_is_beyond_the_bound(
        epochs in prop::collection::vec((any::<u64>(), any::<[u32; 3]>()), 1..50),
        (iops_threshold, cif_threshold, epoch) in any::<(u64, u16, u64)>(),
        ticks_per_second: u64,
        adapted: bool,
    ) {
        let map = if adapted { Map::Adapted } else { Map::Paper };
        let settings = Settings {
            ticks_per_second, iops_threshold, cif_threshold, epoch, ipi_deferral: 0, map,
        };
        let mut throttle = Throttle::new(settings, 0);
        for (now, [received, sent, queued]) in epochs {
            throttle.is_over(now);
            let interval = throttle.epoch(now, Traffic { received, sent, queued });
            prop_assert!(interval <= settings.longest());
        }
    }
}
