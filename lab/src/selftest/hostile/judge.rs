//! What must come of a run with attackers.

use super::{
    attacker_judge::{Tried, attacker, begun, skipped},
    host_log::host,
    victim::Verified,
    victim_judge::{Core, victim},
};
use crate::selftest::{
    case::{Case, Cores, Guest, Outcome},
    kernel::Variant,
    verdict::{counted, ended, said},
};
use attacks::Subject;
use exitless::{report::VmReport, session::Ended};
use ledger::Reason;

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
            Variant::Hostile => {
                attacker(&Tried { guest, counters, console, log: &outcome.log }, &mut of_vm);
            }
            _ => said(guest, console, &mut of_vm),
        }
        wrong.extend(of_vm.into_iter().map(|w| format!("VM {}: {w}", vm.name)));
    }
    wrong
}

/// What is wrong with an attacker in a run without Linux.
pub fn alone(guest: &Guest, vm: &VmReport, console: &str, log: &[String], wrong: &mut Vec<String>) {
    attacker(&Tried { guest, counters: vm.counters(), console, log }, wrong);
}

/// Is it neither Linux nor an attacker with a list of attacks?
fn is_kernel(guest: &Guest) -> bool {
    !matches!(guest.variant, Variant::Victim | Variant::Hostile)
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
    // Test kernels have no list of attacks: their tests are what they do.
    let kernels = case.guests.iter().filter(|g| is_kernel(g)).map(|g| format!(", {}", g.tests));
    let kernels: String = kernels.collect();
    let Verified { rounds, gap, gap_tsc, device, ticks, time, .. } = verified;
    let exits: Vec<_> = Reason::ALL
        .iter()
        .map(|r| (r.label(), verified.of(*r)))
        .filter(|(_, n)| *n > 0)
        .map(|(label, n)| format!("{n} {label}"))
        .collect();
    Some(format!(
        "{attacks} attacks{kernels}; {} looks of the host's at {} interrupt entries and all else; Linux: {:.1} s, {rounds} rounds, {device} disk interrupts, {ticks} ticks, \
         longest gap {} ms of which the machine stood still {} ms, exits: {}",
        outcome.report.audit.passes,
        outcome.report.audit.interrupts,
        time as f64 / 1e9,
        gap / 1000,
        outcome.report.paused(gap_tsc.0, gap_tsc.1) / 1000,
        exits.join(", ")
    ))
}
