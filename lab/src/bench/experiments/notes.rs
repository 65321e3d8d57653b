//! What stands below the tables: image, boot and memory; whether the counters agree;
//! what is too rare for a table; what the results say in sentences. Every number and
//! every word of a conclusion comes from the results.

use super::{breakdown::rare, common::per};
use crate::bench::{
    column::Column,
    figures::reason_name,
    generator::Idle,
    measure::{Cell, Results},
    model::Model,
    show::{spread, three, two},
    workload::Workload,
};
use exitless::table::thousands;

/// What boot may cost, in instructions, and the hypervisor's image in bytes.
const BOOT_GOAL: u64 = 100_000_000;
const IMAGE_GOAL: u64 = 1 << 20;
/// What a load generator must leave idle of one CPU not to be the bottleneck.
const MIN_IDLE: f64 = 0.2;

/// How to read the table.
pub fn legend() -> String {
    format!(
        "  measured: counted by the hypervisor's ledger and a plugin of the emulator, as the slope between\n\
         \x20 short and long windows of a running load. Costs are executed instructions, not time.\n\
         \x20 modelled: the measured figures at the program's rate of device interrupts in the ELI paper (fio:\n\
         \x20 memcached's {}) and {} ticks a second, with {} cycles charged for each exit and one\n\
         \x20 cycle for each instruction. That is the direct cost of a VMX exit on the paper's Xeon X5570;\n\
         \x20 what ran is SVM in an emulator, whose exits nobody has timed.\n",
        thousands(Model::PAPER.interrupts as u64),
        Model::PAPER.ticks,
        thousands(Model::PAPER.cycles as u64)
    )
}

/// A note for each, of image, boot and memory; whether the counters agree; whether the two shares
/// do.
pub fn notes(results: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(bytes) = results.hypervisor_bytes {
        let verdict = if bytes < IMAGE_GOAL { "under 1 MiB" } else { "over the goal of 1 MiB" };
        notes.push(format!("hypervisor image: {} KiB, {verdict}", bytes.div_ceil(1024)));
    }
    if let Some(boot) = results.cells.iter().filter_map(|c| c.boot_instructions).max() {
        let verdict = if boot < BOOT_GOAL { "under" } else { "over the goal of" };
        notes.push(format!(
            "power-on to first guest entry: {:.1} million instructions, firmware included ({verdict} 100 million)",
            boot as f64 / 1e6
        ));
    }
    let memory = |f: &dyn Fn(&Cell) -> Option<u64>| results.cells.iter().filter_map(f).max();
    if let Some(overhead) = memory(&|c| c.vm_overhead) {
        let host = memory(&|c| c.host_memory)
            .map_or(String::new(), |h| format!(", {} KiB for the hypervisor itself", h / 1024));
        notes.push(format!(
            "memory: {} KiB for the VM's page tables and state{host}",
            overhead / 1024
        ));
    }
    notes.extend(entries(results));
    notes.extend(idle(results));
    for c in &results.cells {
        let (load, name) = (c.workload.short(), c.policy.label());
        if c.figures.counters_agree() == Some(false) {
            let (runs, entries) = (thousands(c.figures.vmruns), thousands(c.figures.entries));
            notes.push(format!(
                "{load}, {name}: plugin saw {runs} guest entries, ledger {entries}: they DISAGREE: figures of this column are void"
            ));
        }
        if c.figures.flat > 0 {
            let n = c.figures.flat;
            notes.push(format!("{load}, {name}: pairs of windows without a slope, left out: {n}"));
        }
        let rare = rare(results, c);
        if !rare.is_empty() {
            notes.push(format!(
                "{load}, {name}: exits too rare for the table, in {} {}s: {rare}",
                thousands(c.figures.operations),
                c.workload.operation()
            ));
        }
    }
    for cell in &results.cells {
        if let Some(last) = &cell.hung {
            let load = cell.workload.short();
            notes.push(format!(
                "{load}: the bare machine hung once, after \"{last}\", and was started again"
            ));
        }
    }
    notes.push(format!("clock source and device interrupts, {}", sources(results)));
    notes
}

/// Why bars of the fraction of bare stand where the guest's share of instructions wouldn't have
/// them, a sentence for each: the guest itself executes more or less than on the bare machine.
pub fn remarks(results: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    for c in &results.cells {
        // Beside a busy loop the guest's instructions say how long it waited, not what it did.
        let comparable = c.policy != Column::Bare && c.workload != Workload::Exchange;
        let bare = results.figures(Column::Bare, c.workload).filter(|_| comparable);
        let Some(bare) = bare else { continue };
        let (share, f) = (c.figures.guest_share(), c.figures.fraction_of(bare, false));
        if (share - f.value).abs() > f.spread {
            // The share can't see what the guest itself does more than on the bare machine.
            let guest = per(c.figures.guest, &c.figures) / per(bare.guest, bare);
            remarks.push(format!(
                "{}, {}: guest share {share:.3} and fraction of bare {} differ by more than the spread; the guest itself executes {guest:.2} times the instructions per {} that it does on bare",
                c.workload.short(),
                c.policy.label(),
                spread(f),
                c.workload.operation()
            ));
        }
    }
    remarks
}

