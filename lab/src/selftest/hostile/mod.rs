//! Attackers beside a well-behaved Linux guest: it writes to its own disk, reads back and compares,
//! and its heartbeat goes on, for as long as the attacks last.
//!
//! One run is one Linux and up to three attackers, each of which goes through a list of attacks
//! (`guests/hostile`). They begin when Linux is at work, and Linux ends when they are over: see
//! [`Conductor`]. What must come of it says [`complaints`]. Those who attack a sidecore have
//! another victim: see [`disks`].

mod attacker_judge;
mod bochs;
mod conductor;
mod disks;
mod host_log;
mod judge;
mod mixed;
mod networks;
mod victim;
mod victim_judge;

pub use bochs::on_bochs;
pub use conductor::Conductor;
pub use disks::served;
pub use host_log::place;
pub use judge::{alone, complaints, told};
pub use mixed::{Fourth, Mixed, Tally};
pub use networks::reported;

use super::case::{Case, Cores, Expected, Guest, Special};
use super::cases::{case, edu, guest, nvme};
use super::kernel::Variant;
use super::{nesting, units};
use attacks::Ends;
use plan::{Class, DeviceName, Policy, Protection};

/// More for Linux's command line. Its watchdog for lockups is left as it is, at twenty seconds: its
/// heartbeat is judged more strictly (see [`judge`]). The one over its clock wants to run twice a
/// second and complains of a slow emulator long before.
pub const VICTIM: &str = "quiet tsc=nowatchdog exitless.workload=victim";
/// Bytes of its disk.
pub const DISK_BYTES: u64 = 64 << 20;

