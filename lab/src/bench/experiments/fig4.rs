//! The paper's Figure 4: what exitless interrupts are worth when the program computes
//! more for each byte that it sends.

use super::{common, experiment::Experiment, paper::improvement};
use crate::bench::{
    column::Column,
    figures::Figures,
    measure::{Cell, Results},
    model::Model,
    show::{Block, Form, Line, Plot, Point, Source, Table, number},
    workload::{Effort, Workload},
};

pub const EXPERIMENT: Experiment =
    Experiment { name: "fig4", title: "Figure 4: computation per byte", workloads, blocks };

/// Bytes of an operation.
const WRITE: f64 = 256.0;

fn workloads(effort: Effort) -> Vec<Workload> {
    let compute: &[u32] = match effort {
        Effort::Full | Effort::Demo => &[0, 8, 32, 64, 128],
        Effort::Quick => &[0, 64],
        // With Figure 5's parameter, so that one cell shows that both arrive.
        Effort::Smoke => return vec![BOTH],
    };
    compute.iter().map(|compute| Workload::Stream { compute: *compute, throttle: None }).collect()
}

/// Some computation, and some throttling.
pub const BOTH: Workload = Workload::Stream { compute: 64, throttle: Some(3_000) };

/// Instructions for each byte that was sent.
fn per_byte(f: &Figures) -> f64 {
    common::cost(f) / WRITE
}

/// A curve's points over instructions per byte under `trap`, as the paper has cycles per byte.
pub fn points(
    results: &Results,
    workloads: &[Workload],
    x: impl Fn(&Figures) -> f64,
    y: impl Fn(Workload) -> Option<f64>,
    label: impl Fn(Workload) -> String,
) -> Vec<Point> {
    let mut points: Vec<_> = workloads
        .iter()
        .filter_map(|w| {
            let x = x(results.figures(Column::TRAP, *w)?);
            Some(Point { x, y: y(*w)?, label: label(*w) })
        })
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

/// The policies whose improvement over `trap` is drawn.
pub fn improved(results: &Results) -> Vec<Column> {
    let better = |p: &Column| !matches!(*p, Column::Bare | Column::TRAP);
    results.policies().into_iter().filter(better).collect()
}

/// Device interrupts for each KiB that was sent.
pub fn interrupts(f: &Figures) -> f64 {
    1024.0 * common::per(f.interrupts, f) / WRITE
}

fn blocks(results: &Results, workloads: &[Workload]) -> Vec<Block> {
    let x = "instructions per byte under trap";
    let line = |p: Column| {
        let y = |w| common::improvement(results, p, w, Model::TOTAL_CYCLES);
        let points = points(results, workloads, per_byte, y, |_| String::new());
        Line { name: p.label().into(), points }
    };
    let rate = points(
        results,
        workloads,
        per_byte,
        |w| results.figures(Column::TRAP, w).map(interrupts),
        |_| String::new(),
    );
    let lines = |x: &str, series| Form::Lines { x: x.into(), series };
    let quoted = [
        (improvement::PLAIN_CYCLES, improvement::PLAIN, "Figure 3's"),
        (improvement::COMPUTING_CYCLES, improvement::COMPUTING, "still over this"),
    ]
    .map(|(x, y, label)| Point { x, y, label: label.into() });
    let plots = vec![
        Plot {
            title: "throughput gained over trap, 9,500 cycles an exit".into(),
            source: Source::Modelled,
            y: "per cent".into(),
            form: lines(x, improved(results).into_iter().map(line).collect()),
        },
        Plot {
            title: "interrupts under trap".into(),
            source: Source::Measured,
            y: "interrupts per KiB sent".into(),
            form: lines(x, vec![Line { name: Column::TRAP.label().into(), points: rate }]),
        },
        Plot {
            title: "what the paper's text says of its Figure 4".into(),
            source: Source::Quoted,
            y: "per cent gained by ELI".into(),
            form: lines(
                "cycles per byte",
                vec![Line { name: Column::ELI.label().into(), points: quoted.into() }],
            ),
        },
    ];
    let mut table = common::table("computation per byte", results);
    table.section(Source::Measured, "instructions per byte sent, guest and host, ticks out");
    for w in workloads {
        table.line(w.short(), common::each(results, *w, |c| number(per_byte(&c.figures))));
    }
    table.section(Source::Measured, "device interrupts per KiB sent");
    for w in workloads {
        table.line(w.short(), common::each(results, *w, |c| number(interrupts(&c.figures))));
    }
    gains(results, workloads, Workload::short, &mut table);
    let intro = "netperf's stream, with a loop of known length for each byte before it is written. The more a \
                 program computes, the less it sends, and the less its interrupts matter; the paper finds that \
                 this takes a lot of computation, since cards and drivers save interrupts only when they come \
                 thick. Its horizontal axis is cycles per byte of throughput, ours the instructions counted.";
    vec![Block::Say(intro.into()), Block::Plots(plots), Block::Table(table)]
}

/// Per cent that a policy gains with a workload.
type Gain<'a> = &'a dyn Fn(Column, Workload) -> Option<f64>;

/// The sections of a table that say what each policy gains over `trap`.
pub fn gains(
    results: &Results,
    workloads: &[Workload],
    name: fn(Workload) -> String,
    table: &mut Table,
) {
    let counted = |p, w| {
        let share = |p| results.figures(p, w).map(Figures::guest_share_ticks_out);
        Some(100.0 * (share(p)? / share(Column::TRAP)? - 1.0))
    };
    let modelled = |cycles| move |p, w| common::improvement(results, p, w, cycles);
    let (direct, total) = (modelled(Model::PAPER.cycles), modelled(Model::TOTAL_CYCLES));
    let kinds: [(_, _, Gain); 3] = [
        (
            Source::Measured,
            "per cent gained over trap by the guest's share of instructions, ticks out",
            &counted,
        ),
        (Source::Modelled, "per cent gained, 2,000 cycles charged for an exit", &direct),
        (Source::Modelled, "per cent gained, 9,500 cycles", &total),
    ];
    for (source, note, gain) in kinds {
        table.section(source, note);
        for w in workloads {
            let gain = |c: &Cell| match c.policy {
                Column::TRAP => String::new(),
                p => gain(p, *w).map_or(String::new(), number),
            };
            table.line(name(*w), common::each(results, *w, gain));
        }
    }
}
