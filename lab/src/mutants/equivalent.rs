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
    /// What is done, in cargo-mutants' words.
    what: String,
    /// The first line that it makes.
    becomes: String,
    /// Which of those that are the same in these three; each, without it.
    nth: Option<usize>,
    /// Why nothing is different.
    why: String,
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
        Some(e) => bail!("{}: no reason is given for \"{}\"", file.display(), e.becomes),
        None => Ok(equivalent),
    }
}

impl Equivalent {
    /// Whether it is this change.
    pub fn is(&self, change: &Change) -> bool {
        self.file == change.file
            && self.what == change.what
            && self.becomes == change.becomes
            && self.nth.is_none_or(|nth| nth == change.nth)
    }

    /// For people.
    pub fn name(&self) -> String {
        format!("{}: {}: {}", self.file, self.what, self.becomes)
    }

    /// The crate that it is in.
    pub fn package(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or("")
    }
}
