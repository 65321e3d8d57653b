//! The rows of `--json`: one measured and one modelled row for each policy and load.
//! Keys are stable; `docs/figures.md` says what each means.

use super::{
    experiment::{Cell, Policy, Results},
    figures::{Figures, PAPER, Spread, reason_name},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Whether a row was counted or computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowKind {
    /// Counted.
    Measured,
    /// Measured figures carried to other rates, with a stated charge per exit.
    Modelled,
}

/// What ticks taken out leaves.
#[derive(Clone, Debug, Serialize)]
pub struct TicksOut {
    exits_per_operation: f64,
    guest_share: f64,
    fraction_of_bare: Option<f64>,
    spread: Option<f64>,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    experiment: &'static str,
    policy: &'static str,
    workload: String,
    operations: u64,
    interrupts: u64,
    ticks: u64,
    exits: u64,
    exits_by_reason: BTreeMap<String, u64>,
    exits_per_interrupt: f64,
    exits_per_operation: f64,
    guest_instructions_per_operation: f64,
    host_instructions_per_operation: f64,
    guest_share: f64,
    fraction_of_bare: Option<f64>,
    spread: Option<f64>,
    seconds: f64,
    kind: RowKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    ticks_out: Option<TicksOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vmruns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger_entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_instructions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_overhead_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_exit: Option<f64>,
}

/// The rows of an experiment, cell by cell.
pub fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for cell in &results.cells {
        let bare = results.figures(Policy::Bare, cell.depth);
        rows.push(measured(cell, bare));
        rows.push(modelled(cell, bare));
    }
    rows
}

fn workload(cell: &Cell) -> String {
    format!("randread 4k depth {}", cell.depth)
}

fn named(exits: impl Iterator<Item = u64>) -> BTreeMap<String, u64> {
    exits.enumerate().filter(|(_, n)| *n > 0).map(|(r, n)| (reason_name(r), n)).collect()
}

fn measured(cell: &Cell, bare: Option<&Figures>) -> Row {
    let f = &cell.figures;
    let fraction = |ticks_out| bare.map(|b| f.fraction_of(b, ticks_out));
    let (value, spread) = split(fraction(false));
    let (value_out, spread_out) = split(fraction(true));
    let host = cell.policy != Policy::Bare;
    Row {
        experiment: "fio",
        policy: cell.policy.label(),
        workload: workload(cell),
        operations: f.operations,
        interrupts: f.interrupts,
        ticks: f.ticks,
        exits: f.exits_total(),
        exits_by_reason: named(f.exits.iter().copied()),
        exits_per_interrupt: f.exits_per_interrupt(),
        exits_per_operation: f.exits_per_operation(),
        guest_instructions_per_operation: f.guest as f64 / f.operations as f64,
        host_instructions_per_operation: f.host as f64 / f.operations as f64,
        guest_share: f.guest_share(),
        fraction_of_bare: value,
        spread,
        seconds: f.seconds,
        kind: RowKind::Measured,
        ticks_out: Some(TicksOut {
            exits_per_operation: f.exits_ticks_out() as f64 / f.operations as f64,
            guest_share: f.guest_share_ticks_out(),
            fraction_of_bare: value_out,
            spread: spread_out,
        }),
        vmruns: host.then_some(f.vmruns),
        ledger_entries: host.then_some(f.entries),
        boot_instructions: cell.boot_instructions,
        vm_overhead_bytes: cell.vm_overhead,
        cycles_per_exit: None,
    }
}

fn modelled(cell: &Cell, bare: Option<&Figures>) -> Row {
    let m = PAPER.of(&cell.figures, bare);
    let exits: f64 = m.exits.iter().sum();
    let (fraction_of_bare, spread) = split(m.fraction_of_bare);
    Row {
        experiment: "fio",
        policy: cell.policy.label(),
        workload: workload(cell),
        operations: m.operations.round() as u64,
        interrupts: PAPER.interrupts as u64,
        ticks: PAPER.ticks as u64,
        exits: exits.round() as u64,
        exits_by_reason: named(m.exits.iter().map(|n| n.round() as u64)),
        exits_per_interrupt: exits / PAPER.interrupts,
        exits_per_operation: exits / m.operations,
        guest_instructions_per_operation: m.guest_per_operation,
        host_instructions_per_operation: m.host_per_operation,
        guest_share: m.guest_share,
        fraction_of_bare,
        spread,
        seconds: 1.0,
        kind: RowKind::Modelled,
        ticks_out: None,
        vmruns: None,
        ledger_entries: None,
        boot_instructions: None,
        vm_overhead_bytes: None,
        cycles_per_exit: Some(PAPER.cycles),
    }
}

fn split(s: Option<Spread>) -> (Option<f64>, Option<f64>) {
    (s.map(|s| s.value), s.map(|s| s.spread))
}
