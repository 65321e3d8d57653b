//! What the experiment shows: a table with the policies side by side, a distribution, rows for
//! JSON, a page.

use super::{
    boot::Load,
    cell::Cell,
    figures::{Cost, Side, Together, bucket_end, fractions},
};
use crate::bench::{
    column::Column,
    figures::reason_name,
    guest::Kit,
    matched::{By, Control, Matched},
    rows::Slowed,
    show::{
        Block, Source, Table,
        html::{self, Page, Section},
        number, spread, three, two, whole,
    },
    workload::Effort,
};
use ledger::Reason;
use serde::Serialize;

/// Its name on the command line and in JSON.
pub const NAME: &str = "shared";
const TITLE: &str = "Two guests share a core: fio on an NVMe controller of each";
/// Exits rarer than this per I/O have no line.
const RARE: f64 = 0.0005;

/// What the terminal and the page show.
pub fn blocks(cells: &[Cell], control: Option<&Control>, load: &Load) -> Vec<Block> {
    let short = match load.effort {
        Effort::Quick | Effort::Smoke => ", short windows (--quick)",
        Effort::Full | Effort::Demo => "",
    };
    let intro = format!(
        "Two VMs on one core, {} each, a slice of {} µs{short}. bare: one Linux on one CPU of the bare \
         machine with both controllers and both loads.",
        load.fio.title(),
        load.slice_us
    );
    let mut blocks = vec![Block::Say(intro), Block::Table(table(cells, control))];
    blocks.extend(waits(cells).map(Block::Table));
    blocks
}

fn table(cells: &[Cell], control: Option<&Control>) -> Table {
    let mut table = Table::new(TITLE, cells.iter().map(|c| c.policy.label().to_string()));
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> {
        cells.iter().map(|c| f(&c.together)).collect()
    };
    let vm = |f: &dyn Fn(&Together) -> String| -> Vec<String> {
        let of = |c: &Cell| if c.policy == Column::Bare { String::new() } else { f(&c.together) };
        cells.iter().map(of).collect()
    };
    table.section(Source::Measured, "");
    table.line("I/Os counted", all(&|t| whole(t.operations() as f64)));
    table.line("device interrupts per I/O", all(&|t| two(t.per_operation(|s| s.interrupts))));
    table.line("exits per interrupt while resident", vm(&|t| three(t.exits_while_resident())));
    table.part(
        "interrupts while resident, of all",
        vm(&|t| three(t.per_interrupt(Side::while_resident))),
    );
    table.part(
        "given by the host, of all",
        vm(&|t| three(t.per_interrupt(|s| s.exits.device_injected))),
    );
    table.line(
        "exits per I/O, all",
        vm(&|t| three(t.per_operation(|s| s.exits.by_reason.iter().sum()))),
    );
    for reason in Reason::ALL.iter().copied() {
        let of = |t: &Together| t.per_operation(|s| s.exits_for(reason));
        if cells.iter().any(|c| of(&c.together) >= RARE) {
            table.part(reason_name(reason as usize), vm(&|t| three(of(t))));
        }
    }
    table.line("instructions per time slice", vm(&|t| whole(t.instructions_per_slice())));
    table.line("instructions per I/O, of all on the core", all(&|t| whole(t.cost())));
    table.part("ticks out", all(&|t| whole(t.cost_ticks_out())));
    table.line("guest share of instructions", vm(&|t| three(t.guest_share())));
    table.part("ticks out", vm(&|t| three(t.guest_share_ticks_out())));
    table.line("core 0's own instructions per I/O", vm(&|t| whole(t.others())));
    table.part("of those of both cores, for each guest", vm(&|t| three(t.others_share())));
    let costs: [(_, Cost); 2] = [("", Together::cost), (", ticks out", Together::cost_ticks_out)];
    for (what, cost) in costs {
        let fraction = |t: &Together| {
            bare(cells).map_or(String::new(), |b| three(cost(&b.together) / cost(t)))
        };
        let range = |c: &Cell| {
            let all = bare(cells).map_or(Vec::new(), |b| fractions(&b.runs, &c.runs, cost));
            match (all.first(), all.last()) {
                (Some(low), Some(high)) if c.policy != Column::Bare => {
                    format!("{}-{}", two(*low), two(*high))
                }
                _ => String::new(),
            }
        };
        table
            .line(format!("throughput together, of bare's, by instructions{what}"), all(&fraction));
        if cells.iter().any(|c| c.runs.len() > 1) {
            table.part("lowest and highest run", cells.iter().map(range));
        }
    }
    let slowed = |f: &dyn Fn(&Matched) -> String| -> Vec<String> {
        let of = |c: &Cell| matched(c, control).as_ref().map(f).unwrap_or_default();
        cells.iter().map(of).collect()
    };
    if control.is_some() {
        table.section(
            Source::Measured,
            "beside one load alone on bare, slowed until its interrupts per I/O are the same",
        );
        table.line("throughput, of bare's, ticks in", slowed(&|m| spread(m.fraction)));
        table.line("throughput, of bare's, ticks out", slowed(&|m| spread(m.ticks_out)));
        table.part("bare's rate / here", slowed(&|m| two(m.agreement.rate)));
        table.part("bare's interrupts per I/O / here", slowed(&|m| two(m.agreement.interrupts)));
    }
    table
}

/// Beside the bare machine with as many interrupts per I/O.
fn matched(cell: &Cell, control: Option<&Control>) -> Option<Matched> {
    let points: Vec<_> = cell.runs.iter().map(Together::point).collect();
    Matched::of(&points, control?, By::Interrupts).filter(|_| cell.policy != Column::Bare)
}

