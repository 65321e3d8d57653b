//! `exitless soak`: attackers, random guests and Linux at work together, round after round, on
//! cores of their own and all on one, for as long as is asked.
//!
//! Guarantees: status 0 means that at least one round ran to its end and nothing was lost in any;
//! each round that lost something is shown whole, with the command that runs it again. It doesn't
//! stop at a loss. What must come of a round says the self test's judge
//! ([`crate::selftest::hostile`]).

use crate::selftest::{
    self,
    hostile::{Fourth, Mixed, Tally},
    kernel::{self, Variant},
    run,
};
use anyhow::{Context as _, Result};
use exitless::{
    arguments::between,
    context::Context,
    output::Output,
    report::status,
    say::{print, say},
    table::{Table, thousands},
};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

const EXAMPLES: &str = "\
Examples:
  exitless soak --minutes 60                 an hour
  exitless soak --seed 0x5EED --json s.json  the same rounds again, as JSON
  exitless soak --seed 0x5EED --round 7      one round again

A round is one run of the emulated machine with three VMs or four: Linux that writes to its disk, reads back
and compares, while its heartbeat comes a hundred times a second; an attacker that goes through a list of
attacks (docs/security.md); and a guest that tries privileged operations at random. They have cores of
their own under direct, share one under eli, have their own under eli, share one again, and so on. Under
direct there is a fourth VM: a hypervisor that runs guests of its own by random control blocks, tables and code,
or does anything to the interrupts that devices post to them. Where they have cores of their own under eli
it is a guest that attacks by an IOMMU of its own: virtio's, VT-d or AMD-Vi.

Lost is what Linux noticed: an error of its I/O, a heartbeat that stood still, a complaint in its log; what
the host warned of, or found wrong with the tables that confine the guests, which it looks over all the
while (and must have, once a round at least); a VM that ended otherwise than it should; an attack that isn't in the ledger. It
must be nothing. The exit status is 1 otherwise.";

/// A year.
const MOST_MINUTES: u32 = 365 * 24 * 60;

/// Attack Linux at work for minutes or hours; see that nothing is lost.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = exitless::help::flow(EXAMPLES))]
pub struct Args {
    /// For how long rounds begin; the last one is brought to its end
    #[arg(long, value_name = "N", default_value = "10", value_parser = between(1, MOST_MINUTES), conflicts_with = "round")]
    minutes: u32,
    /// What the random guests' streams are made from, decimal or 0x…; the clock unless given
    #[arg(long, value_name = "S", value_parser = seed)]
    seed: Option<u64>,
    /// This round alone
    #[arg(long, value_name = "R", value_parser = between(1, u32::MAX), requires = "seed")]
    round: Option<u32>,
    /// Write the outcome as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seed(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(&digits.replace('_', ""), 16),
        None => text.parse(),
    };
    number.map_err(|_| "a seed is a number below 2^64, decimal or hexadecimal with 0x".to_owned())
}

/// A round that was run.
struct Done {
    number: u64,
    mixed: Mixed,
    tally: Tally,
    seconds: f64,
}

/// Runs the rounds, shows the table.
pub fn soak(args: &Args, cx: &Context) -> Result<ExitCode> {
    let output = args.json.as_deref().map(Output::claim).transpose()?;
    let seed = args.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(1, |t| t.as_nanos() as u64)
    });
    let kernel = kernel::build(cx, |v| matches!(v, Variant::Hostile | Variant::Victim))?;
    cx.hypervisor()?;
    say(format_args!("exitless: soak with --seed {seed:#x}"));
    let time = Duration::from_secs(u64::from(args.minutes) * 60);
    let first = args.round.map_or(1, u64::from);
    let (mut done, start) = (Vec::<Done>::new(), Instant::now());
    for number in first.. {
        let over = if args.round.is_some() { number > first } else { start.elapsed() >= time };
        if over {
            break;
        }
        let (mixed, began) = (Mixed::new(seed, number), Instant::now());
        let case = mixed.case();
        let outcome = run::run(&case, &kernel, cx).with_context(|| format!("round {number}"))?;
        if cx.interrupted() {
            break;
        }
        let tally = Tally::new(&case, &outcome);
        let round = Done { number, mixed, tally, seconds: began.elapsed().as_secs_f64() };
        print(line(&round))?;
        if !round.tally.lost.is_empty() {
            selftest::explain(&round.tally.lost, Some(&outcome));
            print(format_args!("      again with: {}\n", again(seed, number)))?;
        }
        done.push(round);
    }
    let sum = sum(&done);
    print(table(seed, &done, &sum))?;
    if let Some(output) = output {
        output.write_json(&json(seed, &done, &sum))?;
    }
    Ok(ExitCode::from(verdict(&sum, cx.interrupted())))
}

