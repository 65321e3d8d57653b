//! What is counted: latencies, and what Linux says of threads.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;

/// Buckets of each power of two.
const EACH: u64 = 32;
const POWERS: u64 = 40;

/// Latencies in nanoseconds, each within three hundredths.
pub struct Histogram(Vec<u64>);

impl Histogram {
    pub fn new() -> Histogram {
        Histogram(vec![0; (EACH * POWERS) as usize])
    }

    #[inline]
    pub fn add(&mut self, nanoseconds: u64) {
        let bits = u64::from(nanoseconds.max(EACH).ilog2());
        let within = (nanoseconds.max(EACH) >> (bits - 5)) - EACH;
        let at = ((bits - 5) * EACH + within).min(EACH * POWERS - 1);
        if let Some(bucket) = self.0.get_mut(at as usize) {
            *bucket += 1;
        }
    }

    /// That so many in a thousand don't exceed.
    pub fn at(&self, thousandths: u64) -> u64 {
        let all: u64 = self.0.iter().sum();
        let wanted = (all * thousandths).div_ceil(1000);
        let mut sum = 0;
        for (at, bucket) in (0..).zip(&self.0) {
            sum += bucket;
            if sum >= wanted {
                return (EACH + at % EACH) << (at / EACH);
            }
        }
        0
    }
}

/// What a process, or a thread, has had so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Had {
    /// Nanoseconds on a core.
    pub cpu: u64,
    /// How often it gave up a core, and how often that was taken from it.
    pub switches: u64,
}

impl Had {
    /// All threads of a process.
    pub fn process(id: u32) -> Result<Had> {
        let mut sum = Had::default();
        let folder = format!("/proc/{id}/task");
        for thread in fs::read_dir(&folder).with_context(|| format!("there is no process {id}"))? {
            // A thread that has just ended has nothing to say.
            let had = Had::of(&thread?.path()).unwrap_or_default();
            sum = Had { cpu: sum.cpu + had.cpu, switches: sum.switches + had.switches };
        }
        Ok(sum)
    }

    /// This thread.
    pub fn own() -> Result<Had> {
        Had::of(Path::new("/proc/thread-self"))
    }

    fn of(folder: &Path) -> Result<Had> {
        let text = fs::read_to_string(folder.join("schedstat"))?;
        let cpu = text.split_whitespace().next().and_then(|word| word.parse().ok());
        let text = fs::read_to_string(folder.join("status"))?;
        let counts = text.lines().filter(|line| line.contains("voluntary_ctxt_switches:"));
        let numbers = counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok());
        Ok(Had { cpu: cpu.context("there is no schedstat")?, switches: numbers.sum() })
    }

    pub fn since(self, before: Had) -> Had {
        Had { cpu: self.cpu - before.cpu, switches: self.switches - before.switches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_three_hundredths() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        for (thousandths, exact) in [(500, 500_000.0), (990, 990_000.0), (1000, 1_000_000.0)] {
            let found = histogram.at(thousandths) as f64;
            assert!((found / exact - 1.0).abs() < 0.035, "{found} for {exact}");
        }
        assert_eq!(Histogram::new().at(500), 32);
    }

    #[test]
    fn a_thread_that_works_has_had_a_core() {
        let before = Had::own().unwrap();
        while Had::own().unwrap().since(before).cpu == 0 {}
        assert!(Had::process(std::process::id()).unwrap().cpu > 0);
    }
}