/// Whether the two counts of guest entries agree where they should.
fn entries(results: &Results) -> Option<String> {
    let agreed = results.cells.iter().filter(|c| c.figures.counters_agree() == Some(true));
    let sum = |f: fn(&Cell) -> u64| thousands(agreed.clone().map(f).sum());
    let (runs, entries) = (sum(|c| c.figures.vmruns), sum(|c| c.figures.entries));
    let cells = agreed.count();
    (cells > 0).then(|| {
        format!("plugin saw {runs} guest entries, ledger {entries}: they agree in {cells} cells")
    })
}

/// The least that each load generator left idle.
fn idle(results: &Results) -> Vec<String> {
    let mut least: Vec<(&Idle, &Cell)> = Vec::new();
    for cell in &results.cells {
        let Some(idle) = &cell.idle else { continue };
        match least.iter_mut().find(|(other, _)| other.program == idle.program) {
            Some(other) if idle.share < other.0.share => *other = (idle, cell),
            Some(_) => {}
            None => least.push((idle, cell)),
        }
    }
    let said = |(idle, cell): (&Idle, &Cell)| {
        let (load, name) = (cell.workload.short(), cell.policy.label());
        let (program, share) = (&idle.program, 100.0 * idle.share);
        let verdict = if idle.share >= MIN_IDLE {
            "not the bottleneck"
        } else {
            "TOO BUSY: it may be the bottleneck"
        };
        format!("{program} left {share:.1} % of one CPU idle or more ({load}, {name}): {verdict}")
    };
    least.into_iter().map(said).collect()
}

/// Clock source and kind of interrupt, with the policies that have them.
fn sources(results: &Results) -> String {
    let mut seen: Vec<(String, Vec<&str>)> = Vec::new();
    for c in &results.cells {
        let (what, policy) =
            (format!("{}, {}", c.clocksource, kind(&c.interrupt)), c.policy.label());
        match seen.iter_mut().find(|(w, _)| *w == what) {
            Some((_, policies)) if policies.contains(&policy) => {}
            Some((_, policies)) => policies.push(policy),
            None => seen.push((what, vec![policy])),
        }
    }
    let said = seen.iter().map(|(what, policies)| format!("{}: {what}", policies.join(", ")));
    said.collect::<Vec<_>>().join("; ")
}

/// "IR-PCI-MSIX" of "IR-PCI-MSIX-0000:00:03.0".
fn kind(interrupt: &str) -> &str {
    interrupt.split("-0").next().unwrap_or(interrupt)
}

/// What the results say, in sentences; nothing when there is nothing to compare `trap` with.
pub fn conclusions(results: &Results) -> Vec<String> {
    let vms =
        |workload: Workload| results.of(workload).into_iter().filter(|c| c.policy != Column::Bare);
    let mut compared: Vec<Workload> = Vec::new();
    for cell in results.cells.iter().filter(|c| c.policy == Column::TRAP) {
        if vms(cell.workload).count() > 1 {
            compared.push(cell.workload);
        }
    }
    if compared.is_empty() {
        return Vec::new();
    }
    let each = |f: &dyn Fn(&Cell) -> String| {
        let at = |workload: &Workload| {
            let said = vms(*workload).map(|c| format!("{} under {}", f(c), c.policy.label()));
            format!("in {} {}", workload.short(), said.collect::<Vec<_>>().join(", "))
        };
        compared.iter().map(at).collect::<Vec<_>>().join("; ")
    };
    vec![
        format!(
            "Exits for a device interrupt and its completion: {}.",
            each(&|c| two(c.figures.delivery_exits_per_interrupt()))
        ),
        format!(
            "The guest's share of all instructions: {}.",
            each(&|c| format!(
                "{} ({} with ticks out)",
                three(c.figures.guest_share()),
                three(c.figures.guest_share_ticks_out())
            ))
        ),
        format!("Modelled at the paper's rates, exits a second: {}.", each(&remaining)),
    ]
}

/// Exits a second in the model, with the four most frequent reasons.
fn remaining(cell: &Cell) -> String {
    let exits = cell.workload.model().of(&cell.figures, None).exits;
    let mut named: Vec<_> = exits.iter().enumerate().filter(|(_, n)| **n >= 1.0).collect();
    named.sort_by(|a, b| b.1.total_cmp(a.1));
    let name =
        |(r, n): &(usize, &f64)| format!("{} {}", thousands(n.round() as u64), reason_name(*r));
    let names: Vec<_> = named.iter().take(4).map(name).collect();
    let all = thousands(exits.iter().sum::<f64>().round() as u64);
    if names.is_empty() { all } else { format!("{all} ({})", names.join(", ")) }
}
