//! Compares what came of a run with what had to.

use super::case::{Case, Expect, Guest, Outcome, Special};
use super::kernel::Variant;
use super::verdict::{PASSED, contains, counted, ended, said};
use super::{cost, hostile, moves, parts, prices, switch, uplink, viommu, virtio};
use exitless::report::{Report, VmReport, status};
use ledger::Reason;
use proto::exit;
use proto::offer::Offer;

/// How often a guest must have been asked for its counters while it was quiet.
const ANSWERS: usize = 3;
/// Instructions of the loader and the hypervisor, and of firmware that they call, to the guest.
const TO_THE_GUEST: u64 = 150_000_000;

/// The hypervisor's first words.
const BANNER: &str = "Exitless ";

/// What is wrong with an outcome, a sentence each; nothing if the case passed.
pub fn complaints(case: &Case, outcome: &Outcome) -> Vec<String> {
    match &case.expect {
        Expect::Ends if case.is_bare() => bare(case, outcome),
        Expect::Ends if case.machine == Special::Attacked => hostile::complaints(case, outcome),
        Expect::Ends => ends(case, outcome),
        Expect::Refused(words) => refused(words, outcome),
        Expect::Unstarted(text) => unstarted(text, outcome),
        Expect::Panics(words) => panicked(words, outcome),
        Expect::Tells(parts) => told(parts, outcome),
        Expect::Rejected(_) => vec!["the command line took it".to_owned()],
    }
}

/// What is wrong with the command line's own error.
pub fn rejection(case: &Case, error: &str) -> Vec<String> {
    match &case.expect {
        Expect::Rejected(words) => sentence(words, error),
        _ => vec![error.to_owned()],
    }
}

fn bare(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    if outcome.ended.code() != Some(PASSED) {
        wrong.push(format!("the kernel did not say that all is well: {:?}", outcome.ended));
    }
    for (guest, console) in case.guests.iter().zip(&outcome.consoles) {
        said(guest, console, &mut wrong);
    }
    wrong
}

fn ends(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut wrong: Vec<String> = outcome.report.failure(&outcome.ended).into_iter().collect();
    for wanted in case.log.iter().filter(|w| !outcome.log.iter().any(|l| l.contains(**w))) {
        wrong.push(format!("the hypervisor's log doesn't say {wanted:?}"));
    }
    for unwanted in case.unsaid.iter().filter(|w| outcome.log.iter().any(|l| l.contains(**w))) {
        wrong.push(format!("the hypervisor's log says {unwanted:?}"));
    }
    let alarms = |l: &&String| {
        let expected = case.finding.is_some() || case.log.iter().any(|wanted| l.contains(wanted));
        let warns = case.silent && l.starts_with("warning: ");
        warns || l.starts_with("error: ") && !expected
    };
    // A boot loader has errors of its own.
    let of_loaders = |l: &&String| case.has_firmware() && !l.starts_with(BANNER);
    let host = outcome.log.iter().skip_while(of_loaders);
    wrong.extend(host.filter(alarms).map(|l| format!("the host says: {l}")));
    for ((guest, vm), console) in case.guests.iter().zip(&outcome.report.vms).zip(&outcome.consoles)
    {
        let mut of_vm = Vec::new();
        ended(guest, vm, &mut of_vm);
        match guest.variant {
            Variant::Hostile => hostile::alone(guest, vm, console, &outcome.log, &mut of_vm),
            _ => said(guest, console, &mut of_vm),
        }
        counted(guest, vm, &mut of_vm);
        virtio::reported(guest, vm, &mut of_vm);
        parts::reported(guest, vm, &mut of_vm);
        viommu::reported(guest, vm, &mut of_vm);
        switch::reported(guest, vm, &mut of_vm);
        hostile::reported(guest, vm, &mut of_vm);
        by_host(guest, vm.counters().of(Reason::DeviceInterrupt), console, &mut of_vm);
        wrong.extend(of_vm.into_iter().map(|w| format!("VM {}: {w}", vm.name)));
    }
    match case.finding {
        None => wrong.extend(outcome.report.audit.complaint(case.audited)),
        Some(text) => wrong.extend(found(text, outcome)),
    }
    if let Some(unwatched) = &outcome.unwatched {
        watched(unwatched, outcome, &mut wrong);
    }
    if case.counts_start() {
        wrong.extend(entered(outcome.entered));
    }
    wrong.extend(outcome.screen.iter().cloned());
    wrong.extend(parts::complaints(case, outcome));
    wrong.extend(uplink::complaints(case, &outcome.log));
    wrong.extend(moves::complaints(case, outcome));
    wrong.extend(cost::of(&case.windows, &outcome.edges).err());
    wrong.extend(prices::of(&case.prices, &outcome.consoles).err());
    wrong
}

