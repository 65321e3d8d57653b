//! What must come of an attacker: it carried out each of its attacks, each ended as the table says,
//! and the ledger shows it, or the host's log.

use super::host_log::named;
use crate::selftest::case::{Cores, Expected, Guest};
use attacks::{Attack, Ends, Subject};
use ledger::{Counters, Reason};
use plan::Policy;
use std::collections::HashMap;

/// What is known of an attacker.
pub struct Tried<'a> {
    pub guest: &'a Guest,
    /// Those of its whole life.
    pub counters: Counters,
    pub console: &'a str,
    /// The host's.
    pub log: &'a [String],
}

/// What is wrong with the attacker, a sentence each.
pub fn attacker(tried: &Tried, wrong: &mut Vec<String>) {
    let Tried { guest, counters, console, .. } = tried;
    wrong.extend(console.lines().filter(|l| l.starts_with("FAIL")).map(str::to_owned));
    let mut sum = HashMap::<Reason, u64>::new();
    for subject in attacks::chosen(guest.tests) {
        for attack in subject.attacks {
            one(tried, subject, attack, &mut sum, wrong);
        }
    }
    if guest.end == Expected::Passed && !console.lines().any(|l| l.trim() == "attacks over") {
        wrong.push("it didn't come to the end of its attacks".to_owned());
    }
    for (reason, told) in sum {
        let n = counters.of(reason);
        if n < told {
            wrong.push(format!("{n} {} exits in the report, the VM saw {told}", reason.label()));
        }
    }
}

/// Whether the attacker said that there was nothing to attack.
pub fn skipped(name: &str, console: &str) -> bool {
    let line = format!("skipped {name}");
    console.lines().any(|l| l.trim() == line)
}

/// How often an attack began.
pub fn begun(name: &str, console: &str) -> usize {
    let line = format!("attack {name}");
    console.lines().filter(|l| l.trim() == line).count()
}

/// An attack was made, ended as the table says, and the ledger shows it, or the log.
fn one(
    tried: &Tried,
    subject: &Subject,
    attack: &Attack,
    sum: &mut HashMap<Reason, u64>,
    wrong: &mut Vec<String>,
) {
    let Tried { guest, counters, console, log } = tried;
    let name = format!("{}/{}", subject.name, attack.name);
    match begun(&name, console) {
        0 => return wrong.push(format!("{name} wasn't tried")),
        n if n < attack.begins() => {
            wrong.push(format!("{name} began {n} times, {} wanted", attack.begins()));
        }
        _ => {}
    }
    if skipped(&name, console) {
        // What wants a device, where there is none, is for other machines.
        if !guest.devices.is_empty() {
            wrong.push(format!("{name} wasn't played"));
        }
        return;
    }
    let taken = console.lines().find_map(|l| l.trim().strip_prefix(&format!("taken {name} ")));
    let taken = taken.and_then(|n| n.parse::<u64>().ok());
    // One that ends its VM can't say so.
    if attack.ends == Ends::Contained && taken.is_none_or(|n| n < attack.takes) {
        let least = attack.takes;
        wrong.push(format!("{name}: its handlers had {taken:?} interrupts, {least} wanted"));
    }
    if let Some(blocked) = attack.blocked
        && !log.iter().any(|l| named(l, guest, blocked))
    {
        let what = blocked.what;
        wrong.push(format!("{name}: the host doesn't tell of {what}by {:?}", blocked.device));
    }
    let contained = console.lines().any(|l| l.starts_with(&format!("ok {name}: ")));
    if contained != (attack.ends == Ends::Contained) {
        wrong.push(format!("{name} should end as {:?}", attack.ends));
    }
    let said = console.lines().find_map(|l| l.trim().strip_prefix(&format!("ledger {name}")));
    let in_window = said.map(exits);
    for shown in attack.shows {
        let least = match (guest.policy, guest.cores) {
            _ if guest.devices.is_empty() => shown.alone,
            (Some(Policy::Direct), _) => shown.direct,
            (_, Cores::First | Cores::One) => shown.shared,
            _ => shown.eli,
        };
        // What doesn't come back is the last thing that its VM does.
        let n = match &in_window {
            Some(exits) => exits.get(shown.reason.label()).copied().unwrap_or(0),
            None => counters.of(shown.reason),
        };
        if n < least || shown.exact && n > least {
            let (reason, exactly) =
                (shown.reason.label(), if shown.exact { "exactly " } else { "" });
            wrong
                .push(format!("{name}: {n} {reason} exits in the ledger, {exactly}{least} wanted"));
        }
    }
    for (label, n) in in_window.into_iter().flatten() {
        match Reason::ALL.iter().find(|r| r.label() == label) {
            Some(reason) => *sum.entry(*reason).or_default() += n,
            None => wrong.push(format!("{name}: no reason is called {label}")),
        }
    }
}

/// `reason=count` words.
fn exits(line: &str) -> HashMap<&str, u64> {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.filter_map(|(label, n)| Some((label, n.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_must_be_made_end_as_the_table_says_and_show() {
        let guest =
            super::super::attacker("exits", Policy::Eli, crate::selftest::case::Cores::Next, 0);
        let subject = attacks::chosen("exits").next().unwrap();
        let mut console = String::new();
        for attack in subject.attacks {
            let name = format!("exits/{}", attack.name);
            console += &format!("attack {name}\nledger {name}");
            attack
                .shows
                .iter()
                .for_each(|s| console += &format!(" {}={}", s.reason.label(), s.eli));
            console += &format!("\ntaken {name} {}\nok {name}: 5 of 5\n", attack.takes);
        }
        console += "attacks over\n";
        let judge = |exits: &[u64], console: &str| {
            let counters = Counters { exits: exits.to_vec(), ..Counters::default() };
            let mut wrong = Vec::new();
            attacker(&Tried { guest: &guest, counters, console, log: &[] }, &mut wrong);
            wrong
        };
        assert!(
            judge(&[], &console)[0].contains("in the report"),
            "the ledger knows nothing of it"
        );
        let exits = vec![u64::from(u32::MAX); Reason::COUNT];
        assert_eq!(judge(&exits, &console), [""; 0]);
        for (from, to) in [
            ("attack exits/cpuid", "attack exits/nothing"),
            ("ok exits/cpuid", "FAIL exits/cpuid"),
            ("cpuid=", "hypercall="),
            ("taken exits/cpuid", "taken exits/msr"),
            ("ok exits/cpuid", "skipped exits/cpuid\nok exits/cpuid"),
            ("attacks over", ""),
        ] {
            assert!(!judge(&exits, &console.replacen(from, to, 1)).is_empty(), "{from} → {to}");
        }
    }

    #[test]
    fn a_loop_of_resets_must_go_round_and_show() {
        let guest = super::super::attacker("reboot-loop", Policy::Eli, Cores::Next, 0);
        let judge = |begun, port_io| {
            let mut exits = vec![0; Reason::COUNT];
            exits[Reason::PortIo as usize] = port_io;
            let counters = Counters { exits, ..Counters::default() };
            let console = "attack reboot-loop/now\r\nreboot\r\n".repeat(begun);
            let mut wrong = Vec::new();
            attacker(&Tried { guest: &guest, counters, console: &console, log: &[] }, &mut wrong);
            wrong
        };
        let resets = attacks::RESETS;
        assert_eq!(judge(resets + 1, 12), [""; 0]);
        assert!(judge(resets, 9)[0].contains("began 3 times, 4 wanted"));
        assert_eq!(judge(resets + 1, 0).len(), 1);
        assert!(judge(0, 0)[0].contains("wasn't tried"));
    }
}
