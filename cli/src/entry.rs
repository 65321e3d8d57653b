//! The frame of both binaries' `main`: the command line is parsed, a command runs, and its
//! result becomes the exit status.

use crate::{context::Context, report::status, say::say, stream::printable};
use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Parses the command line, runs `dispatch` and gives the status to exit with. An error is
/// told in one line; one after ^C or a signal gives [`status::INTERRUPTED`].
pub fn run<C: Parser>(dispatch: impl FnOnce(&C, &Context) -> Result<ExitCode>) -> ExitCode {
    let command = match C::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // Fails only when there is nobody to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { status::FAILED } else { status::OK });
        }
    };
    let cx = match Context::new() {
        Ok(cx) => cx,
        Err(error) => return failed(&error, status::FAILED),
    };
    dispatch(&command, &cx).unwrap_or_else(|error| match cx.interrupted() {
        true => failed(&error, status::INTERRUPTED),
        false => failed(&error, status::FAILED),
    })
}

/// Tells the user of an error; the status to exit with.
pub fn failed(error: &anyhow::Error, status: u8) -> ExitCode {
    say(format_args!("exitless: {}", printable(&format!("{error:#}"))));
    ExitCode::from(status)
}
