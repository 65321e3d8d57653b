//! What must come of a run with attackers.

use super::steady::{self, Verified};
use crate::{
    report::VmReport,
    selftest::{
        case::{Case, Cores, Expected, Guest, Outcome},
        judge::{counted, ended},
        kernel::Variant,
    },
    session::Ended,
};
use attacks::{Attack, Ends, Subject};
use ledger::Reason;
use plan::{Choice, Class, DeviceName};
use std::collections::HashMap;

/// The longest time that Linux's heart, which beats a hundred times a second, may stand still, in
/// microseconds, beyond what the machine itself did meanwhile: the emulator stops all of its CPUs for
/// what one of them does, and on a busy machine for seconds, which the host's own core sees, too. Less would be a statement about that machine; the
/// tight bound is the one on exits ([`share`]).
const LONGEST_GAP: u64 = 1_000_000;

/// What Linux says once when its timer interrupt took some milliseconds: another's turn fell into it,
/// which is what sharing a core means, or the machine that the emulator runs on did something else
/// meanwhile. How long its heart stands still is judged all the same.
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
    for guest in attackers.iter().filter(|g| g.tests.split(',').any(|t| t == "dma")) {
        if !outcome.log.iter().any(|l| blocked(l, guest)) {
            wrong.push("the host doesn't tell of DMA that it blocked".to_owned());
        }
    }
    let shares = attackers.iter().any(|g| g.cores != Cores::Next);
    for ((guest, vm), console) in case.guests.iter().zip(&outcome.report.vms).zip(&outcome.consoles)
    {
        let mut of_vm = Vec::new();
        ended(guest, vm, &mut of_vm);
        counted(guest, vm, &mut of_vm);
        match guest.variant {
            Variant::Steady => {
                victim(guest, shares, console, outcome, &mut of_vm);
            }
            _ => attacker(guest, vm, console, &mut of_vm),
        }
        wrong.extend(of_vm.into_iter().map(|w| format!("VM {}: {w}", vm.name)));
    }
    wrong
}

