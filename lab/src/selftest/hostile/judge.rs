//! What must come of a run with attackers.

use super::victim::{self, Verified};
use crate::selftest::{
    case::{Case, Cores, Expected, Guest, Outcome},
    kernel::Variant,
    verdict::{counted, ended},
};
use attacks::{Attack, Blocked, Ends, Subject};
use exitless::session::Ended;
use ledger::{Counters, Reason};
use plan::{Choice, Class, DeviceName, Policy, Protection};
use std::collections::HashMap;

/// The longest time that Linux's heartbeat, which comes a hundred times a second, may stand still, in
/// microseconds, beyond what the machine itself did meanwhile: the emulator stops all of its CPUs for
/// what one of them does, and on a busy machine for seconds, which the host's own core sees, too. Less would be a statement about that machine; the
/// tight bound is the one on exits ([`share`]).
const LONGEST_GAP: u64 = 1_000_000;

/// What Linux says once when its timer interrupt took some milliseconds: another's time slice fell into it,
/// which is what sharing a core means, or the machine that the emulator runs on did something else
/// meanwhile. How long its heartbeat stands still is judged all the same.
const LATE: &str = "hrtimer: interrupt took ";

/// Bytes that the [`Conductor`](super::Conductor) types on its console.
const TYPED: u64 = 1;

/// What is wrong, a sentence each; nothing if the attacks did no harm.
pub fn complaints(case: &Case, outcome: &Outcome) -> Vec<String> {
    let endless = case.guests.iter().any(Guest::is_endless);
    let mut wrong: Vec<String> = match &outcome.ended {
        Ended::Stopped if endless => Vec::new(),
        ended => outcome.report.failure(ended).into_iter().collect(),
    };
    let attackers = case.guests.get(1..).unwrap_or_default();
    wrong.extend(host(&outcome.log, attackers));
    wrong.extend(outcome.report.audit.complaint(case.audited));
    for wanted in case.log.iter().filter(|w| !outcome.log.iter().any(|l| l.contains(**w))) {
        wrong.push(format!("the host's log doesn't say {wanted:?}"));
    }
    let shares = attackers.iter().any(|g| g.cores != Cores::Next);
    let vms = outcome.report.vms.iter().zip(&outcome.live.vms);
    for ((guest, (vm, live)), console) in case.guests.iter().zip(vms).zip(&outcome.consoles) {
        let mut of_vm = Vec::new();
        ended(guest, vm, &mut of_vm);
        counted(guest, vm, &mut of_vm);
        // Those of one that never ends are known in no other way.
        let counters = if vm.end.is_some() { vm.counters() } else { live.counters() };
        if shares && counters.slices == 0 {
            of_vm.push("it shares its core with nobody".to_owned());
        }
        match guest.variant {
            Variant::Victim => {
                let core = Core { shares, faults: case.host.iommu_faults };
                victim(guest, core, console, outcome, &mut of_vm);
            }
            _ => attacker(&Tried { guest, counters, console, log: &outcome.log }, &mut of_vm),
        }
        wrong.extend(of_vm.into_iter().map(|w| format!("VM {}: {w}", vm.name)));
    }
    wrong
}

/// What there is to tell of a run that passed.
pub fn told(case: &Case, outcome: &Outcome) -> Option<String> {
    let verified = Verified::read(outcome.consoles.first()?).ok()?;
    let played = |(guest, console): (&Guest, &String)| {
        let of =
            |s: &'static Subject| s.attacks.iter().map(move |a| format!("{}/{}", s.name, a.name));
        let names = attacks::chosen(guest.tests).flat_map(of);
        names.filter(|name| begun(name, console) > 0 && !skipped(name, console)).count()
    };
    let attacks: usize = case.guests.iter().zip(&outcome.consoles).map(played).sum();
    let Verified { rounds, gap, gap_tsc, device, ticks, time, .. } = verified;
    let exits: Vec<_> = Reason::ALL
        .iter()
        .map(|r| (r.label(), verified.of(*r)))
        .filter(|(_, n)| *n > 0)
        .map(|(label, n)| format!("{n} {label}"))
        .collect();
    Some(format!(
        "{attacks} attacks; {} looks of the host's at {} interrupt entries and all else; Linux: {:.1} s, {rounds} rounds, {device} disk interrupts, {ticks} ticks, \
         longest gap {} ms of which the machine stood still {} ms, exits: {}",
        outcome.report.audit.passes,
        outcome.report.audit.interrupts,
        time as f64 / 1e9,
        gap / 1000,
        outcome.report.paused(gap_tsc.0, gap_tsc.1) / 1000,
        exits.join(", ")
    ))
}

