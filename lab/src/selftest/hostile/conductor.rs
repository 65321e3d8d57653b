//! Who begins and who ends: the attackers are let loose when Linux is at work, and Linux is told to
//! end when they are over, or in the midst of an attack that never ends, some rounds later.

use super::{ORDERED, sleeps};
use crate::selftest::case::{Case, Expected, Guest};
use crate::selftest::kernel::Variant;
use attacks::Attack;
use exitless::{
    report::{Report, VmReport},
    session::Commands,
};
use std::ops::ControlFlow;

/// Rounds of verified I/O before the attackers begin, and after the last of them is over or, where
/// one never ends, has begun.
const ROUNDS: usize = 5;
/// What Linux says of each.
const ROUND: &str = "@exitless round ";

/// Leads a run.
#[derive(Default)]
pub struct Conductor {
    /// What was seen of each console.
    seen: Vec<Seen>,
    begun: bool,
    /// Linux's rounds when the attackers were over.
    over: Option<usize>,
    told: bool,
    asked: bool,
}

/// What was seen of a console so far.
#[derive(Clone, Default)]
struct Seen {
    /// Bytes that were looked at.
    bytes: usize,
    /// Rounds of Linux's.
    rounds: usize,
    /// The attacker waits for its order.
    ready: bool,
    /// How often the last of its attacks has begun.
    last: usize,
}

impl Seen {
    /// Looks at the lines that are new.
    fn look(&mut self, guest: &Guest, console: &[u8]) {
        let new = &console[self.bytes..];
        let Some(end) = new.iter().rposition(|b| *b == b'\n') else { return };
        self.bytes += end + 1;
        let last = attacks::chosen(guest.tests).last().and_then(|s| Some((s, s.attacks.last()?)));
        let last = last.map(|(s, attack)| format!("attack {}/{}", s.name, attack.name));
        for line in String::from_utf8_lossy(&new[..end]).lines().map(str::trim) {
            self.rounds += usize::from(line.starts_with(ROUND));
            self.ready |= line == "ready";
            self.last += usize::from(Some(line) == last.as_deref());
        }
    }
}

