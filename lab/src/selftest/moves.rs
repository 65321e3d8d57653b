//! Paravirtual disks, and switches with their ports, that go from one sidecore to another while
//! they are used: to and fro after so many turns, thousands of times, under each policy and amid
//! resets; and by load.
//!
//! The kernels verify each request, frame and interrupt as they do without; here it is counted how
//! often they moved, and how often a sidecore fell asleep.

use super::case::{Case, Expect, Guest, Outcome, Special};
use super::cases::{again, case, guest};
use super::smp;
use super::switch::pair;
use super::uplink::uplink;
use super::virtio::{POLICIES, short, with_disk};
use plan::{Coalesce, Control, Disk, Host, Moving, Policy};

/// Moves of a disk that is under load all the time, at least: of 20,000 requests a turn serves
/// nine.
const MANY: u64 = 2_000;
/// The same where it isn't.
const SOME: u64 = 20;
/// A bound on waits that two loads together break, in microseconds.
const BOUND: u32 = 5;
/// The load, and for long enough after it that devices are gathered. Each beat is 50 million ticks.
const BY_LOAD: &str = "virtio-load,heartbeat";
const BY_LOAD_OPTIONS: &str = "sectors=32768 serial=exitless-virtio beats=40";

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in POLICIES {
        let quick = |policies: &[Policy]| policies.contains(&policy);
        let of = |tests: &'static str| with_disk(guest(tests, policy));
        let often = quick(&[Policy::Direct, Policy::Trap]);
        cases.push(rounds(policy, 1, often, "virtio-load", [of("virtio-load")]));
        let others = "virtio,virtio-negotiation,virtio-mask,virtio-reset";
        let direct = quick(&[Policy::Direct]);
        cases.push(rounds(policy, 1, direct, "virtio-reset", [of(others)]));
        cases.push(rounds(policy, 1, false, "virtio-flags", [of("virtio-flags")]));
        let several = with_disk(smp::several("virtio-queues,virtio-move", policy));
        cases.push(rounds(policy, 3, quick(&[Policy::Eli]), "virtio-queues", [several]));
        let restarts = with_disk(again("virtio-restart", policy));
        cases.push(rounds(policy, 1, false, "virtio-restart", [restarts]));
        let two = || [of("virtio-load"), of("virtio-load")];
        cases.push(rounds(policy, 1, false, "virtio-two", two()));
        let control = Control { kicks: true, coalesce: Coalesce::Off, ..Control::default() };
        let kicked = of("virtio,virtio-mask,virtio-reset");
        let disks = kicked.disks.iter().map(|disk| Disk { control, ..disk.clone() }).collect();
        let kicked = Guest { disks, ..kicked };
        cases.push(rounds(policy, 1, false, "virtio-kicked", [kicked]));
        let exchange = pair("net-exchange", policy);
        cases.push(rounds(policy, 1, often, "virtio-net-exchange", exchange));
        cases.push(rounds(policy, 1, false, "virtio-net-reset", pair("net-reset", policy)));
        let [asks, echoes] = pair("net-restart", policy);
        let echoes = Guest { says: again("", policy).says, restarts: true, ..echoes };
        cases.push(rounds(policy, 1, false, "virtio-net-restart", [asks, echoes]));
        cases.push(wired(policy));
        let loaded = || Guest { options: BY_LOAD_OPTIONS, counts: Vec::new(), ..of(BY_LOAD) };
        let by_load = case(format!("virtio/by-load-{}", policy.label()), direct, []);
        let host = Host { moving: Moving::ByLoad(BOUND), ..Host::default() };
        cases.push(Case { sidecores: 2, host, guests: vec![loaded(), loaded()], ..by_load });
    }
    cases
}

/// `virtio/moves-POLICY-TEST`: to the next of two sidecores after so many turns.
fn rounds<const N: usize>(
    policy: Policy,
    turns: u16,
    quick: bool,
    test: &str,
    guests: [Guest; N],
) -> Case {
    let case = case(format!("virtio/moves-{}-{}", policy.label(), short(test)), quick, guests);
    let host = Host { moving: Moving::Rounds(turns), ..Host::default() };
    Case { sidecores: 2, host, ..case }
}

