//! Several VMs on one sidecore: how they share it, and how long one that asks for little waits
//! beside others that ask for much.

use super::{
    boot::{Run, boot},
    figures::{Member, Together},
    loads::{BULK, Load, SLOWED},
    output::{self, Shown},
    way::Way,
};
use crate::bench::{guest::Kit, progress::Step, workload::Effort};
use anyhow::Result;
use exitless::context::Context;
use plan::{Backing, Control};

/// What `bench sidecore` shows of them.
pub fn measure(cx: &Context, kit: &Kit, counts: &[u32], effort: Effort) -> Result<Vec<Shown>> {
    let mut cells = Vec::new();
    for &n in counts {
        let loads = vec![Load::bulk(effort); n as usize];
        let run = of(Way::DIRECT, loads, false, SLOWED);
        cells.push((n, together(cx, kit, &run, false, &format!("{n} VMs, bulk"))?));
    }
    let mut shown = vec![output::shares(&cells)];
    if let Some(n) = counts.iter().max().filter(|n| **n > 1) {
        let mut beside = Vec::new();
        for whole_turns in [false, true] {
            let mut loads = vec![Load::bulk(effort); *n as usize];
            loads[0] = Load::of(1, 20, 100);
            let run = of(Way::DIRECT, loads, whole_turns, SLOWED);
            let turns = if whole_turns { "whole turns" } else { "scheduled" };
            beside.push(together(cx, kit, &run, true, &format!("1 and {}, {turns}", n - 1))?);
        }
        let what = format!(
            "a VM at depth 1 beside {} at depth {BULK} on one sidecore, which is slowed; 4 KiB random reads, null disks, direct",
            n - 1
        );
        let parts = ["latency, scheduled", "latency, whole turns"];
        shown.push(output::latency(what, parts, *n, &beside));
    }
    Ok(shown)
}

fn of(way: Way, loads: Vec<Load>, whole_turns: bool, sidecore_slowed: u32) -> Run {
    let (control, rounds) = (Control::default(), Vec::new());
    Run { way, loads, backing: Backing::Null, control, whole_turns, sidecore_slowed, rounds }
}

/// Runs all. `latency`: the first one is the one that asks for little.
fn together(cx: &Context, kit: &Kit, run: &Run, latency: bool, what: &str) -> Result<Together> {
    let step = Step::begin(format!("{what:<22} {}", run.way.label()));
    let members = boot(cx, kit, run, &step)
        .and_then(|ran| ran.into_iter().map(Member::of).collect::<Result<Vec<_>>>());
    let Ok(mut bulk) = members else {
        step.end("failed");
        return members.map(|bulk| Together { bulk, latency: None });
    };
    let latency = latency.then(|| bulk.remove(0));
    let together = Together { bulk, latency };
    step.end(&format!("{} I/Os", together.sum(|m| m.operations)));
    Ok(together)
}
