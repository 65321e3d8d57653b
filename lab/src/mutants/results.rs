//! What was found of each change, kept as lines of JSON, and the table of it.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::{Path, PathBuf},
};

/// What became of a change, or of a test without any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A test noticed: which.
    Caught(String),
    /// None did.
    Missed,
    /// It doesn't fit the code any more, or can't be built: why.
    Stale(String),
    /// A test of it fails without it: which.
    Unfit(String),
    /// Without a change: the test passes.
    Passes,
}

impl Verdict {
    /// For tables: a word, and what it is about.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Verdict::Caught(test) => ("caught", test),
            Verdict::Missed => ("missed", ""),
            Verdict::Stale(why) => ("stale", why),
            Verdict::Unfit(test) => ("unfit", test),
            Verdict::Passes => ("passes", ""),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    key: u64,
    verdict: Verdict,
}

/// The kept results.
pub struct Results {
    file: PathBuf,
    known: HashMap<(String, u64), Verdict>,
}

/// By which a result is known again: of the change, and of the code it was made in.
pub fn hashed(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Results {
    /// Those of former runs, unless they are to be forgotten.
    pub fn open(file: &Path, again: bool) -> Result<Results> {
        if again && file.exists() {
            fs::remove_file(file)?;
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        // A line that was cut short is found again.
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Line>(l).ok());
        let known = lines.map(|l| ((l.name, l.key), l.verdict)).collect();
        Ok(Results { file: file.to_owned(), known })
    }

    /// What is known.
    pub fn get(&self, name: &str, key: u64) -> Option<&Verdict> {
        self.known.get(&(name.to_owned(), key))
    }

    /// Keeps one.
    pub fn put(&mut self, name: &str, key: u64, verdict: Verdict) -> Result<()> {
        let line = Line { name: name.to_owned(), key, verdict: verdict.clone() };
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file)?;
        writeln!(file, "{}", serde_json::to_string(&line)?)?;
        self.known.insert((name.to_owned(), key), verdict);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_found_again_unless_the_change_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r");
        let mut results = Results::open(&file, false).unwrap();
        results.put("a", 1, Verdict::Caught("t".into())).unwrap();
        results.put("a", 1, Verdict::Missed).unwrap();
        results.put("b", 2, Verdict::Stale("x".into())).unwrap();
        fs::write(&file, fs::read_to_string(&file).unwrap() + "{\"name\":\"c").unwrap();
        let again = Results::open(&file, false).unwrap();
        assert_eq!(again.get("a", 1), Some(&Verdict::Missed));
        assert_eq!(again.get("b", 2), Some(&Verdict::Stale("x".into())));
        assert_eq!((again.get("a", 2), again.get("c", 0)), (None, None));
        assert_eq!(Results::open(&file, true).unwrap().get("a", 1), None);
    }
}
