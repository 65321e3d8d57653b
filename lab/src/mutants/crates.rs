//! Changes to the crates: made by cargo-mutants in a copy, judged by the crate's own tests.
//!
//! Guarantees: the same seed chooses the same changes as long as their lines stay; a change counts
//! as making no difference only if the kept list says why; tests must pass without any change.

use super::{
    args::Args,
    copy::Copy,
    equivalent::{self, Equivalent},
    results::{Results, Verdict, hashed},
    tool::{self, Change, Outcome},
};
use crate::{document, selftest::named};
use anyhow::{Result, bail};
use exitless::{context::Context, needs, say::print, table::Table};
use std::{fs, process::ExitCode, time::Instant};

/// Of those that a test can notice, so many in a hundred must be noticed, in each crate.
const GOAL: usize = 95;
/// The changes that make no difference.
const EQUIVALENT: &str = "lab/mutants/crates/equivalent.toml";
/// What became of a change, as it is kept.
const CAUGHT: &str = "its tests";
const UNVIABLE: &str = "it can't be built";

/// Runs those of the chosen crates; status 0 if enough were caught in each.
pub fn run(args: &Args, cx: &Context) -> Result<ExitCode> {
    let crates = crates(args, cx)?;
    needs::install(cx, "mutants", || tool::missing(cx))?;
    let equivalent = equivalent::read(&cx.root.join(EQUIVALENT))?;
    let copy = Copy::make(cx, "crates")?;
    let results = Results::open(&cx.target.join("mutants/crates.jsonl"), args.again)?;
    let mut runner = Runner { cx, args, copy, results, equivalent };
    let mut table = Table::new(Counts::HEADINGS);
    let (mut sum, mut enough) = (Counts::default(), true);
    for package in crates {
        let start = Instant::now();
        let (counts, missed) = runner.judge(&package)?;
        let seconds = start.elapsed().as_secs();
        let text = counts.cells(&package).join("  ");
        print(format_args!("{text}  {seconds} s\n"))?;
        missed.iter().try_for_each(|m| print(format_args!("  missed  {m}\n")))?;
        enough &= counts.enough();
        sum.add(&counts);
        table.row(counts.cells(&package));
    }
    table.row(sum.cells("all"));
    print(format_args!("\n{table}"))?;
    if args.write {
        let what = match args.sample {
            Some(n) => format!("`--sample {n} --seed {}`", args.seed),
            None => "All of them".into(),
        };
        document::write(
            &cx.root,
            "docs/mutants.md",
            "crates",
            &format!("{what}:\n\n```\n{table}```\n"),
        )?;
    }
    Ok(if enough || args.list { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The names of the crates that are asked for.
fn crates(args: &Args, cx: &Context) -> Result<Vec<String>> {
    let folders = fs::read_dir(cx.root.join("crates"))?;
    let names = folders.map(|f| Ok(f?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.retain(|name| args.only.as_ref().is_none_or(|text| named(name, text)));
    names.sort();
    if names.is_empty() {
        bail!("no crate has \"{}\" in its name", args.only.as_deref().unwrap_or(""));
    }
    Ok(names)
}

struct Runner<'a> {
    cx: &'a Context,
    args: &'a Args,
    copy: Copy,
    results: Results,
    equivalent: Vec<Equivalent>,
}

impl Runner<'_> {
    /// What became of a crate's changes, and those that were missed.
    fn judge(&mut self, package: &str) -> Result<(Counts, Vec<String>)> {
        let all = tool::changes(&self.copy, package)?;
        self.look_for_stale(package, &all)?;
        let mut counts = Counts { there: all.len(), ..Counts::default() };
        let mut chosen = choose(&all, self.args);
        counts.chosen = chosen.len();
        if self.args.list {
            return Ok((counts, Vec::new()));
        }
        chosen.retain(|change| !self.equivalent.iter().any(|e| e.is(change)));
        counts.equivalent = counts.chosen - chosen.len();
        chosen.retain(|change| self.known(change).is_none_or(|known| known == Outcome::Missed));
        if !chosen.is_empty() {
            self.run(package, &all, &chosen)?;
        }
        let mut missed = Vec::new();
        for change in choose(&all, self.args) {
            match self.known(change) {
                _ if self.equivalent.iter().any(|e| e.is(change)) => {}
                Some(Outcome::Caught) => counts.caught += 1,
                Some(Outcome::Unviable) => counts.unviable += 1,
                _ => missed.push(change.identity()),
            }
        }
        counts.missed = missed.len();
        Ok((counts, missed))
    }

    /// An equivalent change that isn't there any more hides nothing, but says what isn't so.
    fn look_for_stale(&self, package: &str, all: &[Change]) -> Result<()> {
        let mut own = self.equivalent.iter().filter(|e| e.package() == package);
        match own.find_map(|e| e.stale(all)) {
            Some(name) => bail!("{EQUIVALENT} has a change that isn't possible: {name}"),
            None => Ok(()),
        }
    }

    fn known(&self, change: &Change) -> Option<Outcome> {
        match self.results.get(&change.identity(), hashed(&change.diff))? {
            Verdict::Caught(_) => Some(Outcome::Caught),
            Verdict::Stale(_) => Some(Outcome::Unviable),
            _ => Some(Outcome::Missed),
        }
    }

    fn run(&mut self, package: &str, all: &[Change], chosen: &[&Change]) -> Result<()> {
        for (change, outcome) in tool::run(self.cx, &self.copy, package, all, chosen)? {
            let verdict = match outcome {
                Outcome::Caught => Verdict::Caught(CAUGHT.into()),
                Outcome::Missed => Verdict::Missed,
                Outcome::Unviable => Verdict::Stale(UNVIABLE.into()),
            };
            self.results.put(&change.identity(), hashed(&change.diff), verdict)?;
        }
        if self.cx.interrupted() {
            bail!("stopped; the same command goes on with {package}");
        }
        Ok(())
    }
}

/// Those of a sample, or all.
fn choose<'a>(all: &'a [Change], args: &Args) -> Vec<&'a Change> {
    let mut chosen: Vec<_> = all.iter().collect();
    if let Some(sample) = args.sample {
        chosen.sort_by_cached_key(|change| hashed((args.seed, change.identity())));
        chosen.truncate(sample);
    }
    chosen
}

/// How many of a crate's changes came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    there: usize,
    chosen: usize,
    unviable: usize,
    equivalent: usize,
    caught: usize,
    missed: usize,
}

