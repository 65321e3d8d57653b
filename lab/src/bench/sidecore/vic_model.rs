//! The delay that vIC adds, against its bound: by the code that sidecores run, fed with completions
//! at exact times, and by the formula.
//!
//! Guarantees: pure arithmetic; a microsecond of the model is one of the disk's latency. A sidecore
//! looks at its deadlines once a pass, and what it is late by isn't in here.

use super::axes::{Axis, EPOCHS, T4};
use crate::bench::show::{Source, Table, three, two};
use coalesce::{Coalescer, Map, Ratio, Settings, Verdict};
use plan::Coalescing;

/// Completions of a modelled load.
const COMPLETIONS: u64 = 20_000;
/// Microseconds of each half of the load that changes, and what is in flight in them.
const HALF: u64 = 700_000;
const CHANGES: [u32; 2] = [64, 4];

/// What a load comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Modelled {
    /// Interrupts for each completion.
    interrupts: f64,
    /// The longest that one waits to be told of while the load goes on, in ms.
    delay_ms: f64,
    /// The same with the load's end, after which no completion comes any more.
    at_end_ms: f64,
}

fn settings(c: &Coalescing) -> Settings {
    Settings {
        ticks_per_second: 1_000_000,
        iops_threshold: c.rate.into(),
        cif_threshold: c.in_flight,
        epoch: c.epoch_us.into(),
        ipi_deferral: 0,
        map: if c.adapted { Map::Adapted } else { Map::Paper },
    }
}

/// A completion each `latency_us`, of a queue with so many in flight at a time.
fn modelled(
    coalescing: Option<&Coalescing>,
    latency_us: u64,
    in_flight: impl Fn(u64) -> u32,
) -> Modelled {
    let Some(coalescing) = coalescing else {
        return Modelled { interrupts: 1.0, delay_ms: 0.0, at_end_ms: 0.0 };
    };
    let mut coalescer = Coalescer::new(settings(coalescing), 0);
    let (mut interrupts, mut worst, mut held) = (0_u64, 0, None);
    let mut deliver = |coalescer: &mut Coalescer, held: &mut Option<u64>, now: u64| {
        worst = worst.max(held.take().map_or(0, |since| now - since));
        interrupts += 1;
        coalescer.delivered(now);
        worst
    };
    let mut delay = 0;
    for now in (1..=COMPLETIONS).map(|n| n * latency_us) {
        if let Some(deadline) = coalescer.deadline().filter(|deadline| *deadline < now) {
            delay = deliver(&mut coalescer, &mut held, deadline);
        }
        // Those that the completion leaves.
        match coalescer.completed(now, in_flight(now).saturating_sub(1)) {
            Verdict::Deliver => delay = deliver(&mut coalescer, &mut held, now),
            Verdict::Withhold => {
                held.get_or_insert(now);
            }
        }
    }
    let at_end = match coalescer.deadline() {
        Some(deadline) => deliver(&mut coalescer, &mut held, deadline),
        None => delay,
    };
    let ms = |us: u64| us as f64 / 1e3;
    let interrupts = interrupts as f64 / COMPLETIONS as f64;
    Modelled { interrupts, delay_ms: ms(delay), at_end_ms: ms(at_end) }
}

/// (1/R - 1)/IOPS, in whole completions, as it is another one that tells of what is withheld; and
/// 1/`RATE` s at the most. In ms.
fn bound_ms(coalescing: &Coalescing, in_flight: u32, latency_us: u64) -> f64 {
    let Ratio { count_up, skip_up } = ratio(coalescing, in_flight, latency_us);
    let waits = (f64::from(skip_up) / f64::from(count_up) - 1.0).ceil();
    (waits * latency_us as f64 / 1e3).min(longest_ms(coalescing))
}

fn longest_ms(coalescing: &Coalescing) -> f64 {
    f64::from(coalescing.longest_us()) / 1e3
}

/// As far as it may go, if it is adapted.
fn ratio(coalescing: &Coalescing, in_flight: u32, latency_us: u64) -> Ratio {
    let (left, threshold) = (in_flight.saturating_sub(1), coalescing.in_flight.into());
    if coalescing.adapted {
        let within = u64::from(coalescing.longest_us()) / latency_us.max(1);
        Ratio::furthest(left, threshold, within)
    } else {
        Ratio::of(left, threshold)
    }
}

