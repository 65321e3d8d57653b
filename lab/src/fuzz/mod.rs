//! `exitless fuzz`: the targets of `fuzz/`, each for a while, as many at once as the machine has
//! cores.
//!
//! Guarantees: when it returns, no target runs any more, however it came to that; what was learnt
//! is kept below the build directory and used by the next run; the table has each target that was
//! asked for, and status 0 means that each ran its time and found nothing.

mod archive;
mod corpus;
mod target;

use anyhow::{Context as _, Result, bail};
use exitless::{
    arguments::between,
    context::Context,
    needs,
    output::Output,
    report::status,
    say::{print, say},
    table::{Table, thousands},
};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    fs,
    io::{IsTerminal, Write, stderr},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};
use target::{Outcome, Running};

/// How often the targets are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How much of cargo's messages is shown when a build fails.
const SHOWN_LINES: usize = 60;

const EXAMPLES: &str = "\
Examples:
  exitless fuzz                          every target for a minute
  exitless fuzz --seconds 600 pci walk   two of them for ten minutes each
  exitless fuzz --json fuzz.json         the table for programs
  exitless fuzz --keep pci               what it learnt goes into the checkout

A target is a file in fuzz/fuzz_targets; fuzz/README.md says what each is fed and what must
hold. What is found is kept as a file, and the command that runs it again is shown.";

/// Thirty days; libFuzzer counts them in 32 bits with a sign.
const MOST_SECONDS: u32 = 30 * 24 * 3600;

/// Feed every parser and state machine with what nobody thought of.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = exitless::help::flow(EXAMPLES))]
pub struct Args {
    /// The targets; all of them unless some are named
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value = "60", value_parser = between(1, MOST_SECONDS))]
    seconds: u32,
    /// Write the outcome as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Save the smallest corpus with the same coverage in fuzz/corpus
    #[arg(long)]
    keep: bool,
}

/// Runs the targets, shows the table.
pub fn fuzz(args: &Args, cx: &Context) -> Result<ExitCode> {
    let known = targets(cx)?;
    if let Some(unknown) = args.targets.iter().find(|t| !known.contains(t)) {
        bail!("`{unknown}` is no fuzz target; there are: {}", known.join(", "));
    }
    let output = args.json.as_deref().map(Output::claim).transpose()?;
    needs::install(cx, "fuzz", || missing(cx))?;
    let chosen = if args.targets.is_empty() { &known } else { &args.targets };
    let outcomes = run(cx, chosen, args.seconds.into())?;
    print(table(&outcomes))?;
    if let Some(output) = output {
        output.write_json(&json(args.seconds.into(), &outcomes))?;
    }
    if args.keep {
        corpus::keep(cx, chosen)?;
    }
    let found = outcomes.iter().any(|o| o.found.is_some());
    Ok(ExitCode::from(if found { status::FAILED } else { status::OK }))
}

/// What is missing on this machine, in a sentence.
pub fn missing(cx: &Context) -> Option<&'static str> {
    let there = |mut command: Command| {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    let mut fuzz = cx.cargo();
    fuzz.args(["fuzz", "--version"]);
    let mut compiler = Command::new("c++");
    compiler.arg("--version");
    if !there(fuzz) {
        Some("cargo-fuzz is missing; install it with: cargo install cargo-fuzz --locked")
    } else if !there(compiler) {
        Some("a C++ compiler (c++) is missing, and libFuzzer is built with it; install g++")
    } else {
        None
    }
}

