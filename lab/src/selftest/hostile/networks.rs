//! An attacker with two interfaces at a switch, and two victims there that it mustn't reach: they
//! send each other frames with numbers, from before the attacks begin until they are over.
//!
//! At one switch the attacker is in a VLAN of its own. Or each of the victims is at a switch whose
//! way out is a network controller: what they send crosses the wire that the attacker floods.

use crate::selftest::{
    case::{Case, Cores, Cue, Guest, Special},
    cases::{case, guest},
    switch::at,
    uplink::uplink,
};
use exitless::report::VmReport;
use plan::{Interface, Policy};
use proto::{Served, ServedDevice};

/// What the attacker goes through.
pub const ATTACKERS: &[&str] = &["net"];
/// The victims' test.
const VICTIM: &str = "net-victim";
/// The attacker's VLAN, and that of the victims.
const VLANS: [Option<u16>; 2] = [Some(7), None];

/// Numbers that each says at the least.
const NUMBERS: u64 = 300;
/// What others may be served at the most while a queue of a victim's waits for its turn, in bytes
/// as they are charged: two turns of each of two other VMs and one of its own, for each of its
/// queues that has turns (`crates/sidecore`).
const LONGEST_WAIT: u64 = 2 * 5 * TURN;
/// The most of a turn, with its last piece: 512 KiB, and a frame in segments to two receivers.
const TURN: u64 = (512 << 10) + 2 * 256 * 2048;

/// Makes the attacker that goes through subjects, on cores of its own, with the first devices.
type Attacker = fn(&'static str, Policy, Cores, u8) -> Guest;

/// All of them.
pub fn all(attacker: Attacker) -> Vec<Case> {
    let of = |policy| attacked(attacker(ATTACKERS[0], policy, Cores::Next, 0), policy);
    let mut cases: Vec<_> = [Policy::Eli, Policy::Direct].map(of).into();
    let mut wired = of(Policy::Eli);
    wired.name = "hostile/networks-wired-eli".to_owned();
    // The last VM is at the other switch.
    if let Some(last) = wired.guests.last_mut() {
        last.interfaces.iter_mut().for_each(|one| one.switch = "other".to_owned());
    }
    wired.networks = vec![uplink(0, "lan"), uplink(1, "other")];
    cases.push(Case { machine: Special::Wired, ..wired });
    cases
}

fn attacked(attacker: Guest, policy: Policy) -> Case {
    let own = [0, 1].map(|place| Interface { vlan: VLANS[0], ..at("lan", 3, place) });
    let attacker = Guest { options: "order=none", interfaces: own.into(), ..attacker };
    // The last one begins, for it is told when the attacker is over.
    let victims = [(2, "peer=1"), (1, "peer=2")].map(|(number, options)| Guest {
        interfaces: vec![Interface { vlan: VLANS[1], ..at("lan", number, 0) }],
        devices: Vec::new(),
        options,
        ..guest(VICTIM, policy)
    });
    let [second, third] = victims;
    Case {
        sidecores: 1,
        // On an idle computer all is over before the host's second look: nothing is asked of its
        // audit.
        audited: false,
        typed: Some(Cue::Ended(1)),
        log: vec![" is given up: "],
        ..case(format!("hostile/networks-{}", policy.label()), false, [attacker, second, third])
    }
}

/// What is wrong with how the victim's queue was served that sends, if this is it.
pub fn reported(guest: &Guest, vm: &VmReport, wrong: &mut Vec<String>) {
    wrong.extend(served(guest, &vm.paravirtual.of(ServedDevice::Network(0), 1)));
}

fn served(guest: &Guest, served: &Served) -> Option<String> {
    let Served { completed, longest_wait, longest_wait_bytes: bytes, .. } = *served;
    let right = completed >= NUMBERS && bytes <= LONGEST_WAIT;
    (guest.tests == VICTIM && !right).then(|| {
        format!(
            "{completed} frames, {NUMBERS} wanted; the longest wait was for {bytes} bytes of \
             others, {LONGEST_WAIT} are allowed ({longest_wait} passes)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::attacker;
    use super::*;

    #[test]
    fn victims_are_told_when_the_attacker_is_over_and_are_in_another_vlan() {
        for case in all(attacker) {
            let [attacker, second, third] = &case.guests[..] else { panic!("{}", case.name) };
            assert!(attacker.interfaces.iter().all(|one| one.vlan == VLANS[0]), "{}", case.name);
            assert!([second, third].iter().all(|guest| guest.interfaces[0].vlan == VLANS[1]));
            assert_eq!(case.typed, Some(Cue::Ended(1)));
        }
    }

    #[test]
    fn a_victim_that_waits_too_long_or_does_too_little_is_named() {
        let victim = &all(attacker)[0].guests[1];
        let of = |completed, longest_wait_bytes| {
            served(victim, &Served { completed, longest_wait_bytes, ..Served::default() }).is_some()
        };
        let most = LONGEST_WAIT;
        assert_eq!((of(300, most), of(299, most), of(300, most + 1)), (false, true, true));
    }
}
