//! How far a test is: which of how many cases has ended.
//!
//! Guarantees: each case that ends has the next number, in whichever order they end.

use crate::summary::Summary;
use anyhow::{Result, bail};
use exitless::{context::Context, say::plain};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// Counts cases as they end.
pub struct Tally {
    ended: AtomicUsize,
    all: usize,
}

impl Tally {
    /// Of so many.
    pub fn new(all: usize) -> Tally {
        Tally { ended: AtomicUsize::new(0), all }
    }

    /// Runs a case to its end and prints how it went: what it has to tell, or what was wrong, which
    /// is an error of the case and not of this. It fails only where the whole test is stopped.
    pub fn play(
        &self,
        cx: &Context,
        name: &str,
        case: impl FnOnce() -> Result<String>,
    ) -> Result<Summary> {
        let start = Instant::now();
        let outcome = case();
        if cx.interrupted() {
            bail!("stopped");
        }
        let passed = outcome.is_ok();
        let told = outcome.unwrap_or_else(plain);
        println!("{}\n      {told}", self.line(passed, name, start.elapsed()));
        Ok(Summary::one(name, passed))
    }

    /// One more has ended: its line.
    pub fn line(&self, passed: bool, name: &str, took: Duration) -> String {
        let (word, all) = (if passed { "ok" } else { "FAIL" }, self.all);
        let ended = 1 + self.ended.fetch_add(1, Ordering::Relaxed);
        let width = all.to_string().len();
        format!("{word:5} {ended:>width$}/{all} {name:34} {:6.1} s", took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_that_ends_has_a_number() {
        let tally = Tally::new(12);
        let line = |passed, name| tally.line(passed, name, Duration::from_millis(1_250));
        assert_eq!(line(true, "a"), format!("ok     1/12 a{:33}    1.2 s", ""));
        assert_eq!(line(false, "b"), format!("FAIL   2/12 b{:33}    1.2 s", ""));
    }
}
