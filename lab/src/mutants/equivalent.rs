//! The changes to crates that make no difference, each with the reason.

use super::tool::Change;
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::{fs, path::Path};

/// A change that no test can notice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// The file, from the root of the tree.
    file: String,
    /// What is done, in cargo-mutants' words; those behind " in " may be left out.
    what: String,
    /// The first line that it makes; several, where the same is done with the same reason.
    becomes: Lines,
    /// Which of those that are the same in these three; each, without it.
    nth: Option<usize>,
    /// Why nothing is different.
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Several(Vec<String>),
}

impl Lines {
    fn iter(&self) -> std::slice::Iter<'_, String> {
        match self {
            Lines::One(line) => std::slice::from_ref(line).iter(),
            Lines::Several(lines) => lines.iter(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    equivalent: Vec<Equivalent>,
}

/// The kept list.
pub fn read(file: &Path) -> Result<Vec<Equivalent>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("{} can't be read", file.display()))?;
    let List { equivalent } =
        toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
    match equivalent.iter().find(|e| e.why.trim().is_empty()) {
        Some(e) => bail!("{}: no reason is given for \"{}\"", file.display(), e.what),
        None => Ok(equivalent),
    }
}

impl Equivalent {
    /// Whether it is this change.
    pub fn is(&self, change: &Change) -> bool {
        self.becomes.iter().any(|line| self.is_by(line, change))
    }

    fn is_by(&self, line: &str, change: &Change) -> bool {
        let behind = change.what.strip_prefix(&self.what);
        self.file == change.file
            && behind.is_some_and(|rest| rest.is_empty() || rest.starts_with(" in "))
            && line == change.becomes
            && self.nth.is_none_or(|nth| nth == change.nth)
    }

    /// One that isn't among `all` the changes of its crate, for people.
    pub fn stale(&self, all: &[Change]) -> Option<String> {
        let there = |line: &&String| all.iter().any(|change| self.is_by(line, change));
        let line = self.becomes.iter().find(|line| !there(line))?;
        Some(format!("{}: {}: {line}", self.file, self.what))
    }

    /// The crate that it is in.
    pub fn package(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_may_have_several_lines_and_leave_out_the_function() {
        let change =
            |what: &str, becomes: &str| Change::for_tests("crates/x/src/a.rs", what, becomes);
        let text = r#"
            file = "crates/x/src/a.rs"
            what = "replace | with ^"
            becomes = ["A ^ B", "C ^ D"]
            why = "bits of their own"
        "#;
        let entry: Equivalent = toml::from_str(text).unwrap();
        let all = [change("replace | with ^ in f", "A ^ B"), change("replace | with ^", "C ^ D")];
        assert!(all.iter().all(|c| entry.is(c)));
        assert!(!entry.is(&change("replace | with ^=", "A ^ B")));
        assert!(!entry.is(&change("replace | with & in f", "A ^ B")));
        assert_eq!((entry.package(), entry.stale(&all)), ("x", None));
        let stale = entry.stale(&all[..1]);
        assert_eq!(stale.as_deref(), Some("crates/x/src/a.rs: replace | with ^: C ^ D"));
    }
}
