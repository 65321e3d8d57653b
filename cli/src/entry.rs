//! The frame of both binaries' `main`: the command line is parsed, a command runs, and its
//! result becomes the exit status.

use crate::{report::status, say::say};
use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Parses the command line, runs `dispatch` and gives the status to exit with. An error is
/// told in one line.
pub fn run<C: Parser>(dispatch: impl FnOnce(&C) -> Result<ExitCode>) -> ExitCode {
    let command = match C::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // Fails only when there is nobody to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { status::FAILED } else { status::OK });
        }
    };
    dispatch(&command).unwrap_or_else(|error| failed(&error))
}

/// Tells the user of an error; the status for it.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say(format_args!("exitless: {error:#}"));
    ExitCode::from(status::FAILED)
}
