//! What an exit of a guest of KVM's costs, where KVM is on the bare machine, and where it is a
//! guest of ours or of the same KVM: Turtles' micro-benchmarks with a hypervisor that people use.
//!
//! Guarantees: figures are given only of runs in which the guest came to its end each time.

use super::{boot, levels::Below};
use crate::bench::{
    lines::{Edge, Plugin, ours},
    show::{Source, Table, two, whole},
};
use anyhow::{Result, bail};
use exitless::context::Context;
use serde::Serialize;

/// How often each exit is taken in its long window.
const TIMES: u64 = 5_000;
/// What the guest does, by the words of `guests/linux/nested/exits.c`.
const EXITS: [(&str, &str); 4] = [
    ("cpuid", "CPUID"),
    ("msr", "an MSR"),
    ("port", "a port, by KVM's program"),
    ("touch", "first touch of a page"),
];
/// Its windows for each: to warm up, the short one, the long one. Two edges each.
const WINDOWS: usize = 3;

/// What one of them took, each time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KvmCost {
    /// What it is.
    pub what: &'static str,
    /// What KVM runs on.
    pub below: Below,
    /// Exits of whoever is below KVM.
    pub exits: f64,
    /// Entries of KVM's guest by KVM.
    pub entries: f64,
    /// Instructions of whoever is below KVM.
    pub host: f64,
    /// Of KVM and its kernel.
    pub kvm: f64,
}

/// Measures them.
pub fn measure(cx: &Context, below: Below) -> Result<Vec<KvmCost>> {
    let (counted, console) = boot::kvm_as_hypervisor(cx, below, TIMES)?;
    costs(below, &counted, &console)
}

fn costs(below: Below, counted: &Plugin, console: &str) -> Result<Vec<KvmCost>> {
    let said: Vec<_> = console.lines().filter_map(ours).collect();
    let edges = &counted.edges;
    if edges.len() != 2 * WINDOWS * EXITS.len() {
        bail!("{} edges of {} windows were counted", edges.len(), WINDOWS * EXITS.len());
    }
    let mut costs = Vec::new();
    for ((name, what), edges) in EXITS.into_iter().zip(edges.chunks_exact(2 * WINDOWS)) {
        let begins = format!("exits {name} times=");
        let times = said.iter().find_map(|line| line.strip_prefix(begins.as_str())?.parse().ok());
        let Some(times) = times.filter(|times: &f64| *times > 0.0) else {
            bail!("KVM's guest doesn't say how often it did {what}");
        };
        let [_, _, short, short_end, long, long_end] = edges else { bail!("a window is missing") };
        if !short.opens || short_end.opens || !long.opens || long_end.opens {
            bail!("the windows of {what} aren't opened and closed in turns");
        }
        let each = |of: &dyn Fn(&Edge) -> u64| {
            let window = |open: &Edge, close: &Edge| of(close).saturating_sub(of(open)) as f64;
            (window(long, long_end) - window(short, short_end)) / times
        };
        // The lowest level is KVM's kernel where nobody is below it.
        let (all, inner) = (each(&|e| e.vmruns), each(&|e| e.inner_vmruns));
        let (low, next) = (each(&|e| e.levels[0]), each(&|e| e.levels[1]));
        costs.push(match below {
            Below::Nothing => {
                KvmCost { what, below, exits: 0.0, entries: all, host: 0.0, kvm: low }
            }
            _ => KvmCost { what, below, exits: all - inner, entries: inner, host: low, kvm: next },
        });
    }
    Ok(costs)
}

/// What the terminal and the page show: of several runs, one after the other.
pub fn table(runs: &[Vec<KvmCost>]) -> Table {
    let below = runs.iter().filter_map(|run| run.first()).map(|cost| cost.below.label());
    let mut table =
        Table::new("an exit of a guest of KVM's, below which is", below.map(Into::into));
    table.section(Source::Measured, "");
    for (n, (_, what)) in EXITS.iter().enumerate() {
        let of = |f: &dyn Fn(&KvmCost) -> String| -> Vec<String> {
            runs.iter().map(|run| run.get(n).map_or_else(String::new, f)).collect()
        };
        table.line(format!("exits, {what}"), of(&|cost| two(cost.exits)));
        table.part("entries by KVM", of(&|cost| two(cost.entries)));
        table.part("instructions", of(&|cost| whole(cost.host + cost.kvm)));
        table.part("of the host's", of(&|cost| whole(cost.host)));
        table.part("of KVM's and its kernel's", of(&|cost| whole(cost.kvm)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows in each of which every time has 3 VMRUNs, one of them the guest's, 900 instructions
    /// at the lowest level and 3,000 above it.
    fn counted() -> Plugin {
        let mut at = Edge { opens: true, ..Edge::default() };
        let mut edges = Vec::new();
        for times in [10, 10, 50].repeat(EXITS.len()) {
            edges.push(Edge { opens: true, ..at.clone() });
            at.vmruns += 3 * times + 2;
            at.inner_vmruns += times + 1;
            at.levels[0] += 900 * times + 70;
            at.levels[1] += 3_000 * times + 700;
            edges.push(Edge { opens: false, ..at.clone() });
        }
        Plugin { edges, ..Plugin::default() }
    }

    const SAID: &str = "[1.0] @exitless exits cpuid times=40\r\n@exitless exits msr times=40\n\
                        @exitless exits port times=40\n@exitless exits touch times=40\n";

    #[test]
    fn what_comes_with_a_window_is_in_no_figure() {
        let costs = costs(Below::Exitless, &counted(), SAID).unwrap();
        let cost = KvmCost {
            what: "CPUID",
            below: Below::Exitless,
            exits: 2.0,
            entries: 1.0,
            host: 900.0,
            kvm: 3_000.0,
        };
        assert_eq!(costs, EXITS.map(|(_, what)| KvmCost { what, ..cost }));
        let bare = super::costs(Below::Nothing, &counted(), SAID).unwrap();
        assert_eq!((bare[0].exits, bare[0].entries, bare[0].kvm), (0.0, 3.0, 900.0));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for said in ["", "@exitless exits cpuid times=40", "@exitless exits cpuid times=0"] {
            assert!(costs(Below::Exitless, &counted(), said).is_err(), "{said}");
        }
        let mut lost = counted();
        lost.edges.truncate(10);
        assert!(costs(Below::Exitless, &lost, SAID).is_err());
        let mut twice = counted();
        twice.edges[4].opens = false;
        assert!(costs(Below::Exitless, &twice, SAID).is_err());
    }
}
