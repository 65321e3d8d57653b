//! What a process or a thread has had of the cores, as Linux counts it: how servers of disks are
//! compared, whoever measures.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

/// What a process, or a thread, has had so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Had {
    /// Nanoseconds on a core.
    pub cpu: u64,
    /// How often it gave up a core, and how often that was taken from it.
    pub switches: u64,
}

impl Had {
    /// All threads of a process that are there.
    ///
    /// # Errors
    ///
    /// There is no such process.
    pub fn process(id: u32) -> Result<Had> {
        let mut sum = Had::default();
        let folder = format!("/proc/{id}/task");
        let said = |error: Error| Error::new(error.kind(), format!("{folder}: {error}"));
        for thread in fs::read_dir(&folder).map_err(said)? {
            // A thread that has just ended has nothing to say.
            let had = Had::of(&thread?.path()).unwrap_or_default();
            sum = Had { cpu: sum.cpu + had.cpu, switches: sum.switches + had.switches };
        }
        Ok(sum)
    }

    /// This thread.
    ///
    /// # Errors
    ///
    /// The kernel doesn't count it.
    pub fn own() -> Result<Had> {
        Had::of(Path::new("/proc/thread-self"))
    }

    fn of(folder: &Path) -> Result<Had> {
        let text = fs::read_to_string(folder.join("schedstat"))?;
        let cpu = text.split_whitespace().next().and_then(|word| word.parse().ok());
        let text = fs::read_to_string(folder.join("status"))?;
        let counts = text.lines().filter(|line| line.contains("voluntary_ctxt_switches:"));
        let numbers = counts.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok());
        let cpu = cpu.ok_or_else(|| Error::other("schedstat has no time"))?;
        Ok(Had { cpu, switches: numbers.sum() })
    }

    /// What came since then; nothing, if a thread that counted then has ended.
    pub fn since(self, before: Had) -> Had {
        Had {
            cpu: self.cpu.saturating_sub(before.cpu),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_has_had_a_core() {
        let before = Had::own().unwrap();
        while Had::own().unwrap().since(before).cpu == 0 {}
        assert!(Had::process(std::process::id()).unwrap().cpu > 0);
    }

    #[test]
    fn one_that_sleeps_gave_its_core_up() {
        let before = Had::own().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let had = Had::own().unwrap();
        assert!(had.since(before).switches > 0);
        assert_eq!(before.since(had), Had::default());
    }

    #[test]
    fn a_process_that_isnt_there_is_named() {
        let error = Had::process(u32::MAX).unwrap_err().to_string();
        assert!(error.starts_with("/proc/4294967295/task: "), "{error}");
    }
}
