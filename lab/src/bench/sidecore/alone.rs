//! Running one guest alone, and what becomes of its windows.

use super::{
    boot::{self, Run},
    figures::Alone,
};
use crate::bench::{guest::Kit, progress::Step};
use anyhow::{Result, bail};
use exitless::context::Context;

/// Runs one guest. `what`: its load, for who watches.
pub fn alone(cx: &Context, kit: &Kit, run: &Run, what: &str) -> Result<Alone> {
    let step = Step::begin(format!("{what:<22} {}", run.way.label()));
    let own = run.loads.first().map_or(0, |load| load.size.pairs);
    let measured = boot::boot(cx, kit, run, &step).and_then(|mut ran| match ran.pop() {
        Some(ran) => Alone::of(run.way, ran, own),
        None => bail!("nothing was run"),
    });
    match &measured {
        Ok(alone) => step.end(&format!("{} I/Os", alone.figures.operations)),
        Err(_) => step.end("failed"),
    }
    measured
}
