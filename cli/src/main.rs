//! The Exitless command line: makes plans into boot images, runs them on the
//! emulated machine, measures and tests them.
#![forbid(unsafe_code)]

mod aside;
mod bench;
mod boot_image;
mod check;
mod cmdline;
mod consoles;
mod context;
mod elf;
mod fuzz;
mod image;
mod load;
mod machine;
mod network;
mod output;
mod report;
mod run;
mod say;
mod selftest;
mod session;
mod soak;
mod stream;
mod summary;
mod table;
mod terminal;
mod test;
mod top;

use anyhow::Result;
use clap::{Parser, Subcommand};
use context::Context;
use report::status;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  exitless demo                      bare metal and three kinds of VM side by side
  exitless run vm.toml               run VMs; the console is yours
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0 --device nvme0
  exitless top                       what makes the VMs of a run exit, live
  exitless check vm.toml             is the plan good?
  exitless bench all --quick         the ELI paper's figures and tables: report/report.html
  exitless bench fio --policy bare,trap,direct --depth 1,32 --json rows.json
  exitless fuzz --seconds 600 pci    what no test thought of
  exitless soak --minutes 60         an hour of attacks beside Linux at work
  exitless help run                  more on a command, with examples";

/// A bare-metal hypervisor whose guests' device interrupts don't exit.
#[derive(Parser)]
#[command(name = "exitless", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(bench::DemoArgs),
    Run(Box<run::Args>),
    Check(check::Args),
    Image(image::Args),
    Bench(bench::Args),
    Top(top::Args),
    Test(test::Args),
    Fuzz(fuzz::Args),
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Fails only when there is nobody to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { status::FAILED } else { status::OK });
        }
    };
    dispatch(&cli.command).unwrap_or_else(|error| {
        say::say(format_args!("exitless: {error:#}"));
        ExitCode::from(status::FAILED)
    })
}

fn dispatch(command: &Command) -> Result<ExitCode> {
    let cx = Context::new()?;
    match command {
        Command::Demo(args) => bench::demo(args, &cx)?,
        Command::Run(args) => return run::run(args, &cx),
        Command::Check(args) => check::check(args)?,
        Command::Image(args) => image::image(args)?,
        Command::Bench(args) => bench::run(args, &cx)?,
        Command::Top(args) => return top::top(args, &cx),
        Command::Test(args) => return test::test(args, &cx),
        Command::Fuzz(args) => return fuzz::fuzz(args, &cx),
        Command::Soak(args) => return soak::soak(args, &cx),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn one_line_describes_a_vm_or_names_a_plan_but_not_both() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|_| ());
        assert!(parse("exitless run vm.toml --timeout 5").is_ok());
        assert!(
            parse("exitless run --kernel k --memory 512M --device nvme0 --interrupts direct")
                .is_ok()
        );
        assert!(parse("exitless run").is_err());
        assert!(parse("exitless run vm.toml --kernel k").is_err());
        assert!(parse("exitless run --memory 512M").is_err());
        let error = parse("exitless run --kernel k --interrupts posted").unwrap_err().to_string();
        assert!(error.contains("not available in this version"), "{error}");
    }
}