/// The host has nothing to warn of but a guest that writes faster than anybody reads, and what the IOMMU
/// blocked of attackers' devices.
fn host(log: &[String], attackers: &[Guest]) -> Vec<String> {
    let expected = |l: &str| {
        l.contains("wrote to its console faster than it is sent")
            || attackers.iter().any(|g| blocked(l, g))
    };
    let alarming = |l: &&String| {
        l.starts_with("error: ")
            || l.starts_with("warning: ") && !expected(l)
            || l.contains("panic")
    };
    log.iter().filter(alarming).map(|l| format!("the host says: {l}")).collect()
}

/// Whether a line tells of DMA that was blocked, by a device of this VM.
fn blocked(line: &str, guest: &Guest) -> bool {
    guest.devices.iter().any(|device| blocked_of(line, device))
}

/// Whether it does, by this device.
fn blocked_of(line: &str, device: &DeviceName) -> bool {
    let of = place(device).is_some_and(|place| line.contains(&place));
    of && line.contains("IOMMU: ") && line.contains(" blocked: ")
}

/// Whether a line tells of this, by a device of this VM.
fn named(line: &str, guest: &Guest, blocked: Blocked) -> bool {
    let class = match blocked.device {
        attacks::Device::Edu => Class::Edu,
        attacks::Device::Nvme => Class::Nvme,
    };
    let is =
        |device: &&DeviceName| matches!(device, DeviceName::Named { class: c, .. } if *c == class);
    line.contains(blocked.what) && guest.devices.iter().filter(is).any(|d| blocked_of(line, d))
}

/// Where the emulated machine has a device, as the host writes it.
fn place(device: &DeviceName) -> Option<String> {
    let slot = match device {
        DeviceName::Named { class: Class::Nvme, index } => 0x04 + index,
        DeviceName::Named { class: Class::Edu, index } => 0x10 + index,
        _ => return None,
    };
    Some(format!(" 00:{slot:02x}.0 "))
}

/// What Linux's core has besides Linux.
#[derive(Clone, Copy)]
struct Core {
    /// Other vCPUs.
    shares: bool,
    /// The IOMMU's interrupt, unless it goes elsewhere; at most a hundred a second.
    faults: Protection,
}

impl Core {
    /// Linux's exits that have no cause which we know of, a sentence for each kind.
    fn unexplained(self, policy: impl Into<Choice>, verified: &Verified) -> Vec<String> {
        let policy = policy.into();
        share(verified, |reason| {
            let own = match self.shares {
                true => shared_core(reason, verified),
                false => own_core(policy, reason, verified),
            };
            let told = match (self.faults, reason) {
                (Protection::Nmi, Reason::Kick) | (Protection::Limit, Reason::HostInterrupt) => {
                    verified.time / 10_000_000 + 1
                }
                _ => 0,
            };
            own.saturating_add(told)
        })
    }
}

fn victim(guest: &Guest, core: Core, console: &str, outcome: &Outcome, wrong: &mut Vec<String>) {
    let mut excused = 0;
    for line in console.lines().filter_map(|l| l.split("@exitless ").nth(1)) {
        if line.starts_with("complaint ") && line.contains(LATE) {
            excused += 1;
        } else if line.starts_with("failed ") || line.starts_with("complaint ") {
            wrong.push(line.to_owned());
        }
    }
    let complaints = console.lines().find_map(|l| l.trim().split("@exitless complaints=").nth(1));
    if complaints != Some(excused.to_string().as_str()) {
        wrong.push("its kernel's log wasn't empty at the end".to_owned());
    }
    let verified = match Verified::read(console) {
        Ok(verified) => verified,
        Err(error) => return wrong.push(format!("{error:#}")),
    };
    if let Some(block) = victim::damaged(&outcome.disk, verified.rounds) {
        wrong.push(format!("block {block} of its disk isn't what it wrote"));
    }
    let (gap, paused) =
        (verified.gap, outcome.report.paused(verified.gap_tsc.0, verified.gap_tsc.1));
    if gap > LONGEST_GAP + paused {
        let most = LONGEST_GAP;
        wrong.push(format!(
            "its heartbeat stood still for {gap} us, the machine in them for {paused}, and {most} more are allowed"
        ));
    }
    wrong.extend(core.unexplained(guest.policy, &verified));
}

