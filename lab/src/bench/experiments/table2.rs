//! The paper's Table 2: latency of a UDP request and its response beside a busy loop.
//! Here, instructions per transaction, and those that the host adds between a device's
//! interrupt and its handler.

use super::{common, experiment::Experiment, paper};
use crate::bench::{
    column::Column,
    figures::{Figures, Spread},
    measure::{Cell, Results},
    model::Model,
    show::{Bars, Block, Form, Plot, Source, number, three, two, whole},
    workload::{Effort, Workload},
};
use ledger::Reason;

pub const EXPERIMENT: Experiment = Experiment {
    name: "table2",
    title: "Table 2: latency, UDP request-response",
    workloads,
    blocks,
};

const LOAD: Workload = Workload::Exchange;

fn workloads(_: Effort) -> Vec<Workload> {
    vec![LOAD]
}

/// Host instructions for each operation, ticks taken out.
fn host(f: &Figures) -> f64 {
    ((f.host as f64 - f.ticks as f64 * f.tick.host) / f.operations as f64).max(0.0)
}

/// Exits of a reason for each device interrupt, what ticks explain taken out.
fn exits(f: &Figures, reason: Reason) -> f64 {
    f.exits_of_load().get(reason as usize).copied().unwrap_or(0.0)
}

/// Microseconds that the host adds to a transaction, by the model.
fn added(f: &Figures) -> f64 {
    let exits = f.exits_ticks_out() as f64 / f.operations as f64;
    (host(f) + exits * Model::PAPER.cycles) / Model::MEGAHERTZ
}

/// What the paper has of a policy.
const fn published(policy: Column) -> Option<f64> {
    match policy {
        Column::Bare => Some(0.0),
        Column::TRAP => Some(paper::LATENCY_BASELINE),
        Column::ELI => Some(paper::LATENCY_ELI),
        Column::ELI_DELIVERY | Column::DIRECT | Column::POSTED | Column::Nested => None,
    }
}

fn blocks(results: &Results, _: &[Workload]) -> Vec<Block> {
    let vm = |f: &dyn Fn(&Figures) -> String| common::each_vm(results, LOAD, |c| f(&c.figures));
    let mut table = common::table(LOAD.title(), results);
    table.section(Source::Measured, "for each transaction, ticks out");
    table.line(
        "device interrupts",
        common::each(results, LOAD, |c| two(common::per(c.figures.interrupts, &c.figures))),
    );
    table.line("host instructions", vm(&|f| number(host(f))));
    table.line("exits", vm(&|f| two(f.exits_ticks_out() as f64 / f.operations as f64)));
    table.section(Source::Measured, "for each device interrupt");
    table.line("exits between it and its handler", vm(&|f| two(exits(f, Reason::DeviceInterrupt))));
    table.line(
        "instructions between it and its handler",
        vm(&|f| path(results, f).map_or(String::new(), number)),
    );
    table.line("exits for its completion", vm(&|f| two(exits(f, Reason::DeviceEoi))));
    table.section(
        Source::Measured,
        "the guest's core, busy loop included, until the next transaction",
    );
    table.line(
        "guest instructions",
        common::each(results, LOAD, |c| whole(common::per(c.figures.guest, &c.figures))),
    );
    let idle = |c: &Cell| c.idle.as_ref().map_or(String::new(), |i| three(i.share));
    table.line("load generator idle, of one CPU", common::each(results, LOAD, idle));
    table.section(Source::Modelled, "at 2.93 GHz, an instruction a cycle, 2,000 cycles an exit");
    table.line("µs that the host adds", vm(&|f| two(added(f))));
    table.section(Source::Quoted, paper::PRINTED);
    table.line("µs added", common::quoted(results, |p| published(p).map(two)));
    table.section(Source::Quoted, paper::FULL);
    let all = |p| published(p).map(|us| two(paper::LATENCY_BARE + us));
    table.line("µs in all", common::quoted(results, all));

    let policies: Vec<_> = results.policies().into_iter().filter(|p| *p != Column::Bare).collect();
    let ours = |f: fn(&Figures) -> f64| {
        let value = move |p, w| {
            results.figures(p, w).map(|figures| Spread { value: f(figures), spread: 0.0 })
        };
        common::bars(&policies, &[LOAD], value)
    };
    let theirs = [Column::TRAP, Column::ELI].map(|p| Bars {
        name: p.label().into(),
        values: vec![published(p).map(|value| Spread { value, spread: 0.0 })],
    });
    let plot = |title: &str, source, y: &str, series| Plot {
        title: title.into(),
        source,
        y: y.into(),
        form: Form::Bars { groups: vec![LOAD.short()], series },
    };
    let plots = vec![
        plot(
            "what the host executes in a transaction",
            Source::Measured,
            "instructions",
            ours(host),
        ),
        plot("what the host adds to a transaction", Source::Modelled, "µs", ours(added)),
        plot("the paper's Table 2, added to bare metal's", Source::Quoted, "µs", theirs.into()),
    ];
    let intro = "One packet to the other side and one back, again and again, while a busy loop keeps the guest's \
                 core from ever being idle. A transaction's time under emulation is the emulator's; what the \
                 hypervisor puts into it is counted: its instructions, and on the way from a device's interrupt \
                 to the guest's handler. The loop runs while a packet is away, so the guest's own instructions \
                 per transaction say how slow the other side was, and nothing else.";
    vec![Block::Say(intro.into()), Block::Plots(plots), Block::Table(table)]
}

/// Host instructions between a device's interrupt and its handler: those of a VM whose
/// every exit is for delivery or completion, less those of one whose deliveries don't exit.
fn path(results: &Results, f: &Figures) -> Option<f64> {
    let delivery = exits(f, Reason::DeviceInterrupt);
    if delivery < 0.005 {
        return Some(0.0);
    }
    let without = results.figures(Column::ELI_DELIVERY, LOAD)?;
    let per_interrupt = |f: &Figures| host(f) * f.operations as f64 / f.interrupts as f64;
    Some((per_interrupt(f) - per_interrupt(without)).max(0.0))
}