/// The exit status: a loss counts for more than that somebody stopped it.
fn verdict(sum: &Tally, interrupted: bool) -> u8 {
    match (sum.lost.is_empty(), interrupted) {
        (false, _) => status::FAILED,
        (true, true) => status::INTERRUPTED,
        (true, false) if sum.rounds == 0 => status::FAILED,
        (true, false) => status::OK,
    }
}

fn sum(done: &[Done]) -> Tally {
    let mut sum = Tally::default();
    done.iter().for_each(|d| sum.add(&d.tally));
    sum
}

fn again(seed: u64, number: u64) -> String {
    format!("./exitless soak --seed {seed:#x} --round {number}")
}

/// The line for a round.
fn line(done: &Done) -> String {
    let Done { number, mixed, tally, seconds } = done;
    let fourth = mixed.fourth.map_or(String::new(), |vm| format!(" {:17}", vm.test()));
    let word = if tally.lost.is_empty() { "ok" } else { "LOST" };
    format!(
        "{word:5} round {number:<3} {:18} {:24}{fourth} random {:#018x}: {} of {} attacks contained, {} operations, \
         {} rounds verified, gap {} ms of which the machine {} ms, {} audits, {seconds:.1} s\n",
        mixed.place.label(),
        mixed.subjects,
        mixed.stream,
        tally.contained,
        tally.attacks,
        thousands(tally.operations),
        tally.verified,
        tally.gap / 1000,
        tally.pause / 1000,
        tally.passes,
    )
}

/// The table, and a line that says it in short.
fn table(seed: u64, done: &[Done], sum: &Tally) -> String {
    let mut table = Table::new(["", "number"]);
    let [gap, pause] = [sum.gap, sum.pause].map(|us| format!("{} ms", thousands(us / 1000)));
    for (what, number) in [
        ("rounds", thousands(sum.rounds)),
        ("attacks tried", thousands(sum.attacks)),
        ("of these contained", thousands(sum.contained)),
        ("guest operations tried at random", thousands(sum.operations)),
        ("faults they raised in their guest", thousands(sum.faults)),
        ("random guests that were stopped", thousands(sum.stopped)),
        ("guests of guests that came back", thousands(sum.vmruns)),
        ("honest rounds verified", thousands(sum.verified)),
        ("longest heartbeat gap", gap),
        ("of which the machine stood still", pause),
        ("exits of the honest guest", thousands(sum.exits)),
        ("the host's passes over all tables", thousands(sum.passes)),
        ("found wrong there", thousands(sum.findings)),
        ("lost", thousands(sum.lost.len() as u64)),
    ] {
        table.row([what.to_owned(), number]);
    }
    let mut text = table.to_string();
    for bad in done.iter().filter(|d| !d.tally.lost.is_empty()) {
        text.push_str(&format!("lost in round {}: {}\n", bad.number, again(seed, bad.number)));
    }
    let verdict = match (sum.rounds, sum.lost.len()) {
        (0, _) => "no round came to its end".to_owned(),
        (n, 0) => format!("nothing lost in {n} rounds with --seed {seed:#x}"),
        (n, lost) => format!("{lost} losses in {n} rounds with --seed {seed:#x}"),
    };
    text + &verdict + "\n"
}