fn bare(cells: &[Cell]) -> Option<&Cell> {
    cells.iter().find(|c| c.policy == Column::Bare)
}

/// How long interrupts waited that came for the one that hadn't the core.
fn waits(cells: &[Cell]) -> Option<Table> {
    let vms: Vec<_> = cells.iter().filter(|c| c.policy != Column::Bare).collect();
    let counted: Vec<Vec<u64>> = vms.iter().map(|c| c.together.waits()).collect();
    let used = |bucket: &usize| counted.iter().any(|w| w.get(*bucket).is_some_and(|n| *n > 0));
    let buckets: Vec<usize> = (0..ledger::WAITS).filter(used).collect();
    let hz = vms.iter().find_map(|c| c.together.tsc_hz)?;
    let (first, last) = (*buckets.first()?, *buckets.last()?);
    let mut table = Table::new(
        "waits for the core, of the first interrupt of each absence",
        vms.iter().map(|c| c.policy.label().to_string()),
    );
    table.section(Source::Measured, "in real time of a slow machine: the part that is shorter");
    for bucket in first..=last {
        let part = |waits: &Vec<u64>| {
            let shorter: u64 = waits.iter().take(bucket + 1).sum();
            three(shorter as f64 / waits.iter().sum::<u64>().max(1) as f64)
        };
        let label = format!("under {} µs", number(bucket_end(bucket, hz)));
        table.line(label, counted.iter().map(part));
    }
    table.line("waits", counted.iter().map(|w| whole(w.iter().sum::<u64>() as f64)));
    Some(table)
}

/// What ticks taken out leaves.
#[derive(Serialize)]
pub struct TicksOut {
    instructions_per_operation: f64,
    guest_share: f64,
    fraction_of_bare: Option<f64>,
    /// Of each run, lowest first.
    fractions_of_bare: Vec<f64>,
}

/// A row of `--json`.
#[derive(Serialize)]
pub struct Row {
    experiment: &'static str,
    kind: &'static str,
    policy: &'static str,
    workload: String,
    slice_us: u32,
    runs: usize,
    operations: u64,
    interrupts: u64,
    interrupts_while_resident: u64,
    exits_per_interrupt_while_resident: f64,
    device_injected: u64,
    slices: u64,
    exits_by_reason: std::collections::BTreeMap<String, u64>,
    instructions_per_operation: f64,
    guest_share: f64,
    fraction_of_bare: Option<f64>,
    /// Of each run, lowest first.
    fractions_of_bare: Vec<f64>,
    ticks_out: TicksOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_equal_interrupts: Option<Slowed>,
    other_cpus_instructions_per_operation: f64,
    /// By power of two of TSC ticks.
    waits: Vec<u64>,
    tsc_hz: Option<u64>,
}

/// The rows for `--json`, one for each policy.
pub fn rows(cells: &[Cell], control: Option<&Control>, load: &Load) -> Vec<Row> {
    let of_bare = |t: &Together, cost: Cost| bare(cells).map(|b| cost(&b.together) / cost(t));
    let each_of_bare = |cell: &Cell, cost| {
        bare(cells).map_or(Vec::new(), |b| fractions(&b.runs, &cell.runs, cost))
    };
    let row = |cell: &Cell| {
        let t = &cell.together;
        let exits =
            Reason::ALL.iter().map(|r| (reason_name(*r as usize), t.sum(|s| s.exits_for(*r))));
        Row {
            experiment: NAME,
            kind: Source::Measured.label(),
            policy: cell.policy.label(),
            workload: load.fio.key(),
            slice_us: load.slice_us,
            runs: cell.runs.len(),
            operations: t.operations(),
            interrupts: t.sum(|s| s.interrupts),
            interrupts_while_resident: t.sum(Side::while_resident),
            exits_per_interrupt_while_resident: t.exits_while_resident(),
            device_injected: t.sum(|s| s.exits.device_injected),
            slices: t.sum(|s| s.exits.slices),
            exits_by_reason: exits.filter(|(_, n)| *n > 0).collect(),
            instructions_per_operation: t.cost(),
            guest_share: t.guest_share(),
            fraction_of_bare: of_bare(t, Together::cost),
            fractions_of_bare: each_of_bare(cell, Together::cost),
            ticks_out: TicksOut {
                instructions_per_operation: t.cost_ticks_out(),
                guest_share: t.guest_share_ticks_out(),
                fraction_of_bare: of_bare(t, Together::cost_ticks_out),
                fractions_of_bare: each_of_bare(cell, Together::cost_ticks_out),
            },
            at_equal_interrupts: matched(cell, control).map(Slowed::from),
            other_cpus_instructions_per_operation: t.others(),
            waits: t.waits(),
            tsc_hz: t.tsc_hz,
        }
    };
    cells.iter().map(row).collect()
}

/// The page.
pub fn page(blocks: Vec<Block>, kit: &Kit) -> String {
    let section = Section { name: NAME.into(), title: TITLE.into(), blocks };
    html::page(&Page {
        title: "Exitless: shared cores".into(),
        intro: vec![
            "Every figure is counted: exits by the hypervisor's ledger, instructions by a plugin of the \
             emulator, as slopes between short and long windows of a running load."
                .into(),
        ],
        sections: vec![section],
        notes: kit.versions().into_iter().map(String::from).collect(),
        ..Page::default()
    })
}
