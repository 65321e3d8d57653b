//! What every experiment sees to before it measures: that its files can be written, and that
//! guests and plugin are there and count right.

use super::{guest::Kit, plugin_check, progress::Step, workload::Workload};
use anyhow::Result;
use exitless::{context::Context, output::Output};
use std::path::PathBuf;

/// Where figures go besides the terminal.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Files {
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as HTML to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Files {
    /// JSON and HTML: what can't be written is refused now, not when everything has been measured.
    pub fn claim(&self) -> Result<(Option<Output>, Option<Output>)> {
        let [json, html] =
            [&self.json, &self.html].map(|path| path.as_deref().map(Output::claim).transpose());
        Ok((json?, html?))
    }
}

/// The guests, and a plugin that is known to count right on this emulator.
pub fn prepare(cx: &Context, workloads: &[Workload]) -> Result<Kit> {
    let kit = Kit::make(cx, workloads.iter().copied())?;
    let step = Step::begin("counting plugin against a program of known length".into());
    let checked = plugin_check::run(cx, &kit);
    step.end(if checked.is_ok() { "exact" } else { "failed" });
    checked.map(|()| kit)
}