/// Its exits have causes of its own, reason by reason: what it asked the host for itself, the byte that
/// was typed at the end, and of its disk's interrupts the few that ELI may let through the host. That
/// is what it has without an attacker, whatever the machine's speed.
fn own_core(policy: Choice, reason: Reason, verified: &Verified) -> u64 {
    let own = |reason| verified.of(reason);
    match (policy, reason) {
        (_, Reason::Kick) => TYPED,
        (_, Reason::ConsoleIo) => u64::MAX,
        (Some(Policy::Direct), _) => 0,
        (_, Reason::DeviceInterrupt | Reason::DeviceEoi) => verified.device / 20,
        (_, Reason::TimerProgram) => u64::MAX,
        (_, Reason::TimerInterrupt | Reason::TimerEoi) => own(Reason::TimerProgram),
        (_, Reason::OtherEoi) => own(Reason::ConsoleIo),
        _ => 0,
    }
}

/// The same where it shares its core. Its disk's interrupts come while others have the core, too; it
/// sleeps at most once for each interrupt that it has; and what it must bear of the others is that for
/// each time slice one of theirs begins, one of their interrupts comes, and core 0 looks once
/// after the core.
fn shared_core(reason: Reason, verified: &Verified) -> u64 {
    let own = |reason| verified.of(reason);
    let slices = verified.time / (1000 * u64::from(plan::DEFAULT_SLICE)) + 1;
    match reason {
        Reason::ConsoleIo | Reason::TimerProgram => u64::MAX,
        Reason::TimerInterrupt | Reason::TimerEoi => own(Reason::TimerProgram),
        Reason::OtherEoi => own(Reason::ConsoleIo),
        Reason::DeviceInterrupt | Reason::DeviceEoi => verified.device,
        Reason::Halt => verified.device + verified.ticks + own(Reason::ConsoleIo),
        Reason::SliceEnd | Reason::OtherVcpu => slices,
        Reason::Kick => slices + TYPED,
        _ => 0,
    }
}

/// What of its exits is more than is explained.
fn share(verified: &Verified, explained: impl Fn(Reason) -> u64) -> Vec<String> {
    let too_many = |r: &&Reason| verified.of(**r) > explained(**r);
    let sentence = |r: &Reason| {
        let (n, most) = (verified.of(*r), explained(*r));
        format!("{n} {} exits, of which it explains {most} itself", r.label())
    };
    Reason::ALL.iter().filter(too_many).map(sentence).collect()
}

/// What is known of an attacker.
struct Tried<'a> {
    guest: &'a Guest,
    /// Those of its whole life.
    counters: Counters,
    console: &'a str,
    /// The host's.
    log: &'a [String],
}

fn attacker(tried: &Tried, wrong: &mut Vec<String>) {
    let Tried { guest, counters, console, .. } = tried;
    wrong.extend(console.lines().filter(|l| l.starts_with("FAIL")).map(str::to_owned));
    let mut sum = HashMap::<Reason, u64>::new();
    for subject in attacks::chosen(guest.tests) {
        for attack in subject.attacks {
            one(tried, subject, attack, &mut sum, wrong);
        }
    }
    if guest.end == Expected::Passed && !console.lines().any(|l| l.trim() == "attacks over") {
        wrong.push("it didn't come to the end of its attacks".to_owned());
    }
    for (reason, told) in sum {
        let n = counters.of(reason);
        if n < told {
            wrong.push(format!("{n} {} exits in the report, the VM saw {told}", reason.label()));
        }
    }
}

/// Whether the attacker said that there was nothing to attack.
pub fn skipped(name: &str, console: &str) -> bool {
    let line = format!("skipped {name}");
    console.lines().any(|l| l.trim() == line)
}

/// How often an attack began.
pub fn begun(name: &str, console: &str) -> usize {
    let line = format!("attack {name}");
    console.lines().filter(|l| l.trim() == line).count()
}