impl Counts {
    const HEADINGS: [&str; 8] =
        ["crate", "changes", "tried", "no program", "equivalent", "caught", "missed", "of 100"];

    fn add(&mut self, other: &Counts) {
        self.there += other.there;
        self.chosen += other.chosen;
        self.unviable += other.unviable;
        self.equivalent += other.equivalent;
        self.caught += other.caught;
        self.missed += other.missed;
    }

    /// Whether enough of those that a test can notice were caught.
    fn enough(&self) -> bool {
        self.caught * 100 >= GOAL * (self.caught + self.missed)
    }

    fn cells(&self, name: &str) -> [String; 8] {
        let judged = self.caught + self.missed;
        let share = match judged {
            0 => "–".into(),
            _ => format!("{:.1}", 100.0 * self.caught as f64 / judged as f64),
        };
        let numbers = [self.there, self.chosen, self.unviable, self.equivalent];
        let [there, chosen, unviable, equivalent] = numbers.map(|n| n.to_string());
        let [caught, missed] = [self.caught, self.missed].map(|n| n.to_string());
        [name.into(), there, chosen, unviable, equivalent, caught, missed, share]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ninety_five_of_a_hundred_are_enough() {
        let counts = |caught, missed| Counts { caught, missed, ..Counts::default() };
        assert!(counts(95, 5).enough());
        assert!(!counts(94, 5).enough());
        assert!(counts(0, 0).enough());
        assert_eq!(counts(95, 5).cells("x")[7], "95.0");
        assert_eq!(counts(0, 0).cells("x")[7], "–");
    }

    #[test]
    fn the_list_of_those_that_make_no_difference_is_well_formed() {
        let cx = Context::for_tests();
        equivalent::read(&cx.root.join(EQUIVALENT)).unwrap();
    }
}
