//! A round of a soak: Linux at work, an attacker with a list of subjects, a random guest, and in
//! some rounds a fourth VM: a hypervisor that attacks by guests of its own, or a guest that attacks
//! by an IOMMU of its own.
//!
//! Everything about it follows from a seed and its number, so that one alone can be run again.

use super::{RUNS, attacked, attacker_judge, complaints, disks, seeded, victim::Verified};
use crate::selftest::case::{Case, Cores, Expected, Guest, Outcome};
use crate::selftest::kernel::Variant;
use crate::selftest::{nesting, units};
use attacks::Ends;
use plan::{GuestIommu, Policy};
use proto::End;

/// Where the guests of a round run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Each vCPU on a core of its own, under this policy.
    Own(Policy),
    /// All vCPUs on one core, under `eli`.
    One,
}

/// In turn.
const PLACES: [Place; 4] =
    [Place::One, Place::Own(Policy::Direct), Place::One, Place::Own(Policy::Eli)];

impl Place {
    /// For tables.
    pub fn label(self) -> &'static str {
        match self {
            Place::Own(Policy::Direct) => "own cores, direct",
            Place::Own(_) => "own cores, eli",
            Place::One => "one core, eli",
        }
    }
}

/// The fourth VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fourth {
    /// A hypervisor that goes through this test.
    Hypervisor(&'static str),
    /// A guest that goes through this test of its own IOMMU.
    Unit(&'static str, GuestIommu),
}

impl Fourth {
    /// Its test.
    pub fn test(self) -> &'static str {
        match self {
            Fourth::Hypervisor(test) | Fourth::Unit(test, _) => test,
        }
    }

    /// The others have the first test devices.
    fn guest(self, policy: Policy) -> Guest {
        match self {
            Fourth::Hypervisor(test) => nesting::attacker(test, [2, 3]),
            Fourth::Unit(test, iommu) => units::attacker((test, iommu), 2, policy),
        }
    }
}

/// A round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// Where.
    pub place: Place,
    /// The attacker's subjects.
    pub subjects: &'static str,
    /// The fourth VM, where there is one.
    pub fourth: Option<Fourth>,
    /// The random guest's seed, and that of the fourth.
    pub stream: u64,
}

impl Mixed {
    /// The one of this number, from 1.
    pub fn new(seed: u64, number: u64) -> Mixed {
        let runs = RUNS.iter().flat_map(|(_, attackers)| *attackers);
        let lists: Vec<_> = runs.chain(disks::ATTACKERS).collect();
        // Another seed begins elsewhere in the list, so that short soaks come to all of it, too.
        let subjects = lists[(mix(seed, 0).wrapping_add(number) % lists.len() as u64) as usize];
        let (turns, turn) = (number / PLACES.len() as u64, number % PLACES.len() as u64);
        let place = PLACES[turn as usize];
        let turned = |of: usize| (turns % of as u64) as usize;
        let fourth = match place {
            Place::One => None,
            Place::Own(Policy::Direct) => {
                Some(Fourth::Hypervisor(nesting::ATTACKERS[turned(nesting::ATTACKERS.len())]))
            }
            Place::Own(_) => {
                let (test, iommu) = units::ATTACKERS[turned(units::ATTACKERS.len())];
                Some(Fourth::Unit(test, iommu))
            }
        };
        Mixed { place, subjects, fourth, stream: mix(seed, number) }
    }

    /// What is run and what must come of it.
    pub fn case(&self) -> Case {
        let (policy, cores) = match self.place {
            Place::Own(policy) => (policy, Cores::Next),
            Place::One => (Policy::Eli, Cores::One),
        };
        let mut case = attacked("soak".to_owned(), policy, cores, &[self.subjects, ""]);
        if let Some(random) = case.guests.last_mut() {
            random.stream = Some(self.stream);
            random.end = Expected::Anyhow;
        }
        // The others have the first test devices.
        case.guests.extend(self.fourth.map(|fourth| seeded(fourth.guest(policy), self.stream)));
        case
    }
}

