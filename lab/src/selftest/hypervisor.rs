//! Linux with KVM as a guest, and QEMU in it with a guest of its own: Debian's, all of them
//! untouched.
//!
//! Guarantees: the innermost guest came up and ended by itself, and so did its hypervisor; each
//! exit of its that its hypervisor was told had two of ours, one for an interrupt of its
//! hypervisor's among them; one that came while the hypervisor ran had one, and every second one
//! more at the most. What interrupts there are is a matter of time, so that counts are judged by
//! what the hypervisor says it had. With an NVMe controller that the hypervisor gave it, the
//! innermost guest read what it had written; with a virtual function of a network controller all
//! its echoes were answered; and no access to either's registers had an exit of anybody. Where
//! KVM has AVIC, and an AMD-Vi unit that posts the device's interrupts, most of those had none
//! either.

use super::{
    alone::says,
    inner_linux::{self, Device, Given, Heard, Idle, Window},
    names::named,
    tally::Tally,
    workers::{AT_ONCE, Gate, side_by_side},
};
use crate::{console::tail, summary::Summary};
use anyhow::{Result, bail};
use exitless::context::Context;
use ledger::{Counters, Reason};
use plan::GuestIommu;

/// A case: its name, what the innermost guest has, by which IOMMU of its hypervisor's, and whether
/// the device's interrupts are posted to it.
pub type Kind = (&'static str, Option<(Device, GuestIommu, bool)>);

/// A virtio-iommu remaps no interrupts; the others do.
const CASES: [Kind; 6] = [
    ("nesting/linux-kvm", None),
    ("nesting/linux-nvme", Some((Device::Nvme, GuestIommu::Virtio, false))),
    ("nesting/linux-nvme-vtd", Some((Device::Nvme, GuestIommu::VtD, false))),
    ("nesting/linux-nvme-amd", Some((Device::Nvme, GuestIommu::AmdVi, false))),
    ("nesting/linux-nvme-avic", Some((Device::Nvme, GuestIommu::AmdVi, true))),
    ("nesting/linux-function", Some((Device::Function, GuestIommu::VtD, false))),
];
/// What must be said, in this order.
const SAYS: [&str; 4] = ["L1: 6.12", "L2 halted after 200 OUTs", "L2: 6.12", "L2 is done"];
/// Of a hypervisor with AVIC.
const AVIC_SAYS: [&str; 2] = ["L1: 6.12", "x2AVIC enabled"];
/// And with a disk, or a network; all of the last window's echoes are answered.
const DISK_SAYS: &str = "L2: its disk same=yes complaints=0";
/// Without a device of its own.
const VIRTIO_SAYS: &str = "L2: its virtio disk same=yes, its virtio network answers=100 of 100";
const NETWORK_SAYS: &str = "L2: its network answers=1000 of 1000 complaints=0";
/// The innermost guest's boot has some 30,000.
const TOLD: u64 = 15_000;
/// Exits of the hypervisor's before its first guest runs, and when its last one is gone.
const BESIDES: u64 = 300;
/// Reads, or echoes, in the long window.
const TIMES: u64 = 1000;
/// Translations put in while it reads: for what Linux touches first then.
const FILLED_EACH: f64 = 0.01;

/// Those that are chosen by a part of their name, or with all; a quick test has none.
pub fn chosen(quick: bool, only: Option<&str>) -> Vec<Kind> {
    let is_chosen = |(name, _): &Kind| only.map_or(!quick, |text| named(name, text));
    CASES.into_iter().filter(is_chosen).collect()
}

/// Runs them.
pub fn run(cx: &Context, gate: &Gate, chosen: &[Kind], tally: &Tally) -> Result<Summary> {
    if !chosen.is_empty() {
        inner_linux::prepare(cx)?;
    }
    side_by_side(cx, gate, chosen, AT_ONCE, |(name, has)| tally.play(cx, name, || one(cx, *has)))
}

/// Boots one, and gives what is to be told; an error is what was wrong.
fn one(cx: &Context, has: Option<(Device, GuestIommu, bool)>) -> Result<String> {
    let given = |(device, iommu, posted)| {
        let idle = if posted { Idle::Guest } else { Idle::Kvm };
        Given { device, iommu, posted, times: TIMES, idle }
    };
    let heard = inner_linux::boot(cx, has.map(given))?;
    let told = match has {
        Some((.., true)) => judge_posted(&heard)?,
        _ => judge(&heard)?,
    };
    let (says, what) = match has.map(|(device, ..)| device) {
        None => (VIRTIO_SAYS, ""),
        Some(Device::Nvme) => (DISK_SAYS, "a read of its guest's disk"),
        Some(Device::Function) => (NETWORK_SAYS, "an echo for its guest"),
    };
    if !heard.console.contains(says) {
        bail!("\"{says}\" isn't said; the console's end: {}", tail(&heard.console));
    }
    if has.is_none() {
        return Ok(told);
    }
    Ok(format!("{told}; {what}: {}", judge_uses(&heard.window()?)?))
}

fn judge(heard: &Heard) -> Result<String> {
    let Heard { console, counters, interrupts } = heard;
    says(console, &SAYS)?;
    let of = |reason| Counters::of(counters, reason);
    let (told, runs) = (of(Reason::NestedReflected), of(Reason::Nesting));
    let (own, reads) = (of(Reason::HostInterrupt), of(Reason::MsrRead));
    if told < TOLD {
        bail!("it was told {told} exits of its guests, and {TOLD} are few for a boot");
    }
    for (what, found, most) in [
        ("exits for its instructions", runs, told + interrupts / 2 + BESIDES),
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

/// Of the interrupts that are posted some come while the hypervisor runs, or its guest has one of
/// the hypervisor's making. How many that are is a matter of time: its ticks come by the clock, and
/// a read takes what the emulator takes for it (0.10 on an idle machine, 0.37 beside a load of
/// five). So a quarter is to have no exit, which without posting each has; `svm-posted` has all.
fn judge_posted(heard: &Heard) -> Result<String> {
    says(&heard.console, &[&AVIC_SAYS[..], &SAYS[1..]].concat())?;
    let window = heard.window()?;
    let (exits, each) =
        (window.of_reason(Reason::DeviceInterrupt), window.interrupts / window.uses);
    if exits.is_nan() || exits >= each * 0.75 {
        bail!("{exits} exits for the device's interrupts, of which each read has {each}");
    }
    Ok(format!("{exits:.3} exits for each of the device's interrupts"))
}

fn judge_uses(window: &Window) -> Result<String> {
    let (registers, filled) = (window.by_kvm("mmio_exits"), window.of_reason(Reason::NestedFill));
    let outside = window.of_reason(Reason::NestedPageFault) + window.of_reason(Reason::MsixTable);
    if window.interrupts < window.uses / 2.0 {
        bail!("{} interrupts for {} uses of the device", window.interrupts, window.uses);
    }
    if registers != 0.0 || outside != 0.0 || filled.is_nan() || filled > FILLED_EACH {
        bail!(
            "each had {registers} exits of its hypervisor's for registers, {outside} and {filled} of ours"
        );
    }
    Ok(format!(
        "{:.2} exits told, {:.2} of ours, none for its registers",
        window.of_reason(Reason::NestedReflected),
        window.all()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "L1: 6.12.95\nL2 halted after 200 OUTs\nL2: 6.12.95\nL2 is done\n";

    fn heard(console: &str, told: u64, runs: u64, own: u64, reads: u64) -> Heard {
        let mut counters = Counters { exits: vec![0; 64], ..Counters::default() };
        for (reason, number) in [
            (Reason::NestedReflected, told),
            (Reason::Nesting, runs),
            (Reason::HostInterrupt, own),
            (Reason::MsrRead, reads),
        ] {
            counters.exits[reason as usize] = number;
        }
        Heard { console: console.into(), counters, interrupts: 5000 }
    }

    #[test]
    fn only_what_is_all_right_passes() {
        let told = judge(&heard(GOOD, 30_000, 32_800, 5_300, 300)).unwrap();
        assert!(told.contains("2.28 of ours each"), "{told}");
        for wrong in [
            heard(GOOD, 30_000, 32_801, 0, 0),
            heard(GOOD, 30_000, 32_000, 5_301, 0),
            heard(GOOD, 30_000, 32_000, 0, 301),
            heard(GOOD, 14_999, 15_000, 0, 0),
        ] {
            assert!(judge(&wrong).is_err(), "{:?}", wrong.counters);
        }
        for (from, to) in [
            ("L1: 6.12", "L1: 6.1."),
            ("200 OUTs", "199 OUTs"),
            ("L2: 6", "L2: 5"),
            ("L2 is done", ""),
        ] {
            let console = GOOD.replace(from, to);
            assert!(judge(&heard(&console, 30_000, 31_000, 0, 0)).is_err(), "{from} → {to}");
        }
    }

    #[test]
    fn a_read_that_exits_for_registers_fails() {
        let mut window = Window { uses: 800.0, interrupts: 800.0, ..Window::default() };
        window.exits = vec![0.0; 64];
        window.exits[Reason::NestedReflected as usize] = 2400.0;
        assert!(judge_uses(&window).is_err(), "KVM says nothing");
        window.kvm.insert("mmio_exits".into(), 0.0);
        let told = judge_uses(&window).unwrap();
        assert!(told.contains("3.00 exits told, 3.00 of ours"), "{told}");
        let wrong: [fn(&mut Window); 5] = [
            |w| w.interrupts = 300.0,
            |w| w.exits[Reason::NestedFill as usize] = 9.0,
            |w| w.exits[Reason::MsixTable as usize] = 1.0,
            |w| w.exits[Reason::NestedPageFault as usize] = 1.0,
            |w| *w.kvm.entry("mmio_exits".into()).or_default() = 1.0,
        ];
        for (n, change) in wrong.into_iter().enumerate() {
            let mut wrong = window.clone();
            change(&mut wrong);
            assert!(judge_uses(&wrong).is_err(), "{n}");
        }
    }
}
