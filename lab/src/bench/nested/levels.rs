//! What an exit costs at one level and at two: the windows of the small kernel, as rows.
//!
//! Turtles' micro-benchmarks (OSDI 2010, section 5.2), with other means: exits and instructions are
//! counted, not cycles.

use crate::bench::lines::Plugin;
use anyhow::{Result, bail};
use serde::Serialize;

/// What the kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Below {
    /// The machine.
    #[serde(rename = "bare")]
    Nothing,
    /// A VM of ours.
    Exitless,
    /// A VM of KVM's, of the same machine.
    Kvm,
}

impl Below {
    /// In tables.
    pub const fn label(self) -> &'static str {
        match self {
            Below::Nothing => "bare",
            Below::Exitless => "exitless",
            Below::Kvm => "kvm",
        }
    }
}

/// Whose instruction exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The small kernel's own.
    One,
    /// Its guest's, of which the kernel is told.
    Two,
}

/// A window of `guests/kernels/src/tests/svm/levels.rs`.
struct Load {
    level: Level,
    name: &'static str,
    /// How often it is done.
    times: u64,
    /// VMRUNs of the kernel's own for each.
    runs: u64,
}

const LOADS: [Load; 8] = [
    Load { level: Level::One, name: "CPUID", times: 1000, runs: 0 },
    Load { level: Level::One, name: "a port", times: 1000, runs: 0 },
    Load { level: Level::One, name: "an MSR", times: 1000, runs: 0 },
    Load { level: Level::Two, name: "CPUID", times: 1000, runs: 1 },
    Load { level: Level::Two, name: "a port", times: 1000, runs: 1 },
    Load { level: Level::Two, name: "an MSR", times: 1000, runs: 1 },
    Load { level: Level::Two, name: "a hypercall", times: 1000, runs: 1 },
    Load { level: Level::Two, name: "first touch of a page, and a hypercall", times: 64, runs: 2 },
];

/// What one of them took, each time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Whose it is.
    pub level: Level,
    /// What it is.
    pub what: &'static str,
    /// Exits of whoever is below the kernel.
    pub exits: f64,
    /// Instructions of all levels on that CPU.
    pub instructions: f64,
    /// Of these, the host's, where it says where it begins: ours.
    pub host: Option<f64>,
}

/// A run.
#[derive(Debug, Serialize)]
pub struct Column {
    /// What the kernel ran on.
    pub below: Below,
    /// In the order of the windows, which is the same in all runs.
    pub costs: Vec<Cost>,
}

impl Column {
    /// What the plugin counted, each time.
    pub fn of(below: Below, counted: &Plugin) -> Result<Self> {
        let edges = &counted.edges;
        if edges.len() != 2 * LOADS.len() {
            bail!("{} edges of {} windows were counted", edges.len(), LOADS.len());
        }
        let mut costs = Vec::new();
        for (load, pair) in LOADS.iter().zip(edges.chunks_exact(2)) {
            let [open, close] = pair else { bail!("a window has no two edges") };
            if !open.opens || close.opens || open.vcpu != close.vcpu {
                bail!("the window of {} isn't one of one CPU", load.name);
            }
            let each = |n: u64| n as f64 / load.times as f64;
            let host = close.host.saturating_sub(open.host);
            let guest = close.guest.saturating_sub(open.guest);
            let vmruns = close.vmruns.saturating_sub(open.vmruns);
            // The kernel's own VMRUN is executed, too, and exits if somebody is below.
            let of_the_host = vmruns.saturating_sub(load.runs * load.times);
            let entries = close.host_entries.saturating_sub(open.host_entries);
            if below == Below::Exitless && of_the_host.abs_diff(entries) > 1 {
                bail!(
                    "{}: {of_the_host} entries by the host, which says that it was entered {entries} times",
                    load.name
                );
            }
            costs.push(Cost {
                level: load.level,
                what: load.name,
                exits: if below == Below::Nothing { 0.0 } else { each(of_the_host) },
                instructions: each(host + guest),
                host: (below == Below::Exitless).then(|| each(host)),
            });
        }
        Ok(Column { below, costs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lines::Edge;

    /// Windows in each of which every operation takes 10 VMRUNs, 100 instructions of the host's and
    /// 1,000 of the guest's.
    fn counted() -> Plugin {
        let mut at = Edge { opens: true, vcpu: 1, ..Edge::default() };
        let mut edges = Vec::new();
        for load in &LOADS {
            edges.push(at.clone());
            at.vmruns += 10 * load.times;
            at.host_entries += (10 - load.runs) * load.times;
            at.host += 100 * load.times;
            at.guest += 1000 * load.times;
            edges.push(Edge { opens: false, ..at.clone() });
        }
        Plugin { edges, ..Plugin::default() }
    }

    #[test]
    fn the_kernels_own_entries_are_no_exits_of_the_host() {
        let column = Column::of(Below::Exitless, &counted()).unwrap();
        let exits: Vec<_> = column.costs.iter().map(|cost| cost.exits).collect();
        assert_eq!(exits, [10.0, 10.0, 10.0, 9.0, 9.0, 9.0, 9.0, 8.0]);
        assert_eq!(column.costs[0].instructions, 1100.0);
        assert_eq!(column.costs[7].host, Some(100.0));
        let bare = Column::of(Below::Nothing, &counted()).unwrap();
        assert!(bare.costs.iter().all(|cost| cost.exits == 0.0 && cost.host.is_none()));
    }

    #[test]
    fn what_is_no_window_is_refused() {
        let mut lost = counted();
        lost.edges.pop();
        assert!(Column::of(Below::Kvm, &lost).is_err());
        let mut unmarked = counted();
        unmarked.edges[1].host_entries = 0;
        assert!(Column::of(Below::Exitless, &unmarked).is_err());
        assert!(Column::of(Below::Kvm, &unmarked).is_ok());
        let mut elsewhere = counted();
        elsewhere.edges[1].vcpu = 0;
        assert!(Column::of(Below::Kvm, &elsewhere).is_err());
    }
}
