//! Everything that was counted of one workload, policies side by side.

use super::common::{each, each_vm, per, slowed, table as columns};
use crate::bench::{
    column::Column,
    figures::{is_timer, reason_name},
    matched::By,
    measure::{Cell, Results},
    model::Modelled,
    show::{Source, Table, spread, three, two},
    workload::Workload,
};
use exitless::table::thousands;

/// Exits rarer than this per operation don't get a line of their own.
const RARE: f64 = 0.005;

/// The table of a workload.
pub fn table(results: &Results, workload: Workload) -> Table {
    let what = workload.operation();
    let bare = results.figures(Column::Bare, workload);
    let all = |f: &dyn Fn(&Cell) -> String| each(results, workload, f);
    let vm = |f: &dyn Fn(&Cell) -> String| each_vm(results, workload, f);
    let versus = |ticks_out: bool| {
        all(&|c| bare.map_or(String::new(), |b| spread(c.figures.fraction_of(b, ticks_out))))
    };
    let mut table = columns(workload.title(), results);
    table.section(Source::Measured, "");
    table.line(format!("{what}s counted"), all(&|c| thousands(c.figures.operations)));
    table.line(
        format!("device interrupts per {what}"),
        all(&|c| two(per(c.figures.interrupts, &c.figures))),
    );
    table.line("exits per interrupt, ticks out", vm(&|c| two(c.figures.exits_per_interrupt())));
    table.part(
        "for delivery and completion",
        vm(&|c| two(c.figures.delivery_exits_per_interrupt())),
    );
    table.line(format!("exits per {what}, all"), vm(&|c| two(c.figures.exits_per_operation())));
    for reason in common(results, workload) {
        let timer = if is_timer(reason) { " (timer)" } else { "" };
        let of = |c: &Cell| per(c.figures.exits.get(reason).copied().unwrap_or(0), &c.figures);
        table.part(format!("{}{timer}", reason_name(reason)), vm(&|c| two(of(c))));
    }
    if results.of(workload).iter().any(|c| c.policy == Column::Nested) {
        let outer = |c: &Cell| match c.policy {
            Column::Nested => three(per(c.figures.outer_exits, &c.figures)),
            _ => String::new(),
        };
        table.line(format!("of the hypervisor below, per {what}"), all(&outer));
    }
    table.line("exits per timer tick", vm(&|c| two(c.figures.tick.exits.iter().sum())));
    table.line(
        format!("guest instructions per {what}"),
        all(&|c| thousands(per(c.figures.guest, &c.figures) as u64)),
    );
    table.line(
        format!("host instructions per {what}"),
        vm(&|c| thousands(per(c.figures.host, &c.figures) as u64)),
    );
    table.line("guest share of instructions", all(&|c| three(c.figures.guest_share())));
    table.part("ticks out", all(&|c| three(c.figures.guest_share_ticks_out())));
    table.line("fraction of bare metal, by cost", versus(false));
    table.part("ticks out", versus(true));
    slowed(&mut table, "of bare at the same rate".into(), results, workload, By::Pace, |m| {
        m.ticks_out
    });
    table.line(
        format!("core 0's own instructions per {what}"),
        vm(&|c| thousands(per(c.figures.others, &c.figures) as u64)),
    );
    table.part("of those of both cores", vm(&|c| three(c.figures.others_share())));
    if results.of(workload).iter().any(|c| c.idle.is_some()) {
        let share = |c: &Cell| c.idle.as_ref().map_or(String::new(), |i| three(i.share));
        table.line("load generator idle, of one CPU", all(&share));
    }
    table.section(Source::Modelled, "");
    let model = |f: &dyn Fn(Modelled) -> String| all(&|c| f(workload.model().of(&c.figures, bare)));
    table.line(
        "exits a second at the paper's rate",
        model(&|m| thousands(m.exits.iter().sum::<f64>() as u64)),
    );
    table.line(
        "fraction of bare, exits charged",
        model(&|m| m.fraction_of_bare.map_or(String::new(), spread)),
    );
    table
}

/// Reasons that occur often enough under any policy, most frequent first.
fn common(results: &Results, workload: Workload) -> Vec<usize> {
    let cells = results.of(workload);
    let most = |r: usize| {
        let of = |c: &&Cell| per(c.figures.exits.get(r).copied().unwrap_or(0), &c.figures);
        cells.iter().map(of).fold(0.0, f64::max)
    };
    let all = cells.iter().map(|c| c.figures.exits.len()).max().unwrap_or(0);
    let mut reasons: Vec<_> = (0..all).filter(|r| most(*r) >= RARE).collect();
    reasons.sort_by(|a, b| most(*b).total_cmp(&most(*a)));
    reasons
}

/// Exits of a cell that its table has no line for, by name.
pub fn rare(results: &Results, cell: &Cell) -> String {
    let shown = common(results, cell.workload);
    let exits = cell.figures.exits.iter().enumerate();
    let rare = exits.filter(|(r, n)| **n > 0 && !shown.contains(r));
    rare.map(|(r, n)| format!("{n} {}", reason_name(r))).collect::<Vec<_>>().join(", ")
}
