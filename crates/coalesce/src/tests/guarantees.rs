//! What holds whatever comes: the verdicts of the paper's listings, and the bounds.

use super::*;
use proptest::prelude::*;

proptest! {
    /// Against the listings, with the deadline out of the way: completions come closely enough.
    #[test]
    fn the_verdicts_are_those_of_the_listings(
        t in 1_u16..9,
        phases in prop::collection::vec((0_u32..300, 1_000_u64..600_000, 1_u32..3_000), 1..12),
    ) {
        let settings = Settings { cif_threshold: t, ..PAPER };
        let mut coalescer = Coalescer { longest: FURTHEST, ..Coalescer::new(settings, 0) };
        let mut listing = Listing::new(t.into(), 0);
        let mut now = 0;
        for (in_flight, distance, completions) in phases {
            for i in 0..completions {
                now += distance;
                let cif = in_flight + i % 3;
                let verdict = coalescer.completed(now, cif);
                prop_assert_eq!(verdict, listing.completed(now, cif.into()));
                if verdict == Deliver {
                    coalescer.delivered(now);
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn nothing_is_withheld_for_longer_than_the_bound(
        phases in prop::collection::vec(
            (0_u32..300, prop_oneof![1_u64..50_000, 1_u64..SECOND], 1_u32..3_000),
            1..12,
        ),
        (defers, map) in (any::<bool>(), prop_oneof![Just(Map::Paper), Just(Map::Adapted)]),
    ) {
        let mut guest = Guest::new(Settings { map, ..PAPER });
        for (in_flight, distance, completions) in phases {
            for _ in 0..completions {
                guest.pass(distance);
                guest.withheld.push(guest.now);
                let verdict = guest.coalescer.completed(guest.now, in_flight);
                if in_flight < 4 {
                    prop_assert_eq!(verdict, Deliver);
                }
                if verdict == Deliver && !(defers && guest.coalescer.defer_ipi(guest.now)) {
                    guest.interrupt();
                }
            }
        }
        guest.pass(SECOND);
        prop_assert!(guest.withheld.is_empty());
        prop_assert!(guest.delays.iter().all(|delay| *delay <= PAPER.longest()));
    }

    /// Whatever the settings, the clock and the caller do: no panic, and what is withheld has a
    /// deadline no further than the bound from the latest instant.
    #[test]
    fn anything_goes(
        settings in (any::<u64>(), any::<u64>(), any::<u16>(), any::<u64>(), any::<u64>(), any::<bool>()),
        calls in prop::collection::vec((any::<u64>(), any::<u32>(), 0_u8..5), 1..200),
    ) {
        let (ticks_per_second, iops_threshold, cif_threshold, epoch, ipi_deferral, paper) = settings;
        let map = if paper { Map::Paper } else { Map::Adapted };
        let settings =
            Settings { ticks_per_second, iops_threshold, cif_threshold, epoch, ipi_deferral, map };
        let mut coalescer = Coalescer::new(settings, 0);
        for (now, in_flight, call) in calls {
            match call {
                0 => coalescer.delivered(now),
                1 => coalescer.settled(),
                2 => prop_assert!(!coalescer.defer_ipi(now) || coalescer.deadline().is_some()),
                _ => {
                    let verdict = coalescer.completed(now, in_flight);
                    prop_assert!(verdict == Deliver || coalescer.deadline().is_some());
                    prop_assert!(verdict == Deliver || in_flight >= cif_threshold.into());
                    let rest = coalescer.deadline().map(|deadline| deadline.wrapping_sub(now));
                    let rest = rest.filter(|rest| *rest <= FURTHEST).unwrap_or(0);
                    prop_assert!(verdict == Deliver || rest <= settings.longest());
                }
            }
            let Ratio { count_up, skip_up } = coalescer.ratio();
            prop_assert!(count_up >= 1 && count_up <= skip_up);
        }
    }

    /// Together is one by one at the same instant, though time goes back and counts end.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn together_is_one_by_one(
        calls in prop::collection::vec(
            (0_u64..SECOND / 4, 0_u32..300, 0_u32..20, any::<bool>(), prop::bool::weighted(0.05)),
            1..200,
        ),
        iops_threshold in prop::sample::select(vec![0_u64, 1, PAPER.iops_threshold, 2 * SECOND]),
        completions in prop::sample::select(vec![0, u64::MAX - 9]),
    ) {
        // The last one leaves nothing to withhold for: it is due at once.
        let mut together = Coalescer::new(Settings { iops_threshold, ..PAPER }, 0);
        together.completions = completions;
        let mut single = together.clone();
        let mut now = 0_u64;
        for (passed, in_flight, count, told, back) in calls {
            let passed = passed / 1000 * passed.min(1000);
            now = if back { now.wrapping_sub(passed) } else { now.wrapping_add(passed) };
            let verdicts = (0..count).map(|_| single.completed(now, in_flight));
            let verdicts: Vec<Verdict> = verdicts.collect();
            let withheld = verdicts.iter().filter(|verdict| **verdict != Deliver).count();
            let wanted = (verdicts.contains(&Deliver), withheld as u32);
            prop_assert_eq!(wanted, together.completed_together(count, now, in_flight));
            if told {
                single.delivered(now);
                together.delivered(now);
            }
            prop_assert_eq!(format!("{single:?}"), format!("{together:?}"));
        }
    }
}
