//! How one sidecore's work grows with its VMs, up to where it has no idle pass left: 1 to 14 VMs
//! with the test kernel, and one that asks for little beside all others.
//!
//! Guarantees: what is counted of the sidecore is set against its own instructions, never against
//! time: how fast the guests' cores are beside it is the emulator's doing.

use super::{
    figures::Together,
    kernels::{self, Load, Run, What},
    loads::BULK,
    output::{self, Row, Shown, four, longest},
    table,
    way::Way,
};
use crate::bench::{
    guest::Kit,
    show::{Block, Source, Table, three, two, whole},
    workload::Effort,
};
use anyhow::{Result, bail};
use exitless::context::Context;
use plan::Control;

/// Of no number of VMs, so that each stands once.
const ELVIS: [(&str, &str); 2] = [
    ("memcached: the I/O core is saturated", "after 3 VMs"),
    ("memcached: throughput against SR-IOV with ELI until then", "-30 % at most"),
];
/// Reads under way at the most.
const MOST: u32 = 64;
/// The ways that are set side by side: one of each kind.
pub const WAYS: [Way; 2] = [Way::Classical, Way::DIRECT];

fn load(depth: u32, length: u32) -> Load {
    Load { what: What::Reads(depth), length, control: Control::default() }
}

fn bulk(effort: Effort) -> Load {
    let length = if matches!(effort, Effort::Full) { 6_000 } else { 1_500 };
    load(BULK, length)
}

fn little(effort: Effort) -> Load {
    load(1, bulk(effort).length / 10)
}

/// So many VMs each way; then one at depth 1 beside the others of the most, exitless.
pub fn measure(
    cx: &Context,
    kit: &Kit,
    counts: &[u32],
    ways: &[Way],
    effort: Effort,
) -> Result<Shown> {
    let mut shown = Shown::default();
    for way in WAYS.into_iter().filter(|way| ways.contains(way)) {
        let mut cells = Vec::new();
        for &n in counts {
            let loads = vec![bulk(effort); n as usize];
            let what = format!("{n} test kernels, bulk");
            let bulk = kernels::run(cx, kit, &Run::new(way, loads), &what)?;
            cells.push((n, Together { bulk, latency: None }));
        }
        shown.add(of_way(way, &cells));
    }
    let most = counts.iter().max().filter(|n| **n > 1 && ways.contains(&Way::DIRECT));
    if let Some(n) = most {
        let mut loads = vec![bulk(effort); *n as usize];
        // The last one: at the start, when kicked queues go by age, the others have gone.
        loads[*n as usize - 1] = little(effort);
        let mut cells = Vec::new();
        for (whole_turns, turns) in [(false, "scheduled"), (true, "whole turns")] {
            let what = format!("1 and {}, {turns}", n - 1);
            let run = Run { whole_turns, ..Run::new(Way::DIRECT, loads.clone()) };
            let mut bulk = kernels::run(cx, kit, &run, &what)?;
            let latency = bulk.pop();
            cells.push(Together { bulk, latency });
        }
        let what = format!(
            "a VM at depth 1 beside {} at depth {BULK} on one sidecore; test kernels, 4 KiB reads of null disks, direct",
            n - 1
        );
        let parts = ["scale, latency, scheduled", "scale, latency, whole turns"];
        shown.add(output::latency(what, parts, *n, &cells));
    }
    Ok(shown)
}

/// For the tests: two VMs, one with as much under way as there can be, have no exit, and both are
/// served; a byte to the emulated port has one at least.
pub fn smoke(cx: &Context, kit: &Kit) -> Result<()> {
    let loads = vec![load(BULK, 1_000), load(MOST, 1_000)];
    let bulk = kernels::run(cx, kit, &Run::new(Way::DIRECT, loads), "2 test kernels")?;
    let both = Together { bulk, latency: None };
    let exits = both.sum(|m| m.exits.iter().sum());
    if exits > 0 || both.members().any(|m| m.interrupts == 0 || m.work.served == 0) {
        bail!("two test kernels on one sidecore: {exits} exits, none expected: {both:?}");
    }
    let bytes = table::emulated(cx, kit, Effort::Smoke)?;
    let exits: u64 = bytes.exits.iter().sum();
    if exits < bytes.operations {
        bail!("{} bytes to an emulated port, and only {exits} exits", bytes.operations);
    }
    Ok(())
}

fn of_way(way: Way, cells: &[(u32, Together)]) -> Shown {
    let what = format!(
        "VMs with test kernels on one sidecore; each 4 KiB reads, depth {BULK}, null disk, {}",
        way.label()
    );
    let columns =
        cells.iter().map(|(n, _)| if *n == 1 { "1 VM".into() } else { format!("{n} VMs") });
    let mut table = Table::new(what.clone(), columns);
    table.section(Source::Measured, "no ticks: no guest has a timer that runs");
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> {
        cells.iter().map(|(_, t)| f(t)).collect()
    };
    table.line("I/Os counted", all(&|t| whole(t.sum(|m| m.operations) as f64)));
    table.line("exits per I/O", all(&|t| four(t.per_io(|m| m.exits.iter().sum()))));
    table.line("interrupts per I/O", all(&|t| three(t.per_io(|m| m.interrupts))));
    table.line("guest's instructions per I/O", all(&|t| whole(t.per_io(|m| m.guest))));
    table.part("the host's on its core", all(&|t| whole(t.per_io(|m| m.host))));
    table.line("sidecore's instructions per I/O", all(&|t| whole(t.work_each())));
    table.part("instructions of a pass that finds work", all(&|t| whole(t.pass())));
    table.part("I/Os of such a pass", all(&|t| two(t.pass() / t.work_each())));
    table.line("sidecore busy, of its instructions", all(&|t| three(t.busy())));
    table.part("idle passes, of all", all(&|t| three(t.idle_passes())));
    table.line("largest share / smallest", all(&|t| three(t.shares())));
    table.line("longest wait, in passes", all(&|t| whole(longest(t.members()) as f64)));
    let kicks = |t: &Together| {
        t.sum(|m| m.served.kicks) as f64 / t.sum(|m| m.served.completed).max(1) as f64
    };
    table.line("kicks that exited, per request", all(&|t| four(kicks(t))));
    table.section(Source::Quoted, "ELVIS' slides, 1 to 14 VMs with 10 Gb/s links");
    for (line, figure) in ELVIS {
        let cells = cells.iter().enumerate();
        table.line(line, cells.map(|(i, _)| if i == 0 { figure.into() } else { String::new() }));
    }
    let rows = cells.iter().map(|(n, t)| Row::together("scale", &what, *n, way, t)).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}
