//! `exitless mutants`: changes to the code, one at a time, each of which the tests must notice.
//!
//! Guarantees: the checkout isn't touched, every change is made in a copy of it; a change that no
//! longer fits the code is told, and is no success; what was found is kept in the build directory,
//! so that a run that was stopped goes on where it was.

mod args;
mod copy;
mod crates;
mod entry;
mod equivalent;
mod image;
mod results;
mod runner;
mod tool;

use anyhow::{Result, bail};
use exitless::context::Context;
use std::process::ExitCode;

pub use args::Args;

/// Runs what is asked for.
pub fn mutants(args: &Args, cx: &Context) -> Result<ExitCode> {
    match (args.image, args.crates) {
        (true, _) => image::run(args, cx),
        (_, true) => crates::run(args, cx),
        _ => {
            bail!("say which changes: --image for the hypervisor's image, --crates for the crates")
        }
    }
}
