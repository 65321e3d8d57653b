//! The experiments: what a load costs on the bare emulated machine and in a VM,
//! counted (`docs/figures.md` says how), as a table and as JSON rows.

mod experiment;
mod figures;
mod guest;
mod lines;
mod plugin_check;
mod progress;
mod render;
mod rows;

use crate::context::Context;
use anyhow::{Context as _, Result, bail};
use experiment::{DEMO, FULL, Policy, QUICK, Request, Results};
use guest::Kit;
use progress::Step;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Run an experiment and show what it measured.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Experiment {
    /// 4 KiB random reads from an assigned NVMe controller, by a Debian kernel.
    Fio(FioArgs),
}

#[derive(clap::Args, Clone, Debug)]
struct FioArgs {
    /// What the guest runs on
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bare,trap,eli,direct")]
    policy: Vec<Policy>,
    /// fio's queue depths
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Vec<u32>,
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shorter windows: half the time, wider spread
    #[arg(long)]
    quick: bool,
    /// Boots of the guest for each policy and depth
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
}

/// Bare metal and three kinds of VM side by side: the main experiment, explained.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs an experiment.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let Experiment::Fio(args) = &args.experiment;
    let request = Request {
        policies: without_repeats(&args.policy),
        depths: without_repeats(&args.depth),
        size: if args.quick { QUICK } else { FULL },
        repeat: args.repeat,
    };
    let kit = prepare(cx)?;
    let results = experiment::run(cx, &kit, &request)?;
    show(&results);
    finish(&results, args.json.as_deref())
}

/// The main job: says what it does, measures, shows the table and what follows from it.
pub fn demo(args: &DemoArgs, cx: &Context) -> Result<()> {
    println!(
        "An unmodified Debian kernel runs fio on an NVMe controller: on the bare emulated machine (bare), in a\n\
         VM whose interrupts are trapped (trap), in a VM with exitless interrupts (eli), and in a VM that owns\n\
         its core's interrupt controller, the timer included (direct). Everything is counted.\n"
    );
    println!("1 of 3: the hypervisor and the guest");
    cx.hypervisor()?;
    let kit = prepare(cx)?;
    println!("  {}", kit.versions);
    println!("2 of 3: eight runs, some 15 to 40 seconds each");
    let request =
        Request { policies: Policy::ALL.to_vec(), depths: vec![1, 32], size: DEMO, repeat: 1 };
    let results = experiment::run(cx, &kit, &request)?;
    println!("3 of 3: what was counted\n");
    show(&results);
    let conclusions = render::conclusions(&results);
    if !conclusions.is_empty() {
        println!();
    }
    for sentence in conclusions {
        println!("{}", render::wrap(&sentence));
    }
    finish(&results, args.json.as_deref())
}

/// A short run: the plugin must count to the instruction, the guest must drive its disk
/// by interrupts under every policy, and the ledger must agree with the plugin.
pub fn smoke(cx: &Context) -> Result<()> {
    let kit = prepare(cx)?;
    let request =
        Request { policies: Policy::ALL.to_vec(), depths: vec![1], size: QUICK, repeat: 1 };
    let results = experiment::run(cx, &kit, &request)?;
    finish(&results, None)
}

/// The guest, and a plugin that is known to count right on this emulator.
fn prepare(cx: &Context) -> Result<Kit> {
    let kit = Kit::make(cx)?;
    let step = Step::begin("counting plugin against a program of known length".into());
    let checked = plugin_check::run(cx, &kit);
    step.end(if checked.is_ok() { "exact" } else { "failed" });
    checked.map(|()| kit)
}

fn without_repeats<T: Copy + PartialEq>(items: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(*item);
        }
    }
    kept
}

fn show(results: &Results) {
    if results.cells.is_empty() {
        return;
    }
    println!("\n{}", render::table(results));
    println!("{}", render::legend());
    for note in render::notes(results) {
        println!("  {note}");
    }
}

/// Writes the rows, and fails when a cell failed or can't be trusted.
fn finish(results: &Results, json: Option<&Path>) -> Result<()> {
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&rows::rows(results))?;
        fs::write(path, text + "\n")
            .with_context(|| format!("{} can't be written", path.display()))?;
    }
    for failure in &results.failures {
        eprintln!("exitless: {failure}");
    }
    let void = results.cells.iter().filter(|c| c.figures.counters_agree() == Some(false)).count();
    match (results.failures.len(), void) {
        (0, 0) => Ok(()),
        (0, n) => bail!(
            "the ledger and the plugin disagree about guest entries in {n} of {} runs",
            results.cells.len()
        ),
        (n, _) => bail!("{n} of {} runs failed", results.cells.len() + n),
    }
}