/// The way to the guest, firmware left out, must be short.
fn entered(instructions: Option<u64>) -> Option<String> {
    match instructions {
        None => Some("the counting plugin saw no beginning, or no guest entry".to_owned()),
        Some(n) if n >= TO_THE_GUEST => Some(format!(
            "{n} instructions to the first guest entry, fewer than {TO_THE_GUEST} wanted"
        )),
        Some(_) => None,
    }
}

/// Most interrupts of its devices, as Linux counted them in all of its lives, must not have exited.
fn by_host(guest: &Guest, exits: u64, console: &str, wrong: &mut Vec<String>) {
    let Some(percent) = guest.by_host else { return };
    let words =
        console.lines().filter(|l| l.contains("@exitless ")).flat_map(str::split_whitespace);
    let counts = words.filter_map(|word| word.strip_prefix("interrupts="));
    let all: u64 = counts.filter_map(|n| n.parse::<u64>().ok()).sum();
    if all == 0 || exits * 100 > all * percent {
        wrong.push(format!(
            "{exits} of {all} device interrupts came by the host, {percent} in a hundred are allowed"
        ));
    }
}

/// The audit must have found this, and have told of it.
fn found(text: &str, outcome: &Outcome) -> Option<String> {
    let told = |l: &&String| l.contains("audit: ") && l.contains(text);
    let right = outcome.report.audit.findings > 0 && outcome.log.iter().any(|l| told(&l));
    (!right).then(|| format!("the host's audit should have found \"{text}\""))
}

/// Watching must have taken place, and must not show.
fn watched(unwatched: &Report, outcome: &Outcome, wrong: &mut Vec<String>) {
    // The guest itself checks that it had no exit; the last answers may see it write again.
    let quiet = outcome.answers.chunk_by(|a, b| a == b).next().map_or(0, <[u64]>::len);
    if quiet < ANSWERS {
        let answers = &outcome.answers;
        wrong.push(format!("{quiet} answers while it was quiet, {ANSWERS} wanted: {answers:?}"));
    }
    for (alone, vm) in unwatched.vms.iter().zip(&outcome.report.vms) {
        let [alone, watched] = [alone, vm].map(|vm| vm.counters().by_reason());
        if alone != watched {
            wrong.push(format!("VM {}: exits {watched:?}; unwatched: {alone:?}", vm.name));
        }
    }
}

fn refused(words: &[&str], outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let got = outcome.report.status(&outcome.ended);
    if got != status::REFUSED {
        let failure = outcome.report.failure(&outcome.ended);
        wrong.push(format!("status {got}, {} wanted: {failure:?}", status::REFUSED));
    }
    wrong.extend(sentence(words, outcome.report.refused.as_deref().unwrap_or("")));
    wrong
}

