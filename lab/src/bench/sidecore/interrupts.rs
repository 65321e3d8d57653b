//! Which completions become interrupts, on a disk that takes its time for each request: all of
//! them, and by vIC's threshold and map.
//!
//! Guarantees: every line of the table is of the same disk and the same load; the paper's figures
//! are labelled as quoted, the bound of the delay as modelled.

use super::{
    alone::alone,
    axes::RATE,
    boot::Run,
    figures::Alone,
    loads::Load,
    output::{Row, Shown},
    way::Way,
};
use crate::bench::{
    guest::Kit,
    show::{Block, Source, Table, three, two, whole},
    workload::Effort,
};
use anyhow::Result;
use coalesce::Ratio;
use exitless::context::Context;
use plan::{Backing, Coalesce, Coalescing, Control};

/// How completions are told of.
struct Axis {
    label: &'static str,
    threshold: u16,
    adapted: bool,
}

/// Beside "all told".
const AXES: [Axis; 3] = [
    Axis { label: "T = 2", threshold: 2, adapted: false },
    Axis { label: "T = 4", threshold: 4, adapted: false },
    Axis { label: "T = 4, adapted", threshold: 4, adapted: true },
];

impl Axis {
    fn coalesce(&self) -> Coalesce {
        Coalesce::On(Coalescing {
            in_flight: self.threshold,
            rate: RATE,
            adapted: self.adapted,
            ..Coalescing::USUAL
        })
    }

    /// The ratio at this depth on a disk of this latency: as far as it may go, if adapted. In
    /// flight are those that a completion leaves.
    fn ratio(&self, depth: u32, latency_ms: u32) -> Ratio {
        let depth = depth.saturating_sub(1);
        let threshold = self.threshold.into();
        if self.adapted {
            Ratio::furthest(depth, threshold, u64::from(1_000 / latency_ms / RATE))
        } else {
            Ratio::of(depth, threshold)
        }
    }

    /// The longest that a completion waits to be told of, in ms: (1/R - 1)/IOPS, in whole
    /// completions, as it is another one that tells of it; and 1/`RATE` s at the most.
    fn delay_ms(&self, depth: u32, latency_ms: u32) -> f64 {
        let Ratio { count_up, skip_up } = self.ratio(depth, latency_ms);
        let waits = (f64::from(skip_up) / f64::from(count_up) - 1.0).ceil();
        (waits * f64::from(latency_ms)).min(1e3 / f64::from(RATE))
    }
}

/// One depth: all told, and by each axis.
struct Cell {
    depth: u32,
    off: Alone,
    on: Vec<Alone>,
}

/// A disk that takes so long for each request, with so many under way.
pub fn measure(
    cx: &Context,
    kit: &Kit,
    depths: &[u32],
    latency_ms: u32,
    effort: Effort,
) -> Result<Shown> {
    let mut cells = Vec::new();
    for &depth in depths {
        // As long whatever the depth is.
        let times = if effort == Effort::Full { 2 } else { 1 };
        let load = Load::of(depth, 150 * times, 900 * times);
        let one = |coalesce, what: &str| {
            let control =
                Control { coalesce, latency_us: 1_000 * latency_ms, ..Control::default() };
            let run = Run {
                way: Way::DIRECT,
                loads: vec![load],
                backing: Backing::Null,
                control,
                whole_turns: false,
                sidecore_slowed: 0,
                rounds: Vec::new(),
            };
            alone(cx, kit, &run, &format!("{depth} in flight, {what}"))
        };
        let off = one(Coalesce::Off, "all told")?;
        let on = AXES.iter().map(|axis| one(axis.coalesce(), axis.label)).collect::<Result<_>>()?;
        cells.push(Cell { depth, off, on });
    }
    Ok(shown(latency_ms, &cells))
}