/// What there is to tell of a run that passed.
pub fn told(case: &Case, outcome: &Outcome) -> Option<String> {
    let verified = Verified::read(outcome.consoles.first()?).ok()?;
    let subjects = case.guests.iter().flat_map(|g| attacks::chosen(g.tests));
    let attacks: usize = subjects.map(|s| s.attacks.len()).sum();
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
    let of = |device: &DeviceName| place(device).is_some_and(|place| line.contains(&place));
    line.contains("IOMMU: ") && line.contains(" blocked: ") && guest.devices.iter().any(of)
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

fn victim(guest: &Guest, shares: bool, console: &str, outcome: &Outcome, wrong: &mut Vec<String>) {
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
    if let Some(block) = steady::damaged(&outcome.disk, verified.rounds) {
        wrong.push(format!("block {block} of its disk isn't what it wrote"));
    }
    let (gap, paused) =
        (verified.gap, outcome.report.paused(verified.gap_tsc.0, verified.gap_tsc.1));
    if gap > LONGEST_GAP + paused {
        let most = LONGEST_GAP;
        wrong.push(format!(
            "its heart stood still for {gap} us, the machine in them for {paused}, and {most} more are allowed"
        ));
    }
    let share = if shares { shared_core(&verified) } else { own_core(guest.policy, &verified) };
    wrong.extend(share);
}

/// Its exits have causes of its own, reason by reason: what it asked the host for itself, the byte that
/// was typed at the end, and of its disk's interrupts the few that ELI may let through the host. That
/// is what it has without an attacker, whatever the machine's speed.
fn own_core(policy: Choice, verified: &Verified) -> Vec<String> {
    let own = |reason| verified.of(reason);
    share(verified, |reason| match (policy, reason) {
        (_, Reason::Kick) => TYPED,
        (_, Reason::ConsoleIo) => u64::MAX,
        (Choice::Direct, _) => 0,
        (_, Reason::DeviceInterrupt | Reason::DeviceEoi) => verified.device / 20,
        (_, Reason::TimerProgram) => u64::MAX,
        (_, Reason::TimerInterrupt | Reason::TimerEoi) => own(Reason::TimerProgram),
        (_, Reason::OtherEoi) => own(Reason::ConsoleIo),
        _ => 0,
    })
}

/// The same where it shares its core. Its disk's interrupts come while others have the core, too; it
/// sleeps at most once for each interrupt that it has; and what it must bear of the others is that for
/// each slice of time one of their turns begins, one of their interrupts comes, and core 0 looks once
/// after the core.
fn shared_core(verified: &Verified) -> Vec<String> {
    let own = |reason| verified.of(reason);
    let slices = verified.time / (1000 * u64::from(plan::DEFAULT_SLICE)) + 1;
    share(verified, |reason| match reason {
        Reason::ConsoleIo | Reason::TimerProgram => u64::MAX,
        Reason::TimerInterrupt | Reason::TimerEoi => own(Reason::TimerProgram),
        Reason::OtherEoi => own(Reason::ConsoleIo),
        Reason::DeviceInterrupt | Reason::DeviceEoi => verified.device,
        Reason::Halt => verified.device + verified.ticks + own(Reason::ConsoleIo),
        Reason::Turn | Reason::OtherVcpu => slices,
        Reason::Kick => slices + TYPED,
        _ => 0,
    })
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

fn attacker(guest: &Guest, vm: &VmReport, console: &str, wrong: &mut Vec<String>) {
    wrong.extend(console.lines().filter(|l| l.starts_with("FAIL")).map(str::to_owned));
    let mut sum = HashMap::<Reason, u64>::new();
    for subject in attacks::chosen(guest.tests) {
        for attack in subject.attacks {
            one(guest, vm, subject, attack, console, &mut sum, wrong);
        }
    }
    if guest.end == Expected::Passed && !console.lines().any(|l| l.trim() == "attacks over") {
        wrong.push("it didn't come to the end of its attacks".to_owned());
    }
    for (reason, told) in sum {
        let n = vm.counters().of(reason);
        if n < told {
            wrong.push(format!("{n} {} exits in the report, the VM saw {told}", reason.label()));
        }
    }
}

/// An attack was made, ended as the table says, and the ledger shows it.
fn one(
    guest: &Guest,
    vm: &VmReport,
    subject: &Subject,
    attack: &Attack,
    console: &str,
    sum: &mut HashMap<Reason, u64>,
    wrong: &mut Vec<String>,
) {
    let name = format!("{}/{}", subject.name, attack.name);
    if !console.lines().any(|l| l.trim() == format!("attack {name}")) {
        return wrong.push(format!("{name} wasn't tried"));
    }
    let contained = console.lines().any(|l| l.starts_with(&format!("ok {name}: ")));
    if contained != (attack.ends == Ends::Contained) {
        wrong.push(format!("{name} should end as {:?}", attack.ends));
    }
    let said = console.lines().find_map(|l| l.trim().strip_prefix(&format!("ledger {name}")));
    let in_window = said.map(exits);
    for shown in attack.shows {
        let least = match (guest.policy, guest.cores, shown.reason) {
            (Choice::Direct, ..) => shown.direct,
            // On a shared core its table has no shadow, whose page would be watched; and a tick that
            // is due when it exits anyway, or when another has the core, has no exit of its own.
            (_, Cores::First | Cores::One, Reason::IdtWrite) => 0,
            (_, Cores::First | Cores::One, Reason::TimerInterrupt) => shown.eli.min(1),
            _ => shown.eli,
        };
        // What doesn't come back is the last thing that its VM does.
        let n = match &in_window {
            Some(exits) => exits.get(shown.reason.label()).copied().unwrap_or(0),
            None => vm.counters().of(shown.reason),
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
    use crate::report::Report;
    use ledger::Record;

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

    #[test]
    fn a_complaint_is_harm_but_for_anothers_turn_on_a_shared_core() {
        let case = super::super::all().into_iter().find(|c| c.name == "hostile/nobody-eli");
        let guest = &case.unwrap().guests[0];
        let complain = |shares, console: &str| {
            let mut wrong = Vec::new();
            let silent = Outcome::silent(Report::default());
            victim(guest, shares, console, &silent, &mut wrong);
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
            victim(guest, true, &console, &outcome, &mut wrong);
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
        let with = |more| own_core(Choice::Eli, &verified(&[&own[..], &[more]].concat()));
        assert_eq!(with((DeviceInterrupt, 5)), [""; 0]);
        for more in [(DeviceInterrupt, 6), (TimerInterrupt, 91), (Kick, 2), (NestedPageFault, 1)] {
            assert_eq!(with(more).len(), 1, "{more:?}");
        }
        assert_eq!(own_core(Choice::Direct, &verified(&[(ConsoleIo, 50), (Kick, 1)])), [""; 0]);
        assert_eq!(own_core(Choice::Direct, &verified(&own)).len(), 3);
    }

    #[test]
    fn on_a_shared_core_it_bears_an_exit_of_each_kind_in_a_slice() {
        use Reason::*;
        let slice = 1000 * u64::from(plan::DEFAULT_SLICE);
        let with = |more| shared_core(&Verified { time: 9 * slice, ..verified(&[more]) }).len();
        for most in [(Turn, 10), (OtherVcpu, 10), (Kick, 11), (DeviceEoi, 100), (Halt, 200)] {
            assert_eq!(with(most), 0, "{most:?}");
            assert_eq!(with((most.0, most.1 + 1)), 1, "{most:?}");
        }
        assert_eq!(with((NestedPageFault, 1)), 1);
    }

    #[test]
    fn an_attack_must_be_made_end_as_the_table_says_and_show() {
        let guest =
            super::super::attacker("exits", Choice::Eli, crate::selftest::case::Cores::Next, 0);
        let mut vm = VmReport::default();
        let subject = attacks::chosen("exits").next().unwrap();
        let mut console = String::new();
        for attack in subject.attacks {
            let name = format!("exits/{}", attack.name);
            console += &format!("attack {name}\nledger {name}");
            attack
                .shows
                .iter()
                .for_each(|s| console += &format!(" {}={}", s.reason.label(), s.eli));
            console += &format!("\nok {name}: 5 of 5\n");
        }
        console += "attacks over\n";
        let judge = |vm: &VmReport, console: &str| {
            let mut wrong = Vec::new();
            attacker(&guest, vm, console, &mut wrong);
            wrong
        };
        assert!(
            judge(&vm, &console)[0].contains("in the report"),
            "the ledger knows nothing of it"
        );
        let exits = vec![u64::from(u32::MAX); Reason::COUNT];
        vm.vcpus.push(ledger::Counters { exits, ..ledger::Counters::default() });
        assert_eq!(judge(&vm, &console), [""; 0]);
        for (from, to) in [
            ("attack exits/cpuid", "attack exits/nothing"),
            ("ok exits/cpuid", "FAIL exits/cpuid"),
            ("cpuid=", "hypercall="),
            ("attacks over", ""),
        ] {
            assert!(!judge(&vm, &console.replacen(from, to, 1)).is_empty(), "{from} → {to}");
        }
    }

    #[test]
    fn the_host_must_not_complain_but_of_attackers() {
        let guest =
            super::super::attacker("dma", Choice::Eli, crate::selftest::case::Cores::Next, 0);
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
