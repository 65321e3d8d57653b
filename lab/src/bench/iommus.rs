//! The same guest on machines that differ in their IOMMU alone, side by side: whose it is must
//! make no difference.

use super::{
    column::Column,
    guest::Kit,
    measure::{Cell, Request, Results, measure},
    show::{Source, Table, text},
    workload::{Effort, Workload},
};
use anyhow::Result;
use clap::ValueEnum as _;
use exitless::{context::Context, qemu::Iommu, table::thousands};

/// What is compared, under these policies.
const WORKLOAD: Workload = Workload::Fio { depth: 1 };
const POLICIES: [Column; 2] = [Column::ELI, Column::DIRECT];

/// The other one.
pub const fn other(iommu: Iommu) -> Iommu {
    match iommu {
        Iommu::AmdVi => Iommu::VtD,
        Iommu::VtD => Iommu::AmdVi,
    }
}

/// Its name, as the option has it.
pub fn name(iommu: Iommu) -> String {
    iommu.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Measures what [`table`] compares on the kit's machine.
pub fn run(cx: &Context, kit: &Kit) -> Result<Results> {
    measure(cx, kit, &Request::new(&[WORKLOAD], &POLICIES, Effort::Demo))
}

/// Both, policy by policy.
pub fn table(both: [(Iommu, &Results); 2]) -> String {
    let columns = POLICIES.iter().flat_map(|policy| {
        both.map(|(iommu, results)| (name(iommu), results.cell(*policy, WORKLOAD), policy))
    });
    let columns: Vec<_> = columns.collect();
    let heads = columns.iter().map(|(iommu, _, policy)| format!("{} {iommu}", policy.label()));
    let mut table = Table::new("IOMMUs, fio, depth 1", heads);
    let cells = |value: fn(&Cell) -> String| {
        columns.iter().map(|(_, cell, _)| cell.map_or_else(String::new, value)).collect::<Vec<_>>()
    };
    table.section(Source::Measured, "");
    table.line("exits per interrupt, ticks out", cells(|c| two(c.figures.exits_per_interrupt())));
    table.part(
        "for delivery and completion",
        cells(|c| two(c.figures.delivery_exits_per_interrupt())),
    );
    table.line("guest share of instructions", cells(|c| format!("{:.3}", c.figures.guest_share())));
    table.line("entries that the audit judged", cells(|c| thousands(c.audit.interrupts)));
    table.part("findings", cells(|c| c.audit.findings.to_string()));
    text::table(&table)
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_stand_side_by_side_under_each_policy() {
        let none = Results::default();
        assert_eq!(other(other(Iommu::AmdVi)), Iommu::AmdVi);
        let shown = table([(Iommu::AmdVi, &none), (Iommu::VtD, &none)]);
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        let lines: Vec<_> = shown.lines().map(words).collect();
        let columns = ["eli", "amd-vi", "eli", "vt-d", "direct", "amd-vi", "direct", "vt-d"];
        assert!(lines[0].ends_with(&columns.map(String::from)), "{shown}");
        // What wasn't measured is no nought.
        assert!(lines[2..].iter().all(|line| line.ends_with(&vec!["-".to_owned(); 4])), "{shown}");
    }
}
