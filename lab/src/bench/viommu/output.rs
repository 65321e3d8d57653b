//! What `bench viommu` shows: the columns side by side, the paper's table with its figures beside
//! ours, rows for JSON, a page.

use super::strategy::{Cell, Own, Server, Strategy, find, unwaiting, without, without_waiting};
use crate::bench::{
    figures::{Spread, median, reason_name},
    guest::Kit,
    show::{
        Bars, Block, Form, Plot, Source, Table,
        html::{self, Page, Section},
        spread, three, two, whole,
    },
    workload::Workload,
};
use ledger::Reason;
use serde::Serialize;
use std::collections::BTreeMap;

/// Its name on the command line and in JSON.
pub const NAME: &str = "viommu";
const TITLE: &str = "The guest's own IOMMU: what protection from its devices costs a guest";
/// Exits rarer than this per read have no line.
const RARE: f64 = 0.0005;

const LEGEND: &str = "\
bare: the kernel on the machine, with the machine's IOMMU; the others are VMs under direct. none: no \
mapping. strict, deferred: Linux's iommu.strict=1 and 0 before the guest's own IOMMU, which a sidecore \
serves, or the VM's exits; with an emulated unit of VT-d or AMD-Vi, ours or QEMU's, Linux is strict in \
any case. optimistic: strict in the guest, and the host keeps what is unmapped for 10 ms. An I/O of \
fio's is a map and an unmap; netperf's writes go by fewer and larger segments, whose pages the driver \
maps and unmaps, besides those that it receives into. While a sidecore works the guest waits, and \
executes as many instructions as that takes on this emulator; by exits the answer is there when the \
guest looks, so the guest's own instructions there are those without waiting. With these alone the \
throughput by a sidecore is modelled: no real one is as fast. The paper's \"shared\" has no column: \
Linux has no such mode any more. Nor has optimistic teardown by exits: it takes a core that looks when \
the time is up.";

const QUOTED: &str = "\
The paper's machine: 10 GbE, netperf, the throughput in per cent of line rate; ours is by instructions \
on the guest's core, of none's, so the two are no more than beside each other.";

/// The paper's Table 1 (Amit and others, USENIX ATC 2011), at second hand: per cent of line rate
/// with the IOMMU emulated on the guest's core, on a sidecore, and on the bare machine.
const PAPER: [(Strategy, [Option<f64>; 3]); 3] = [
    (Strategy::Strict, [Some(10.0), Some(30.0), Some(43.0)]),
    (Strategy::Deferred, [None, None, Some(91.0)]),
    (Strategy::Optimistic, [Some(82.0), Some(100.0), Some(100.0)]),
];
/// In its order.
const SERVERS: [Server; 3] = [Server::Exits, Server::Sidecore, Server::Machine];

/// What the terminal and the page show of each load.
pub fn blocks(own: Own, measured: &[(Workload, Vec<Cell>)]) -> Vec<Block> {
    let mut blocks = vec![Block::Plots(vec![plot(measured)])];
    blocks.extend(
        measured.iter().map(|(workload, cells)| Block::Table(table(own, *workload, cells))),
    );
    blocks.push(Block::Table(paper(measured)));
    blocks.extend([LEGEND, QUOTED].map(|text| Block::Say(text.into())));
    blocks
}

/// The page.
pub fn page(blocks: Vec<Block>, kit: &Kit) -> String {
    let section = Section { name: NAME.into(), title: TITLE.into(), blocks };
    html::page(&Page {
        title: "Exitless: the guest's own IOMMU".into(),
        intro: vec![
            "Every measured figure is counted: exits by the hypervisor's ledger, requests by who serves them, \
             instructions by a plugin of the emulator."
                .into(),
        ],
        sections: vec![section],
        notes: kit.versions().into_iter().map(String::from).collect(),
        ..Page::default()
    })
}

fn four(n: f64) -> String {
    format!("{n:.4}")
}

