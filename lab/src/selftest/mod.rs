//! The test kernels in the emulator: each delivery situation under each policy, what
//! hostile guests do, two VMs at once, and what is refused; Linux on each network controller and
//! beside attackers, and old and new kernels.
//!
//! Guarantees: one machine runs at a time; a case that fails shows why, with the
//! consoles and the log; a case that hangs is stopped and fails. The same kernel runs
//! on the bare machine too: what it asserts there is what guests must see.

pub mod case;
mod cases;
mod cost;
mod echo;
pub mod hostile;
mod judge;
pub mod kernel;
mod names;
mod network;
mod planted;
mod refusals;
pub mod run;
mod shared;
mod smp;
mod table;
mod timers;
mod topology;
mod trusting;
mod verdict;

use crate::summary::Summary;
use anyhow::{Result, bail};
use case::{Case, Outcome};
use exitless::context::Context;
pub use names::named;
use std::time::Instant;

/// Lines of the hypervisor's log shown after a failure.
const LOG_LINES: usize = 40;

/// Runs the cases: all, those that make up a quick test, or those whose name has
/// `only` in it ([`named`]). A case that fails doesn't stop the others.
pub fn run(cx: &Context, quick: bool, only: Option<&str>) -> Result<Summary> {
    let mut cases = cases::all();
    cases.extend(smp::all());
    cases.extend(network::all());
    cases.extend(timers::all());
    cases.extend(shared::all());
    cases.extend(refusals::all());
    cases.extend(topology::all());
    cases.extend(trusting::all());
    cases.extend(planted::all());
    cases.extend(hostile::all());
    let total = cases.len();
    let wanted = |c: &Case| match only {
        Some(text) => named(&c.name, text),
        None => c.quick || !quick,
    };
    cases.retain(wanted);
    let kernels = table::chosen(quick, only);
    if let (Some(text), true) = (only, cases.is_empty() && kernels.is_empty()) {
        bail!("no test of the emulator has \"{text}\" in its name");
    }
    let kernel = kernel::build(cx, |variant| cases.iter().any(|c| c.has(variant)))?;
    // Built before the first case, so that no case's time has it.
    if cases.iter().any(|c| !c.is_bare()) {
        cx.hypervisor()?;
    }
    let mut summary = Summary {
        skipped: if only.is_none() { total - cases.len() } else { 0 },
        ..Summary::default()
    };
    for case in &cases {
        let start = Instant::now();
        let result = run::run(case, &kernel, cx);
        if cx.interrupted() {
            bail!("stopped");
        }
        let seconds = start.elapsed().as_secs_f64();
        let complaints = match &result {
            Ok(outcome) => judge::complaints(case, outcome),
            Err(error) => judge::rejection(case, &format!("{error:#}")),
        };
        summary += Summary::one(&case.name, complaints.is_empty());
        if complaints.is_empty() {
            println!("ok    {:34} {seconds:6.1} s", case.name);
            for line in result.iter().flat_map(|o| cost::of(&case.windows, &o.edges)).flatten() {
                println!("      {line}");
            }
            for line in result.iter().flat_map(|o| hostile::told(case, o)) {
                println!("      {line}");
            }
        } else {
            println!("FAIL  {:34} {seconds:6.1} s", case.name);
            explain(&complaints, result.as_ref().ok());
        }
    }
    summary += table::run(cx, &kernels, only.is_none())?;
    Ok(summary)
}

/// Shows what is wrong with a run, and all that it said.
pub fn explain(complaints: &[String], outcome: Option<&Outcome>) {
    for complaint in complaints {
        println!("      {complaint}");
    }
    let Some(outcome) = outcome else { return };
    for (vm, console) in outcome.report.vms.iter().zip(&outcome.consoles) {
        for line in console.lines() {
            println!("      [{}] {line}", vm.name);
        }
    }
    let first = outcome.log.len().saturating_sub(LOG_LINES);
    for line in &outcome.log[first..] {
        println!("      [host] {line}");
    }
    for line in outcome.report.summary().lines() {
        println!("      {line}");
    }
}
