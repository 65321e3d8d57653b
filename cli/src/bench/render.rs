//! The terminal's table and what it lets us conclude. Every number and every word
//! of a conclusion comes from the results.

use super::{
    experiment::{Cell, Policy, Results},
    figures::{Figures, Modelled, PAPER, Spread, is_timer, reason_name},
};
use crate::table::thousands;

/// What boot may cost, in instructions, and the hypervisor's image in bytes.
const BOOT_GOAL: u64 = 100_000_000;
const IMAGE_GOAL: u64 = 1 << 20;
const LABEL: usize = 44;
const COLUMN: usize = 13;
const WIDTH: usize = 100;
/// Exits rarer than this per I/O don't get a line of their own.
const RARE: f64 = 0.005;

/// The table: a block for each depth, policies side by side.
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for depth in depths(results) {
        let cells: Vec<_> = results.cells.iter().filter(|c| c.depth == depth).collect();
        let bare = results.figures(Policy::Bare, depth);
        block(&mut text, depth, &cells, bare);
    }
    text
}

fn depths(results: &Results) -> Vec<u32> {
    let mut depths: Vec<u32> = results.cells.iter().map(|c| c.depth).collect();
    depths.dedup();
    depths
}

fn line(text: &mut String, label: &str, values: impl IntoIterator<Item = String>) {
    let mut row = format!("  {label:<LABEL$}");
    for value in values {
        row.push_str(&format!("{value:>COLUMN$}"));
    }
    text.push_str(row.trim_end());
    text.push('\n');
}

fn block(text: &mut String, depth: u32, cells: &[&Cell], bare: Option<&Figures>) {
    let each = |f: &dyn Fn(&Cell) -> String| cells.iter().map(|c| f(c)).collect::<Vec<_>>();
    // What a bare machine can't have shows as nothing.
    let vm = |f: &dyn Fn(&Figures) -> String| {
        each(&|c| if c.policy == Policy::Bare { "-".into() } else { f(&c.figures) })
    };
    let versus = |ticks_out: bool| {
        each(&|c| bare.map_or("-".into(), |b| spread(c.figures.fraction_of(b, ticks_out))))
    };
    line(
        text,
        &format!("fio, 4 KiB random reads, depth {depth}"),
        each(&|c| c.policy.label().into()),
    );
    line(text, "measured", []);
    line(text, "  I/Os counted", each(&|c| thousands(c.figures.operations)));
    line(
        text,
        "  device interrupts per I/O",
        each(&|c| two(per(c.figures.interrupts, &c.figures))),
    );
    line(text, "  exits per device interrupt, ticks out", vm(&|f| two(f.exits_per_interrupt())));
    line(
        text,
        "    for its delivery and completion",
        vm(&|f| two(f.delivery_exits_per_interrupt())),
    );
    line(text, "  exits per I/O, all", vm(&|f| two(f.exits_per_operation())));
    for reason in common(cells) {
        let label = format!(
            "    {}{}",
            reason_name(reason),
            if is_timer(reason) { " (timer)" } else { "" }
        );
        line(text, &label, vm(&|f| two(per(f.exits.get(reason).copied().unwrap_or(0), f))));
    }
    line(text, "  exits per timer tick", vm(&|f| two(f.tick.exits.iter().sum())));
    line(
        text,
        "  guest instructions per I/O",
        each(&|c| thousands(per(c.figures.guest, &c.figures) as u64)),
    );
    line(text, "  host instructions per I/O", vm(&|f| thousands(per(f.host, f) as u64)));
    line(text, "  guest share of all instructions", each(&|c| three(c.figures.guest_share())));
    line(text, "    ticks out", each(&|c| three(c.figures.guest_share_ticks_out())));
    line(text, "  fraction of bare metal, by cost", versus(false));
    line(text, "    ticks out", versus(true));
    line(text, "modelled", []);
    let model = |f: &dyn Fn(Modelled) -> String| each(&|c| f(PAPER.of(&c.figures, bare)));
    line(
        text,
        "  exits per second at the paper's rates",
        model(&|m| thousands(m.exits.iter().sum::<f64>() as u64)),
    );
    let fraction = model(&|m| m.fraction_of_bare.map_or("-".into(), spread));
    line(text, "  fraction of bare, exits charged", fraction);
    text.push('\n');
}

/// Reasons that occur often enough in any of the cells, most frequent first.
fn common(cells: &[&Cell]) -> Vec<usize> {
    let most = |r: usize| {
        let of = |c: &&Cell| per(c.figures.exits.get(r).copied().unwrap_or(0), &c.figures);
        cells.iter().map(of).fold(0.0, f64::max)
    };
    let all = cells.iter().map(|c| c.figures.exits.len()).max().unwrap_or(0);
    let mut reasons: Vec<_> = (0..all).filter(|r| most(*r) >= RARE).collect();
    reasons.sort_by(|a, b| most(*b).total_cmp(&most(*a)));
    reasons
}

/// Exits of a cell that its block of the table has no line for, by name.
fn rare(results: &Results, cell: &Cell) -> String {
    let cells: Vec<_> = results.cells.iter().filter(|c| c.depth == cell.depth).collect();
    let shown = common(&cells);
    let exits = cell.figures.exits.iter().enumerate();
    let rare = exits.filter(|(r, n)| **n > 0 && !shown.contains(r));
    rare.map(|(r, n)| format!("{n} {}", reason_name(r))).collect::<Vec<_>>().join(", ")
}

