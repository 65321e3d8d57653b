//! cargo-mutants: what changes it would make to a crate, and what became of those that it was told
//! to make.
//!
//! Guarantees: a change is known by what it makes of the code, not by the number of its line.

use super::copy::Copy;
use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use serde::Deserialize;
use std::{
    collections::HashMap,
    env, fs,
    process::{Command, Stdio},
};

/// What only loom's tests are built with: a lock of loom's by the name of the image's.
const NOT_IN_THE_IMAGE: &str = "crates/sync/src/model.rs";
/// What cargo-mutants puts beside what it changed.
const MARK: &str = " /* ~ changed by cargo-mutants ~ */";
/// A test that takes so many times as long as without a change, and this many seconds, hangs.
const TIMES: &str = "5";
const SECONDS: &str = "10";
/// Seconds that a build may take; the baseline's, with what the crate depends on, too.
const BUILD_SECONDS: &str = "600";
/// What it says when a test fails without any change.
const BASELINE_FAILED: i32 = 4;
/// Random cases of a property, and what they are drawn by: a result doesn't depend on luck.
const PROPERTIES: [(&str, &str); 3] = [
    ("PROPTEST_CASES", "16"),
    ("PROPTEST_RNG_SEED", "1"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
];

/// A change to a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its file, from the root of the tree.
    pub file: String,
    /// What is done, in cargo-mutants' words.
    pub what: String,
    /// The first line that it makes.
    pub becomes: String,
    /// How many like it stand before it in the file.
    pub nth: usize,
    /// The change with the lines around it.
    pub diff: String,
    /// The name that cargo-mutants has for it.
    name: String,
}

impl Change {
    #[cfg(test)]
    pub fn for_tests(file: &str, what: &str, becomes: &str) -> Self {
        let [file, what, becomes] = [file, what, becomes].map(String::from);
        Change { file, what, becomes, nth: 0, diff: String::new(), name: String::new() }
    }

    /// What it is known by as long as its line stays what it is.
    pub fn identity(&self) -> String {
        format!("{}: {}: {} #{}", self.file, self.what, self.becomes, self.nth)
    }
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A test failed, or didn't end.
    Caught,
    /// None did.
    Missed,
    /// It is no program.
    Unviable,
}

/// The files in which cargo-mutants writes the names of changes while it runs.
const LISTS: [(&str, Outcome); 4] = [
    ("caught.txt", Outcome::Caught),
    ("timeout.txt", Outcome::Caught),
    ("missed.txt", Outcome::Missed),
    ("unviable.txt", Outcome::Unviable),
];

#[derive(Deserialize)]
struct Listed {
    name: String,
    file: String,
    diff: String,
}

/// What is missing on this machine, in a sentence.
pub fn missing(cx: &Context) -> Option<&'static str> {
    let mut tool = cx.cargo();
    tool.args(["mutants", "--version"]).stdin(Stdio::null());
    let there = tool.output().is_ok_and(|output| output.status.success());
    let how = "cargo-mutants is missing; install it with: cargo install cargo-mutants --locked";
    (!there).then_some(how)
}

