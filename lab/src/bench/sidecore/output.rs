//! What the experiment shows: tables with the ways, VMs or depths side by side, rows for JSON, a
//! page.

use super::{
    figures::{Alone, Member, Together},
    loads::BULK,
    way::Way,
};
use crate::bench::{
    figures::{median, reason_name},
    guest::Kit,
    matched::{By, Matched},
    show::{
        Block, Source, Table,
        html::{self, Page, Section},
        spread, three, two, whole,
    },
};
use ledger::Reason;
use plan::Backing;
use serde::Serialize;
use std::collections::BTreeMap;

/// Its name on the command line and in JSON.
pub const NAME: &str = "sidecore";
const TITLE: &str = "Paravirtual disks: fio on virtio-blk, served by a sidecore";
/// Exits rarer than this per I/O have no line.
pub const RARE: f64 = 0.0005;

/// What is measured and shown.
#[derive(Default)]
pub struct Shown {
    /// On the terminal and the page.
    pub blocks: Vec<Block>,
    /// As JSON.
    pub rows: Vec<Row>,
}

impl Shown {
    /// And then this.
    pub fn add(&mut self, more: Shown) {
        self.blocks.extend(more.blocks);
        self.rows.extend(more.rows);
    }
}

/// The name of what is behind a disk.
pub fn backing(backing: Backing) -> &'static str {
    Backing::ALL.iter().find(|(_, b)| *b == backing).map_or("NVMe", |(name, _)| name)
}

/// Four digits after the point: of what is nearly nothing.
pub fn four(n: f64) -> String {
    format!("{n:.4}")
}

/// The reads of a guest.
pub fn reads(kind: Backing, depth: u32) -> String {
    format!("4 KiB random reads, depth {depth}, {} disk", backing(kind))
}

/// One guest under this load, the ways side by side.
pub fn requests(part: &'static str, what: String, cells: Vec<Alone>) -> Shown {
    let mut table = Table::new(what.clone(), cells.iter().map(|c| c.way.label().to_owned()));
    table.section(Source::Measured, "");
    requests_lines(&mut table, &cells);
    let rows = cells.iter().map(|c| Row::alone(part, &what, c, &cells)).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}

/// The mix of reads, writes and flushes.
pub fn mix(cells: Vec<Alone>) -> Shown {
    let mut shown = requests("mix", "fio mix, RAM disk".to_owned(), cells);
    // The jobs are in `guests/linux/measure/start.sh`.
    let note = "Four jobs of fio on one disk: files of 4 to 64 KiB, read and written; pages of 16 KiB, \
                read; mail of 4 and 16 KiB, with a flush after four writes; a log, with a flush after \
                each. An I/O is a read, a write or a flush.";
    shown.blocks.push(Block::Say(note.into()));
    shown
}

fn requests_lines(table: &mut Table, cells: &[Alone]) {
    let all = |f: &dyn Fn(&Alone) -> String| -> Vec<String> { cells.iter().map(f).collect() };
    let vm = |f: &dyn Fn(&Alone) -> String| -> Vec<String> {
        all(&|c| if c.way == Way::Bare { String::new() } else { f(c) })
    };
    table.line("I/Os counted", all(&|c| whole(c.figures.operations as f64)));
    table.line("exits per I/O, ticks in", vm(&|c| four(c.figures.exits_per_operation())));
    for reason in Reason::ALL.iter().copied() {
        if cells.iter().any(|c| c.exits(reason) >= RARE) {
            table.part(name(reason), vm(&|c| four(c.exits(reason))));
        }
    }
    table.line("exits per I/O, ticks out", vm(&|c| four(c.per_io(c.figures.exits_ticks_out()))));
    table.line("interrupts per I/O", all(&|c| three(c.per_io(c.figures.interrupts))));
    table.line("guest's instructions per I/O", all(&|c| whole(c.per_io(c.figures.guest))));
    table.part("ticks out, median", all(&|c| whole(median(&c.guest_ticks_out))));
    let bare = cells.iter().find(|c| c.way == Way::Bare);
    let of_bare = |c: &Alone| bare.map_or(String::new(), |b| spread(c.guest_against(b)));
    table.part("ticks out, of bare's", vm(&of_bare));
    table.line("host's instructions per I/O on its core", vm(&|c| whole(c.per_io(c.figures.host))));
    table.line("sidecore's instructions per I/O", vm(&|c| whole(c.per_io(c.work.served))));
    table.part("passes that found work", vm(&|c| two(c.per_io(c.work.passes))));
    table.part("idle polling besides", vm(&|c| whole(c.per_io(c.work.polled))));
    if bare.is_some_and(|b| b.control.is_some()) {
        let slowed = |by| {
            move |c: &Alone| matched(c, bare, by).map_or(String::new(), |m| spread(m.ticks_out))
        };
        table.section(Source::Measured, "beside bare slowed until it is as here; ticks out");
        table.line(
            "throughput, of bare's, at equal interrupts per I/O",
            vm(&slowed(By::Interrupts)),
        );
        table.line("throughput, of bare's, at equal pace", vm(&slowed(By::Pace)));
    }
    table.section(Source::Measured, "from the VM's start to its end, by the sidecore");
    table.line("requests", vm(&|c| whole(c.served.completed as f64)));
    table.line("kicks that exited, per request", vm(&|c| four(c.per_request(c.served.kicks))));
    table.line("interrupts sent, per completion", vm(&|c| three(c.per_request(c.served.calls))));
    table.line(
        "withheld by vIC, per completion",
        vm(&|c| three(c.per_request(c.served.calls_withheld))),
    );
    table.line("longest wait, in passes", vm(&|c| whole(c.served.longest_wait as f64)));
}

