//! The rows of `--json`: one measured and one modelled row for each policy and load.
//! Keys are stable; `docs/figures.md` says what each means.

use super::{
    column::Column,
    figures::{Figures, Spread, reason_name},
    iommus,
    matched::{By, Matched},
    measure::{Cell, Results},
    show::Source,
    workload::Workload,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// What ticks taken out leaves.
#[derive(Clone, Debug, Serialize)]
pub struct TicksOut {
    exits_per_operation: f64,
    guest_share: f64,
    fraction_of_bare: Option<f64>,
    spread: Option<f64>,
}

/// Beside the bare machine slowed as the column was; cost on it / cost here, and how alike they
/// are.
#[derive(Clone, Debug, Serialize)]
pub struct Slowed {
    fraction_of_bare: f64,
    spread: f64,
    ticks_out_fraction_of_bare: f64,
    ticks_out_spread: f64,
    /// The control's / the column's.
    rate: f64,
    interrupts_per_operation: f64,
    packets_per_operation: Option<f64>,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    experiment: &'static str,
    policy: &'static str,
    iommu: String,
    workload: String,
    operation: &'static str,
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
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ticks_out: Option<TicksOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_equal_rate: Option<Slowed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_equal_interrupts: Option<Slowed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_per_operation: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_cpus_instructions_per_operation: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outer_exits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vmruns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger_entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    injections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_generator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_generator_idle: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_instructions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm_overhead_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_findings: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_exit: Option<f64>,
}

/// The rows of an experiment, cell by cell.
pub fn rows(experiment: &'static str, results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for cell in &results.cells {
        // Beside a busy loop instructions say how long a transaction took, not what it costs.
        let comparable = cell.workload != Workload::Exchange;
        let bare = results.figures(Column::Bare, cell.workload).filter(|_| comparable);
        let control = results.cell(Column::Bare, cell.workload).and_then(|b| b.control.as_ref());
        let slowed = |by| cell.figures.matched(control, by).map(Slowed::from);
        let row = measured(experiment, cell, bare);
        rows.push(Row {
            at_equal_rate: slowed(By::Pace),
            at_equal_interrupts: slowed(By::Interrupts),
            ..row
        });
        rows.push(modelled(experiment, cell, bare));
    }
    rows
}

fn named(exits: impl Iterator<Item = u64>) -> BTreeMap<String, u64> {
    exits.enumerate().filter(|(_, n)| *n > 0).map(|(r, n)| (reason_name(r), n)).collect()
}

fn measured(experiment: &'static str, cell: &Cell, bare: Option<&Figures>) -> Row {
    let f = &cell.figures;
    let fraction = |ticks_out| bare.map(|b| f.fraction_of(b, ticks_out));
    let (value, spread) = split(fraction(false));
    let (value_out, spread_out) = split(fraction(true));
    let host = cell.policy != Column::Bare;
    Row {
        experiment,
        policy: cell.policy.label(),
        iommu: iommus::name(cell.iommu),
        workload: cell.workload.key(),
        operation: cell.workload.operation(),
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
        kind: Source::Measured.label(),
        ticks_out: Some(TicksOut {
            exits_per_operation: f.exits_ticks_out() as f64 / f.operations as f64,
            guest_share: f.guest_share_ticks_out(),
            fraction_of_bare: value_out,
            spread: spread_out,
        }),
        at_equal_rate: None,
        at_equal_interrupts: None,
        packets_per_operation: (f.packets > 0).then(|| f.packets as f64 / f.operations as f64),
        other_cpus_instructions_per_operation: host.then(|| f.others as f64 / f.operations as f64),
        outer_exits: (cell.policy == Column::Nested).then_some(f.outer_exits),
        vmruns: host.then_some(f.vmruns),
        ledger_entries: host.then_some(f.entries),
        bytes: (f.bytes > 0).then_some(f.bytes),
        injections: host.then_some(f.injected),
        load_generator: cell.idle.as_ref().map(|i| i.program.clone()),
        load_generator_idle: cell.idle.as_ref().map(|i| i.share),
        boot_instructions: cell.boot_instructions,
        vm_overhead_bytes: cell.vm_overhead,
        audit_findings: host.then_some(cell.audit.findings),
        cycles_per_exit: None,
    }
}

fn modelled(experiment: &'static str, cell: &Cell, bare: Option<&Figures>) -> Row {
    let model = cell.workload.model();
    let m = model.of(&cell.figures, bare);
    let exits: f64 = m.exits.iter().sum();
    let (fraction_of_bare, spread) = split(m.fraction_of_bare);
    Row {
        experiment,
        policy: cell.policy.label(),
        iommu: iommus::name(cell.iommu),
        workload: cell.workload.key(),
        operation: cell.workload.operation(),
        operations: m.operations.round() as u64,
        interrupts: model.interrupts as u64,
        ticks: model.ticks as u64,
        exits: exits.round() as u64,
        exits_by_reason: named(m.exits.iter().map(|n| n.round() as u64)),
        exits_per_interrupt: exits / model.interrupts,
        exits_per_operation: exits / m.operations,
        guest_instructions_per_operation: m.guest_per_operation,
        host_instructions_per_operation: m.host_per_operation,
        guest_share: m.guest_share,
        fraction_of_bare,
        spread,
        seconds: 1.0,
        kind: Source::Modelled.label(),
        ticks_out: None,
        at_equal_rate: None,
        at_equal_interrupts: None,
        packets_per_operation: None,
        other_cpus_instructions_per_operation: None,
        outer_exits: None,
        vmruns: None,
        ledger_entries: None,
        bytes: None,
        injections: None,
        load_generator: None,
        load_generator_idle: None,
        boot_instructions: None,
        vm_overhead_bytes: None,
        audit_findings: None,
        cycles_per_exit: Some(model.cycles),
    }
}

impl From<Matched> for Slowed {
    fn from(matched: Matched) -> Slowed {
        Slowed {
            fraction_of_bare: matched.fraction.value,
            spread: matched.fraction.spread,
            ticks_out_fraction_of_bare: matched.ticks_out.value,
            ticks_out_spread: matched.ticks_out.spread,
            rate: matched.agreement.rate,
            interrupts_per_operation: matched.agreement.interrupts,
            packets_per_operation: matched.agreement.packets,
        }
    }
}

fn split(s: Option<Spread>) -> (Option<f64>, Option<f64>) {
    (s.map(|s| s.value), s.map(|s| s.spread))
}
