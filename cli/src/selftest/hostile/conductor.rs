//! Who begins and who ends: the attackers are let loose when Linux is at work, and Linux is told to
//! end when they are over, or in the midst of an attack that never ends, some rounds later.

use crate::{
    report::{Report, VmReport},
    selftest::case::{Case, Expected, Guest},
    session::Wishes,
};
use std::ops::ControlFlow;

/// Rounds of verified I/O before the attackers begin, and after the last of them is over or, where one
/// never ends, has begun.
const ROUNDS: usize = 5;
/// What Linux says of each.
const ROUND: &str = "@exitless round ";

/// Leads a run.
#[derive(Default)]
pub struct Conductor {
    begun: bool,
    /// Linux's rounds when the attackers were over.
    over: Option<usize>,
    told: bool,
}

impl Conductor {
    /// Looks at what was said and reported so far; breaks when only those are left that never end.
    pub fn lead(
        &mut self,
        case: &Case,
        consoles: &[Vec<u8>],
        report: &Report,
        wishes: &Wishes,
    ) -> ControlFlow<()> {
        let rounds = consoles.first().map_or(0, |c| count(c, ROUND));
        if !self.begun {
            let ready = |c: &Vec<u8>| count(c, "ready\n") > 0 || count(c, "ready\r\n") > 0;
            self.begun = rounds >= ROUNDS && consoles.iter().skip(1).all(ready);
            if self.begun {
                (1..consoles.len()).for_each(|vm| wishes.type_to(vm, "!"));
            }
            return ControlFlow::Continue(());
        }
        let all = || case.guests.iter().zip(&report.vms).zip(consoles);
        if self.over.is_none() && all().skip(1).all(|((g, vm), c)| is_over(g, vm, c)) {
            self.over = Some(rounds);
        }
        if !self.told && self.over.is_some_and(|over| rounds >= over + ROUNDS) {
            self.told = true;
            wishes.type_to(0, "\n");
        }
        let ended =
            |((g, vm), _): ((&Guest, &VmReport), _)| g.end == Expected::Never || vm.end.is_some();
        let endless = case.guests.iter().any(|g| g.end == Expected::Never);
        if endless && all().all(ended) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn is_over(guest: &Guest, vm: &VmReport, console: &[u8]) -> bool {
    if guest.end != Expected::Never {
        return vm.end.is_some();
    }
    let place = attacks::chosen(guest.tests).last();
    let Some((place, attack)) = place.and_then(|s| Some((s, s.attacks.last()?))) else {
        return true;
    };
    count(console, &format!("attack {}/{}", place.name, attack.name)) > 0
}

fn count(console: &[u8], text: &str) -> usize {
    console.windows(text.len()).filter(|part| *part == text.as_bytes()).count()
}
