//! Programs of others that make a file: what they are given and what came of it.

use crate::context::Context;
use anyhow::{Context as _, Result, bail};
use std::{
    io::{self, Seek, Write},
    process::{Command, Stdio},
};

/// Runs a program that makes `what`. What it says is shown if it fails, and else not.
pub fn run(command: &mut Command, what: &str, cx: &Context) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut messages = tempfile::tempfile().context("no temporary file can be made")?;
    // A key may have a password, which is asked for on the terminal and not here.
    command.stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages.try_clone()?);
    let status = command.status().with_context(|| format!("{name} can't be started"))?;
    if cx.interrupted() {
        bail!("stopped while {what} was being made");
    }
    if !status.success() {
        messages.rewind()?;
        io::copy(&mut messages, &mut io::stderr())?;
        io::stderr().flush()?;
        bail!("{what} can't be made; what {name} says above is why");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named() {
        let cx = Context::for_tests();
        run(Command::new("true").arg("x"), "nothing", &cx).unwrap();
        let error = run(&mut Command::new("false"), "the thing", &cx).unwrap_err().to_string();
        assert_eq!(error, "the thing can't be made; what false says above is why");
        let error = run(&mut Command::new("/nonexistent/x"), "it", &cx).unwrap_err().to_string();
        assert_eq!(error, "/nonexistent/x can't be started");
    }
}