/// A number from two (splitmix64), never the 0 from which no stream begins.
fn mix(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ x >> 31).max(1)
}

/// What there is to count of rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub rounds: u64,
    /// Attacks that began.
    pub attacks: u64,
    /// Of these, those that ended as the table says: without effect, with the attacker stopped, or
    /// not at all while nobody else noticed; resets must have been some by then.
    pub contained: u64,
    /// What the random guests tried, as far as they came to say so.
    pub operations: u64,
    /// The faults they took.
    pub faults: u64,
    /// Random guests that were stopped for what they did.
    pub stopped: u64,
    /// Times that hypervisors ran guests of theirs and had them back.
    pub vmruns: u64,
    /// Linux's rounds of verified I/O.
    pub verified: u64,
    /// The longest time between two of Linux's heartbeats, in microseconds.
    pub gap: u64,
    /// Of that, how long the machine stood still, in microseconds.
    pub pause: u64,
    /// Linux's exits while it was at work.
    pub exits: u64,
    /// The host's looks at all that confines the guests.
    pub passes: u64,
    /// What it found there that must not be.
    pub findings: u64,
    /// What was lost, a sentence each.
    pub lost: Vec<String>,
}

impl Tally {
    /// Of one round.
    pub fn new(case: &Case, outcome: &Outcome) -> Tally {
        let mut tally = Tally { rounds: 1, lost: complaints(case, outcome), ..Tally::default() };
        (tally.passes, tally.findings) =
            (outcome.report.audit.passes, outcome.report.audit.findings);
        if let Some(Ok(verified)) = outcome.consoles.first().map(|c| Verified::read(c)) {
            tally.verified = verified.rounds;
            tally.gap = verified.gap;
            tally.pause = outcome.report.paused(verified.gap_tsc.0, verified.gap_tsc.1);
            tally.exits = verified.exits.iter().sum();
        }
        for ((guest, vm), console) in
            case.guests.iter().zip(&outcome.report.vms).zip(&outcome.consoles).skip(1)
        {
            tally.attacks(guest, vm.end.as_ref(), console);
            if guest.variant != Variant::Hostile {
                tally.vmruns += console.lines().filter_map(vmruns).sum::<u64>();
            } else if guest.stream.is_some() {
                let last = console.lines().rev().find(|l| l.starts_with("random ")).unwrap_or("");
                tally.operations += number(last, "operations");
                tally.faults += number(last, "faults");
                tally.stopped += u64::from(matches!(vm.end, Some(End::Fault(_))));
            }
        }
        tally
    }

    fn attacks(&mut self, guest: &Guest, end: Option<&End>, console: &str) {
        for subject in attacks::chosen(guest.tests) {
            for attack in subject.attacks {
                let name = format!("{}/{}", subject.name, attack.name);
                let says = |text: &str| console.lines().any(|l| l.trim().starts_with(text));
                let begun = attacker_judge::begun(&name, console);
                if begun == 0 || attacker_judge::skipped(&name, console) {
                    continue;
                }
                self.attacks += 1;
                self.contained += u64::from(match attack.ends {
                    Ends::Contained => says(&format!("ok {name}: ")),
                    Ends::Stopped(_) => matches!(end, Some(End::Fault(_))),
                    Ends::Never | Ends::Resets => end.is_none() && begun >= attack.begins(),
                });
            }
        }
    }

    /// With more rounds.
    pub fn add(&mut self, more: &Tally) {
        let Tally { rounds, attacks, contained, operations, faults, .. } = *more;
        self.rounds += rounds;
        self.attacks += attacks;
        self.contained += contained;
        self.operations += operations;
        self.faults += faults;
        self.stopped += more.stopped;
        self.vmruns += more.vmruns;
        self.verified += more.verified;
        (self.gap, self.pause) = (self.gap, self.pause).max((more.gap, more.pause));
        self.exits += more.exits;
        self.passes += more.passes;
        self.findings += more.findings;
        self.lost.extend(more.lost.iter().cloned());
    }
}

