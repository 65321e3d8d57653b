//! The developers' tools: commands of `exitless` that a second binary, `exitless-lab`, carries
//! out, so that who only runs VMs doesn't build them.
//!
//! Guarantees: `exitless NAME …` and `exitless help NAME` become `exitless-lab` with the same
//! arguments and the same process, so that signals and the status are its own.

use anyhow::{Context as _, Result, bail};
use std::{env, ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::Command};

/// A command of `exitless-lab`.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
}

/// All of them, in the order of the help text.
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

/// The arguments for `exitless-lab`, if these (without the program's name) are for one of its
/// commands.
pub fn arguments(mut given: Vec<OsString>) -> Option<Vec<OsString>> {
    let is_tool = |word: &OsString| TOOLS.iter().any(|t| word == t.name);
    match given.as_slice() {
        [name, ..] if is_tool(name) => Some(given),
        [help, name, ..] if help == "help" && is_tool(name) => {
            // `help bench fio` is what `bench fio --help` is.
            given.remove(0);
            given.push("--help".into());
            Some(given)
        }
        _ => None,
    }
}

/// Becomes `exitless-lab` with these arguments; returns only if that fails.
pub fn become_lab(arguments: &[OsString]) -> Result<()> {
    let lab = lab()?;
    let error = Command::new(&lab).args(arguments).exec();
    Err(error).with_context(|| format!("{} can't be started", lab.display()))
}

/// It stands beside this program.
fn lab() -> Result<PathBuf> {
    let own = env::current_exe().context("this program's own file can't be found")?;
    let lab = own.with_file_name("exitless-lab");
    if !lab.is_file() {
        bail!(
            "the developers' tools aren't built: {} doesn't exist; start this command by the checkout's script `exitless`, or build them with `cargo build -p lab`",
            lab.display()
        );
    }
    Ok(lab)
}

/// The tools as a section of the help text.
pub fn help_section() -> String {
    let mut text = String::from("Measuring and testing:\n");
    for Tool { name, about } in TOOLS {
        text += &format!("  {name:7} {about}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_lab(line: &str) -> Option<String> {
        let words = arguments(line.split(' ').map(OsString::from).collect())?;
        Some(words.join(" ".as_ref()).into_string().unwrap())
    }

    #[test]
    fn tools_are_found_by_their_first_word() {
        assert_eq!(for_lab("bench fio --depth 1").unwrap(), "bench fio --depth 1");
        assert_eq!(for_lab("help bench").unwrap(), "bench --help");
        assert_eq!(for_lab("help bench fio").unwrap(), "bench fio --help");
        for other in ["run vm.toml", "help", "help run", "--help", "run bench", ""] {
            assert_eq!(for_lab(other), None, "{other}");
        }
    }
}
