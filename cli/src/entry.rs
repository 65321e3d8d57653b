//! The frame of both binaries' `main`: the command line is parsed, a command runs, and its
//! result becomes the exit status.

use crate::{context::Context, report::status, say::say, stream::printable};
use anyhow::Result;
use clap::{Command, Error, Parser};
use std::{env, ffi::OsString, process::ExitCode};

/// Parses the command line, runs `dispatch` and gives the status to exit with. An error is
/// told in one line; one after ^C or a signal gives [`status::INTERRUPTED`].
pub fn run<C: Parser>(dispatch: impl FnOnce(&C, &Context) -> Result<ExitCode>) -> ExitCode {
    let command = match parse::<C>(env::args_os()) {
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

fn parse<C: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<C, Error> {
    let mut command = with_negative_numbers(C::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// A number below zero is a wrong value, and is told to be; not an option that isn't known.
fn with_negative_numbers(command: Command) -> Command {
    command.allow_negative_numbers(true).mut_subcommands(with_negative_numbers)
}

/// Tells the user of an error; the status to exit with.
pub fn failed(error: &anyhow::Error, status: u8) -> ExitCode {
    say(format_args!("exitless: {}", printable(&format!("{error:#}"))));
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::positive;
    use std::num::NonZeroU64;

    #[derive(Debug, Parser)]
    enum Line {
        Wait {
            #[arg(long, value_parser = positive)]
            seconds: NonZeroU64,
        },
    }

    #[test]
    fn a_negative_number_is_a_wrong_value() {
        let parse = |text: &str| parse::<Line>(text.split(' ').map(OsString::from));
        let Line::Wait { seconds } = parse("exitless wait --seconds 5").unwrap();
        assert_eq!(seconds.get(), 5);
        let error = parse("exitless wait --seconds -1").unwrap_err().to_string();
        assert!(error.contains("'-1' for '--seconds <SECONDS>': give a whole number"), "{error}");
    }
}
