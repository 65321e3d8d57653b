//! vIC's axes with test kernels: how many interrupts there are for a read by commands in flight,
//! threshold, map and epoch, on a disk of fixed latency and on parts of an NVMe controller; and
//! what its deferral of IPIs saves where two VMs share a core.
//!
//! Guarantees: the columns of a table are runs, its lines VMs that ran together, each with a disk
//! of its own and the same load. The delays are modelled: by the formula, and by the very code that
//! sidecores run, fed with completions at exact times.

use super::{
    axes::{AXES, Axis, BASE, RATE},
    figures::{Member, Together},
    interrupts,
    kernels::{self, Behind, Load, Run, What},
    loads::BULK,
    output::{Row, Shown, four},
    vic_model,
    way::Way,
};
use crate::bench::{
    guest::Kit,
    show::{Block, Source, Table, three, two, whole},
    workload::Effort,
};
use anyhow::Result;
use exitless::context::Context;
use plan::{Coalesce, Coalescing, Control};

/// Those of the controller's table.
const ON_NVME: usize = 4;
/// Microseconds between two interrupts for a vCPU whose core the other one has.
const DEFERRALS: [u32; 3] = [0, 1_000, 20_000];

fn load(axis: &Axis, depth: u32, length: u32, latency_us: u32) -> Load {
    let coalesce = axis.coalescing.map_or(Coalesce::Off, Coalesce::On);
    let control = Control { coalesce, latency_us, ..Control::default() };
    Load { what: What::Reads(depth), length, control }
}

/// All three tables.
pub fn measure(
    cx: &Context,
    kit: &Kit,
    depths: &[u32],
    latency_ms: u32,
    effort: Effort,
) -> Result<Shown> {
    let length = if effort == Effort::Full { 3_000 } else { 1_000 };
    let mut shown = Shown::default();
    for (behind, axes, latency_ms) in
        [(Behind::Null, &AXES[..], latency_ms), (Behind::Nvme, &AXES[..ON_NVME], 0)]
    {
        let mut cells = Vec::new();
        for &depth in depths {
            let loads = axes.iter().map(|axis| load(axis, depth, length, 1_000 * latency_ms));
            let run = Run { behind, ..Run::new(Way::DIRECT, loads.collect()) };
            let disk = if behind == Behind::Null { "latency" } else { "NVMe" };
            let what = format!("vIC, {disk}, {depth} in flight");
            cells.push((depth, kernels::run(cx, kit, &run, &what)?));
        }
        shown.add(table(axes, latency_ms, &cells));
        if latency_ms > 0 {
            shown.blocks.push(Block::Table(vic_model::changes(latency_ms)));
        }
    }
    let loads = DEFERRALS.iter().flat_map(|deferral_us| {
        let coalescing = Some(Coalescing { deferral_us: *deferral_us, ..BASE });
        [load(&Axis { label: "", coalescing }, BULK, length, 0); 2]
    });
    let run = Run { in_pairs: true, ..Run::new(Way::ELI, loads.collect()) };
    shown.add(deferrals(&kernels::run(cx, kit, &run, "vIC, deferral, pairs")?));
    Ok(shown)
}

fn each(m: &Member, count: u64) -> f64 {
    count as f64 / m.operations.max(1) as f64
}

fn table(axes: &[Axis], latency_ms: u32, cells: &[(u32, Vec<Member>)]) -> Shown {
    let disk = match latency_ms {
        0 => "parts of one NVMe controller".to_owned(),
        ms => format!("a disk that takes {ms} ms for each, one after the other"),
    };
    let what =
        format!("vIC: 4 KiB reads by test kernels of {disk}; direct; from {RATE} I/Os a second on");
    let mut table = Table::new(what.clone(), cells.iter().map(|(n, _)| format!("{n} in flight")));
    table.section(Source::Measured, "no ticks: no guest has a timer that runs");
    let mut lines = |what: &str, of: &dyn Fn(&[Member], usize) -> String| {
        for (i, axis) in axes.iter().enumerate() {
            let line = format!("{what}, {}", axis.label);
            table.line(line, cells.iter().map(|(_, all)| of(all, i)));
        }
    };
    let interrupts = |m: &Member| each(m, m.interrupts);
    lines("interrupts per I/O", &|all, i| three(interrupts(&all[i])));
    lines("less, in per cent", &|all, i| match i {
        0 => String::new(),
        _ => two(100.0 * (1.0 - interrupts(&all[i]) / interrupts(&all[0]))),
    });
    lines("guest's instructions per I/O", &|all, i| whole(each(&all[i], all[i].guest)));
    lines("completions told by an interrupt", &|all, i| {
        let Member { served, .. } = &all[i];
        two(served.completed as f64 / served.calls.max(1) as f64)
    });
    let together = |all: &[Member]| Together { bulk: all.to_vec(), latency: None };
    let sidecore = cells.iter().map(|(_, all)| whole(together(all).work_each()));
    table.line("sidecore's instructions per I/O, of all together", sidecore);
    let exits = cells.iter().map(|(_, all)| four(together(all).per_io(|m| m.exits.iter().sum())));
    table.line("exits per I/O, of all together", exits);
    if latency_ms > 0 {
        vic_model::lines(&mut table, axes, latency_ms, &depths(cells));
        interrupts::paper(&mut table, &depths(cells));
    }
    let rows = cells.iter().flat_map(|(n, all)| {
        let what = &what;
        axes.iter().zip(all).map(move |(axis, member)| {
            let what = format!("{what}; {n} in flight, {}", axis.label);
            let alone = Together { bulk: vec![member.clone()], latency: None };
            Row::together("vic", &what, 1, Way::DIRECT, &alone)
        })
    });
    Shown { rows: rows.collect(), blocks: vec![Block::Table(table)] }
}

fn depths(cells: &[(u32, Vec<Member>)]) -> Vec<u32> {
    cells.iter().map(|(depth, _)| *depth).collect()
}

fn deferrals(members: &[Member]) -> Shown {
    let what = format!("vIC's deferral: two VMs on a core, 4 KiB reads, {BULK} in flight, eli");
    let ms = |us: &u32| format!("{} ms", us / 1_000);
    let mut table = Table::new(what.clone(), DEFERRALS.iter().map(ms));
    table.section(Source::Measured, "both VMs of a core together");
    let pairs: Vec<_> = members
        .chunks_exact(2)
        .map(|pair| Together { bulk: pair.to_vec(), latency: None })
        .collect();
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> { pairs.iter().map(f).collect() };
    table.line("I/Os counted", all(&|t| whole(t.sum(|m| m.operations) as f64)));
    table.line("interrupts taken per I/O", all(&|t| four(t.per_io(|m| m.interrupts))));
    let completed = |t: &Together| t.sum(|m| m.served.completed).max(1) as f64;
    let calls = |t: &Together| four(t.sum(|m| m.served.calls) as f64 / completed(t));
    table.line("interrupts sent per completion", all(&calls));
    table.line("exits per I/O", all(&|t| four(t.per_io(|m| m.exits.iter().sum()))));
    let rows = pairs.iter().zip(&DEFERRALS).map(|(pair, us)| {
        let what = format!("{what}; deferral {}", ms(us));
        Row::together("vic", &what, 2, Way::ELI, pair)
    });
    Shown { rows: rows.collect(), blocks: vec![Block::Table(table)] }
}
