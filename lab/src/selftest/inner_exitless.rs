//! Exitless as a guest, with test kernels as guests of its own: the same image in both places.
//!
//! Guarantees: the innermost guests' checks held, as in any other case; each of their exits had two
//! of the outer one's; their ticks, and what their vCPUs send each other without an exit, had none
//! of either's; core 0 of each hypervisor looked over its tables and found nothing wrong.

use super::{
    alone,
    case::{Case, Cores, Expected, Guest, NAMES, Outcome, Special},
    cases::{again, case, edu, guest, nvme, second},
    hostile, judge,
    kernel::{Kernel, Variant},
    names::named,
    outer, parts, run as machines, smp, switch,
    tally::Tally,
    virtio,
};
use crate::summary::Summary;
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::Disk,
    qemu::Iommu,
    report::Report,
    session::Ended,
    stream::{Demux, Piece},
};
use ledger::{Counters, Reason};
use plan::Policy;
use std::{fs, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_WITH_ATTACKER: Duration = Duration::from_secs(240);
/// Exits of a core of the inner hypervisor's that no exit of its guest's has: until it runs it, and
/// for the first use of what its guest has open; in pages of memory, too.
const BESIDES: u64 = 80;
/// Before its first guest runs, and for a tick that comes while the inner hypervisor itself runs.
const INSTRUCTIONS: u64 = 8;
/// Interrupts that come while it itself runs, and exits that end at such a one.
const LOST: u64 = 4;
/// Reads by which it looks for an interrupt after such an exit: words of the local APIC's IRR.
const LOOK: u64 = 7;
/// What an interrupt, or its end, would have been counted as.
const INTERRUPTS: [Reason; 6] = [
    Reason::HostInterrupt,
    Reason::TimerInterrupt,
    Reason::TimerEoi,
    Reason::DeviceInterrupt,
    Reason::DeviceEoi,
    Reason::OtherEoi,
];

/// By what it sets its devices up, and has them reset: as often as its guests do. So is what it has
/// open of them, if it isn't.
/// So many for each of its guests', which it answers by several: MSI-X has an entry of four words,
/// and one of the unit's, which is invalidated. And so many for each guest's start and end.
const SET_UP_EACH: u64 = 4;
const SET_UP: [Reason; 3] = [Reason::PciConfig, Reason::MsixTable, Reason::GuestIommu];
const SET_UP_ONCE: u64 = 200;

/// What was heard of the outer hypervisor's guest, and of the inner one's.
struct Heard {
    outer: Report,
    inner: Outcome,
}

/// All of them.
pub fn all() -> Vec<Case> {
    let of = |name: &str, guests: Vec<Guest>| Case {
        guests,
        ..case(format!("nesting/exitless{name}"), false, [])
    };
    let direct = |tests| plain(tests, Policy::Direct);
    let ticks = Guest { options: "ticks=500", ..direct("timer-many") };
    let several = Guest { devices: Vec::new(), ..smp::several("ipi-exits", Policy::Direct) };
    let disk = virtio::with_disk(guest("virtio-load", Policy::Direct));
    let pair = switch::pair("net-exchange", Policy::Direct);
    let beside = |g: Guest| Guest { cores: Cores::First, counts: Vec::new(), ..g };
    let shared = |policy| ["timer", "self-ipi"].map(|test| beside(plain(test, policy))).into();
    let sending = |test| Guest { devices: Vec::new(), ..smp::several(test, Policy::Eli) };
    let restart = Guest { devices: Vec::new(), ..again("restart", Policy::Direct) };
    let attacker = hostile::unordered("pci,msix,dma", Policy::Direct);
    let part = parts::on_part(virtio::with_disk(guest("virtio-load", Policy::Direct)), 0);
    let reset =
        || Guest { devices: vec![edu(0), nvme(0)], ..again("restart-devices", Policy::Direct) };
    let devices = || vec![reset(), second(guest("dma-confine", Policy::Direct))];
    let end = Expected::Fault("triple fault");
    vec![
        of("", vec![ticks]),
        of("-port", vec![direct("open-port")]),
        of("-several", vec![several]),
        Case { sidecores: 1, ..of("-disk", vec![disk]) },
        Case { sidecores: 1, ..of("-network", pair.into()) },
        of("-eli", vec![plain("timer", Policy::Eli), plain("self-ipi", Policy::Eli)]),
        of("-trap", vec![plain("timer", Policy::Trap)]),
        of("-shared-eli", shared(Policy::Eli)),
        of("-shared-trap", shared(Policy::Trap)),
        of("-sending", vec![sending("icr-storm")]),
        of("-restart", vec![restart]),
        of("-ends", vec![Guest { end, ..direct("triple-fault") }, direct("hello")]),
        of("-nested", vec![Guest { nested: true, ..direct("svm-exits") }]),
        of("-device", vec![guest("delivery", Policy::Direct)]),
        of("-device-eli", vec![guest("delivery", Policy::Eli)]),
        of("-device-trap", vec![guest("delivery", Policy::Trap)]),
        Case { sidecores: 1, machine: Special::Parts, ..of("-part", vec![part]) },
        Case { long: true, ..of("-hostile", vec![attacker]) },
        of("-devices", devices()),
        Case { iommu: Iommu::AmdVi, ..of("-devices-amd", devices()) },
    ]
}

fn plain(tests: &'static str, policy: Policy) -> Guest {
    Guest { devices: Vec::new(), ..guest(tests, policy) }
}

/// Those that are chosen by a part of their name, or with all; a quick test has none.
pub fn chosen(quick: bool, long: bool, only: Option<&str>) -> Vec<Case> {
    let mut cases = all();
    let usual = |case: &Case| !quick && (long || !case.long);
    cases.retain(|case| only.map_or_else(|| usual(case), |text| named(&case.name, text)));
    cases
}

/// Runs them.
pub fn run(cx: &Context, chosen: &[Case], kernel: &Kernel, tally: &Tally) -> Result<Summary> {
    let mut summary = Summary::default();
    for case in chosen {
        summary += tally.play(cx, &case.name, || judge(case, &hear(cx, case, kernel)?))?;
    }
    Ok(summary)
}

/// Boots it.
fn hear(cx: &Context, case: &Case, kernel: &Kernel) -> Result<Heard> {
    let directory = tempfile::tempdir().context("no temporary directory can be made")?;
    let inner = machines::plan(case, kernel, directory.path())?;
    let outer = outer::plan(cx, &inner, case.iommu)?;
    let attacked = case.has(Variant::Hostile);
    let patience = if attacked { PATIENCE_WITH_ATTACKER } else { PATIENCE };
    let (mut disks, mut content) = (Vec::new(), Vec::new());
    let disk = directory.path().join("disk");
    if case.machine == Special::Parts {
        fs::File::create(&disk)?.set_len(parts::BYTES)?;
        disks.push(Disk::File(disk.clone()));
    }
    let (ended, outer, said) = alone::hear_plan(cx, &outer, case.iommu, disks, patience)?;
    if case.machine == Special::Parts {
        content = fs::read(disk)?;
    }
    Ok(Heard { outer, inner: Outcome { disk: content, ..heard_of(case, ended, &said) } })
}

/// What the inner hypervisor said, which ended so.
fn heard_of(case: &Case, ended: Ended, said: &[u8]) -> Outcome {
    let names = NAMES.into_iter().take(case.guests.len());
    let (mut report, mut log) = (Report::new(names), Vec::new());
    let mut consoles = vec![Vec::new(); case.guests.len()];
    let mut demux = Demux::default();
    let mut see = |piece: Piece<'_>| match piece {
        Piece::Console { vm, bytes } => {
            consoles.get_mut(vm).into_iter().for_each(|console| console.extend_from_slice(bytes));
        }
        Piece::Log(line) => log.push(line),
        Piece::Record(record) => report.see(&record),
    };
    demux.push(said, &mut see);
    demux.finish(&mut see);
    // The inner one has them on its bus in the order of the plan; judges know them by where the
    // machine has them.
    let devices = case.guests.iter().flat_map(|guest| &guest.devices);
    for (place, device) in (1..).zip(devices) {
        let inner = format!(" 00:{place:02x}.0 ");
        if let Some(outer) = hostile::place(device) {
            log.iter_mut().for_each(|line| *line = line.replace(&inner, &outer));
        }
    }
    let consoles = consoles.iter().map(|c| String::from_utf8_lossy(c).into_owned()).collect();
    Outcome {
        ended,
        report,
        consoles,
        log,
        answers: Vec::new(),
        live: Report::default(),
        unwatched: None,
        edges: Vec::new(),
        entered: None,
        disk: Vec::new(),
        screen: Vec::new(),
    }
}