/// The names of the targets, in order.
pub fn targets(cx: &Context) -> Result<Vec<String>> {
    let folder = cx.root.join("fuzz/fuzz_targets");
    let files = fs::read_dir(&folder)
        .with_context(|| format!("{} can't be read", folder.display()))?
        .collect::<Result<Vec<_>, _>>()?;
    let paths = files.iter().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let mut names: Vec<_> =
        paths.filter_map(|p| Some(p.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Builds the targets and runs these, as many at once as there are cores.
pub fn run(cx: &Context, names: &[String], seconds: u64) -> Result<Vec<Outcome>> {
    build(cx)?;
    let slots = thread::available_parallelism().map_or(1, |n| n.get());
    let mut waiting: VecDeque<_> = names.iter().collect();
    let (mut running, mut outcomes) = (Vec::new(), Vec::new());
    let mut line = Progress::default();
    while !(waiting.is_empty() && running.is_empty()) {
        if cx.interrupted() {
            line.clear();
            bail!("stopped");
        }
        while running.len() < slots
            && let Some(name) = waiting.pop_front()
        {
            running.push(Running::start(cx, name, seconds)?);
        }
        thread::sleep(TICK);
        let mut still = Vec::new();
        for mut target in running {
            match target.ended()? {
                None => still.push(target),
                Some(outcome) => {
                    line.clear();
                    if let Some(found) = &outcome.found {
                        say(format_args!("exitless: {}: {}", outcome.name, found.what));
                        say(format_args!("  again with: {}", found.again));
                    }
                    outcomes.push(outcome);
                }
            }
        }
        running = still;
        line.show(outcomes.len(), names.len(), &running);
    }
    line.clear();
    outcomes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(outcomes)
}

/// What builds the targets.
pub fn build_command(cx: &Context) -> Command {
    let mut cargo = cx.cargo();
    // Safe Rust leaves nothing for a sanitizer to find, and without one the stable toolchain will
    // do.
    cargo.args(["fuzz", "build", "--sanitizer", "none", "--target-dir"]);
    cargo.arg(target::folder(cx)).current_dir(cx.root.join("fuzz"));
    cargo
}

fn build(cx: &Context) -> Result<()> {
    say("exitless: building the fuzz targets");
    let built =
        build_command(cx).stdin(Stdio::null()).output().context("cargo can't be started")?;
    if cx.interrupted() {
        bail!("stopped");
    }
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(say);
        bail!("the fuzz targets can't be built; cargo's messages above say why");
    }
    Ok(())
}

/// The line on the terminal that says how far it is; nothing elsewhere.
#[derive(Default)]
struct Progress {
    shown: Option<Instant>,
}

impl Progress {
    fn show(&mut self, done: usize, all: usize, running: &[Running]) {
        let fresh = self.shown.is_some_and(|at| at.elapsed() < Duration::from_secs(1));
        if fresh || running.is_empty() || !stderr().is_terminal() {
            return;
        }
        let now: Vec<_> =
            running.iter().map(|t| format!("{} {} s", t.name(), t.elapsed().as_secs())).collect();
        // Fails when nobody looks.
        let _ = write!(stderr(), "\r\x1b[Kfuzzing, {done} of {all} done: {}", now.join(", "));
        self.shown = Some(Instant::now());
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// The table, and a line that says it in short.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new(["target", "executions", "edges", "inputs", ""]);
    for o in outcomes {
        let verdict = if o.found.is_none() { "ok" } else { "FOUND" };
        let numbers = [o.executions, o.edges, o.inputs].map(thousands);
        let [executions, edges, inputs] = numbers;
        table.row([o.name.clone(), executions, edges, inputs, verdict.to_owned()]);
    }
    let all: u64 = outcomes.iter().map(|o| o.executions).sum();
    let found = match outcomes.iter().filter(|o| o.found.is_some()).count() {
        0 => "nothing found".to_owned(),
        n => format!("something found in {n}"),
    };
    let all = thousands(all);
    format!("{table}{all} executions of {} targets, {found}\n", outcomes.len())
}

fn json(seconds: u64, outcomes: &[Outcome]) -> Value {
    let each = |o: &Outcome| {
        let found = o.found.as_ref().map(|f| json!({ "what": f.what, "again": f.again }));
        json!({ "name": o.name, "executions": o.executions, "edges": o.edges,
                "inputs": o.inputs, "seconds": o.seconds, "found": found })
    };
    json!({ "seconds_each": seconds, "targets": outcomes.iter().map(each).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use target::Found;

    #[test]
    fn every_target_is_built_and_documented() {
        let cx = Context::for_tests();
        let names = targets(&cx).unwrap();
        let read = |file: &str| fs::read_to_string(cx.root.join("fuzz").join(file)).unwrap();
        let (manifest, readme) = (read("Cargo.toml"), read("README.md"));
        assert!(names.len() > 20);
        for name in &names {
            assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}: no [[bin]]");
            assert!(readme.contains(&format!("| `{name}` |")), "{name}: not in README.md");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), names.len());
    }

    #[test]
    fn the_seconds_are_as_many_as_libfuzzer_counts() {
        let parse = exitless::arguments::of_line::<Args>;
        assert_eq!(parse("--seconds 2592000").unwrap().seconds, 2_592_000);
        for wrong in ["0", "2592001", "99999999999"] {
            let error = parse(&format!("--seconds {wrong}")).unwrap_err();
            assert!(error.contains("give a whole number from 1 to 2592000"), "{error}");
        }
    }

    #[test]
    fn the_corpus_stays_small() {
        let cx = Context::for_tests();
        let (names, mut sum) = (targets(&cx).unwrap(), 0);
        for file in fs::read_dir(cx.root.join("fuzz/corpus")).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            let of = names.iter().find(|n| file.path() == archive::path(&cx, n));
            assert!(of.is_some(), "{name} is no target's archive");
            let inputs = archive::unpack(&file.path()).unwrap();
            assert!(!inputs.is_empty(), "{name} is empty");
            sum += inputs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        }
        assert!((1..1 << 20).contains(&sum), "{sum} bytes");
    }

    #[test]
    fn what_was_found_is_told() {
        let good =
            Outcome { name: "pci".into(), executions: 1_000, edges: 7, ..Outcome::default() };
        let found = Found { what: "panicked".into(), again: "run it".into() };
        let bad = Outcome { name: "walk".into(), found: Some(found), ..Outcome::default() };
        let text = table(&[good.clone(), bad.clone()]);
        assert!(text.ends_with("1,000 executions of 2 targets, something found in 1\n"), "{text}");
        assert!(table(std::slice::from_ref(&good)).ends_with(", nothing found\n"));
        let json = json(60, &[good, bad]);
        assert_eq!(json["targets"][0]["found"], Value::Null);
        assert_eq!(json["targets"][1]["found"]["again"], "run it");
    }
}