/// An attack was made, ended as the table says, and the ledger shows it, or the log.
fn one(
    tried: &Tried,
    subject: &Subject,
    attack: &Attack,
    sum: &mut HashMap<Reason, u64>,
    wrong: &mut Vec<String>,
) {
    let Tried { guest, counters, console, log } = tried;
    let name = format!("{}/{}", subject.name, attack.name);
    match begun(&name, console) {
        0 => return wrong.push(format!("{name} wasn't tried")),
        n if n < attack.begins() => {
            wrong.push(format!("{name} began {n} times, {} wanted", attack.begins()));
        }
        _ => {}
    }
    if skipped(&name, console) {
        return wrong.push(format!("{name} wasn't played"));
    }
    let taken = console.lines().find_map(|l| l.trim().strip_prefix(&format!("taken {name} ")));
    let taken = taken.and_then(|n| n.parse::<u64>().ok());
    // One that ends its VM can't say so.
    if attack.ends == Ends::Contained && taken.is_none_or(|n| n < attack.takes) {
        let least = attack.takes;
        wrong.push(format!("{name}: its handlers had {taken:?} interrupts, {least} wanted"));
    }
    if let Some(blocked) = attack.blocked
        && !log.iter().any(|l| named(l, guest, blocked))
    {
        let what = blocked.what;
        wrong.push(format!("{name}: the host doesn't tell of {what}by {:?}", blocked.device));
    }
    let contained = console.lines().any(|l| l.starts_with(&format!("ok {name}: ")));
    if contained != (attack.ends == Ends::Contained) {
        wrong.push(format!("{name} should end as {:?}", attack.ends));
    }
    let said = console.lines().find_map(|l| l.trim().strip_prefix(&format!("ledger {name}")));
    let in_window = said.map(exits);
    for shown in attack.shows {
        let least = match (guest.policy, guest.cores) {
            (Some(Policy::Direct), _) => shown.direct,
            (_, Cores::First | Cores::One) => shown.shared,
            _ => shown.eli,
        };
        // What doesn't come back is the last thing that its VM does.
        let n = match &in_window {
            Some(exits) => exits.get(shown.reason.label()).copied().unwrap_or(0),
            None => counters.of(shown.reason),
        };
        if n < least {
            let reason = shown.reason.label();
            wrong.push(format!("{name}: {n} {reason} exits in the ledger, {least} wanted"));
        }
    }
    for (label, n) in in_window.into_iter().flatten() {
        match Reason::ALL.iter().find(|r| r.label() == label) {
            Some(reason) => *sum.entry(*reason).or_default() += n,
            None => wrong.push(format!("{name}: no reason is called {label}")),
        }
    }
}

