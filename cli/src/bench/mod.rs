//! The experiments: not there yet.

use crate::context::Context;
use anyhow::{Result, bail};

/// Run an experiment.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {}

/// The main experiment, shown as a table.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {}

/// Runs an experiment.
pub fn run(_: &Args, _: &Context) -> Result<()> {
    bail!("there is no experiment yet")
}

/// Runs the demo.
pub fn demo(_: &DemoArgs, _: &Context) -> Result<()> {
    bail!("there is no demo yet")
}

/// A short run of every experiment.
pub fn smoke(_: &Context) -> Result<()> {
    bail!("there is no experiment yet")
}