/// The changes that it would make to a crate, in the order of the code.
pub fn changes(copy: &Copy, package: &str) -> Result<Vec<Change>> {
    let mut tool = tool(copy);
    tool.args(["--list", "--json", "--package", package, "--exclude", NOT_IN_THE_IMAGE]);
    let output = tool.output().context("cargo can't be started")?;
    if !output.status.success() {
        bail!("cargo-mutants: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(known_by_text(serde_json::from_slice(&output.stdout)?))
}

fn known_by_text(listed: Vec<Listed>) -> Vec<Change> {
    let mut alike = HashMap::new();
    let change = |Listed { name, file, diff }| {
        // Behind the file, the line and the column.
        let what = name.split_once(": ").map_or("", |(_, what)| what).to_owned();
        let mut made = diff.lines().skip(2).filter_map(|line| line.strip_prefix('+'));
        let becomes = made.next().unwrap_or("").replace(MARK, "").trim().to_owned();
        let count = alike.entry((file.clone(), what.clone(), becomes.clone())).or_insert(0);
        let nth = *count;
        *count += 1;
        let diff = diff.lines().filter(|line| !line.starts_with("@@")).collect::<Vec<_>>();
        Change { file, what, becomes, nth, diff: diff.join("\n"), name }
    };
    listed.into_iter().map(change).collect()
}

/// Makes the `chosen` ones of `all` changes, one at a time; those that it didn't come to are not in
/// what it gives. cargo-mutants leaves out no field of a struct expression, whatever it is told:
/// some more may be in it.
pub fn run<'a>(
    cx: &Context,
    copy: &Copy,
    package: &str,
    all: &'a [Change],
    chosen: &[&Change],
) -> Result<Vec<(&'a Change, Outcome)>> {
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let mut tool = tool(copy);
    tool.args(["--in-place", "--no-shuffle", "--package", package, "--output"]).arg(folder.path());
    tool.args(["--exclude", NOT_IN_THE_IMAGE]);
    tool.args(["--timeout-multiplier", TIMES, "--minimum-test-timeout", SECONDS]);
    tool.args(["--build-timeout", BUILD_SECONDS]);
    tool.args(chosen.iter().map(|change| format!("--re=^{}$", literally(&change.name))));
    // No crate has an example in its documentation: looking for some takes longer than many tests.
    tool.args(["--", "--lib", "--tests"]);
    tool.env("CARGO_TARGET_DIR", cx.target.join("mutants/crates-target"));
    tool.env("CARGO_PROFILE_DEV_DEBUG", "none").env("CARGO_INCREMENTAL", "1").envs(PROPERTIES);
    let output = tool.stdin(Stdio::null()).output().context("cargo can't be started")?;
    if output.status.code() == Some(BASELINE_FAILED) {
        bail!("the tests of {package} fail without any change");
    }
    let mut outcomes = Vec::new();
    for (list, outcome) in LISTS {
        let text = fs::read_to_string(folder.path().join("mutants.out").join(list));
        let text = text.unwrap_or_default();
        for name in text.lines() {
            let change = all.iter().find(|change| change.name == name);
            let change = change.with_context(|| format!("there is no change {name}"))?;
            outcomes.push((change, outcome));
        }
    }
    if outcomes.len() < chosen.len() && !cx.interrupted() {
        bail!("cargo-mutants: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(outcomes)
}

fn tool(copy: &Copy) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(&copy.root).args(["mutants", "--no-config", "--colors", "never"]);
    cargo
}

/// A regular expression that stands for just this text.
fn literally(text: &str) -> String {
    let special = |c: char| r"\.+*?()|[]{}^$#&-~".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(line: u32, made: &str) -> Listed {
        Listed {
            name: format!("a.rs:{line}:7: replace + with - in f"),
            file: "a.rs".into(),
            diff: format!("--- a.rs\n+++ replace\n@@ -{line} +{line} @@\n-    a + b\n+{made}\n"),
        }
    }

    #[test]
    fn a_change_is_known_by_what_it_makes() {
        let made = "    a - /* ~ changed by cargo-mutants ~ */ b";
        let first = known_by_text(vec![listed(3, made), listed(9, made)]);
        let moved = known_by_text(vec![listed(4, made), listed(10, made)]);
        let identity =
            |changes: &[Change]| changes.iter().map(Change::identity).collect::<Vec<_>>();
        assert_eq!(
            identity(&first),
            ["a.rs: replace + with - in f: a - b #0", "a.rs: replace + with - in f: a - b #1"]
        );
        assert_eq!(identity(&first), identity(&moved));
        assert_eq!(first[0].diff, moved[0].diff);
        assert_ne!(first[0].name, moved[0].name);
    }

    #[test]
    fn a_name_is_no_pattern() {
        assert_eq!(literally("a.rs:1: replace |= with ^="), r"a\.rs:1: replace \|= with \^=");
        assert_eq!(literally("-> [u8; 2] <T> $#"), r"\-> \[u8; 2\] <T> \$\#");
    }
}