fn json(seed: u64, done: &[Done], sum: &Tally) -> Value {
    let counts = |t: &Tally| {
        json!({ "rounds": t.rounds, "attacks": t.attacks, "contained": t.contained,
                "operations": t.operations, "faults": t.faults, "stopped": t.stopped, "vmruns": t.vmruns,
                "verified": t.verified, "gap_us": t.gap, "machine_pause_us": t.pause, "exits": t.exits,
                "audit_passes": t.passes, "audit_findings": t.findings, "lost": t.lost })
    };
    let each = |d: &Done| {
        let (hypervisor, iommu) = match d.mixed.fourth {
            Some(Fourth::Hypervisor(test)) => (Some(test), None),
            Some(Fourth::Unit(test, _)) => (None, Some(test)),
            None => (None, None),
        };
        json!({ "round": d.number, "place": d.mixed.place.label(), "subjects": d.mixed.subjects,
                "hypervisor": hypervisor, "iommu": iommu, "stream": format!("{:#x}", d.mixed.stream), "seconds": d.seconds,
                "again": again(seed, d.number), "counts": counts(&d.tally) })
    };
    json!({ "seed": format!("{seed:#x}"), "all": counts(sum),
            "rounds": done.iter().map(each).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use exitless::arguments::of_line;

    fn parse(line: &str) -> Result<Args, String> {
        of_line(line.strip_prefix("soak").expect("its name comes first"))
    }

    fn done(number: u64, lost: &[&str]) -> Done {
        let lost = lost.iter().map(|l| (*l).to_owned()).collect();
        let tally = Tally { rounds: 1, attacks: 4, contained: 4, lost, ..Tally::default() };
        Done { number, mixed: Mixed::new(5, number), tally, seconds: 1.0 }
    }

    #[test]
    fn seeds_are_decimal_or_hexadecimal() {
        assert_eq!(parse("soak --seed 10").unwrap().seed, Some(10));
        assert_eq!(parse("soak --seed 0x5EED").unwrap().seed, Some(0x5EED));
        for bad in ["0y1", "-1", "0x", "18446744073709551616"] {
            assert!(parse(&format!("soak --seed={bad}")).unwrap_err().contains("2^64"), "{bad}");
        }
    }

    #[test]
    fn a_round_needs_its_seed_and_is_alone() {
        assert!(parse("soak --round 3").is_err());
        assert!(parse("soak --seed 1 --round 3 --minutes 4").is_err());
        for wrong in ["0", "525601", "1000000000000000"] {
            let error = parse(&format!("soak --minutes {wrong}")).unwrap_err();
            assert!(error.contains("give a whole number from 1 to 525600"), "{error}");
        }
        for wrong in ["0", "18446744073709551615"] {
            assert!(parse(&format!("soak --seed 1 --round {wrong}")).is_err(), "{wrong}");
        }
        let command = again(0x5EED, 7);
        let args = parse(command.strip_prefix("./exitless ").unwrap()).unwrap();
        assert_eq!((args.seed, args.round), (Some(0x5EED), Some(7)));
    }

    #[test]
    fn a_loss_is_the_verdict_and_names_its_round() {
        let all = [done(1, &[]), done(2, &["a", "b"])];
        let sum = sum(&all);
        assert_eq!(verdict(&sum, false), status::FAILED);
        assert_eq!(verdict(&sum, true), status::FAILED);
        let text = table(5, &all, &sum);
        assert!(text.contains("./exitless soak --seed 0x5 --round 2\n"), "{text}");
        assert!(!text.contains("--round 1\n"));
        assert!(text.ends_with("2 losses in 2 rounds with --seed 0x5\n"), "{text}");
        assert!(line(&all[0]).starts_with("ok ") && line(&all[1]).starts_with("LOST "));
        assert_eq!(json(5, &all, &sum)["rounds"][1]["counts"]["lost"][0], "a");
    }

    #[test]
    fn without_a_loss_there_must_still_be_a_round() {
        let one = sum(&[done(1, &[])]);
        assert_eq!(verdict(&one, false), status::OK);
        assert_eq!(verdict(&one, true), status::INTERRUPTED);
        assert_eq!(verdict(&Tally::default(), false), status::FAILED);
        assert!(table(5, &[], &Tally::default()).contains("no round"));
    }
}
