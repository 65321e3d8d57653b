//! The frame of both binaries' `main`: the command line is parsed, a command runs, and its
//! result becomes the exit status.

use crate::{
    context::Context,
    report::status,
    say::{plain, say},
    stream::printable,
};
use anyhow::Result;
use clap::{
    Command, Error, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
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
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = command
        .try_get_matches_from_mut(&arguments)
        .map_err(|error| with_true_tips(error, &arguments, &command))?;
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// A number below zero is a wrong value, and is told to be; not an option that isn't known.
fn with_negative_numbers(command: Command) -> Command {
    command.allow_negative_numbers(true).mut_subcommands(with_negative_numbers)
}

/// clap advises to pass an option that isn't known behind `--`, where no command takes any. Who
/// writes `-append`, as for QEMU, is told of the second dash.
fn with_true_tips(mut error: Error, arguments: &[OsString], command: &Command) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    error.remove(ContextKind::Suggested);
    let Some(ContextValue::String(told)) = error.get(ContextKind::InvalidArg) else { return error };
    let long = |argument: &OsString| {
        let text = argument.to_str()?.split('=').next()?;
        let name = text.strip_prefix('-').filter(|name| name.len() > 1)?;
        (text.starts_with(told.as_str()) && has_option(command, name))
            .then(|| (text.to_owned(), format!("--{name}")))
    };
    if let Some((given, meant)) = arguments.iter().find_map(long) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(given));
        error.insert(ContextKind::SuggestedArg, ContextValue::String(meant));
    }
    error
}

fn has_option(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some(long))
        || command.get_subcommands().any(|command| has_option(command, long))
}

/// Tells the user of an error; the status to exit with.
pub fn failed(error: &anyhow::Error, status: u8) -> ExitCode {
    say(format_args!("exitless: {}", printable(&plain(error))));
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
    fn an_option_with_one_dash_is_told_of_the_second() {
        let error = |text: &str| {
            parse::<Line>(text.split(' ').map(OsString::from)).unwrap_err().to_string()
        };
        for line in ["exitless wait -seconds 5", "exitless wait -seconds=5"] {
            let error = error(line);
            assert!(error.contains("unexpected argument '-seconds' found"), "{error}");
            assert!(error.contains("a similar argument exists: '--seconds'"), "{error}");
        }
        // Nothing stands behind `--` in any command.
        for line in ["exitless wait -x", "exitless wait --json"] {
            let error = error(line);
            assert!(error.contains("unexpected argument"), "{error}");
            assert!(!error.contains("as a value"), "{error}");
        }
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