/// Two switches, each with a controller as its way out: they go to and fro with it.
fn wired(policy: Policy) -> Case {
    let mut guests = pair("net-exchange", policy);
    for (guest, switch) in guests.iter_mut().zip(["one", "two"]) {
        guest.interfaces.iter_mut().for_each(|one| one.switch = switch.to_owned());
    }
    let networks = vec![uplink(0, "one"), uplink(1, "two")];
    let case = rounds(policy, 1, policy == Policy::Direct, "virtio-net-uplink", guests);
    Case { networks, machine: Special::Wired, ..case }
}

/// What is wrong with how often disks and switches moved and sidecores slept.
pub fn complaints(case: &Case, outcome: &Outcome) -> Vec<String> {
    if case.expect != Expect::Ends {
        return Vec::new();
    }
    let moves: Vec<_> = outcome.report.vms.iter().map(|vm| vm.paravirtual.total().moves).collect();
    let cores = outcome.report.sidecores.cores();
    let slept: Vec<_> = cores.map(|(_, counted)| (counted.sleeps, counted.asleep)).collect();
    let tests: Vec<_> = case.guests.iter().map(|guest| guest.tests).collect();
    wrong(case.host.moving, &tests, &moves, &slept)
}

/// By the tests of the VMs, the moves of their disks, and of each sidecore how often it fell asleep
/// and whether it sleeps at the end.
fn wrong(moving: Moving, tests: &[&str], moves: &[u64], slept: &[(u64, bool)]) -> Vec<String> {
    let mut wrong = Vec::new();
    match moving {
        Moving::Never => {
            if moves.iter().any(|moves| *moves > 0) || slept.iter().any(|(times, _)| *times > 0) {
                wrong.push(format!("{moves:?} moves, {slept:?} sleeps, though none may be"));
            }
        }
        Moving::Rounds(_) => {
            for (tests, moves) in tests.iter().zip(moves) {
                let least = if *tests == "virtio-load" { MANY } else { SOME };
                if *moves < least {
                    wrong.push(format!(
                        "a VM's devices moved {moves} times, {least} wanted at least"
                    ));
                }
            }
            if slept.len() != 2 {
                wrong.push(format!("{} sidecores were reported, 2 wanted", slept.len()));
            }
        }
        // Whoever went came back.
        Moving::ByLoad(_) => {
            if moves.iter().sum::<u64>() < 2 || moves.iter().any(|moves| moves % 2 != 0) {
                wrong.push(format!("the disks moved {moves:?} times; to and back is wanted"));
            }
            match slept {
                [(0, false), (times, true)] if *times >= 2 => {}
                _ => wrong.push(format!(
                    "the sidecores fell asleep {slept:?} times; the second before and after the load is wanted"
                )),
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_two_sidecores_and_a_name_of_its_own() {
        let cases = all();
        let names: HashSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        assert!(cases.iter().all(|case| case.sidecores == 2 && case.host.moving != Moving::Never));
        assert!(cases.iter().all(|case| case.is_alone()));
    }

    #[test]
    fn too_few_moves_and_sleeps_are_told() {
        let load = ["virtio-load"];
        let rounds = |moves| wrong(Moving::Rounds(1), &load, &[moves], &[(1, true), (0, false)]);
        assert!(rounds(2_000).is_empty() && rounds(1_999).len() == 1);
        assert_eq!(wrong(Moving::Rounds(1), &["virtio"], &[20], &[]).len(), 1);
        let never = |moves, sleeps| wrong(Moving::Never, &load, &[moves], &[(sleeps, false)]).len();
        assert_eq!((never(0, 0), never(1, 0), never(0, 1)), (0, 1, 1));
        let by_load = |moves: [u64; 2], slept| {
            wrong(Moving::ByLoad(5), &load, &moves, &[(0, false), slept]).len()
        };
        assert_eq!(by_load([2, 0], (2, true)), 0);
        assert_eq!(by_load([1, 1], (2, true)), 1);
        assert_eq!(by_load([0, 0], (1, true)), 2);
        assert_eq!(by_load([0, 2], (2, false)), 1);
    }
}
