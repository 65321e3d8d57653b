//! What must come of the victim beside attackers: its data whole, its heartbeat in time, and no
//! exits but those that it explains.

use super::victim::{self, Verified};
use crate::selftest::case::{Guest, Outcome};
use ledger::Reason;
use plan::{Choice, Policy, Protection};

/// The longest time that Linux's heartbeat, which comes a hundred times a second, may stand still,
/// in microseconds, beyond what the machine itself did meanwhile: the emulator stops all of its
/// CPUs for what one of them does, and on a busy machine for seconds, which the host's own core
/// sees, too. Less would be a statement about that machine; the tight bound is the one on exits
/// ([`share`]).
const LONGEST_GAP: u64 = 1_000_000;

/// What Linux says once when its timer interrupt took some milliseconds: another's time slice fell
/// into it, which is what sharing a core means, or the machine that the emulator runs on did
/// something else meanwhile. How long its heartbeat stands still is judged all the same.
const LATE: &str = "hrtimer: interrupt took ";

/// Bytes that the [`Conductor`](super::Conductor) types on its console.
const TYPED: u64 = 1;

/// What Linux's core has besides Linux.
#[derive(Clone, Copy)]
pub struct Core {
    /// Other vCPUs.
    pub shares: bool,
    /// The IOMMU's interrupt, unless it goes elsewhere; at most a hundred a second.
    pub faults: Protection,
}

impl Core {
    /// Linux's exits that have no cause which we know of, a sentence for each kind.
    fn unexplained(self, policy: impl Into<Choice>, verified: &Verified) -> Vec<String> {
        let policy = policy.into();
        share(verified, |reason| {
            let own = match self.shares {
                true => shared_core(reason, verified),
                false => own_core(policy, reason, verified),
            };
            let told = match (self.faults, reason) {
                (Protection::Nmi, Reason::Kick) | (Protection::Limit, Reason::HostInterrupt) => {
                    verified.time / 10_000_000 + 1
                }
                _ => 0,
            };
            own.saturating_add(told)
        })
    }
}

/// What is wrong with the victim, a sentence each.
pub fn victim(
    guest: &Guest,
    core: Core,
    console: &str,
    outcome: &Outcome,
    wrong: &mut Vec<String>,
) {
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
    if let Some(block) = victim::damaged(&outcome.disk, verified.rounds) {
        wrong.push(format!("block {block} of its disk isn't what it wrote"));
    }
    let (gap, paused) =
        (verified.gap, outcome.report.paused(verified.gap_tsc.0, verified.gap_tsc.1));
    if gap > LONGEST_GAP + paused {
        let most = LONGEST_GAP;
        wrong.push(format!(
            "its heartbeat stood still for {gap} us, the machine in them for {paused}, and {most} more are allowed"
        ));
    }
    wrong.extend(core.unexplained(guest.policy, &verified));
}

/// Its exits have causes of its own, reason by reason: what it asked the host for itself, the byte
/// that was typed at the end, and of its disk's interrupts the few that ELI may let through the
/// host. That is what it has without an attacker, whatever the machine's speed.
fn own_core(policy: Choice, reason: Reason, verified: &Verified) -> u64 {
    let own = |reason| verified.of(reason);
    match (policy, reason) {
        (_, Reason::Kick) => TYPED,
        (_, Reason::ConsoleIo) => u64::MAX,
        (Some(Policy::Direct), _) => 0,
        (_, Reason::DeviceInterrupt | Reason::DeviceEoi) => verified.device / 20,
        (_, Reason::TimerProgram) => u64::MAX,
        // One that it set without an exit comes by the host if it falls due while an interrupt of
        // the console's is given to it.
        (_, Reason::TimerInterrupt | Reason::TimerEoi) => {
            own(Reason::TimerProgram) + own(Reason::OtherEoi)
        }
        (_, Reason::OtherEoi) => own(Reason::ConsoleIo),
        _ => 0,
    }
}