/// What a hypervisor's line says of them.
fn vmruns(line: &str) -> Option<u64> {
    line.strip_suffix(" times VMRUN came back")?.rsplit(' ').next()?.parse().ok()
}

/// The value of `key=value` in a line, 0 without one.
fn number(line: &str, key: &str) -> u64 {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.filter(|(k, _)| *k == key).find_map(|(_, n)| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use exitless::report::{Audit, Report};
    use proto::Record;
    use std::collections::HashSet;

    #[test]
    fn every_list_of_attacks_comes_to_every_place() {
        let runs = RUNS.iter().map(|(_, attackers)| attackers.len()).sum::<usize>();
        let lists = runs + disks::ATTACKERS.len();
        let rounds = (1..=(lists * PLACES.len()) as u64).map(|n| Mixed::new(7, n));
        let seen: HashSet<_> = rounds.map(|m| (m.place.label(), m.subjects)).collect();
        assert_eq!(seen.len(), lists * 3);
    }

    #[test]
    fn a_seed_gives_the_same_again_and_another_something_else() {
        assert_eq!(Mixed::new(5, 3), Mixed::new(5, 3));
        let streams: HashSet<_> = (1..100).map(|n| Mixed::new(5, n).stream).collect();
        assert_eq!(streams.len(), 99);
        assert_ne!(Mixed::new(5, 3).stream, Mixed::new(6, 3).stream);
        assert_ne!(mix(0, 0), 0);
    }

    #[test]
    fn the_guests_are_where_the_place_says() {
        for number in 1..=4 {
            let mixed = Mixed::new(1, number);
            let case = mixed.case();
            assert_eq!(mixed.fourth.is_some(), mixed.place != Place::One);
            let fourth: Vec<_> = case.guests[3..].iter().map(|g| g.tests).collect();
            assert_eq!(fourth, mixed.fourth.map(Fourth::test).as_slice());
            assert!(case.guests[2..].iter().all(|g| g.stream == Some(mixed.stream)));
            let shared = mixed.place == Place::One;
            assert!(case.guests[1..].iter().all(|g| (g.cores == Cores::One) == shared));
        }
    }

    /// A round whose consoles say this, and whose attackers ended so.
    fn tally(subjects: &'static str, consoles: [&str; 3], ends: [Option<End>; 2]) -> Tally {
        let case = Mixed { place: Place::One, subjects, fourth: None, stream: 9 };
        let case = case.case();
        let mut report = Report::new(["first", "second", "third"]);
        for (vm, end) in (1..).zip(ends) {
            end.into_iter().for_each(|end| report.see(&Record::Ended { vm, end }));
        }
        let consoles = consoles.map(str::to_owned).into();
        Tally::new(&case, &Outcome { consoles, ..Outcome::silent(report) })
    }

    #[test]
    fn attacks_count_when_they_began_and_are_contained_when_they_ended_as_the_table_says() {
        let contained = "attack exits/cpuid\nok exits/cpuid: 5 of 5\nattack exits/msr\n";
        let one = tally("exits", ["", contained, ""], [None, None]);
        assert_eq!((one.attacks, one.contained), (2, 1));
        let skipped = "attack exits/cpuid\nskipped exits/cpuid\n";
        let one = tally("exits", ["", skipped, ""], [None, None]);
        assert_eq!((one.attacks, one.contained), (0, 0), "nothing was attacked");
        let fault = || Some(End::Fault("triple fault".into()));
        let begun = "attack triple-fault/now\r\n";
        let one = |end| tally("triple-fault", ["", begun, ""], [end, None]);
        assert_eq!((one(fault()).attacks, one(fault()).contained, one(None).contained), (1, 1, 0));
        let begun = "attack off-for-ever/now\r\n";
        let one = |end| tally("off-for-ever", ["", begun, ""], [end, None]);
        assert_eq!((one(None).contained, one(fault()).contained), (1, 0));
    }

    #[test]
    fn a_loop_of_resets_must_go_round() {
        let rounds = |n| "attack reboot-loop/now\r\nreboot\r\n".repeat(n);
        let one = |n| tally("reboot-loop", ["", &rounds(n), ""], [None, None]);
        let (hung, loops) = (one(attacks::RESETS), one(attacks::RESETS + 1));
        assert_eq!((hung.attacks, hung.contained), (1, 0), "it hangs after its last reset");
        assert_eq!((loops.attacks, loops.contained), (1, 1));
        let short = |t: &Tally| t.lost.iter().any(|l| l.contains("began"));
        assert_eq!((short(&hung), short(&loops)), (true, false));
    }

    #[test]
    fn a_hypervisor_counts_what_came_back_and_each_fourth_vm_comes_in_time() {
        let said = "ok svm-hostile: 6000 times VMRUN came back\nok svm-hostile: in each way\n\
                    FAIL svm-hostile: 7 times VMRUN came back\n";
        assert_eq!(said.lines().filter_map(vmruns).sum::<u64>(), 6007);
        let all: HashSet<_> =
            (1..=12).filter_map(|n| Mixed::new(3, n).fourth).map(Fourth::test).collect();
        let units = units::ATTACKERS.map(|(test, _)| test);
        assert_eq!(all, nesting::ATTACKERS.into_iter().chain(units).collect());
    }

    #[test]
    fn the_random_guest_counts_by_its_last_line() {
        let said = "random seed=0x9 count=5\nrandom tried operations=512 faults=9 in=3\n\
                    random tried operations=1024 faults=20 in=7\n";
        let one = tally("exits", ["", "", said], [None, Some(End::Fault("x".into()))]);
        assert_eq!((one.operations, one.faults, one.stopped), (1024, 20, 1));
    }

    #[test]
    fn sums_have_everything_and_the_longest_gap() {
        let one = Tally {
            rounds: 1,
            attacks: 2,
            contained: 3,
            operations: 4,
            faults: 5,
            stopped: 6,
            vmruns: 11,
            verified: 7,
            gap: 8,
            pause: 7,
            exits: 9,
            passes: 10,
            findings: 11,
            lost: vec!["x".into()],
        };
        let mut sum = one.clone();
        sum.add(&Tally { gap: 3, pause: 9, ..one.clone() });
        let Tally { rounds, attacks, contained, operations, faults, .. } = sum;
        assert_eq!([rounds, attacks, contained, operations, faults], [2, 4, 6, 8, 10]);
        assert_eq!(sum.vmruns, 22);
        assert_eq!((sum.stopped, sum.verified, sum.gap, sum.pause, sum.exits), (12, 14, 8, 7, 18));
        assert_eq!((sum.passes, sum.findings), (20, 22));
        assert_eq!(sum.lost.len(), 2);
    }

    #[test]
    fn a_round_in_which_the_host_didnt_look_or_found_something_is_a_loss() {
        let case = Mixed::new(1, 1).case();
        let lost = |audit| {
            let mut report = Report::new(["first", "second", "third"]);
            report.audit = audit;
            let tally = Tally::new(&case, &Outcome::silent(report));
            tally.lost.iter().filter(|l| l.starts_with("the host ")).count()
        };
        assert_eq!(lost(Audit { passes: 1, interrupts: 1, findings: 0 }), 0);
        assert_eq!(lost(Audit { passes: 0, interrupts: 1, findings: 0 }), 1);
        assert_eq!(lost(Audit { passes: 1, interrupts: 1, findings: 1 }), 1);
    }

    #[test]
    fn a_victim_that_says_nothing_is_a_loss() {
        assert!(!tally("exits", [""; 3], [None, None]).lost.is_empty());
    }
}