fn per(count: u64, f: &Figures) -> f64 {
    count as f64 / f.operations as f64
}

fn two(n: f64) -> String {
    format!("{n:.2}")
}

fn three(n: f64) -> String {
    format!("{n:.3}")
}

fn spread(s: Spread) -> String {
    format!("{:.2} ± {:.2}", s.value, s.spread)
}

/// How to read the table.
pub fn legend() -> String {
    format!(
        "  measured: counted by the hypervisor's ledger and a plugin of the emulator, as the slope between\n\
         \x20 short and long windows of a running load. Costs are executed instructions, not time.\n\
         \x20 modelled: the measured figures at {} device interrupts and {} ticks a second (memcached in\n\
         \x20 the ELI paper), with {} cycles charged for each exit and one cycle for each instruction.\n",
        thousands(PAPER.interrupts as u64),
        PAPER.ticks,
        thousands(PAPER.cycles as u64)
    )
}

/// Image, boot and memory; whether the counters agree; whether the two shares do.
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
    for c in &results.cells {
        let (name, depth) = (c.policy.label(), c.depth);
        if let Some(agree) = c.figures.counters_agree() {
            let (runs, entries) = (thousands(c.figures.vmruns), thousands(c.figures.entries));
            let verdict = if agree { "agree" } else { "DISAGREE: figures of this column are void" };
            notes.push(format!(
                "depth {depth}, {name}: plugin saw {runs} guest entries, ledger {entries}: they {verdict}"
            ));
        }
        let rare = rare(results, c);
        if !rare.is_empty() {
            notes.push(format!(
                "depth {depth}, {name}: exits too rare for the table, in {} I/Os: {rare}",
                thousands(c.figures.operations)
            ));
        }
        if let (Some(bare), true) = (results.figures(Policy::Bare, depth), c.policy != Policy::Bare)
        {
            let (share, f) = (c.figures.guest_share(), c.figures.fraction_of(bare, false));
            if (share - f.value).abs() > f.spread {
                // The share can't see what the guest itself does more than on the bare machine.
                let guest = per(c.figures.guest, &c.figures) / per(bare.guest, bare);
                notes.push(format!(
                    "depth {depth}, {name}: guest share {share:.3} and fraction of bare {} differ by more than the\n    spread; the guest itself executes {guest:.2} times the instructions per I/O that it does on bare",
                    spread(f)
                ));
            }
        }
    }
    notes.push(format!("clock source and disk interrupts, {}", sources(results)));
    notes
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

/// Breaks a sentence into lines that fit a terminal.
pub fn wrap(sentence: &str) -> String {
    let (mut text, mut length) = (String::new(), 0);
    for word in sentence.split(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > WIDTH {
            text.push('\n');
            length = 0;
        } else if length > 0 {
            text.push(' ');
            length += 1;
        }
        text.push_str(word);
        length += word_length;
    }
    text
}

/// What the results say, in sentences; nothing when there is nothing to compare `trap` with.
pub fn conclusions(results: &Results) -> Vec<String> {
    let vms = |depth: u32| {
        let cells = results.cells.iter().filter(move |c| c.depth == depth);
        cells.filter(|c| c.policy != Policy::Bare)
    };
    let compared: Vec<_> = depths(results)
        .into_iter()
        .filter(|depth| vms(*depth).any(|c| c.policy == Policy::Trap) && vms(*depth).count() > 1)
        .collect();
    if compared.is_empty() {
        return Vec::new();
    }
    let each = |f: &dyn Fn(&Figures) -> String| {
        let at = |depth: &u32| {
            let said = vms(*depth).map(|c| format!("{} under {}", f(&c.figures), c.policy.label()));
            format!("at depth {depth} {}", said.collect::<Vec<_>>().join(", "))
        };
        compared.iter().map(at).collect::<Vec<_>>().join("; ")
    };
    vec![
        format!(
            "Exits for a device interrupt and its completion: {}.",
            each(&|f| two(f.delivery_exits_per_interrupt()))
        ),
        format!(
            "The guest's share of all instructions: {}.",
            each(&|f| format!(
                "{} ({} with ticks out)",
                three(f.guest_share()),
                three(f.guest_share_ticks_out())
            ))
        ),
        format!("Modelled at the paper's rates, exits a second: {}.", each(&remaining)),
    ]
}

/// Exits a second in the model, with the four most frequent reasons.
fn remaining(f: &Figures) -> String {
    let exits = PAPER.of(f, None).exits;
    let mut named: Vec<_> = exits.iter().enumerate().filter(|(_, n)| **n >= 1.0).collect();
    named.sort_by(|a, b| b.1.total_cmp(a.1));
    let name =
        |(r, n): &(usize, &f64)| format!("{} {}", thousands(n.round() as u64), reason_name(*r));
    let names: Vec<_> = named.iter().take(4).map(name).collect();
    let all = thousands(exits.iter().sum::<f64>().round() as u64);
    if names.is_empty() { all } else { format!("{all} ({})", names.join(", ")) }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
