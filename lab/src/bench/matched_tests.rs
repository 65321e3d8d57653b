//! A column costs what the bare machine costs, or a known part more, and both pay more for an
//! operation the slower they are.

use super::*;
use proptest::prelude::*;

const TICK: u64 = 2_000;

/// A pair of windows of a load whose operation costs `work`, and 5,000 for each interrupt, of which
/// there are more the slower it is: one in a hundred operations for each microsecond.
fn pair(operations: u64, pace: u64, work: u64) -> [Window; 2] {
    [(Kind::Short, operations), (Kind::Long, 6 * operations)].map(|(kind, operations)| {
        let interrupts = operations * pace / 100_000;
        let ticks = operations * pace / 4_000_000;
        Window {
            kind,
            spun: 0,
            operations,
            interrupts,
            ticks,
            nanoseconds: operations * pace,
            bytes: 256 * operations,
            packets: 2 * interrupts,
            exits: None,
            guest: operations * work + interrupts * 5_000 + ticks * TICK,
            host: 0,
            others: 0,
            vmruns: 0,
            outer_vmruns: 0,
        }
    })
}

fn spin() -> Window {
    let [window, _] = pair(0, 0, 0);
    Window { kind: Kind::Spin, spun: 7, ticks: 10, guest: 7 + 10 * TICK, ..window }
}

const OWN: u32 = 2;

/// The bare machine, unslowed at 20 µs, and at `ROUNDS` as many times 10 ns more.
fn bare() -> Vec<Window> {
    let paces = [20_000; OWN as usize].into_iter();
    let slowed = ROUNDS.iter().flat_map(|rounds| [20_000 + 100 * rounds; PAIRS as usize]);
    let windows = paces.chain(slowed).flat_map(|pace| pair(100_000, pace, 3_000));
    windows.chain([spin()]).collect()
}

fn points(pace: u64, work: u64) -> Vec<Point> {
    let tick = tick(&[spin()]).unwrap();
    let [short, long] = pair(100_000, pace, work);
    vec![Point::of(&short, &long, &tick).unwrap()]
}

#[test]
fn what_costs_the_same_at_its_own_pace_is_one() {
    let control = Control::of(&[bare()], OWN).unwrap();
    let own = Figures::of(&unslowed(&bare(), OWN)).unwrap();
    for by in [By::Pace, By::Interrupts] {
        for pace in [20_000, 27_000, 41_000, 84_000] {
            let slow = Figures { points: points(pace, 3_000), ..own.clone() };
            let matched = slow.matched(Some(&control), by).unwrap();
            assert!((matched.ticks_out.value - 1.0).abs() < 1e-3, "{pace}: {matched:?}");
            assert!((matched.fraction.value - 1.0).abs() < 1e-3, "{pace}: {matched:?}");
            let Agreement { rate, interrupts, packets } = matched.agreement;
            for ratio in [rate, interrupts, packets.unwrap()] {
                assert!((ratio - 1.0).abs() < 1e-3, "{pace}: {matched:?}");
            }
        }
        // Unmatched, the slow one costs 6,000 an operation where the bare machine costs 4,000.
        let slow = Figures { points: points(60_000, 3_000 * 5 / 4), ..own.clone() };
        let matched = slow.matched(Some(&control), by).unwrap();
        assert!((matched.ticks_out.value - 6_000.0 / 6_750.0).abs() < 1e-3, "{matched:?}");
    }
    assert_eq!(own.matched(None, By::Pace), None);
}

#[test]
fn beyond_the_control_nothing_is_extrapolated_and_it_shows() {
    let control = Control::of(&[bare()], OWN).unwrap();
    let fast = Matched::of(&points(10_000, 3_000), &control, By::Pace).unwrap();
    assert!((fast.agreement.rate - 0.5).abs() < 1e-6, "{fast:?}");
    assert!((fast.agreement.interrupts - 2.0).abs() < 1e-3, "{fast:?}");
    assert!((fast.ticks_out.value - 4_000.0 / 3_500.0).abs() < 1e-3, "{fast:?}");
    let slow = Matched::of(&points(168_000, 3_000), &control, By::Pace).unwrap();
    assert!((slow.agreement.rate - 2.0).abs() < 1e-6, "{slow:?}");
}

#[test]
fn the_spread_has_the_columns_and_the_controls() {
    let level = |pace: f64, costs: &[f64]| -> Vec<Point> {
        let point =
            |cost| Point { pace, interrupts: pace, packets: 0.0, cost, cost_ticks_out: cost };
        costs.iter().copied().map(point).collect()
    };
    let levels = vec![level(1.0, &[9.0, 11.0]), level(2.0, &[9.0, 11.0])];
    let control = Control::from_levels(levels).unwrap();
    let column = level(1.5, &[8.0, 10.0, 12.5]);
    let matched = Matched::of(&column, &control, By::Pace).unwrap();
    // 10 / 12.5 to 10 / 8, and a tenth of the control's.
    assert!((matched.ticks_out.value - 1.0).abs() < 1e-9);
    assert!((matched.ticks_out.spread - (0.225 + 0.1)).abs() < 1e-9, "{matched:?}");
    assert_eq!(matched.agreement.packets, None);
}

#[test]
fn a_run_that_was_not_slowed_is_no_control() {
    assert_eq!(Control::of(&[unslowed(&bare(), OWN)], OWN), None);
    assert_eq!(Control::of(&[], OWN), None);
    let mut flat = bare();
    let level = 2 * OWN as usize;
    for pair in flat[level..level + 2 * PAIRS as usize].chunks_mut(2) {
        pair[1].operations = pair[0].operations;
    }
    assert_eq!(Control::of(&[flat], OWN), None);
    assert_eq!(unslowed(&bare(), OWN).len(), 2 * OWN as usize + 1);
}

proptest! {
    /// Between levels the control lies between them, whatever they are.
    #[test]
    fn a_control_stays_within_its_levels(
        levels in prop::collection::vec((1.0f64..1e6, 1.0f64..1e6), 2..8),
        like in 0.0f64..2e6,
    ) {
        let point = |(pace, cost): (f64, f64)| Point { pace, cost, ..Point::default() };
        let of = levels.iter().map(|l| vec![point(*l)]).collect();
        let at = Control::from_levels(of).unwrap().at(By::Pace, like);
        let within = |value: f64, all: &mut dyn Iterator<Item = f64>| {
            let (low, high) = all.fold((f64::MAX, 0.0), |(l, h), v| (v.min(l), v.max(h)));
            (low * 0.999..=high * 1.001).contains(&value)
        };
        prop_assert!(within(at.pace, &mut levels.iter().map(|l| l.0)), "{at:?}");
        prop_assert!(within(at.cost, &mut levels.iter().map(|l| l.1)), "{at:?}");
    }
}
