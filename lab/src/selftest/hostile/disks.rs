//! Attackers on a core that serves paravirtual disks, and a victim whose disk it serves, too: it
//! writes and compares, from before the attacks begin until they are over.

use crate::selftest::{
    case::{Case, Cores, Cue, Guest},
    cases::{case, guest},
};
use plan::{Backing, Disk, Host, Moving, Policy};
use proto::Served;

/// What each attacker goes through.
pub const ATTACKERS: &[&str] = &["disk-reboot,disk", "disk-cpus,disk-fault"];
/// What one does whose disk has packed rings.
pub const PACKED: &[&str] = &["disk-packed"];
/// The victim's test.
pub const VICTIM: &str = "virtio-victim";

/// Sectors of an attacker's disk, which is cleared as a whole again and again, and of the victim's.
const ATTACKERS_SECTORS: u64 = 8_192;
const VICTIMS_SECTORS: u64 = 32_768;
const QUEUES: u16 = 4;
/// What the victim does at the least: four rounds.
const REQUESTS: u64 = 8_192;

/// What others may be served at the most while a queue of the victim's waits for its turn, in bytes
/// as they are charged: three turns of the one other VM, whose weight is the same, and one of its
/// own VM's, for each of its queues (`crates/sidecore`). Passes don't count: who was away may have
/// what is its due in many short turns.
const LONGEST_WAIT: u64 = QUEUES as u64 * 4 * TURN;
/// The most of a turn, with its last piece: 512 KiB each (`sidecore::Settings`, `blk`).
const TURN: u64 = 1 << 20;

/// Makes the attacker that goes through subjects, on cores of its own, with the first devices.
type Attacker = fn(&'static str, Policy, Cores, u8) -> Guest;

/// All of them.
pub fn all(attacker: Attacker) -> Vec<Case> {
    let case = |subjects, cores, policy| {
        attacked(subjects, cores, attacker(subjects, policy, Cores::Next, 0))
    };
    let own = |subjects: &'static str| {
        [Policy::Eli, Policy::Direct].map(|policy| case(subjects, Cores::Next, policy))
    };
    let mut cases: Vec<_> =
        ATTACKERS.iter().chain(PACKED).flat_map(|subjects| own(subjects)).collect();
    cases.push(case(ATTACKERS[0], Cores::First, Policy::Trap));
    cases.extend(ATTACKERS.iter().map(|subjects| moving(case(subjects, Cores::Next, Policy::Eli))));
    cases
}

/// The same with disks that go from one of two sidecores to the other after each turn, in the
/// middle of every attack.
fn moving(case: Case) -> Case {
    let name = case.name.replace("-eli", "-moving-eli");
    let host = Host { moving: Moving::Rounds(1), ..case.host };
    Case { name, sidecores: 2, host, ..case }
}

/// The attacker, and the victim on a core of its own or on the attacker's.
fn attacked(subjects: &str, cores: Cores, attacker: Guest) -> Case {
    let shared = if cores == Cores::First { "shared-" } else { "" };
    let what = match subjects {
        "disk-packed" => "disks-packed",
        _ if subjects == ATTACKERS[0] => "disks",
        _ => "disks-cpus",
    };
    let policy = attacker.policy;
    let name = format!("hostile/{what}-{shared}{}", policy.map_or("auto", Policy::label));
    let attacker = Guest { options: "order=none", ..attacker };
    let (devices, disks) = (Vec::new(), vec![disk(VICTIMS_SECTORS)]);
    let victim = Guest { devices, disks, cores, ..guest(VICTIM, policy) };
    Case {
        sidecores: 1,
        // On an idle computer the packed rings are over before the host's first look.
        audited: subjects != "disk-packed",
        typed: Some(Cue::Ended(1)),
        log: vec![" is given up: "],
        ..case(name, false, [attacker, victim])
    }
}

/// What is wrong with how the victim's disk was served, if this is it.
pub fn served(guest: &Guest, served: &Served) -> Option<String> {
    let Served { completed: requests, longest_wait, longest_wait_bytes: bytes, .. } = *served;
    let right = requests >= REQUESTS && bytes <= LONGEST_WAIT;
    (guest.tests == VICTIM && !right).then(|| {
        format!(
            "{requests} requests, {REQUESTS} wanted; the longest wait was for {bytes} bytes of \
             others, {LONGEST_WAIT} are allowed ({longest_wait} passes)"
        )
    })
}

/// The disks of an attacker with these subjects.
pub fn of(subjects: &str) -> Vec<Disk<String>> {
    let control = plan::Control { packed: true, ..plan::Control::default() };
    match subjects {
        "disk-packed" => vec![Disk { control, ..disk(ATTACKERS_SECTORS) }],
        _ if attacks_disks(subjects) => vec![disk(ATTACKERS_SECTORS)],
        _ => Vec::new(),
    }
}

/// Whether it goes on after a reset of its own.
pub fn restarts(subjects: &str) -> bool {
    subjects.split(',').any(|name| name == "disk-reboot")
}

fn attacks_disks(subjects: &str) -> bool {
    subjects.split(',').any(|name| name.starts_with("disk"))
}

/// Whether a line tells of a queue that was given up, of one of these VMs.
pub fn gives_up(line: &str, vms: &[Guest]) -> bool {
    let served = |vm: &Guest| !vm.disks.is_empty() || !vm.interfaces.is_empty();
    line.contains(" is given up: ") && vms.iter().any(served)
}

fn disk(sectors: u64) -> Disk<String> {
    Disk {
        size: sectors * plan::SECTOR,
        backing: Backing::Ram,
        read_only: false,
        serial: String::new(),
        queues: QUEUES,
        image: None,
        control: plan::Control::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::attacker;
    use super::*;
    use crate::selftest::kernel::Variant;

    fn all() -> Vec<Case> {
        super::all(attacker)
    }

    #[test]
    fn a_victim_that_waits_too_long_or_does_too_little_is_named() {
        let victim = &all()[0].guests[1];
        let of = |completed, longest_wait_bytes| {
            served(victim, &Served { completed, longest_wait_bytes, ..Served::default() }).is_some()
        };
        let most = LONGEST_WAIT;
        assert_eq!((of(8_192, most), of(8_191, most), of(8_192, most + 1)), (false, true, true));
        let attacker = &all()[0].guests[0];
        assert_eq!(served(attacker, &Served::default()), None);
    }

    #[test]
    fn sidecores_serve_both_and_the_victim_is_told_when_the_attacker_is_over() {
        for case in all() {
            let sidecores = if case.host.moving == Moving::Never { 1 } else { 2 };
            let typed = Some(Cue::Ended(1));
            assert_eq!((case.sidecores, case.typed), (sidecores, typed), "{}", case.name);
            let [attacker, victim] = &case.guests[..] else { panic!("{}", case.name) };
            assert!(case.guests.iter().all(|guest| guest.disks.len() == 1), "{}", case.name);
            assert_eq!((attacker.variant, victim.tests), (Variant::Hostile, VICTIM));
        }
    }

    #[test]
    fn only_a_vm_with_a_disk_may_have_a_queue_given_up() {
        let line = "warning: VM \"x\": queue 0  is given up: x";
        let with = |subjects| [attacker(subjects, Policy::Eli, Cores::Next, 0)];
        assert!(gives_up(line, &with(ATTACKERS[0])) && !gives_up(line, &with("exits")));
        assert!(!gives_up("warning: x", &with(ATTACKERS[0])));
    }
}
