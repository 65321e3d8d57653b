//! What several experiments make of figures in the same way.

use crate::bench::{
    column::Column,
    figures::{Figures, Spread, median},
    matched::{Agreement, By, Matched},
    measure::{Cell, Results},
    model::Model,
    show::{Bars, Table, spread, two},
    workload::Workload,
};

/// A table whose columns are the policies that were measured.
pub fn table(title: impl Into<String>, results: &Results) -> Table {
    Table::new(title, results.policies().into_iter().map(|p| p.label().to_string()))
}

/// A cell for each policy; the empty string where there is none.
pub fn each(results: &Results, workload: Workload, f: impl Fn(&Cell) -> String) -> Vec<String> {
    let cell = |p: Column| results.cell(p, workload).map_or(String::new(), &f);
    results.policies().into_iter().map(cell).collect()
}

/// The same, with nothing for the bare machine.
pub fn each_vm(results: &Results, workload: Workload, f: impl Fn(&Cell) -> String) -> Vec<String> {
    let cell = |c: &Cell| if c.policy == Column::Bare { String::new() } else { f(c) };
    each(results, workload, cell)
}

/// What the paper has of a policy; nothing for those that it doesn't have.
pub fn quoted(results: &Results, f: impl Fn(Column) -> Option<String>) -> Vec<String> {
    results.policies().into_iter().map(|p| f(p).unwrap_or_default()).collect()
}

/// A series of bars for each policy.
pub fn bars(
    policies: &[Column],
    workloads: &[Workload],
    f: impl Fn(Column, Workload) -> Option<Spread>,
) -> Vec<Bars> {
    let values = |p: Column| workloads.iter().map(|w| f(p, *w)).collect();
    policies.iter().map(|p| Bars { name: p.label().into(), values: values(*p) }).collect()
}

/// A line of fractions of the bare machine slowed as the columns are, and how alike they are;
/// none where that wasn't measured.
pub fn slowed(
    table: &mut Table,
    label: String,
    results: &Results,
    workload: Workload,
    by: By,
    of: fn(&Matched) -> Spread,
) {
    let cell = |f: &dyn Fn(&Matched) -> String| {
        let vm = |c: &Cell| results.matched(c.policy, workload, by).as_ref().map(f);
        each_vm(results, workload, |c| vm(c).unwrap_or_default())
    };
    let fractions = cell(&|m| spread(of(m)));
    if fractions.iter().any(|f| !f.is_empty()) {
        table.line(label, fractions);
        table.part(ALIKE, cell(&alike));
    }
}

/// Cost on the bare machine slowed to the same rate / cost here, ticks taken out of both.
pub fn matched(results: &Results, policy: Column, workload: Workload) -> Option<Spread> {
    if policy == Column::Bare {
        return results.cell(policy, workload).map(|_| Spread { value: 1.0, spread: 0.0 });
    }
    Some(results.matched(policy, workload, By::Pace)?.ticks_out)
}

/// The same count per operation.
pub fn per(count: u64, f: &Figures) -> f64 {
    count as f64 / f.operations as f64
}

/// Instructions per operation, guest and host, ticks taken out.
pub fn cost(f: &Figures) -> f64 {
    median(&f.cost_ticks_out)
}

/// Cost on the bare machine / cost here, as counted, ticks taken out of both.
pub fn counted(results: &Results, policy: Column, workload: Workload) -> Option<Spread> {
    let bare = results.figures(Column::Bare, workload)?;
    Some(results.figures(policy, workload)?.fraction_of(bare, true))
}

/// How alike a column and its control are: the control's rate, interrupts and packets per
/// operation, each over the column's.
pub fn alike(matched: &Matched) -> String {
    let Agreement { rate, interrupts, packets } = matched.agreement;
    let ratios = [Some(rate), Some(interrupts), packets];
    ratios.into_iter().flatten().map(two).collect::<Vec<_>>().join("/")
}

/// What [`alike`] shows, as a label.
pub const ALIKE: &str = "its rate/interrupts/packets";

/// The guest's part of all cycles by the model, with so many charged for an exit: the
/// fraction of bare metal that is left when the guest's own work is what it is there.
pub fn charged(
    results: &Results,
    policy: Column,
    workload: Workload,
    cycles: f64,
) -> Option<Spread> {
    let model = Model { cycles, ..workload.model() };
    let value = model.of(results.figures(policy, workload)?, None).guest_share;
    Some(Spread { value, spread: 0.0 })
}

/// How much more throughput a policy gives than `trap` by the model, in per cent.
pub fn improvement(
    results: &Results,
    policy: Column,
    workload: Workload,
    cycles: f64,
) -> Option<f64> {
    let of = |p| Some(charged(results, p, workload, cycles)?.value);
    Some(100.0 * (of(policy)? / of(Column::TRAP)? - 1.0))
}