/// The same where it shares its core. Its disk's interrupts come while others have the core, too;
/// it sleeps at most once for each interrupt that it has; and what it must bear of the others is
/// that for each time slice one of theirs begins, one of their interrupts comes, and core 0 looks
/// once after the core.
fn shared_core(reason: Reason, verified: &Verified) -> u64 {
    let own = |reason| verified.of(reason);
    let slices = verified.time / (1000 * u64::from(plan::DEFAULT_SLICE)) + 1;
    match reason {
        Reason::ConsoleIo | Reason::TimerProgram => u64::MAX,
        // A timer that it set without an exit comes by the host if it falls due while the core is
        // another's: since it halted, or since its time slice was over.
        Reason::TimerInterrupt | Reason::TimerEoi => {
            own(Reason::TimerProgram) + own(Reason::Halt) + slices
        }
        Reason::OtherEoi => own(Reason::ConsoleIo),
        Reason::DeviceInterrupt | Reason::DeviceEoi => verified.device,
        Reason::Halt => verified.device + verified.ticks + own(Reason::ConsoleIo),
        Reason::SliceEnd | Reason::OtherVcpu => slices,
        Reason::Kick => slices + TYPED,
        _ => 0,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use exitless::report::Report;
    use proto::Record;

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

    const OWN: Core = Core { shares: false, faults: Protection::Elsewhere };
    const SHARED: Core = Core { shares: true, ..OWN };

    #[test]
    fn a_complaint_is_harm_but_for_anothers_slice_on_a_shared_core() {
        let case = super::super::all().into_iter().find(|c| c.name == "hostile/nobody-eli");
        let guest = &case.unwrap().guests[0];
        let complain = |shares, console: &str| {
            let core = Core { shares, faults: Protection::Elsewhere };
            let mut wrong = Vec::new();
            let silent = Outcome::silent(Report::default());
            victim(guest, core, console, &silent, &mut wrong);
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
    fn a_heartbeat_may_stand_still_with_the_machine_and_a_second_more() {
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
            victim(guest, SHARED, &console, &outcome, &mut wrong);
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
        let with = |more| OWN.unexplained(Policy::Eli, &verified(&[&own[..], &[more]].concat()));
        assert_eq!(with((DeviceInterrupt, 5)), [""; 0]);
        for more in [(DeviceInterrupt, 6), (TimerInterrupt, 100), (Kick, 2), (NestedPageFault, 1)] {
            assert_eq!(with(more).len(), 1, "{more:?}");
        }
        let direct = |exits: &[_]| OWN.unexplained(Policy::Direct, &verified(exits));
        assert_eq!(direct(&[(ConsoleIo, 50), (Kick, 1)]), [""; 0]);
        assert_eq!(direct(&own).len(), 3);
    }

    #[test]
    fn on_a_shared_core_it_bears_an_exit_of_each_kind_in_a_slice() {
        use Reason::*;
        let slice = 1000 * u64::from(plan::DEFAULT_SLICE);
        let in_slices = |more| Verified { time: 9 * slice, ..verified(&[more]) };
        let with = |more| SHARED.unexplained(Policy::Eli, &in_slices(more)).len();
        for most in [(SliceEnd, 10), (OtherVcpu, 10), (Kick, 11), (DeviceEoi, 100), (Halt, 200)] {
            assert_eq!(with(most), 0, "{most:?}");
            assert_eq!(with((most.0, most.1 + 1)), 1, "{most:?}");
        }
        assert_eq!(with((NestedPageFault, 1)), 1);
        // And one in ten milliseconds for the IOMMU's interrupt, if its core gets that.
        for (faults, reason, more) in
            [(Protection::Nmi, Kick, 11), (Protection::Limit, HostInterrupt, 0)]
        {
            let told = |n| {
                Core { faults, ..SHARED }.unexplained(Policy::Eli, &in_slices((reason, n))).len()
            };
            assert_eq!((told(more + 5), told(more + 6)), (0, 1), "{reason:?}");
            assert_eq!(with((reason, more + 1)), 1, "{reason:?}");
        }
    }
}
