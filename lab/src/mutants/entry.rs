//! An entry of the list: what is changed, and what must notice.
//!
//! Guarantees: a text is found however its lines are broken, and is changed only if it stands in
//! exactly one place of the code (behind `after`, the first one). Where in the tree that is doesn't
//! matter: files move.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

/// Folders in which a text may stand.
pub const CODE: [&str; 2] = ["hypervisor/src", "crates"];

/// A change, and what must notice it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Unique.
    pub name: String,
    /// The text that is replaced.
    pub find: String,
    /// What takes its place.
    pub replace: String,
    /// A text before it, from which on it is looked for, where it stands in several places.
    pub after: Option<String>,
    /// The end of the path of its file, where it stands in several.
    pub file: Option<String>,
    /// Tests of the emulator, as `exitless test --only` takes them; one of them must fail.
    #[serde(default)]
    pub tests: Vec<String>,
    /// Crates whose own tests are to notice.
    #[serde(default)]
    pub crates: Vec<String>,
    /// Features of the hypervisor that the tests need.
    #[serde(default)]
    pub features: Vec<String>,
    /// Why nothing can notice it here: it is counted apart, and not run.
    pub unseen: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Entry>,
}

/// Where an entry applies.
#[derive(Debug)]
pub struct Place {
    /// The file, from the root of the tree.
    pub file: PathBuf,
    /// Its text with the change.
    pub changed: String,
}

/// All entries of a folder's lists.
pub fn read(folder: &Path) -> Result<Vec<Entry>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("{} can't be read", folder.display()))?
        .map(|file| Ok(file?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "toml"));
    files.sort();
    let mut entries = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let list: List = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        entries.extend(list.mutant);
    }
    let mut names = HashSet::new();
    for entry in &entries {
        if !names.insert(&entry.name) {
            bail!("two changes are called {}", entry.name);
        }
        if entry.unseen.is_none() && entry.tests.is_empty() && entry.crates.is_empty() {
            bail!("the change {} has no test that is to notice it", entry.name);
        }
    }
    Ok(entries)
}

impl Entry {
    /// Where it applies in the tree at `root`; the error says why nowhere.
    pub fn place(&self, root: &Path) -> Result<Place> {
        let mut places = Vec::new();
        for folder in CODE {
            for file in sources(&root.join(folder))? {
                let path = file.strip_prefix(root).unwrap_or(&file);
                if self.file.as_ref().is_some_and(|end| !path.ends_with(end)) {
                    continue;
                }
                let text = fs::read_to_string(&file)?;
                let changed = self.change(&text);
                places.extend(changed.into_iter().map(|c| (path.to_owned(), c)));
            }
        }
        match <[_; 1]>::try_from(places) {
            Ok([(file, changed)]) => Ok(Place { file, changed }),
            Err(places) if places.is_empty() => bail!("its text is nowhere"),
            Err(places) => bail!("its text stands in {} places", places.len()),
        }
    }

    /// The text with the change made in each place where it can be.
    fn change(&self, text: &str) -> Vec<String> {
        let starts = match &self.after {
            Some(after) => find(text, after).into_iter().map(|r| r.end).collect(),
            None => vec![0],
        };
        let mut changed = Vec::new();
        for start in starts {
            let mut found = find(&text[start..], &self.find);
            if self.after.is_some() {
                found.truncate(1);
            }
            changed.extend(found.into_iter().map(|r| {
                let (before, behind) = (&text[..start + r.start], &text[start + r.end..]);
                format!("{before}{}{behind}", self.replace.trim_end_matches('\n'))
            }));
        }
        changed
    }
}

/// The places of `wanted` in `text`, any white space standing for any other.
fn find(text: &str, wanted: &str) -> Vec<std::ops::Range<usize>> {
    let words: Vec<_> = wanted.split_whitespace().collect();
    let Some(first) = words.first() else { return Vec::new() };
    let ends = |start: usize| {
        let mut at = start;
        for (i, word) in words.iter().enumerate() {
            let rest = &text[at..];
            let trimmed = if i == 0 { rest } else { rest.trim_start() };
            at += rest.len() - trimmed.len() + trimmed.strip_prefix(word).map(|_| word.len())?;
        }
        Some(start..at)
    };
    text.match_indices(first).filter_map(|(start, _)| ends(start)).collect()
}

/// Every source below a folder but those of tests.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if path.is_dir() && name != "tests" {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") && !name.ends_with("_tests.rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(find: &str, replace: &str, after: Option<&str>) -> Entry {
        Entry {
            name: "x".into(),
            find: find.into(),
            replace: replace.into(),
            after: after.map(str::to_owned),
            file: None,
            tests: vec!["t".into()],
            crates: Vec::new(),
            features: Vec::new(),
            unseen: None,
        }
    }

    #[test]
    fn a_text_is_found_however_its_lines_are_broken() {
        let text = "fn a() {\n    one(\n        two);\n}\n";
        assert_eq!(entry("one( two);", "", None).change(text), ["fn a() {\n    \n}\n"]);
        assert_eq!(entry("one(two);", "", None).change(text), [""; 0]);
    }

    #[test]
    fn each_place_counts_unless_one_is_named() {
        let text = "fn a() { x } fn b() { x } fn c() { x }";
        assert_eq!(entry("x", "y", None).change(text).len(), 3);
        let one = entry("x", "y", Some("fn b()")).change(text);
        assert_eq!(one, ["fn a() { x } fn b() { y } fn c() { x }"]);
        assert_eq!(entry("x", "y", Some("fn d()")).change(text), [""; 0]);
    }

    #[test]
    fn every_entry_of_the_list_is_well_formed_and_fits_the_code() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let entries = read(&root.join("lab/mutants")).unwrap();
        let stale = |e: &Entry| e.place(&root).err().map(|why| format!("{}: {why}", e.name));
        assert_eq!(entries.iter().filter_map(stale).collect::<Vec<_>>(), [""; 0]);
    }
}
