//! Linux with KVM as a guest, and QEMU in it with a guest of its own: Debian's, all of them
//! untouched.
//!
//! Guarantees: the innermost guest came up and ended by itself, and so did its hypervisor; each
//! exit of its that its hypervisor was told had two of ours, and each interrupt of its hypervisor's
//! two more at the most. What interrupts there are is a matter of time, so that counts are judged
//! by what the hypervisor says it had.

use super::{
    alone::{self, tail},
    names::named,
    tally::Tally,
};
use crate::{cmdline::LINUX, summary::Summary};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, recipe, say::plain};
use ledger::{Counters, Reason};
use plan::{GuestIommu, OnReset, Policy, Vm};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// What it is called.
pub const NAME: &str = "nesting/linux-kvm";
/// For a boot, and one in it, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(400);
/// KVM, QEMU, and the memory of its guest.
const MEMORY: u64 = 1280 << 20;
/// What must be said, in this order.
const SAYS: [&str; 4] = ["L1: 6.12", "L2 halted after 200 OUTs", "L2: 6.12", "L2 is done"];
/// The innermost guest's boot has some 30,000.
const TOLD: u64 = 15_000;
/// Exits of the hypervisor's before its first guest runs, and when its last one is gone.
const BESIDES: u64 = 300;

/// Whether it is chosen by a part of its name, or with all; a quick test hasn't it.
pub fn is_chosen(quick: bool, only: Option<&str>) -> bool {
    only.map_or(!quick, |text| named(NAME, text))
}

/// Runs it.
pub fn run(cx: &Context, tally: &Tally) -> Result<Summary> {
    let files = cx.root.join("build/guest-nested");
    recipe::make(&cx.root.join("guests/linux/nested/build"), &files, "guest")?;
    let start = Instant::now();
    let outcome = boot(cx, &files);
    if cx.interrupted() {
        bail!("stopped");
    }
    let told = match &outcome {
        Ok(told) => told.clone(),
        Err(error) => plain(error),
    };
    println!("{}\n      {told}", tally.line(outcome.is_ok(), NAME, start.elapsed()));
    Ok(Summary::one(NAME, outcome.is_ok()))
}

/// Boots it, and gives what is to be told; an error is what was wrong.
fn boot(cx: &Context, files: &Path) -> Result<String> {
    let path = |file: &str| files.join(file).display().to_string();
    let vm = Vm {
        name: "hypervisor".into(),
        cpus: vec![1],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: MEMORY,
        kernel: path("vmlinuz"),
        initrd: Some(path("initrd.img")),
        cmdline: format!("{LINUX} loglevel=4"),
        devices: vec![],
        disks: vec![],
        interfaces: vec![],
        interrupts: Some(Policy::Direct),
        reset: OnReset::Stop,
        nested: true,
        iommu: GuestIommu::None,
    };
    let (report, console) = alone::hear(cx, vm, Vec::new(), PATIENCE)?;
    let vm = report.vms.first().context("there is a VM")?;
    let (passes, findings) = (report.audit.passes, report.audit.findings);
    if passes == 0 || findings > 0 {
        bail!("the host looked over its tables {passes} times, and found {findings} wrong");
    }
    judge(&console, &vm.counters())
}

fn judge(console: &str, counters: &Counters) -> Result<String> {
    let mut rest = console;
    for text in SAYS {
        let Some((_, after)) = rest.split_once(text) else {
            bail!("it didn't say \"{text}\"; the console's end: {}", tail(console));
        };
        rest = after;
    }
    let Some((_, said)) = rest.split_once("@exitless nested qemu=0 interrupts=") else {
        bail!("its QEMU didn't end well; the console's end: {}", tail(console));
    };
    let digits: String = said.chars().take_while(char::is_ascii_digit).collect();
    let interrupts: u64 = digits.parse().context("it doesn't say how many interrupts it had")?;
    let of = |reason| counters.of(reason);
    let (told, runs) = (of(Reason::NestedReflected), of(Reason::Nesting));
    let (own, reads) = (of(Reason::HostInterrupt), of(Reason::MsrRead));
    if told < TOLD {
        bail!("it was told {told} exits of its guests, and {TOLD} are few for a boot");
    }
    for (what, found, most) in [
        ("exits for its instructions", runs, told + 2 * interrupts + BESIDES),
        ("exits for interrupts", own, interrupts + BESIDES),
        ("exits for reads of MSRs", reads, BESIDES),
    ] {
        if found > most {
            bail!(
                "{found} {what}, with {told} exits told and {interrupts} interrupts: {most} at most"
            );
        }
    }
    let each = (told + runs + own + reads) as f64 / told as f64;
    Ok(format!(
        "{told} exits of its guests, {each:.2} of ours each, with what {interrupts} interrupts took"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "L1: 6.12.95\nL2 halted after 200 OUTs\nL2: 6.12.95\nL2 is done\n\
                        @exitless nested qemu=0 interrupts=5000\n";

    fn counters(told: u64, runs: u64, own: u64, reads: u64) -> Counters {
        let mut counters = Counters { exits: vec![0; 64], ..Counters::default() };
        for (reason, number) in [
            (Reason::NestedReflected, told),
            (Reason::Nesting, runs),
            (Reason::HostInterrupt, own),
            (Reason::MsrRead, reads),
        ] {
            counters.exits[reason as usize] = number;
        }
        counters
    }

    #[test]
    fn only_what_is_all_right_passes() {
        let told = judge(GOOD, &counters(30_000, 40_300, 5_300, 300)).unwrap();
        assert!(told.contains("2.53 of ours each"), "{told}");
        for wrong in [
            counters(30_000, 40_301, 0, 0),
            counters(30_000, 40_000, 5_301, 0),
            counters(30_000, 40_000, 0, 301),
            counters(14_999, 15_000, 0, 0),
        ] {
            assert!(judge(GOOD, &wrong).is_err(), "{wrong:?}");
        }
        for (from, to) in [
            ("L1: 6.12", "L1: 6.1."),
            ("200 OUTs", "199 OUTs"),
            ("L2: 6", "L2: 5"),
            ("L2 is done", ""),
            ("qemu=0", "qemu=1"),
            ("interrupts=5000", "interrupts="),
        ] {
            let console = GOOD.replace(from, to);
            assert!(judge(&console, &counters(30_000, 31_000, 0, 0)).is_err(), "{from} → {to}");
        }
    }
}
