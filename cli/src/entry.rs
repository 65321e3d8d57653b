//! The frame of both binaries' `main`: the command line is parsed, a command runs, and its
//! result becomes the exit status.

use crate::{
    context::Context,
    report::status,
    run,
    say::{plain, say},
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
/// writes `-append`, as for QEMU, is told of the second dash; who describes a VM beside a plan,
/// how the plan says it.
fn with_true_tips(mut error: Error, arguments: &[OsString], command: &Command) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {}
        ErrorKind::ArgumentConflict => {
            if let Some(tip) = run::instead(&in_conflict(&error)) {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
            return error;
        }
        _ => return error,
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

/// The arguments that can't be given together.
fn in_conflict(error: &Error) -> Vec<String> {
    let both = [ContextKind::InvalidArg, ContextKind::PriorArg];
    both.iter()
        .flat_map(|kind| match error.get(*kind) {
            Some(ContextValue::String(one)) => vec![one.clone()],
            Some(ContextValue::Strings(several)) => several.clone(),
            _ => Vec::new(),
        })
        .collect()
}

fn has_option(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some(long))
        || command.get_subcommands().any(|command| has_option(command, long))
}

/// Tells the user of an error; the status to exit with.
pub fn failed(error: &anyhow::Error, status: u8) -> ExitCode {
    // Several mistakes of a plan are a line each, and nothing else in a line steers the terminal.
    say(format_args!("exitless: {}", plain(error)));
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
        Run(Box<run::Args>),
    }

    fn parse_line(text: &str) -> Result<Line, Error> {
        parse(text.split(' ').map(OsString::from))
    }

    #[test]
    fn an_option_with_one_dash_is_told_of_the_second() {
        let error = |text: &str| parse_line(text).unwrap_err().to_string();
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
        let wait = parse_line("exitless wait --seconds 5").unwrap();
        assert!(matches!(wait, Line::Wait { seconds } if seconds.get() == 5));
        let error = parse_line("exitless wait --seconds -1").unwrap_err().to_string();
        assert!(error.contains("'-1' for '--seconds <SECONDS>': give a whole number"), "{error}");
    }

    #[test]
    fn who_describes_a_vm_beside_a_plan_is_told_how_the_plan_says_it() {
        let error = |text: &str| parse_line(text).unwrap_err().to_string();
        for (options, keys) in [
            ("--kernel k", "`kernel`"),
            ("--initrd i", "`initrd`"),
            ("--append x", "`cmdline`"),
            ("--memory 1G", "`memory`"),
            ("--device nvme0", "`devices`"),
            ("--interrupts eli", "`interrupts`"),
            ("--name x", "the NAME"),
            ("--cpus 2", "`cpus`"),
            ("--no-reboot", "`reset = \"stop\"`"),
        ] {
            let said = format!("tip: write it in the plan: {keys} in [vm.NAME]\n");
            for line in [format!("vm.toml {options}"), format!("{options} vm.toml")] {
                let error = error(&format!("exitless run {line}"));
                assert!(error.contains(&said), "{error}");
            }
        }
        let several = error("exitless run vm.toml --cpus 2 --memory 1G");
        assert!(several.contains("plan: `cpus`, `memory` in [vm.NAME]\n"), "{several}");
        assert!(!error("exitless wait --seconds 1 --seconds 2").contains("tip:"));
    }
}