impl Conductor {
    /// Looks at what was said and reported so far; breaks when only those are left that never end,
    /// and `live` has their counters.
    pub fn lead(
        &mut self,
        case: &Case,
        consoles: &[Vec<u8>],
        report: &Report,
        live: &Report,
        commands: &Commands,
    ) -> ControlFlow<()> {
        self.seen.resize(consoles.len(), Seen::default());
        for ((seen, guest), console) in self.seen.iter_mut().zip(&case.guests).zip(consoles) {
            seen.look(guest, console);
        }
        let rounds = self.seen.first().map_or(0, |s| s.rounds);
        let attackers = || self.seen.iter().zip(&case.guests).zip(&report.vms).skip(1);
        if !self.begun {
            let waits = |((s, g), _): ((&Seen, &Guest), &VmReport)| s.ready || !is_ordered(g);
            if rounds >= ROUNDS && attackers().all(waits) {
                let all = (1..).zip(case.guests.iter().skip(1));
                let hear = |g: &Guest| match g.variant {
                    Variant::Hostile => !sleeps(g),
                    _ => is_ordered(g),
                };
                all.filter(|(_, g)| hear(g)).for_each(|(vm, _)| commands.type_to(vm, "!"));
                self.begun = true;
            }
            return ControlFlow::Continue(());
        }
        let over = |((seen, guest), vm): ((&Seen, &Guest), &VmReport)| match guest.end {
            Expected::Never => seen.last >= begins(guest),
            Expected::Anyhow => true,
            _ => vm.end.is_some(),
        };
        if self.over.is_none() && attackers().all(over) {
            self.over = Some(rounds);
        }
        if !self.told && self.over.is_some_and(|over| rounds >= over + ROUNDS) {
            self.told = true;
            commands.type_to(0, "\n");
        }
        let mut all = case.guests.iter().zip(&report.vms);
        let others_ended = all.all(|(g, vm)| g.is_endless() || vm.end.is_some());
        if !case.guests.iter().any(Guest::is_endless) || !others_ended {
            return ControlFlow::Continue(());
        }
        // Their counters are reported when they end, and so never: asked for now.
        if !self.asked {
            self.asked = true;
            commands.ask();
        }
        let counted =
            |(g, vm): (&Guest, &VmReport)| !g.is_endless() || vm.vcpus.len() >= g.cpus as usize;
        match case.guests.iter().zip(&live.vms).all(counted) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Whether it waits for an order.
fn is_ordered(guest: &Guest) -> bool {
    match guest.variant {
        Variant::Hostile => guest.options.is_empty(),
        _ => guest.options == ORDERED,
    }
}

/// How often its last attack begins before enough was seen of it.
fn begins(guest: &Guest) -> usize {
    let last = attacks::chosen(guest.tests).flat_map(|s| s.attacks).last();
    last.map_or(0, Attack::begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::hostile;
    use ledger::Counters;
    use proto::{End, Record};

    struct Run {
        case: Case,
        conductor: Conductor,
        consoles: Vec<Vec<u8>>,
        report: Report,
        live: Report,
        commands: Commands,
    }

    impl Run {
        fn of(name: &str) -> Run {
            Run::with(hostile::all().into_iter().find(|c| c.name == name).unwrap())
        }

        fn with(case: Case) -> Run {
            let names = ["first", "second", "third", "fourth"];
            let [report, live] =
                [(); 2].map(|()| Report::new(names.into_iter().take(case.guests.len())));
            let consoles = vec![Vec::new(); case.guests.len()];
            let (conductor, commands) = (Conductor::default(), Commands::default());
            Run { case, conductor, consoles, report, live, commands }
        }

        fn say(&mut self, vm: usize, text: &str) -> bool {
            self.consoles[vm].extend_from_slice(text.as_bytes());
            let Run { case, conductor, consoles, report, live, commands } = self;
            conductor.lead(case, consoles, report, live, commands).is_break()
        }

        /// The counters are asked for, and the run ends when they are there.
        fn counted(&mut self) -> bool {
            let early = self.say(0, "");
            let asked = self.commands.take_question();
            for vm in 1..self.consoles.len() as u32 {
                let counters = Counters::default();
                self.live.see(&Record::Counters { vm, vcpu: 0, counters, cycles: 0 });
            }
            !early && asked && self.say(0, "")
        }

        fn round(&mut self, times: usize) {
            (0..times).for_each(|_| assert!(!self.say(0, "@exitless round 1\r\n")));
        }

        fn end(&mut self, vm: u32) {
            self.report.see(&Record::Ended { vm, end: End::PowerOff });
        }

        fn typed(&self) -> Vec<(usize, &'static str)> {
            self.commands.typed()
        }
    }

    #[test]
    fn attackers_begin_when_all_are_ready_and_linux_ends_when_all_are_over() {
        let mut run = Run::of("hostile/interrupts-eli");
        (1..=3).for_each(|vm| assert!(!run.say(vm, "ready\r\n")));
        run.round(ROUNDS - 1);
        assert_eq!(run.typed(), []);
        run.round(1);
        assert_eq!(run.typed(), [(1, "!"), (2, "!"), (3, "!")]);
        run.end(1);
        run.end(2);
        run.round(3 * ROUNDS);
        assert_eq!(run.typed(), [], "the one that never ends hasn't begun");
        assert!(!run.say(3, "attack off-for-ever/no"));
        assert!(!run.say(3, "w\r\nattack off-for-ever/now\r\n"));
        run.round(ROUNDS - 1);
        assert_eq!(run.typed(), []);
        run.round(1);
        assert_eq!(run.typed(), [(0, "\n")]);
        run.end(0);
        assert!(run.counted(), "only the endless one is left");
    }

    #[test]
    fn a_loop_of_resets_has_gone_round_before_linux_ends() {
        let mut run = Run::of("hostile/registers-direct");
        (1..=2).for_each(|vm| assert!(!run.say(vm, "ready\n")));
        run.round(ROUNDS);
        run.end(1);
        run.end(2);
        run.typed();
        for _ in 0..=attacks::RESETS {
            run.round(2 * ROUNDS);
            assert_eq!(run.typed(), []);
            assert!(!run.say(3, "attack reboot-loop/now\r\nreboot\r\n"));
        }
        run.round(ROUNDS);
        assert_eq!(run.typed(), [(0, "\n")]);
    }

    #[test]
    fn one_that_only_sleeps_is_left_alone() {
        let mut run = Run::of("hostile/nobody-shared-eli");
        run.round(2 * ROUNDS);
        assert!(!run.say(1, "ready\n"));
        run.round(ROUNDS);
        assert_eq!(run.typed(), []);
        run.round(ROUNDS);
        assert_eq!(run.typed(), [(0, "\n")]);
        run.end(0);
        assert!(run.counted());
    }

    #[test]
    fn a_run_whose_attackers_all_end_ends_by_itself() {
        let mut run = Run::of("hostile/exits-eli");
        (1..=3).for_each(|vm| assert!(!run.say(vm, "ready\n")));
        run.round(ROUNDS);
        (0..=3).for_each(|vm| run.end(vm));
        assert!(!run.say(0, "\n"));
    }
    #[test]
    fn a_hypervisor_gets_its_order_and_nobody_waits_for_a_random_guest_to_end() {
        let round = hostile::Mixed { subjects: "exits", ..hostile::Mixed::new(1, 1) };
        let mut run = Run::with(round.case());
        (1..=2).for_each(|vm| assert!(!run.say(vm, "ready\n")));
        run.round(ROUNDS);
        assert_eq!(run.typed(), [], "the hypervisor isn't ready");
        assert!(!run.say(3, "ready\n"));
        run.round(1);
        assert_eq!(run.typed(), [(1, "!"), (2, "!"), (3, "!")]);
        run.end(1);
        run.round(ROUNDS + 1);
        assert_eq!(run.typed(), [], "the hypervisor is at it");
        run.end(3);
        run.round(ROUNDS + 1);
        assert_eq!(run.typed(), [(0, "\n")]);
        run.end(0);
        assert!(run.counted());
    }
}
