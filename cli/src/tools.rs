//! Commands of `exitless` that other binaries carry out, so that who only runs VMs doesn't build
//! them: the developers' tools in `exitless-lab`, the daemon in `exitless-io`.
//!
//! Guarantees: `exitless NAME …` and `exitless help NAME` become that binary with the same
//! arguments and the same process, so that signals and the status are its own.

use anyhow::{Context as _, Result, bail};
use std::{env, ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::Command};

/// A command of another binary.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
}

/// What a command is carried out by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// The developers' tools, which know the command's name.
    Lab,
    /// The daemon, whose commands stand behind the name.
    Io,
}

/// The daemon.
pub const IO: Tool =
    Tool { name: "io", about: "Serve disks and networks to stock QEMU (docs/daemon.md)" };

/// The developers' tools, in the order of the help text.
pub const TOOLS: [Tool; 6] = [
    Tool { name: "demo", about: "Bare metal and three kinds of VM side by side, explained" },
    Tool { name: "bench", about: "Run an experiment and show what it measured" },
    Tool { name: "test", about: "Run every check and test" },
    Tool { name: "fuzz", about: "Feed every parser and state machine with what nobody thought of" },
    Tool {
        name: "soak",
        about: "Attack Linux at work for minutes or hours; see that nothing is lost",
    },
    Tool {
        name: "mutants",
        about: "Change the code where a test must notice, and see that one does",
    },
];

/// What is started for a command of another binary.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    program: Program,
    arguments: Vec<OsString>,
}

/// What these arguments (without the program's name) start, if they are for another binary.
pub fn call(mut given: Vec<OsString>) -> Option<Call> {
    let is_tool = |word: &OsString| word == IO.name || TOOLS.iter().any(|t| word == t.name);
    match given.as_slice() {
        [name, ..] if is_tool(name) => {}
        [help, name, ..] if help == "help" && is_tool(name) => {
            // `help bench fio` is what `bench fio --help` is.
            given.remove(0);
            given.push("--help".into());
        }
        _ => return None,
    }
    let program = if given.first().is_some_and(|name| name == IO.name) {
        given.remove(0);
        Program::Io
    } else {
        Program::Lab
    };
    Some(Call { program, arguments: given })
}

impl Call {
    /// Becomes that binary; returns only if that fails.
    pub fn start(&self) -> Result<()> {
        let file = self.program.file()?;
        let error = Command::new(&file).args(&self.arguments).exec();
        Err(error).with_context(|| format!("{} can't be started", file.display()))
    }
}

impl Program {
    /// It stands beside this program.
    fn file(self) -> Result<PathBuf> {
        let (what, name, package) = match self {
            Program::Lab => ("the developers' tools aren't", "exitless-lab", "lab"),
            Program::Io => ("the daemon isn't", "exitless-io", "exitless-io"),
        };
        let own = env::current_exe().context("this program's own file can't be found")?;
        let file = own.with_file_name(name);
        if !file.is_file() {
            bail!(
                "{what} built: {} doesn't exist; start this command by the checkout's script `exitless`, or build it by `cargo build --release -p {package}`",
                file.display()
            );
        }
        Ok(file)
    }
}

/// They as sections of the help text.
pub fn help_section() -> String {
    let mut text = format!("Below stock QEMU:\n  {:7} {}\n", IO.name, IO.about);
    text += "\nMeasuring and testing:\n";
    for Tool { name, about } in TOOLS {
        text += &format!("  {name:7} {about}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(line: &str) -> Option<(Program, String)> {
        let call = call(line.split(' ').map(OsString::from).collect())?;
        Some((call.program, call.arguments.join(" ".as_ref()).into_string().unwrap()))
    }

    #[test]
    fn tools_are_found_by_their_first_word() {
        let lab = |line: &str| Some((Program::Lab, line.to_owned()));
        assert_eq!(started("bench fio --depth 1"), lab("bench fio --depth 1"));
        assert_eq!(started("help bench"), lab("bench --help"));
        assert_eq!(started("help bench fio"), lab("bench fio --help"));
        for other in ["run vm.toml", "help", "help run", "--help", "run bench", ""] {
            assert_eq!(started(other), None, "{other}");
        }
    }

    #[test]
    fn the_daemon_has_commands_of_its_own() {
        let io = |line: &str| Some((Program::Io, line.to_owned()));
        assert_eq!(started("io disk --ram 1M --socket s"), io("disk --ram 1M --socket s"));
        assert_eq!(started("help io disk"), io("disk --help"));
        assert_eq!(started("io"), io(""));
        assert!(help_section().starts_with("Below stock QEMU:\n  io "));
    }
}
