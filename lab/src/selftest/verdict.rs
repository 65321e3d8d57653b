//! What must come of one VM, whatever the case is about: how it ended, what was counted.

use super::case::{Expected, Guest};
use exitless::report::VmReport;
use proto::End;

/// The test kernel's debug-exit value when every check held.
pub const PASSED: u32 = 0x20;

/// Whether a VM ended as it must.
pub fn ended(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    let right = match (guest.end, &vm.end) {
        (Expected::Passed, Some(End::DebugExit(PASSED)))
        | (Expected::PowerOff, Some(End::PowerOff))
        | (Expected::Reset, Some(End::Reset)) => true,
        (Expected::Fault(text), Some(End::Fault(why))) => contains(why, text),
        (Expected::Never, None) | (Expected::Anyhow, _) => true,
        _ => false,
    };
    if !right {
        wrong.push(format!("ended as {:?}, {:?} wanted", vm.end, guest.end));
    }
}

/// Whether a VM's counters, incidents and policy are what they must be.
pub fn counted(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    let counters = vm.counters();
    for (reason, range) in &guest.counts {
        let n = counters.of(*reason);
        if !range.contains(&n) {
            let (low, high) = (range.start(), range.end());
            wrong.push(format!("{n} {} exits, {low} to {high} wanted", reason.label()));
        }
    }
    if let Some(text) = guest.incident
        && !vm.incidents.iter().any(|i| contains(i, text))
    {
        wrong.push(format!("no report that {text} was refused: {:?}", vm.incidents));
    }
    // One that was still running may have been in its guest.
    let inside = if vm.end.is_none() { u64::from(guest.cpus) } else { 0 };
    if !(0..=inside).contains(&counters.entries.wrapping_sub(counters.total())) {
        wrong.push(format!("{} entries but {} exits", counters.entries, counters.total()));
    }
    let (policy, why) = guest.in_force();
    match &vm.policy {
        Some((delivery, reason)) if delivery.label() == policy && reason.contains(why) => {}
        other => wrong.push(format!("policy in force: {other:?}, {policy} wanted ({why})")),
    }
}

/// Whether a test kernel's console says that every check held, and what else it must.
pub fn said(guest: &Guest, console: &str, wrong: &mut Vec<String>) {
    let failed = console.lines().filter(|l| l.starts_with("FAIL")).count();
    if failed > 0 {
        wrong.push(format!("{failed} checks failed"));
    }
    // A kernel that is stopped on purpose may not come to say that all is well.
    if !matches!(guest.end, Expected::Fault(_)) {
        for test in guest.tests.split(',').filter(|test| !test.is_empty()) {
            let verdict = format!("ok {test}: ");
            if !console.lines().any(|l| l.starts_with(&verdict)) {
                wrong.push(format!("the console has no line \"{verdict}…\""));
            }
        }
    }
    for text in &guest.says {
        if !console.contains(text) {
            wrong.push(format!("the console doesn't say \"{text}\""));
        }
    }
}

pub fn contains(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}