/// Firmware must have said this, and nothing else must have said anything.
fn unstarted(text: &str, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    if !outcome.log.iter().any(|line| line.contains(text)) {
        wrong.push(format!("firmware doesn't say \"{text}\""));
    }
    let started = |vm: &VmReport| vm.policy.is_some();
    if outcome.report.vms.iter().any(started) || outcome.report.refused.is_some() {
        wrong.push("the hypervisor was started".to_owned());
    }
    wrong
}

fn panicked(words: &str, outcome: &Outcome) -> Vec<String> {
    let told = outcome.log.iter().any(|l| l.contains("panic on core") && l.contains(words));
    let right = outcome.ended.code() == Some(exit::PANICKED) && told;
    let wrong = || format!("no panic that says \"{words}\": {:?}", outcome.ended);
    (!right).then(wrong).into_iter().collect()
}

/// Both the log and the records must have said each of these parts, and the end.
fn told(parts: &[&str], outcome: &Outcome) -> Vec<String> {
    let mut wrong: Vec<String> = outcome.report.failure(&outcome.ended).into_iter().collect();
    let offers: Vec<_> = outcome.report.offers.iter().map(ToString::to_string).collect();
    for (part, lines) in parts.iter().flat_map(|p| [(p, &outcome.log), (p, &offers)]) {
        if !lines.iter().any(|line| line.contains(part)) {
            wrong.push(format!("nothing says \"{part}\": {lines:?}"));
        }
    }
    if outcome.report.offers.last() != Some(&Offer::Complete) {
        wrong.push("the inventory has no end".to_owned());
    }
    wrong
}

