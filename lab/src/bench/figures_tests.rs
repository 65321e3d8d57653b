//! Figures from windows whose true slopes are known.

use super::*;
use crate::bench::model::Model;
use proptest::prelude::*;

const GUEST: u64 = 10_000;
const HOST: u64 = 300;
const TICK_GUEST: u64 = 2_500;
const TICK_HOST: u64 = 900;
/// What the edges of every window cost.
const EDGE: u64 = 123_456;

/// A window of a load with a known price per I/O and per tick: one exit per I/O for the
/// device, two per tick for the timer, five at the edges.
fn window(kind: Kind, operations: u64, ticks: u64) -> Window {
    let spun = if kind == Kind::Spin { 1_000_000 } else { 0 };
    let edge = if kind == Kind::Spin { 0 } else { EDGE };
    let mut by_reason = vec![0; Reason::COUNT];
    by_reason[Reason::DeviceInterrupt as usize] = operations;
    by_reason[Reason::TimerProgram as usize] = 2 * ticks;
    by_reason[Reason::Cpuid as usize] = if kind == Kind::Spin { 0 } else { 5 };
    let entries = by_reason.iter().sum();
    Window {
        kind,
        spun,
        operations,
        interrupts: operations,
        ticks,
        nanoseconds: operations * 1_000,
        bytes: 0,
        packets: 0,
        exits: Some(Exits {
            entries,
            injected: 2 * ticks,
            device_merged: operations / 100,
            by_reason,
            ..Exits::default()
        }),
        guest: operations * GUEST + ticks * TICK_GUEST + spun + edge,
        host: operations * HOST + ticks * TICK_HOST + edge,
        others: 0,
        vmruns: entries,
        outer_vmruns: 0,
    }
}

fn run() -> Vec<Window> {
    vec![
        window(Kind::Short, 1_000, 40),
        window(Kind::Long, 6_000, 130),
        window(Kind::Short, 900, 90),
        window(Kind::Long, 7_000, 100),
        window(Kind::Spin, 0, 250),
    ]
}

#[test]
fn edges_drop_out_and_ticks_come_out_exactly() {
    let f = Figures::of(&run()).unwrap();
    assert_eq!(f.operations, 5_000 + 6_100);
    assert_eq!(f.ticks, 90 + 10);
    assert_eq!((f.tick.guest, f.tick.host), (TICK_GUEST as f64, TICK_HOST as f64));
    assert_eq!(f.tick.exits[Reason::TimerProgram as usize], 2.0);
    for cost in &f.cost_ticks_out {
        assert!((cost - (GUEST + HOST) as f64).abs() < 1e-6);
    }
    assert_eq!(f.exits_per_interrupt(), 1.0);
    assert_eq!(f.delivery_exits_per_interrupt(), 1.0);
    assert_eq!(f.exits_total(), f.operations + 2 * f.ticks);
    assert_eq!(f.injected, 2 * f.ticks);
    assert_eq!(f.merged, f.operations / 100);
    assert_eq!(f.counters_agree(), Some(true));
    let share = GUEST as f64 / (GUEST + HOST) as f64;
    assert!((f.guest_share_ticks_out() - share).abs() < 1e-9);
    assert!(f.guest_share() < share);
}

#[test]
fn the_same_as_bare_is_one_and_twice_the_cost_is_half() {
    let f = Figures::of(&run()).unwrap();
    assert_eq!(f.fraction_of(&f, true).value, 1.0);
    let mut double = f.clone();
    double.cost_ticks_out.iter_mut().for_each(|c| *c *= 2.0);
    let fraction = double.fraction_of(&f, true);
    assert!((fraction.value - 0.5).abs() < 1e-9 && fraction.spread < 1e-9);
    assert!(f.fraction_of(&f, false).spread > 0.0);
}

#[test]
fn counters_that_disagree_show() {
    let mut windows = run();
    windows[1].vmruns = windows[1].vmruns * 11 / 10;
    let mut f = Figures::of(&windows).unwrap();
    assert_eq!(f.counters_agree(), Some(false));
    // One in each of the five windows is what the edges may cost; none at all is good, too.
    for (vmruns, entries, agree) in [(8, 3, true), (9, 3, false), (0, 0, true), (6, 0, false)] {
        (f.vmruns, f.entries) = (vmruns, entries);
        assert_eq!(f.counters_agree(), Some(agree), "{vmruns} and {entries}");
    }
}

#[test]
fn windows_without_figures_are_refused() {
    let full = run();
    assert_eq!(Figures::of(&full[4..]), Err(Error::Unpaired));
    assert_eq!(Figures::of(&full[..4]), Err(Error::Tickless));
    let mut flat = full.clone();
    flat[3].operations = 900;
    let one = Figures::of(&flat).unwrap();
    assert_eq!((one.operations, one.flat, one.cost.len()), (5_000, 1, 1));
    flat[1].operations = 1_000;
    assert_eq!(Figures::of(&flat), Err(Error::Flat { pair: 0, long: 1_000, short: 1_000 }));
    let mut polled = full.clone();
    polled.iter_mut().for_each(|w| w.interrupts = 0);
    assert_eq!(Figures::of(&polled), Err(Error::Polled(11_100)));
}

#[test]
fn the_model_carries_rates_and_charges_each_exit() {
    let f = Figures::of(&run()).unwrap();
    let m = Model::PAPER.of(&f, Some(&f));
    assert!((m.exits[Reason::DeviceInterrupt as usize] - 150_000.0).abs() < 1e-6);
    assert!((m.exits[Reason::TimerProgram as usize] - 500.0).abs() < 1e-6);
    assert!((m.operations - 150_000.0).abs() < 1e-6);
    // 10,300 instructions and a tick's 600th part against the same and one exit's 2,000 cycles.
    let ticks = 250.0 / 150_000.0 * (TICK_GUEST + TICK_HOST) as f64;
    let bare = (GUEST + HOST) as f64 + ticks;
    let charge = 2_000.0 * (150_500.0 / 150_000.0);
    assert!((m.fraction_of_bare.unwrap().value - bare / (bare + charge)).abs() < 1e-6);
    assert!(m.guest_share < f.guest_share());
}

#[test]
fn medians_and_ranges() {
    assert_eq!(median(&[]), 0.0);
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert_eq!(relative_half_range(&[8.0, 10.0, 14.0]), 0.3);
    assert_eq!(relative_half_range(&[5.0]), 0.0);
}

proptest! {
    /// Whatever a guest reports, figures come out or a refusal does.
    #[test]
    fn any_windows_are_taken(counts in proptest::collection::vec((0..3u8, any::<[u64; 6]>()), 0..12)) {
        let windows: Vec<_> = counts.iter().map(|(kind, n)| {
            let n = n.map(|n| n >> 12);
            Window {
                kind: [Kind::Short, Kind::Long, Kind::Spin][*kind as usize],
                spun: n[0], operations: n[1], interrupts: n[2], ticks: n[3], nanoseconds: n[4],
                bytes: n[4],
                packets: 0,
                exits: Some(Exits { entries: n[5], injected: n[0], by_reason: vec![n[0], n[5]], ..Exits::default() }),
                guest: n[1], host: n[2], others: n[0], vmruns: n[3], outer_vmruns: n[4],
            }
        }).collect();
        if let Ok(f) = Figures::of(&windows) {
            prop_assert!((0.0..=1.0).contains(&f.guest_share()));
            let _ = Model::PAPER.of(&f, Some(&f));
        }
    }
}
