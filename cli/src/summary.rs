//! How many tests passed, failed and were skipped.

use std::{fmt, ops::AddAssign};

/// Counts of tests; displays as `exitless test`'s closing line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Ran and held.
    pub passed: usize,
    /// Ran and didn't hold.
    pub failed: usize,
    /// Didn't run, for a reason that was shown.
    pub skipped: usize,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