fn sentence(words: &[&str], text: &str) -> Vec<String> {
    let missing = words.iter().filter(|w| !contains(text, w));
    let mut wrong: Vec<_> = missing.map(|w| format!("\"{text}\" doesn't name {w}")).collect();
    if text.is_empty() || text.lines().count() > 1 {
        wrong.push(format!("\"{text}\" is not one sentence"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::cases;
    use exitless::session::Ended;
    use ledger::Counters;
    use proto::End;
    use proto::{Policy, Record};

    fn case() -> Case {
        cases::all().into_iter().find(|c| c.name == "eli/delivery").unwrap()
    }

    fn outcome(console: &str, end: End, device_exits: u64) -> Outcome {
        let mut exits = vec![0; Reason::COUNT];
        exits[Reason::DeviceInterrupt as usize] = device_exits;
        exits[Reason::Cpuid as usize] = 5;
        let counters = Counters { entries: 5 + device_exits, exits, ..Counters::default() };
        let mut report = Report::new(["first"]);
        let (name, policy, why) = ("first".to_owned(), Policy::Eli, "asked for".to_owned());
        report.see(&Record::Started { vm: 0, name, policy, why, memory: 0, overhead: 0, now: 0 });
        report.see(&Record::Counters { vm: 0, vcpu: 0, counters, cycles: 1 });
        report.see(&Record::Ended { vm: 0, end });
        let ended = Ended::Exited { status: 33, message: String::new() };
        let (consoles, log, answers) = (vec![console.to_owned()], Vec::new(), Vec::new());
        Outcome {
            ended,
            report,
            consoles,
            log,
            answers,
            live: Report::default(),
            unwatched: None,
            edges: Vec::new(),
            entered: None,
            disk: Vec::new(),
            screen: Vec::new(),
        }
    }

    const GOOD: &str = "kernel: by multiboot\nok delivery: 100 handled of 100 raised\n";

    #[test]
    fn a_good_run_has_no_complaint() {
        assert_eq!(complaints(&case(), &outcome(GOOD, End::DebugExit(PASSED), 0)), [""; 0]);
    }

    #[test]
    fn each_deviation_is_named() {
        let one = |console: &str, end, exits| {
            let wrong = complaints(&case(), &outcome(console, end, exits));
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            wrong[0].clone()
        };
        let passed = || End::DebugExit(PASSED);
        assert!(one(GOOD, End::PowerOff, 0).contains("PowerOff"));
        assert!(one(GOOD, passed(), 1).contains("1 device-interrupt exits"));
        assert!(one("kernel: by multiboot\n", passed(), 0).contains("ok delivery: "));
        let console = format!("{GOOD}FAIL delivery: x\n");
        assert!(one(&console, passed(), 0).contains("1 checks failed"));
    }

    #[test]
    fn a_share_of_device_interrupts_may_come_by_the_host() {
        let guest = Guest { by_host: Some(50), ..cases::guest("hello", Policy::Eli) };
        let judge = |exits, console: &str| {
            let mut wrong = Vec::new();
            by_host(&guest, exits, console, &mut wrong);
            wrong.len()
        };
        let lives = "@exitless resets received=5 interrupts=40\r\n[ 1.0] @exitless echoed streams=1 interrupts=60\r\n";
        assert_eq!((judge(0, lives), judge(50, lives), judge(51, lives)), (0, 0, 1));
        assert_eq!(judge(0, "interrupts=7\n@exitless echoed\n"), 1, "it must say how many");
    }

    #[test]
    fn entries_and_policy_are_compared() {
        let mut bad = outcome(GOOD, End::DebugExit(PASSED), 0);
        bad.report.vms[0].vcpus[0].entries += 1;
        bad.report.vms[0].policy = Some((Policy::Trap, "asked for".to_owned()));
        assert_eq!(complaints(&case(), &bad).len(), 2);
        bad.report.vms[0].policy = Some((Policy::Eli, "for no reason".to_owned()));
        assert_eq!(complaints(&case(), &bad).len(), 2);
    }

    #[test]
    fn what_the_host_found_counts_and_so_does_that_it_looked() {
        let complain = |audited, (passes, interrupts, findings)| {
            let mut run = outcome(GOOD, End::DebugExit(PASSED), 0);
            run.report.see(&Record::Audit { passes, interrupts, findings });
            complaints(&Case { audited, ..case() }, &run).len()
        };
        assert_eq!(complain(false, (0, 0, 0)), 0);
        assert_eq!(complain(false, (9, 9, 1)), 1);
        assert_eq!(complain(true, (1, 1, 0)), 0);
        assert_eq!((complain(true, (0, 1, 0)), complain(true, (1, 0, 0))), (1, 1));
    }

    #[test]
    fn watching_must_take_place_and_must_not_show() {
        let complain = |answers: &[u64], exits_alone| {
            let mut watched = outcome(GOOD, End::DebugExit(PASSED), 0);
            watched.unwatched = Some(outcome(GOOD, End::DebugExit(PASSED), exits_alone).report);
            watched.answers = answers.to_vec();
            complaints(&case(), &watched)
        };
        assert_eq!(complain(&[5, 5, 5, 7], 0), [""; 0]);
        assert!(complain(&[5, 5], 0)[0].contains("2 answers"));
        assert!(complain(&[5, 6, 7, 7, 7], 0)[0].contains("1 answers"));
        assert!(complain(&[5, 5, 5], 1)[0].contains("unwatched"));
    }

    #[test]
    fn what_firmware_refuses_must_not_run() {
        let mut run = outcome("", End::PowerOff, 0);
        assert_eq!(unstarted("Access Denied", &run).len(), 2);
        run.report = Report::new(["first"]);
        assert_eq!(unstarted("Access Denied", &run).len(), 1);
        run.log = vec!["BdsDxe: failed to load Boot0001: Access Denied".to_owned()];
        assert_eq!(unstarted("Access Denied", &run), [""; 0]);
    }

    #[test]
    fn a_refusal_must_be_one_sentence_with_its_words() {
        assert!(sentence(&["svm"], "the CPU has no SVM").is_empty());
        assert_eq!(sentence(&["SVM"], "the CPU is old").len(), 1);
        assert_eq!(sentence(&["a"], "a\nb").len(), 1);
        assert_eq!(sentence(&[], "").len(), 1);
    }
}
