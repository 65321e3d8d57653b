//! `exitless-lab`: the developers' tools, which `exitless` finds beside itself: experiments,
//! tests, fuzzing, soaks. Users see them as commands of `exitless`.
#![forbid(unsafe_code)]

mod ahead;
mod background;
mod bench;
mod cmdline;
mod console;
mod document;
mod elf;
mod fuzz;
mod imports;
mod mutants;
mod selftest;
mod server;
mod soak;
mod stock;
mod summary;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};
use exitless::{context::Context, entry};
use std::process::ExitCode;

/// What measures and tests Exitless.
#[derive(Parser)]
#[command(name = "exitless", bin_name = "exitless", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(bench::DemoArgs),
    Bench(bench::Args),
    Test(test::Args),
    Fuzz(fuzz::Args),
    Soak(soak::Args),
    Mutants(mutants::Args),
}

fn main() -> ExitCode {
    entry::run(dispatch)
}

fn dispatch(cli: &Cli, cx: &Context) -> Result<ExitCode> {
    match &cli.command {
        Command::Demo(args) => match args.machine() {
            Some(bench::OnMachine::Bochs) => selftest::costs::demo(cx)?,
            None => bench::demo(args, cx)?,
        },
        Command::Bench(args) => bench::run(args, cx)?,
        Command::Test(args) => return test::test(args, cx),
        Command::Fuzz(args) => return fuzz::fuzz(args, cx),
        Command::Soak(args) => return soak::soak(args, cx),
        Command::Mutants(args) => return mutants::mutants(args, cx),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use exitless::tools::TOOLS;

    #[test]
    fn the_commands_are_well_formed_and_those_that_exitless_hands_over() {
        let command = Cli::command();
        command.clone().debug_assert();
        assert_eq!(exitless::help::too_wide(&command), [""; 0]);
        let own = command.get_subcommands().map(|c| {
            let about = c.get_about().map(ToString::to_string).unwrap_or_default();
            (c.get_name().to_owned(), about)
        });
        let told = TOOLS.map(|t| (t.name.to_owned(), t.about.to_owned()));
        assert_eq!(own.collect::<Vec<_>>(), told);
    }
}
