//! How many tests passed, failed and were skipped, and which failed.

use std::{fmt, ops::AddAssign};

/// Counts of tests; displays as `exitless test`'s closing line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Ran and held.
    pub passed: usize,
    /// Ran and didn't hold.
    pub failed: usize,
    /// Didn't run, for a reason that was shown.
    pub skipped: usize,
    /// The steps and cases that failed, or had something in them that did.
    pub culprits: Vec<String>,
    /// Of cases that counted them, the instructions from our first one to the first guest entry.
    pub entered: Vec<(String, u64)>,
}

impl Summary {
    /// One test of this name.
    pub fn one(name: &str, passed: bool) -> Summary {
        let culprits = if passed { Vec::new() } else { vec![name.into()] };
        Summary { passed: passed.into(), failed: (!passed).into(), culprits, ..Summary::default() }
    }
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.culprits.extend(other.culprits);
        self.entered.extend(other.entered);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