fn shown(latency_ms: u32, cells: &[Cell]) -> Shown {
    let what = format!(
        "interrupts of a disk that takes {latency_ms} ms for each request, one after the other, direct; vIC from {RATE} I/Os a second on"
    );
    let mut table = Table::new(what.clone(), cells.iter().map(|c| format!("depth {}", c.depth)));
    table.section(Source::Measured, "");
    of_each(&mut table, cells, "I/Os counted", |c| whole(c.figures.operations as f64));
    let interrupts = |c: &Alone| c.per_io(c.figures.interrupts);
    of_each(&mut table, cells, "interrupts per I/O", |c| three(interrupts(c)));
    for (i, axis) in AXES.iter().enumerate() {
        let less = |c: &Cell| two(100.0 * (1.0 - interrupts(&c.on[i]) / interrupts(&c.off)));
        let line = format!("less, in per cent, {}", axis.label);
        table.part(line, cells.iter().map(less));
    }
    // A publication may stand for several completions.
    let withheld = |c: &Alone| three(c.per_request(c.served.calls_withheld));
    of_each(&mut table, cells, "withheld, per completion", withheld);
    // As many ticks for each I/O in all: the disk sets the pace.
    of_each(&mut table, cells, "guest's instructions per I/O", |c| {
        whole(c.per_io(c.figures.guest))
    });
    of_each(&mut table, cells, "sidecore's instructions per I/O", |c| {
        whole(c.per_io(c.work.served))
    });
    table.section(
        Source::Modelled,
        "by what vIC's map gives with as many in flight as a completion leaves; adapted: as far as it may go",
    );
    for axis in &AXES {
        let ratio = |c: &Cell| {
            let Ratio { count_up, skip_up } = axis.ratio(c.depth, latency_ms);
            format!("{count_up}/{skip_up}")
        };
        let line = format!("ratio R, {}", axis.label);
        table.line(line, cells.iter().map(ratio));
        let delay = |c: &Cell| two(axis.delay_ms(c.depth, latency_ms));
        table.part("delay's bound, in ms", cells.iter().map(delay));
    }
    paper(&mut table, &cells.iter().map(|c| c.depth).collect::<Vec<_>>());
    let rows = cells.iter().flat_map(|c| {
        let what = format!("{what}; depth {}", c.depth);
        labels().zip(c.each()).map(move |(label, a)| Row::alone(label, &what, a, &[]))
    });
    Shown { rows: rows.collect(), blocks: vec![Block::Table(table)] }
}

/// vIC's evaluation (Ahmad, Gulati, Mashtizadeh, ATC 2011) on an array of disks.
pub fn paper(table: &mut Table, depths: &[u32]) {
    const AT_64: [(&str, &str); 3] = [
        ("vIC, Iometer 4 KiB, interrupts less, in per cent", "70 (113k to 34k/s)"),
        ("the same, cycles per I/O less, in per cent", "18"),
        ("vIC, Iometer 8 KiB, interrupts less, in per cent", "63"),
    ];
    const TPC_C: [(&str, &str); 2] = [
        ("vIC, TPC-C, T = 4, interrupts a second", "9.9k to 6.4k"),
        ("vIC, TPC-C, T = 2, interrupts a second", "9.9k to 5.8k"),
    ];
    table.section(Source::Quoted, "the vIC paper's, T = 4; TPC-C of no depth");
    for (line, figure) in AT_64 {
        let at = |depth: &u32| if *depth == 64 { figure.to_owned() } else { String::new() };
        table.line(line, depths.iter().map(at));
    }
    for (line, figure) in TPC_C {
        // Of no depth: it stands once.
        let once = |i| if i == 0 { figure.to_owned() } else { String::new() };
        table.line(line, (0..depths.len()).map(once));
    }
}

fn of_each(table: &mut Table, cells: &[Cell], what: &str, of: impl Fn(&Alone) -> String) {
    for (i, label) in labels().enumerate() {
        let figures = cells.iter().map(|c| c.each().nth(i).map(&of).unwrap_or_default());
        table.line(format!("{what}, {label}"), figures);
    }
}

fn labels() -> impl Iterator<Item = &'static str> {
    std::iter::once("all told").chain(AXES.iter().map(|axis| axis.label))
}

impl Cell {
    /// In the order of [`labels`].
    fn each(&self) -> impl Iterator<Item = &Alone> {
        std::iter::once(&self.off).chain(&self.on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_bounded_by_the_map_and_by_the_rate() {
        let [two, four, adapted] = AXES;
        // Fewer in flight than the threshold: all are told.
        assert_eq!(two.delay_ms(1, 2), 0.0);
        assert_eq!(four.delay_ms(4, 2), 0.0);
        // 1/7: six wait for the seventh, 2 ms each.
        assert_eq!(four.delay_ms(64, 2), 12.0);
        // 2/3 and 4/5: one waits for the next.
        assert_eq!(four.delay_ms(16, 2), 2.0);
        assert_eq!(two.delay_ms(4, 2), 2.0);
        assert_eq!(two.delay_ms(16, 2), 4.0);
        assert_eq!(adapted.delay_ms(16, 2), 12.0);
        // 1/15 would be 28 ms.
        assert_eq!(two.delay_ms(64, 2), 20.0);
        // 10 completions in 20 ms: nine wait for the tenth.
        assert_eq!(adapted.delay_ms(64, 2), 18.0);
    }
}
