//! Tests in the emulator: not there yet.

use crate::{context::Context, summary::Summary};
use anyhow::{Result, bail};

/// Runs the test kernels.
pub fn run(_: &Context, _: bool) -> Result<Summary> {
    bail!("there is no test kernel yet")
}
