//! The paper's Table 1: where the time of a loaded core goes, and in which exits. The
//! paper prints Apache's and summarises the other two; here all three are shown.

use super::{breakdown, common, experiment::Experiment, notes::remarks, paper};
use crate::bench::{
    column::Column,
    figures::Spread,
    measure::{Cell, Results},
    show::{Block, Form, Plot, Source, Table, two, whole},
    workload::{Effort, Workload},
};

pub const EXPERIMENT: Experiment =
    Experiment { name: "table1", title: "Table 1: execution breakdown", workloads, blocks };

fn workloads(_: Effort) -> Vec<Workload> {
    vec![Workload::STREAM, Workload::Apache, Workload::Memcached]
}

/// What the paper has of a workload.
const fn published(workload: Workload) -> Option<&'static paper::Breakdown> {
    match workload {
        Workload::Stream { compute: 0, throttle: None } => Some(&paper::NETPERF_BREAKDOWN),
        Workload::Apache => Some(&paper::APACHE_BREAKDOWN),
        Workload::Memcached => Some(&paper::MEMCACHED_BREAKDOWN),
        _ => None,
    }
}

/// The paper's column for a policy: baseline, delivery, ELI, bare metal.
const fn column(policy: Column) -> Option<usize> {
    match policy {
        Column::TRAP => Some(0),
        Column::ELI_DELIVERY => Some(1),
        Column::ELI => Some(2),
        Column::Bare => Some(3),
        Column::DIRECT | Column::POSTED | Column::Nested => None,
    }
}

fn quote(policy: Column, of: &[f64]) -> Option<f64> {
    of.get(column(policy)?).copied()
}

fn blocks(results: &Results, workloads: &[Workload]) -> Vec<Block> {
    let policies: Vec<_> = results.policies().into_iter().filter(|p| *p != Column::Bare).collect();
    let groups: Vec<_> = workloads.iter().map(|w| w.short()).collect();
    let plot = |title: &str, source, f: &dyn Fn(Column, Workload) -> Option<f64>| {
        let value = |p, w| f(p, w).map(|value| Spread { value, spread: 0.0 });
        let mut series = common::bars(&policies, workloads, value);
        series.retain(|s| s.values.iter().any(Option::is_some));
        let form = Form::Bars { groups: groups.clone(), series };
        Plot { title: title.into(), source, y: "part in the guest".into(), form }
    };
    let ours = |p, w| results.figures(p, w).map(|f| f.guest_share_ticks_out());
    let theirs = |p, w| quote(p, &published(w)?.guest);
    let plots = vec![
        plot("guest's share of instructions, ticks out", Source::Measured, &ours),
        plot("the paper's part of time in the guest", Source::Quoted, &theirs),
    ];
    let intro = "The paper's rows are counts a second; under emulation they are shown for each operation, and \
                 carried to the paper's interrupt rate by the model. The part of time in the guest is the part \
                 of instructions executed there. There are no interrupt-window exits to show: trap offers \
                 virtual interrupts by V_IRQ, which the processor takes when the guest lets it.";
    let mut blocks =
        vec![Block::Say(intro.into()), Block::Plots(plots), Block::Remarks(remarks(results))];
    for workload in workloads {
        let mut table = breakdown::table(results, *workload);
        injections(results, *workload, &mut table);
        if let Some(theirs) = published(*workload) {
            quotes(results, theirs, &mut table);
        }
        blocks.push(Block::Table(table));
    }
    blocks
}

fn injections(results: &Results, workload: Workload, table: &mut Table) {
    table.section(Source::Measured, "what the host gives to the guest");
    let per = format!("injections per {}", workload.operation());
    let of = |c: &Cell| two(common::per(c.figures.injected, &c.figures));
    table.line(per, common::each_vm(results, workload, of));
}

fn quotes(results: &Results, theirs: &paper::Breakdown, table: &mut Table) {
    let line =
        |of: &[f64], show: fn(f64) -> String| common::quoted(results, |p| quote(p, of).map(show));
    table.section(Source::Quoted, paper::FULL);
    table.line("exits a second", line(&theirs.exits, whole));
    table.line("part of time in the guest", line(&theirs.guest, two));
    table.line("interrupts a second", line(&theirs.interrupts, whole));
    table.line(theirs.unit, line(&theirs.throughput, whole));
}