fn table(unit: Own, workload: Workload, cells: &[Cell]) -> Table {
    let operation = workload.operation();
    let mut table = Table::new(
        format!("{}; {}", workload.title(), unit.label()),
        cells.iter().map(|c| c.place.label()),
    );
    let all = |f: &dyn Fn(&Cell) -> String| -> Vec<String> { cells.iter().map(f).collect() };
    let vm = |f: &dyn Fn(&Cell) -> String| -> Vec<String> {
        all(&|c| if c.place.server == Server::Machine { String::new() } else { f(c) })
    };
    let own = |f: &dyn Fn(&Cell) -> String| -> Vec<String> {
        all(&|c| if c.place.has_own() { f(c) } else { String::new() })
    };
    table.section(Source::Measured, "");
    table.line(format!("{operation}s counted"), all(&|c| whole(c.alone.figures.operations as f64)));
    table.line(
        "throughput, of none's, ticks out",
        all(&|c| against(cells, c).map_or(String::new(), spread)),
    );
    table.line(
        format!("exits per {operation}, ticks in"),
        vm(&|c| four(c.alone.figures.exits_per_operation())),
    );
    for reason in Reason::ALL.iter().copied() {
        if cells.iter().any(|c| c.alone.exits(reason) >= RARE) {
            table.part(reason_name(reason as usize), vm(&|c| four(c.alone.exits(reason))));
        }
    }
    table.line(
        format!("interrupts per {operation}"),
        all(&|c| three(c.alone.per_io(c.alone.figures.interrupts))),
    );
    if workload.is_network() {
        table.line("packets, both ways", all(&|c| three(c.alone.per_io(c.alone.figures.packets))));
    }
    table.line(
        format!("guest's instructions per {operation}, ticks out"),
        all(&|c| whole(median(&c.alone.guest_ticks_out))),
    );
    table.line("the host's on its core", vm(&|c| whole(c.hosts())));
    table.line("the sidecore's", own(&|c| whole(c.alone.per_io(c.alone.work.served))));
    table.section(Source::Measured, "added for each of these, on the guest's core");
    table.line(
        "by the guest's own kernel",
        all(&|c| without(cells, c.place).map_or(String::new(), |none| whole(c.added(none)))),
    );
    table.part(
        "waiting excluded",
        own(&|c| match (unwaiting(cells, c.place), without(cells, c.place)) {
            (Some(unwaiting), Some(none)) => whole(unwaiting.added(none)),
            _ => String::new(),
        }),
    );
    table.line(
        "by the host",
        vm(&|c| {
            without(cells, c.place).map_or(String::new(), |none| whole(c.hosts() - none.hosts()))
        }),
    );
    table.section(Source::Modelled, "with a sidecore for which the guest never waits");
    table.line(
        "throughput, of none's",
        all(&|c| without_waiting(cells, c.place).map_or(String::new(), two)),
    );
    table.section(Source::Measured, "from the VM's start to its end, by who served it");
    table.line("requests", own(&|c| whole(c.alone.served.completed as f64)));
    table.line(
        "kicks that exited, per request",
        own(&|c| four(c.alone.per_request(c.alone.served.kicks))),
    );
    table.line(
        "of what was mapped, was mapped still",
        own(&|c| match c.place.strategy {
            Strategy::Optimistic => three(c.hits()),
            _ => String::new(),
        }),
    );
    table
}

/// Against the same without an IOMMU.
fn against(cells: &[Cell], cell: &Cell) -> Option<Spread> {
    without(cells, cell.place).map(|none| cell.throughput(none))
}

/// The paper's table: ours, and its own.
fn paper(measured: &[(Workload, Vec<Cell>)]) -> Table {
    let heads = ["guest's core", "sidecore", "bare machine"].map(String::from);
    let mut table = Table::new("throughput in per cent of that without an IOMMU", heads);
    table.section(Source::Measured, "by instructions on the guest's core");
    for (workload, cells) in measured {
        for (strategy, _) in PAPER {
            let of = |server| {
                let cell = find(cells, server, strategy)?;
                Some(whole(100.0 * against(cells, cell)?.value))
            };
            let label = format!("{}, {}", strategy.label(), workload.short());
            table.line(label, SERVERS.map(|server| of(server).unwrap_or_default()));
        }
    }
    table.section(Source::Quoted, "vIOMMU, Table 1, at second hand: netperf, of line rate");
    for (strategy, figures) in PAPER {
        table.line(strategy.label(), figures.map(|f| f.map_or_else(String::new, whole)));
    }
    table
}