/// What the model says of each axis at each depth, on a disk of this latency.
pub fn lines(table: &mut Table, axes: &[Axis], latency_ms: u32, depths: &[u32]) {
    let latency_us = 1_000 * u64::from(latency_ms);
    table.section(
        Source::Modelled,
        "the sidecore's code at exact times; ratio and bound by the formula",
    );
    for (axis, coalescing) in axes.iter().filter_map(|axis| Some((axis, axis.coalescing?))) {
        let model = |depth: u32| modelled(Some(&coalescing), latency_us, |_| depth);
        let each = |f: &dyn Fn(u32) -> String| depths.iter().map(|n| f(*n)).collect::<Vec<_>>();
        let ratio = |n: u32| {
            let Ratio { count_up, skip_up } = ratio(&coalescing, n, latency_us);
            format!("{count_up}/{skip_up}")
        };
        table.line(format!("ratio R, {}", axis.label), each(&ratio));
        table.part("interrupts per completion", each(&|n| three(model(n).interrupts)));
        table.part("longest delay, in ms", each(&|n| two(model(n).delay_ms)));
        table.part("its bound", each(&|n| two(bound_ms(&coalescing, n, latency_us))));
        table.part("with the load's end", each(&|n| two(model(n).at_end_ms)));
        table.part("its bound", each(&|_| two(longest_ms(&coalescing))));
    }
}

/// How soon a changed load is seen, by the epoch.
pub fn changes(latency_ms: u32) -> Table {
    let [many, few] = CHANGES;
    let what = format!(
        "vIC, T = 4: {many} in flight for 0.7 s, then {few}, again and again, {latency_ms} ms each"
    );
    let axes = [EPOCHS[0], T4, EPOCHS[1]];
    let epochs = axes.iter().filter_map(|axis| axis.coalescing);
    let columns = epochs.clone().map(|c| format!("epoch {} ms", c.epoch_us / 1_000));
    let mut table = Table::new(what, columns);
    table.section(Source::Modelled, "the sidecore's code at exact times");
    let latency_us = 1_000 * u64::from(latency_ms);
    let models: Vec<_> = epochs.map(|c| modelled(Some(&c), latency_us, changing)).collect();
    table.line("interrupts per completion", models.iter().map(|m| three(m.interrupts)));
    table.line("longest delay, in ms", models.iter().map(|m| two(m.delay_ms)));
    table
}

/// How much of the changing load is in flight at this time.
fn changing(now: u64) -> u32 {
    CHANGES[(now / HALF % 2) as usize]
}

#[cfg(test)]
mod tests {
    use super::{super::axes::BASE, *};

    #[test]
    fn no_delay_is_beyond_its_bound() {
        for threshold in [2, 4] {
            for adapted in [false, true] {
                let coalescing = Coalescing { in_flight: threshold, adapted, ..BASE };
                for depth in 1..=64 {
                    for latency_us in [500, 2_000, 7_000] {
                        let model = modelled(Some(&coalescing), latency_us, |_| depth);
                        let bound = bound_ms(&coalescing, depth, latency_us);
                        let case = format!("{coalescing:?} {depth} {latency_us}: {model:?}");
                        assert!(model.delay_ms <= bound + 1e-9, "{case} beyond {bound}");
                        assert!(model.at_end_ms <= longest_ms(&coalescing) + 1e-9, "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_model_has_the_ratio_s_interrupts() {
        // 63 left: 1/7.
        let model = modelled(Some(&BASE), 2_000, |_| 64);
        assert!((model.interrupts - 1.0 / 7.0).abs() < 0.01, "{model:?}");
        assert_eq!(model.delay_ms, 12.0);
        // 3 left: below the threshold.
        assert_eq!(modelled(Some(&BASE), 2_000, |_| 4).interrupts, 1.0);
        assert_eq!(modelled(None, 2_000, |_| 64).delay_ms, 0.0);
    }

    #[test]
    fn the_changing_load_changes() {
        assert_eq!([0, HALF - 1, HALF, 2 * HALF].map(changing), [64, 64, 4, 64]);
    }
}
