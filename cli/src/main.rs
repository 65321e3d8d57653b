//! `exitless`: runs VMs on the emulated machine and watches them; hands over to
//! `exitless-lab` what measures and tests, and to `exitless-io` what serves stock QEMU.
#![forbid(unsafe_code)]

use anyhow::{Result, anyhow, bail};
use clap::{Parser, Subcommand};
use exitless::{check, context::Context, entry, image, package, report::status, run, tools, top};
use plan::Shown;
use std::{env, ffi::OsString, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  exitless demo                      bare metal beside three kinds of VM
  exitless run vm.toml               run VMs; the console is yours
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0
  exitless top                       what makes the VMs of a run exit, live
  exitless check vm.toml             is the plan good?
  exitless bench all --quick         the ELI paper's figures: report/report.html
  exitless bench fio --policy bare,trap,direct --depth 1,32 --json rows.json
  exitless fuzz --seconds 600 pci    what no test thought of
  exitless soak --minutes 60         an hour of attacks beside Linux at work
  exitless help run                  more on a command, with examples";

/// A bare-metal hypervisor whose guests' device interrupts don't exit.
#[derive(Parser)]
#[command(name = "exitless", version, after_help = tools::help_section() + "\n" + EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Check(check::Args),
    Image(image::Args),
    Package(package::Args),
    Top(top::Args),
    #[command(external_subcommand)]
    Unknown(Vec<OsString>),
}

fn main() -> ExitCode {
    let given: Vec<OsString> = env::args_os().skip(1).collect();
    if let Some(unknown) = no_help(&given) {
        return entry::failed(&anyhow!(unknown), status::FAILED);
    }
    if let Some(call) = tools::call(given)
        && let Err(error) = call.start()
    {
        return entry::failed(&error, status::FAILED);
    }
    entry::run(dispatch)
}

fn dispatch(cli: &Cli, cx: &Context) -> Result<ExitCode> {
    match &cli.command {
        Command::Run(args) => return run::run(args, cx),
        Command::Check(args) => check::check(args)?,
        Command::Image(args) => image::image(args, cx)?,
        Command::Package(args) => package::package(args, cx)?,
        Command::Top(args) => return top::top(args, cx),
        Command::Unknown(words) => bail!("{}", unknown(words)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of all commands.
fn known() -> Vec<&'static str> {
    let own = ["run", "check", "image", "package", "top", "help", tools::IO.name].into_iter();
    own.chain(tools::TOOLS.iter().map(|t| t.name)).collect()
}

/// What `help WORD` is answered where no command has this name.
fn no_help(given: &[OsString]) -> Option<String> {
    let [help, word, ..] = given else { return None };
    let name = word.to_string_lossy();
    let asks = help == "help" && !name.starts_with('-') && !known().contains(&name.as_ref());
    asks.then(|| unknown(std::slice::from_ref(word)))
}

/// Of a command that isn't there.
fn unknown(words: &[OsString]) -> String {
    let word = words.first().map(|w| w.to_string_lossy()).unwrap_or_default();
    let (word, known) = (Shown(&word), known());
    match plan::nearest(word.0, &known) {
        Some(near) => {
            format!("`{word}` is no command; did you mean `{near}`? `exitless help` lists all")
        }
        None => format!(
            "`{word}` is no command; there are {}; `exitless help` says what each does",
            known.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        assert_eq!(exitless::help::too_wide(&Cli::command()), [""; 0]);
    }

    #[test]
    fn a_command_that_is_not_there_is_named_and_so_is_one_that_is() {
        let said = |word: &str| unknown(&[word.into()]);
        assert_eq!(
            said("benhc"),
            "`benhc` is no command; did you mean `bench`? `exitless help` lists all"
        );
        assert!(
            said("frobnicate")
                .contains("there are run, check, image, package, top, help, io, demo")
        );
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(said("frobnicate").contains(name), "{name}");
        }
    }

    #[test]
    fn help_on_a_command_that_is_not_there_is_told_what_there_is() {
        let no_help =
            |line: &str| no_help(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let said = no_help("help foo").unwrap();
        assert!(said.starts_with("`foo` is no command; there are run, check"), "{said}");
        assert!(said.ends_with("; `exitless help` says what each does"), "{said}");
        for line in ["help", "help run", "help bench fio", "help help", "help --help", "run foo"] {
            assert_eq!(no_help(line), None, "{line}");
        }
    }

    #[test]
    fn one_line_describes_a_vm_or_names_a_plan_but_not_both() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|_| ());
        assert!(parse("exitless run vm.toml --timeout 5").is_ok());
        assert!(
            parse("exitless run --kernel k --memory 512M --device nvme0 --interrupts direct")
                .is_ok()
        );
        assert!(parse("exitless run vm.toml --kernel k").is_err());
        assert!(parse("exitless run --kernel k --interrupts posted").is_ok());
    }
}