/// `reason=count` words.
fn exits(line: &str) -> HashMap<&str, u64> {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.filter_map(|(label, n)| Some((label, n.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use exitless::report::Report;
    use proto::Record;

    fn verified(exits: &[(Reason, u64)]) -> Verified {
        let mut counts = vec![0; Reason::COUNT];
        exits.iter().for_each(|(r, n)| counts[*r as usize] = *n);
        Verified {
            rounds: 9,
            beats: 100,
            gap: 10,
            gap_tsc: (0, 0),
            device: 100,
            ticks: 100,
            time: 1,
            exits: counts,
        }
    }

    const OWN: Core = Core { shares: false, faults: Protection::Elsewhere };
    const SHARED: Core = Core { shares: true, ..OWN };

    #[test]
    fn a_complaint_is_harm_but_for_anothers_slice_on_a_shared_core() {
        let case = super::super::all().into_iter().find(|c| c.name == "hostile/nobody-eli");
        let guest = &case.unwrap().guests[0];
        let complain = |shares, console: &str| {
            let core = Core { shares, faults: Protection::Elsewhere };
            let mut wrong = Vec::new();
            let silent = Outcome::silent(Report::default());
            victim(guest, core, console, &silent, &mut wrong);
            wrong.len()
        };
        let late = "@exitless complaint [ 2.1] hrtimer: interrupt took 6573694 ns\r\n";
        let other = "@exitless complaint [ 2.2] nvme: timeout\r\n";
        // Each has said nothing of its I/O either.
        assert_eq!(complain(false, "@exitless complaints=0\r\n"), 1);
        assert_eq!(complain(true, &format!("{late}@exitless complaints=1\r\n")), 1);
        assert_eq!(complain(true, &format!("{late}@exitless complaints=2\r\n")), 2);
        assert_eq!(complain(false, &format!("{late}@exitless complaints=1\r\n")), 1);
        assert_eq!(complain(false, &format!("{other}@exitless complaints=1\r\n")), 3);
        assert_eq!(complain(true, &format!("{other}@exitless complaints=1\r\n")), 3);
        assert_eq!(complain(true, ""), 2);
    }

    #[test]
    fn a_heart_may_stand_still_with_the_machine_and_a_second_more() {
        let case = super::super::all().into_iter().find(|c| c.name == "hostile/nobody-eli");
        let guest = &case.unwrap().guests[0];
        let mut report = Report::default();
        let (cpus, memory, host_memory) = (2, 0, 0);
        report.see(&Record::Machine { cpus, memory, tsc_hz: 1_000_000_000, host_memory });
        // Half of the first is in the gap, the second, and nothing of the third.
        for (from, to) in [(0, 2_000_000_000), (2_000_000_000, 2_500_000_000), (5 << 30, 9 << 30)] {
            report.see(&Record::Paused { from, to });
        }
        assert_eq!(report.paused(1_000_000_000, 4_000_000_000), 1_500_000);
        let outcome = Outcome::silent(report);
        let stands_still = |gap: u64| {
            let exits = vec!["0"; Reason::COUNT].join(",");
            let console = format!(
                "@exitless complaints=0\n@exitless verified rounds=0 beats=9 gap_us={gap} gap_from=1000000000 \
                 gap_to=4000000000 device=1 ticks=1 nanoseconds=1 entries=0 exits={exits}\n"
            );
            let mut wrong = Vec::new();
            victim(guest, SHARED, &console, &outcome, &mut wrong);
            wrong.iter().any(|w| w.contains("stood still"))
        };
        assert!(!stands_still(2_500_000));
        assert!(stands_still(2_500_001));
    }

    #[test]
    fn exits_that_a_victim_does_not_cause_are_named() {
        use Reason::*;
        let own =
            [(TimerProgram, 90), (TimerInterrupt, 90), (ConsoleIo, 50), (OtherEoi, 9), (Kick, 1)];
        let with = |more| OWN.unexplained(Policy::Eli, &verified(&[&own[..], &[more]].concat()));
        assert_eq!(with((DeviceInterrupt, 5)), [""; 0]);
        for more in [(DeviceInterrupt, 6), (TimerInterrupt, 91), (Kick, 2), (NestedPageFault, 1)] {
            assert_eq!(with(more).len(), 1, "{more:?}");
        }
        let direct = |exits: &[_]| OWN.unexplained(Policy::Direct, &verified(exits));
        assert_eq!(direct(&[(ConsoleIo, 50), (Kick, 1)]), [""; 0]);
        assert_eq!(direct(&own).len(), 3);
    }

    #[test]
    fn on_a_shared_core_it_bears_an_exit_of_each_kind_in_a_slice() {
        use Reason::*;
        let slice = 1000 * u64::from(plan::DEFAULT_SLICE);
        let in_slices = |more| Verified { time: 9 * slice, ..verified(&[more]) };
        let with = |more| SHARED.unexplained(Policy::Eli, &in_slices(more)).len();
        for most in [(SliceEnd, 10), (OtherVcpu, 10), (Kick, 11), (DeviceEoi, 100), (Halt, 200)] {
            assert_eq!(with(most), 0, "{most:?}");
            assert_eq!(with((most.0, most.1 + 1)), 1, "{most:?}");
        }
        assert_eq!(with((NestedPageFault, 1)), 1);
        // And one in ten milliseconds for the IOMMU's interrupt, if its core gets that.
        for (faults, reason, more) in
            [(Protection::Nmi, Kick, 11), (Protection::Limit, HostInterrupt, 0)]
        {
            let told = |n| {
                Core { faults, ..SHARED }.unexplained(Policy::Eli, &in_slices((reason, n))).len()
            };
            assert_eq!((told(more + 5), told(more + 6)), (0, 1), "{reason:?}");
            assert_eq!(with((reason, more + 1)), 1, "{reason:?}");
        }
    }

    #[test]
    fn an_attack_must_be_made_end_as_the_table_says_and_show() {
        let guest =
            super::super::attacker("exits", Policy::Eli, crate::selftest::case::Cores::Next, 0);
        let subject = attacks::chosen("exits").next().unwrap();
        let mut console = String::new();
        for attack in subject.attacks {
            let name = format!("exits/{}", attack.name);
            console += &format!("attack {name}\nledger {name}");
            attack
                .shows
                .iter()
                .for_each(|s| console += &format!(" {}={}", s.reason.label(), s.eli));
            console += &format!("\ntaken {name} {}\nok {name}: 5 of 5\n", attack.takes);
        }
        console += "attacks over\n";
        let judge = |exits: &[u64], console: &str| {
            let counters = Counters { exits: exits.to_vec(), ..Counters::default() };
            let mut wrong = Vec::new();
            attacker(&Tried { guest: &guest, counters, console, log: &[] }, &mut wrong);
            wrong
        };
        assert!(
            judge(&[], &console)[0].contains("in the report"),
            "the ledger knows nothing of it"
        );
        let exits = vec![u64::from(u32::MAX); Reason::COUNT];
        assert_eq!(judge(&exits, &console), [""; 0]);
        for (from, to) in [
            ("attack exits/cpuid", "attack exits/nothing"),
            ("ok exits/cpuid", "FAIL exits/cpuid"),
            ("cpuid=", "hypercall="),
            ("taken exits/cpuid", "taken exits/msr"),
            ("ok exits/cpuid", "skipped exits/cpuid\nok exits/cpuid"),
            ("attacks over", ""),
        ] {
            assert!(!judge(&exits, &console.replacen(from, to, 1)).is_empty(), "{from} → {to}");
        }
    }

    #[test]
    fn a_loop_of_resets_must_go_round_and_show() {
        let guest = super::super::attacker("reboot-loop", Policy::Eli, Cores::Next, 0);
        let judge = |begun, port_io| {
            let mut exits = vec![0; Reason::COUNT];
            exits[Reason::PortIo as usize] = port_io;
            let counters = Counters { exits, ..Counters::default() };
            let console = "attack reboot-loop/now\r\nreboot\r\n".repeat(begun);
            let mut wrong = Vec::new();
            attacker(&Tried { guest: &guest, counters, console: &console, log: &[] }, &mut wrong);
            wrong
        };
        let resets = attacks::RESETS;
        assert_eq!(judge(resets + 1, 12), [""; 0]);
        assert!(judge(resets, 9)[0].contains("began 3 times, 4 wanted"));
        assert_eq!(judge(resets + 1, 0).len(), 1);
        assert!(judge(0, 0)[0].contains("wasn't tried"));
    }

    #[test]
    fn each_attack_by_dma_must_be_told_of() {
        let guest = super::super::attacker("dma", Policy::Eli, Cores::Next, 0);
        let told = |lines: &[&str]| {
            let log: Vec<_> = lines
                .iter()
                .map(|l| format!("warning: IOMMU: {l} was blocked: its domain; 0 more"))
                .collect();
            let dma = attacks::chosen("dma").flat_map(|s| s.attacks);
            let named =
                |a: &&Attack| a.blocked.is_some_and(|b| log.iter().any(|l| named(l, &guest, b)));
            let told = dma.filter(named);
            told.map(|a| a.name).collect::<Vec<_>>()
        };
        assert_eq!(told(&["a write of page 0x1000 by device 00:10.0"]), ["edu"]);
        assert_eq!(told(&["a read of page 0x1000 by device 00:05.0"]), ["queues"]);
        assert_eq!(
            told(&[
                "a read of page 0x7000 by device 00:10.0",
                "a write of page 0x1000 by device 00:05.0"
            ]),
            ["nvme"]
        );
        assert_eq!(told(&["a write of page 0x1000 by device 00:11.0"]), [""; 0], "another VM's");
    }

    #[test]
    fn the_host_must_not_complain_but_of_attackers() {
        let guest =
            super::super::attacker("dma", Policy::Eli, crate::selftest::case::Cores::Next, 0);
        let attackers = [guest];
        let log = |line: &str| host(&[line.to_owned()], &attackers).len();
        assert_eq!(log("Exitless 0.1.0"), 0);
        assert_eq!(log("warning: x"), 1);
        assert_eq!(log("error: y"), 1);
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:10.0 was blocked: its domain"),
            0
        );
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:05.0 was blocked: its domain"),
            0
        );
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:04.0 was blocked: its domain"),
            1,
            "Linux's"
        );
    }
}
