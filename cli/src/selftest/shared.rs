//! Several vCPUs on one core: every delivery situation beside a neighbour whose heart must go on
//! beating on the same core, and two guests whose devices interrupt by the same vector.

use super::case::{Case, Cores, Guest};
use super::cases::{TESTS, case, guest, heartbeat, second};
use plan::Choice;

/// What a vCPU that shares its core does under `trap`; under `eli` it does everything.
const TRAP: [&str; 5] = ["delivery", "delivery-masked", "no-eoi", "timer-mixed", "low-vectors"];
/// Of these, what the quick test has.
const QUICK: [&str; 4] = ["delivery-masked", "no-eoi", "idt-remap", "timer-mixed"];

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    // How many exits there are depends on who has the core when.
    let beside = |g: Guest| Guest { cores: Cores::First, counts: Vec::new(), ..g };
    for policy in [Choice::Trap, Choice::Eli] {
        let group = format!("shared-{}", policy.label());
        let neighbour = || {
            let says = vec!["heartbeat 5\n", "ok heartbeat: 0 of"];
            beside(Guest { says, ..heartbeat("beats=5", policy) })
        };
        let two = [neighbour(), neighbour()];
        cases.push(case(format!("{group}/heartbeats"), policy == Choice::Eli, two));
        let two = [guest("halt", policy), second(guest("halt", policy))].map(beside);
        cases.push(case(format!("{group}/same-vector"), policy == Choice::Eli, two));
        let wanted = |test: &str| policy == Choice::Eli || TRAP.contains(&test);
        for (test, _) in TESTS.into_iter().filter(|(test, _)| wanted(test)) {
            let quick = policy == Choice::Eli && QUICK.contains(&test);
            let two = [beside(guest(test, policy)), neighbour()];
            cases.push(case(format!("{group}/{test}"), quick, two));
        }
    }
    cases
}