/// A run: its name, and what its attackers do at the same time, each a list of subjects.
type Run = (&'static str, &'static [&'static str]);

const RUNS: &[Run] = &[
    // What the rest is compared with.
    ("nobody", &[]),
    ("interrupts", &["interrupts,triple-fault", "apic,bad-cr4", "off-for-ever"]),
    ("tables", &["idt,wild-idt", "cpus,unmapped-idt-smp", "storm-for-ever"]),
    ("registers", &["msrs,wild-jump", "control,wild-tables", "reboot-loop"]),
    ("devices", &["pci", "msix,dma", "idle-for-ever"]),
    ("exits", &["ports,rings,borders,unmapped-idt", "exits,traps,unemulated", "memory,console"]),
];

/// Subjects that don't wait for Linux: they go on from the first moment.
const UNORDERED: &str = "reboot-loop";

/// Has a test kernel wait for its order as an attacker does.
const ORDERED: &str = "order=typed";

/// Where the attackers run, and the policies that both then have.
const PLACES: &[(Cores, &[Policy])] =
    &[(Cores::Next, &[Policy::Eli, Policy::Direct]), (Cores::First, &[Policy::Eli])];

/// Runs in which the IOMMU's interrupt must arrive by this protection, while guests' devices do
/// their worst. In all others it goes to core 0, and may or may not come.
const CRITICAL: &[(&str, Protection, &str)] = &[
    ("hostile/devices-direct", Protection::Elsewhere, "reported by elsewhere"),
    ("hostile/devices-eli", Protection::Nmi, "reported by nmi"),
    ("hostile/devices-shared-eli", Protection::Limit, "reported by limit"),
];

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (cores, policies) in PLACES {
        for (policy, (name, attackers)) in
            policies.iter().flat_map(|p| RUNS.iter().map(move |r| (*p, r)))
        {
            let shared = if *cores == Cores::First { "shared-" } else { "" };
            let name = format!("hostile/{name}-{shared}{}", policy.label());
            let mut case = attacked(name, policy, *cores, attackers);
            if let Some((_, protection, told)) = CRITICAL.iter().find(|(run, ..)| case.name == *run)
            {
                case.host.iommu_faults = *protection;
                case.log.push(told);
            }
            if *cores != Cores::Next && attackers.is_empty() {
                // With nobody else there the core would be Linux's own.
                case.guests.push(sleeper(policy, *cores));
            }
            cases.push(case);
        }
    }
    cases.push(random(Policy::Eli));
    let hypervisors = nesting::ATTACKERS.map(|test| nesting::attacker(test, [0, 1]));
    cases.push(beside("nesting", Policy::Direct, hypervisors));
    let unit = |(one, device)| units::attacker(one, device, Policy::Eli);
    cases.push(beside("units", Policy::Eli, units::ATTACKERS.into_iter().zip(0..).map(unit)));
    cases.extend(disks::all(attacker));
    cases.extend(networks::all(attacker));
    cases
}

/// Linux and these attackers, each of them on cores of its own or on Linux's.
fn attacked(name: String, policy: Policy, cores: Cores, attackers: &[&'static str]) -> Case {
    let mut guests = vec![linux(policy)];
    guests.extend((0..).zip(attackers).map(|(i, names)| attacker(names, policy, cores, i)));
    let sidecores = usize::from(guests.iter().any(|guest| !guest.disks.is_empty()));
    Case { guests, sidecores, audited: true, machine: Special::Attacked, ..case(name, false, []) }
}

/// Streams of operations that nobody thought of, the same in each run.
const STREAMS: [&str; 3] = [
    "random=0x5EED0001 count=6000",
    "random=0x5EED0002 count=6000",
    "random=0x5EED0003 count=6000",
];

/// The first seed of attackers that aren't told theirs. By 0x5EED0004 `svm-hostile` comes to random
/// code of which QEMU 10.0.2 itself ends, by a general protection fault in its translator.
const SEEDS: u64 = 0x5EED_0104;

fn random(policy: Policy) -> Case {
    let attackers = ["", "", ""];
    let name = format!("hostile/random-{}", policy.label());
    let mut case = attacked(name, policy, Cores::Next, &attackers);
    for (guest, stream) in case.guests.iter_mut().skip(1).zip(STREAMS) {
        guest.options = stream;
        guest.says = vec!["random over operations=6000"];
    }
    case
}

/// Linux, and test kernels that attack, each by what a seed says.
fn beside(what: &str, policy: Policy, attackers: impl IntoIterator<Item = Guest>) -> Case {
    let name = format!("hostile/{what}-{}", policy.label());
    let mut case = attacked(name, policy, Cores::Next, &[]);
    case.guests.extend(attackers.into_iter().zip(SEEDS..).map(|(guest, seed)| seeded(guest, seed)));
    case
}

/// One of these: it begins when Linux is at work.
fn seeded(guest: Guest, seed: u64) -> Guest {
    Guest { stream: Some(seed), options: ORDERED, ..guest }
}

fn linux(policy: Policy) -> Guest {
    Guest {
        tests: "",
        variant: Variant::Victim,
        devices: vec![DeviceName::Named { class: Class::Nvme, index: 0 }],
        end: Expected::PowerOff,
        says: Vec::new(),
        counts: Vec::new(),
        ..guest("hello", policy)
    }
}

/// The attacker that goes through these subjects, with the edu device of this index.
fn attacker(subjects: &'static str, policy: Policy, cores: Cores, index: u8) -> Guest {
    let last = attacks::chosen(subjects).flat_map(|s| s.attacks).last();
    Guest {
        tests: subjects,
        cpus: attacks::chosen(subjects).map(|s| s.cpus).max().unwrap_or(1),
        cores,
        variant: Variant::Hostile,
        devices: [(Class::Edu, index), (Class::Nvme, index + 1)]
            .map(|(class, index)| DeviceName::Named { class, index })
            .into(),
        disks: disks::of(subjects),
        restarts: disks::restarts(subjects),
        options: if subjects == UNORDERED { "order=none" } else { "" },
        end: match last.map(|a| a.ends) {
            Some(Ends::Stopped(why)) => Expected::Fault(why),
            Some(Ends::Never | Ends::Resets) => Expected::Never,
            _ => Expected::Passed,
        },
        says: Vec::new(),
        counts: Vec::new(),
        ..guest("hello", policy)
    }
}

/// The same with the first devices and nobody else there: it goes on from the first moment.
pub fn unordered(subjects: &'static str, policy: Policy) -> Guest {
    let attacker = attacker(subjects, policy, Cores::Next, 0);
    let devices = vec![edu(0), nvme(0)];
    Guest { devices, options: "order=none", ..attacker }
}

/// The attacker with nothing to attack: it waits for an order that doesn't come, and looks for it
/// some times a second.
fn sleeper(policy: Policy, cores: Cores) -> Guest {
    let devices = Vec::new();
    Guest { devices, end: Expected::Never, ..attacker("", policy, cores, 0) }
}

/// Whether a VM is a [`sleeper`].
fn sleeps(guest: &Guest) -> bool {
    guest.tests.is_empty() && guest.end == Expected::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_core_has_several_vcpus_in_each_run() {
        for case in all().iter().filter(|c| c.name.contains("-shared-")) {
            assert!(case.guests.iter().any(|g| g.cores == Cores::First), "{}", case.name);
        }
    }

    #[test]
    fn every_attack_is_in_a_run() {
        for subject in attacks::SUBJECTS {
            let runs = |names: &&str| names.split(',').any(|n| n == subject.name);
            let lists = RUNS.iter().flat_map(|(_, attackers)| *attackers);
            let lists =
                lists.chain(disks::ATTACKERS).chain(disks::PACKED).chain(networks::ATTACKERS);
            let lists = lists.chain(&bochs::ATTACKERS).chain(&bochs::SHARED);
            assert!(lists.into_iter().any(runs), "{}", subject.name);
        }
    }

    #[test]
    fn every_subject_is_in_the_table_of_defences() {
        let text = include_str!("../../../../docs/security.md");
        for subject in attacks::SUBJECTS {
            assert!(text.contains(&format!("`{}`", subject.name)), "{}", subject.name);
        }
    }

    #[test]
    fn every_subject_of_a_run_exists_and_what_ends_a_vm_comes_last() {
        let lists = RUNS.iter().flat_map(|(_, attackers)| *attackers);
        let lists = lists.chain(disks::ATTACKERS).chain(disks::PACKED).chain(networks::ATTACKERS);
        for names in lists.chain(&bochs::ATTACKERS).chain(&bochs::SHARED) {
            let subjects: Vec<_> = attacks::chosen(names).collect();
            assert_eq!(subjects.len(), names.split(',').count(), "{names}");
            let attacks: Vec<_> = subjects.iter().flat_map(|s| s.attacks).collect();
            let first = attacks.iter().position(|a| a.ends != Ends::Contained);
            assert!(first.is_none_or(|i| i + 1 == attacks.len()), "{names}");
        }
    }
}