/// A reason, as a line of a table has it.
pub fn name(reason: Reason) -> String {
    match reason {
        Reason::MsixTable => "kick (msix-table)".into(),
        reason => reason_name(reason as usize),
    }
}

fn matched(cell: &Alone, bare: Option<&Alone>, by: By) -> Option<Matched> {
    let control = bare?.control.as_ref()?;
    Matched::of(&cell.figures.points, control, by).filter(|_| cell.way != Way::Bare)
}

/// So many VMs under bulk load.
pub fn shares(cells: &[(u32, Together)]) -> Shown {
    let what = format!(
        "VMs on one sidecore, which is slowed; each 4 KiB random reads, depth {BULK}, null disk, direct"
    );
    let columns =
        cells.iter().map(|(n, _)| if *n == 1 { "1 VM".into() } else { format!("{n} VMs") });
    let mut table = Table::new(what.clone(), columns);
    table.section(Source::Measured, "");
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> {
        cells.iter().map(|(_, t)| f(t)).collect()
    };
    table.line("I/Os counted", all(&|t| whole(t.sum(|m| m.operations) as f64)));
    table.line("largest share / smallest", all(&|t| three(t.shares())));
    table.line("sidecore busy, of its instructions", all(&|t| three(t.busy())));
    table.line("longest wait, in passes", all(&|t| whole(longest(t.members()) as f64)));
    table.line("exits per I/O, ticks in", all(&|t| four(t.per_io(|m| m.exits.iter().sum()))));
    table.line("interrupts per I/O", all(&|t| three(t.per_io(|m| m.interrupts))));
    let rows =
        cells.iter().map(|(n, t)| Row::together("shares", &what, *n, Way::DIRECT, t)).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}

/// The longest wait of any, in passes.
pub fn longest<'a>(members: impl Iterator<Item = &'a Member>) -> u64 {
    members.map(|m| m.served.longest_wait).max().unwrap_or(0)
}