fn judge(case: &Case, heard: &Heard) -> Result<String> {
    let Heard { outer, inner } = heard;
    let mut wrong = judge::complaints(case, inner);
    wrong.extend(outer.audit.complaint(false));
    let counted = Counted::of(case, outer, &inner.report);
    if case.guests.iter().all(|guest| !takes_turns(guest)) {
        wrong.extend(counted.complaints());
    }
    if wrong.is_empty() { Ok(counted.told()) } else { bail!("{}", wrong.join("\n      ")) }
}

/// Who has the core when, or whom what is sent finds running, decides how many exits there are; or
/// an attacker does.
fn takes_turns(guest: &Guest) -> bool {
    guest.variant == Variant::Hostile
        || guest.cores == Cores::First
        || guest.cpus > 1 && guest.policy != Some(Policy::Direct)
}

/// Exits of the outer hypervisor's, on the cores on which the inner one runs its guests.
#[derive(Debug, Default)]
struct Counted {
    /// Exits of the innermost guests', as the inner hypervisor counts them; and kicks among them.
    inner: u64,
    kicks: u64,
    /// Those that it was told, and for its own instructions.
    told: u64,
    instructions: u64,
    /// For what it sends other cores, by which its own core 0 is woken.
    sent: u64,
    interrupts: u64,
    /// For its devices' set-up; and its guests', for theirs.
    set_up: u64,
    asked_for: u64,
    /// All others.
    besides: u64,
    /// Starts of a core.
    starts: u64,
    /// All exits of its cores but the first, by reason.
    all: Counters,
}