fn plot(measured: &[(Workload, Vec<Cell>)]) -> Plot {
    // One load may have columns that another hasn't.
    let most = measured.iter().max_by_key(|(_, cells)| cells.len());
    let places = most.into_iter().flat_map(|(_, cells)| cells);
    let series = places.filter(|c| c.place.strategy != Strategy::None).map(|c| Bars {
        name: c.place.label(),
        values: measured
            .iter()
            .map(|(_, cells)| against(cells, find(cells, c.place.server, c.place.strategy)?))
            .collect(),
    });
    Plot {
        title: "operations for each instruction on the guest's core, ticks out".into(),
        source: Source::Measured,
        y: "fraction of the same without an IOMMU".into(),
        form: Form::Bars {
            groups: measured.iter().map(|(workload, _)| workload.short()).collect(),
            series: series.collect(),
        },
    }
}

/// A row of `--json`.
#[derive(Serialize)]
pub struct Row {
    experiment: &'static str,
    kind: &'static str,
    workload: String,
    own: &'static str,
    strategy: &'static str,
    server: &'static str,
    operations: u64,
    interrupts: u64,
    packets: u64,
    exits: u64,
    exits_by_reason: BTreeMap<String, u64>,
    exits_per_operation: f64,
    guest_instructions_per_operation_ticks_out: f64,
    host_instructions_per_operation: f64,
    sidecore_instructions_per_operation: f64,
    throughput_of_none: Option<f64>,
    throughput_of_none_without_waiting: Option<f64>,
    spread: Option<f64>,
    added_by_guest: Option<f64>,
    added_by_guest_without_waiting: Option<f64>,
    requests: u64,
    kicks: u64,
    hits: Option<f64>,
}

/// A row for each column of each load.
pub fn rows(own: Own, measured: &[(Workload, Vec<Cell>)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (workload, cells) in measured {
        rows.extend(cells.iter().map(|cell| row(own, *workload, cells, cell)));
    }
    rows
}

fn row(own: Own, workload: Workload, cells: &[Cell], cell: &Cell) -> Row {
    let (alone, place) = (&cell.alone, cell.place);
    let throughput = against(cells, cell);
    let none = without(cells, place);
    let named = alone.figures.exits.iter().enumerate().filter(|(_, n)| **n > 0);
    let unwaiting = unwaiting(cells, place).filter(|_| place.has_own());
    Row {
        experiment: NAME,
        kind: Source::Measured.label(),
        workload: workload.key(),
        own: own.label(),
        strategy: place.strategy.label(),
        server: place.server.label(),
        operations: alone.figures.operations,
        interrupts: alone.figures.interrupts,
        packets: alone.figures.packets,
        exits: alone.figures.exits_total(),
        exits_by_reason: named.map(|(r, n)| (reason_name(r), *n)).collect(),
        exits_per_operation: alone.figures.exits_per_operation(),
        guest_instructions_per_operation_ticks_out: median(&alone.guest_ticks_out),
        host_instructions_per_operation: cell.hosts(),
        sidecore_instructions_per_operation: alone.per_io(alone.work.served),
        throughput_of_none: throughput.map(|t| t.value),
        throughput_of_none_without_waiting: without_waiting(cells, place),
        spread: throughput.map(|t| t.spread),
        added_by_guest: none.map(|none| cell.added(none)),
        added_by_guest_without_waiting: none.and_then(|none| Some(unwaiting?.added(none))),
        requests: alone.served.completed,
        kicks: alone.served.kicks,
        hits: (place.strategy == Strategy::Optimistic).then(|| cell.hits()),
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
