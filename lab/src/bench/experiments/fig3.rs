//! The paper's Figure 3: throughput of the I/O-intensive programs relative to bare
//! metal; and fio, which the paper doesn't have.

use super::{common, experiment::Experiment, notes::remarks, paper};
use crate::bench::{
    column::Column,
    figures::Spread,
    matched::By,
    measure::{Cell, Results},
    model::Model,
    show::{Bars, Block, Form, Plot, Source, spread, three, two},
    workload::{Effort, Workload},
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fig3",
    title: "Figure 3: throughput relative to bare metal",
    workloads,
    blocks,
};

fn workloads(effort: Effort) -> Vec<Workload> {
    let mut all =
        vec![Workload::STREAM, Workload::Apache, Workload::Memcached, Workload::Fio { depth: 32 }];
    if effort == Effort::Full {
        all.insert(3, Workload::Fio { depth: 1 });
    }
    all
}

/// What the paper has of a workload.
const fn published(workload: Workload) -> Option<&'static paper::Throughput> {
    match workload {
        Workload::Stream { compute: 0, throttle: None } => Some(&paper::NETPERF),
        Workload::Apache => Some(&paper::APACHE),
        Workload::Memcached => Some(&paper::MEMCACHED),
        _ => None,
    }
}

fn quote(policy: Column, workload: Workload) -> Option<f64> {
    let published = published(workload)?;
    match policy {
        Column::Bare => Some(1.0),
        Column::TRAP => Some(published.baseline),
        Column::ELI => Some(published.eli),
        Column::ELI_DELIVERY | Column::DIRECT | Column::POSTED | Column::Nested => None,
    }
}

fn blocks(results: &Results, workloads: &[Workload]) -> Vec<Block> {
    let policies = results.policies();
    let groups: Vec<_> = workloads.iter().map(|w| w.short()).collect();
    let plot = |title: &str, source, f: &dyn Fn(Column, Workload) -> Option<Spread>| Plot {
        title: title.into(),
        source,
        y: "fraction of bare metal".into(),
        form: Form::Bars { groups: groups.clone(), series: common::bars(&policies, workloads, f) },
    };
    let counted = |p, w| common::counted(results, p, w);
    let total = |p, w| common::charged(results, p, w, Model::TOTAL_CYCLES);
    let matched = |p, w| common::matched(results, p, w);
    let slowed = results.cells.iter().any(|c| c.control.is_some());
    let at_rate =
        || plot("beside bare slowed to the same rate, ticks out", Source::Measured, &matched);
    let mut plots: Vec<_> = slowed.then(at_rate).into_iter().collect();
    plots.extend([
        plot("by instructions per operation, ticks out", Source::Measured, &counted),
        plot("with 9,500 cycles charged for an exit", Source::Modelled, &total),
        quoted(workloads),
    ]);
    let mut table = common::table("fraction of bare metal", results);
    let line = |f: &dyn Fn(Column, Workload) -> Option<Spread>, w| {
        common::each(results, w, |c| f(c.policy, w).map_or(String::new(), spread))
    };
    table.section(Source::Measured, "by executed instructions per operation, ticks out");
    for w in workloads {
        table.line(w.title(), line(&counted, *w));
        let share = |c: &Cell| three(c.figures.guest_share_ticks_out());
        table.part("guest's share of them", common::each_vm(results, *w, share));
    }
    if slowed {
        table.section(
            Source::Measured,
            "bare slowed until it is like the column; below it bare's / the column's",
        );
        for w in workloads {
            for (by, what) in
                [(By::Pace, "at the same rate"), (By::Interrupts, "at the same interrupts")]
            {
                let label = format!("{}, {what}", w.short());
                common::slowed(&mut table, label, results, *w, by, |m| m.ticks_out);
            }
        }
    }
    for (note, cycles) in [
        (
            "the guest's part of all cycles, 2,000 charged for an exit: the direct cost of a world switch",
            Model::PAPER.cycles,
        ),
        ("the same, 9,500: what an exit cost the paper's machine in all", Model::TOTAL_CYCLES),
    ] {
        table.section(Source::Modelled, note);
        for w in workloads {
            let part = |c: &Cell| {
                common::charged(results, c.policy, *w, cycles)
                    .map_or(String::new(), |s| three(s.value))
            };
            table.line(w.short(), common::each(results, *w, part));
        }
    }
    table.section(Source::Quoted, paper::PRINTED);
    for w in workloads.iter().filter(|w| published(**w).is_some()) {
        table.line(w.short(), common::quoted(results, |p| quote(p, *w).map(two)));
    }
    let intro = "The paper loads one core fully and compares what it gets done in a second. Here the machine is \
                 emulated and seconds mean nothing; what an operation costs does: throughput on a fully loaded \
                 core is its inverse. The emulator charges nothing for an exit besides the host's own \
                 instructions, so the counted figures are kind to trap; the modelled ones charge for it, and take the \
                 guest's own work as what it is on bare metal.";
    vec![
        Block::Say(intro.into()),
        Block::Plots(plots),
        Block::Remarks(remarks(results)),
        Block::Table(table),
    ]
}

fn quoted(workloads: &[Workload]) -> Plot {
    let theirs: Vec<_> = workloads.iter().copied().filter(|w| published(*w).is_some()).collect();
    let series = |policy: Column, name: &str| Bars {
        name: name.into(),
        values: theirs
            .iter()
            .map(|w| quote(policy, *w).map(|value| Spread { value, spread: 0.0 }))
            .collect(),
    };
    let [bare, trap, eli] = [Column::Bare, Column::TRAP, Column::ELI].map(|p| series(p, p.label()));
    Plot {
        title: "the paper's Figure 3 (its baseline under trap)".into(),
        source: Source::Quoted,
        y: "fraction of bare metal".into(),
        form: Form::Bars {
            groups: theirs.iter().map(|w| w.short()).collect(),
            series: vec![bare, trap, eli],
        },
    }
}