impl Counted {
    fn of(case: &Case, outer: &Report, inner: &Report) -> Self {
        let inner = inner.vms.iter().map(|vm| vm.counters());
        let mut counted = Counted::default();
        // For CPUID of its guests it executes CPUID, which exits.
        let (mut asked, mut executed) = (0, 0);
        for counters in inner {
            counted.inner += counters.total();
            counted.kicks += counters.of(Reason::Kick);
            asked += counters.of(Reason::Cpuid);
            counted.asked_for += SET_UP.map(|reason| counters.of(reason)).iter().sum::<u64>();
        }
        let again = if case.guests.iter().any(|guest| guest.restarts) { 2 } else { 1 };
        for counters in outer.vms.iter().flat_map(|vm| vm.vcpus.iter().skip(1)) {
            let interrupts = INTERRUPTS.map(|reason| counters.of(reason)).iter().sum::<u64>();
            let [told, instructions, sent] =
                [Reason::NestedReflected, Reason::Nesting, Reason::Ipi].map(|r| counters.of(r));
            let set_up = SET_UP.map(|reason| counters.of(reason)).iter().sum::<u64>();
            counted.set_up += set_up;
            counted.told += told;
            counted.instructions += instructions;
            counted.sent += sent;
            counted.interrupts += interrupts;
            counted.besides += counters.total() - told - instructions - sent - interrupts - set_up;
            counted.starts += again;
            counted.all.add(counters);
            executed += counters.of(Reason::Cpuid);
        }
        counted.besides -= executed.min(asked);
        counted
    }

    fn complaints(&self) -> Vec<String> {
        let &Counted { inner, kicks, told, instructions, interrupts, besides, starts, .. } = self;
        let set_up = SET_UP_EACH * self.asked_for + SET_UP_ONCE * starts;
        let mut wrong = Vec::new();
        if told > inner || told + kicks + LOST * starts < inner {
            wrong.push(format!("it was told {told} exits, and counts {inner}, {kicks} for kicks"));
        }
        for (what, found, most) in [
            ("its own instructions", instructions, inner + 4 * kicks + INSTRUCTIONS * starts),
            ("interrupts", interrupts, LOST * starts),
            ("its devices' set-up", self.set_up, set_up),
            ("anything else", besides, 2 * kicks + (BESIDES + LOOK * LOST) * starts),
        ] {
            if found > most {
                let all = self.all.by_reason();
                wrong.push(format!("{found} exits for {what}, {most} at most: {all:?}"));
            }
        }
        wrong
    }

    fn told(&self) -> String {
        let &Counted { inner, told, instructions, interrupts, set_up, besides, sent, .. } = self;
        let each = (told + instructions) as f64 / inner.max(1) as f64;
        format!(
            "{inner} exits of its guests, {each:.2} of ours each; {interrupts} for interrupts, \
             {sent} for what it sends, {set_up} for its devices' set-up, {besides} besides"
        )
    }
}