/// One VM that asks for little, beside others: with scheduling, and without; the parts' names in
/// JSON in that order.
pub fn latency(what: String, parts: [&'static str; 2], n: u32, cells: &[Together]) -> Shown {
    let mut table = Table::new(what.clone(), ["scheduled".into(), "whole turns".into()]);
    table.section(Source::Measured, "");
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> { cells.iter().map(f).collect() };
    let of = |f: &dyn Fn(&Member) -> String| -> Vec<String> {
        all(&|t| t.latency.as_ref().map(f).unwrap_or_default())
    };
    table.line("its I/Os counted", of(&|m| whole(m.operations as f64)));
    table.line("its longest wait, in passes", of(&|m| whole(m.served.longest_wait as f64)));
    table.line(
        "passes from one I/O of it to the next, those of all",
        of(&|m| two(m.work.passes as f64 / m.operations as f64)),
    );
    table.line(
        "the sidecore's instructions meanwhile",
        of(&|m| whole(m.work.served as f64 / m.operations as f64)),
    );
    table.line("the others' longest wait", all(&|t| whole(longest(t.bulk.iter()) as f64)));
    table.line("the others' largest share / smallest", all(&|t| three(t.shares())));
    table.line("sidecore busy, of its instructions", all(&|t| three(t.busy())));
    let rows = cells.iter().zip(parts);
    let rows = rows.map(|(t, part)| Row::together(part, &what, n, Way::DIRECT, t)).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}

/// A row of `--json`.
#[derive(Serialize)]
pub struct Row {
    experiment: &'static str,
    kind: &'static str,
    part: &'static str,
    workload: String,
    policy: &'static str,
    vms: u32,
    operations: u64,
    interrupts: u64,
    exits: u64,
    exits_by_reason: BTreeMap<String, u64>,
    guest_instructions_per_operation: f64,
    guest_instructions_of_bare: Option<f64>,
    spread: Option<f64>,
    host_instructions_per_operation: f64,
    sidecore_instructions_per_operation: f64,
    sidecore_passes_per_operation: f64,
    sidecore_busy: f64,
    requests: u64,
    kicks: u64,
    calls: u64,
    calls_withheld: u64,
    longest_wait: u64,
    largest_share_of_smallest: Option<f64>,
    shares: Vec<f64>,
    latency_passes_per_operation: Option<f64>,
    latency_longest_wait: Option<u64>,
}

fn named(exits: &[u64]) -> BTreeMap<String, u64> {
    exits.iter().enumerate().filter(|(_, n)| **n > 0).map(|(r, n)| (reason_name(r), *n)).collect()
}

impl Row {
    /// One guest alone, `beside` others.
    pub fn alone(part: &'static str, workload: &str, c: &Alone, beside: &[Alone]) -> Row {
        let bare = beside.iter().find(|b| b.way == Way::Bare);
        let against = bare.map(|b| c.guest_against(b));
        let busy = c.work.served as f64 / (c.work.served + c.work.polled).max(1) as f64;
        Row {
            experiment: NAME,
            kind: Source::Measured.label(),
            part,
            workload: workload.to_owned(),
            policy: c.way.label(),
            vms: 1,
            operations: c.figures.operations,
            interrupts: c.figures.interrupts,
            exits: c.figures.exits_total(),
            exits_by_reason: named(&c.figures.exits),
            guest_instructions_per_operation: c.per_io(c.figures.guest),
            guest_instructions_of_bare: against.map(|s| s.value),
            spread: against.map(|s| s.spread),
            host_instructions_per_operation: c.per_io(c.figures.host),
            sidecore_instructions_per_operation: c.per_io(c.work.served),
            sidecore_passes_per_operation: c.per_io(c.work.passes),
            sidecore_busy: busy,
            requests: c.served.completed,
            kicks: c.served.kicks,
            calls: c.served.calls,
            calls_withheld: c.served.calls_withheld,
            longest_wait: c.served.longest_wait,
            largest_share_of_smallest: None,
            shares: Vec::new(),
            latency_passes_per_operation: None,
            latency_longest_wait: None,
        }
    }

    /// A guest with a device that the host emulates; no sidecore has to do with it.
    pub fn emulated(part: &'static str, workload: &str, member: &Member) -> Row {
        let alone = Together { bulk: vec![member.clone()], latency: None };
        Row {
            policy: "emulated",
            sidecore_instructions_per_operation: 0.0,
            sidecore_passes_per_operation: 0.0,
            largest_share_of_smallest: None,
            shares: Vec::new(),
            ..Row::together(part, workload, 1, Way::ELI, &alone)
        }
    }

    /// Several guests together.
    pub fn together(part: &'static str, workload: &str, vms: u32, way: Way, t: &Together) -> Row {
        let mut exits = Vec::new();
        for member in t.members() {
            exits.resize(exits.len().max(member.exits.len()), 0);
            exits.iter_mut().zip(&member.exits).for_each(|(sum, n)| *sum += n);
        }
        let passes = |m: &Member| m.operations as f64 / m.work.passes.max(1) as f64;
        let latency = t.latency.as_ref();
        Row {
            experiment: NAME,
            kind: Source::Measured.label(),
            part,
            workload: workload.to_owned(),
            policy: way.label(),
            vms,
            operations: t.sum(|m| m.operations),
            interrupts: t.sum(|m| m.interrupts),
            exits: exits.iter().sum(),
            exits_by_reason: named(&exits),
            guest_instructions_per_operation: t.per_io(|m| m.guest),
            guest_instructions_of_bare: None,
            spread: None,
            host_instructions_per_operation: t.per_io(|m| m.host),
            sidecore_instructions_per_operation: t.work_each(),
            sidecore_passes_per_operation: 1.0 / t.members().map(passes).sum::<f64>(),
            sidecore_busy: t.busy(),
            requests: t.sum(|m| m.served.completed),
            kicks: t.sum(|m| m.served.kicks),
            calls: t.sum(|m| m.served.calls),
            calls_withheld: t.sum(|m| m.served.calls_withheld),
            longest_wait: longest(t.members()),
            largest_share_of_smallest: (!t.bulk.is_empty()).then(|| t.shares()),
            shares: t.each_share(),
            latency_passes_per_operation: latency.map(|m| 1.0 / passes(m)),
            latency_longest_wait: latency.map(|m| m.served.longest_wait),
        }
    }
}

/// The page.
pub fn page(blocks: Vec<Block>, kit: &Kit) -> String {
    let section = Section { name: NAME.into(), title: TITLE.into(), blocks };
    html::page(&Page {
        title: "Exitless: paravirtual disks".into(),
        intro: vec![
            "Every figure is counted: exits by the hypervisor's ledger, requests and interrupts by the \
             sidecore, instructions by a plugin of the emulator."
                .into(),
        ],
        sections: vec![section],
        notes: kit.versions().into_iter().map(String::from).collect(),
        ..Page::default()
    })
}
