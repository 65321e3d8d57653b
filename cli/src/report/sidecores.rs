//! What each sidecore did in a run, from the newest record of each: for the end's summary and for
//! programs.
//!
//! Doesn't guarantee that a record came: a run that is stopped has what was last asked for.

use crate::table::{Table, thousands};
use proto::Record;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// More sidecores than any plan has, so that damaged records don't fill memory.
const MAX: usize = 256;

/// The newest counters of a sidecore, since it began to poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sidecore {
    /// Passes over its queues.
    pub passes: u64,
    /// Those that found work.
    pub found: u64,
    /// TSC ticks that the work took.
    pub busy: u64,
    /// Times that it fell asleep.
    pub sleeps: u64,
    /// Whether it sleeps.
    pub asleep: bool,
    /// The TSC when this was so.
    pub now: u64,
}

/// All of a run, by core.
#[derive(Debug, Default)]
pub struct Sidecores {
    cores: BTreeMap<u32, Sidecore>,
    /// The TSC when the first VM started.
    since: Option<u64>,
}

impl Sidecores {
    /// Takes a record in.
    pub fn see(&mut self, record: &Record) {
        match *record {
            Record::Started { now, .. } => self.since = Some(self.since.unwrap_or(now).min(now)),
            Record::Sidecore { core, passes, found, busy, sleeps, asleep, now }
                if self.cores.contains_key(&core) || self.cores.len() < MAX =>
            {
                self.cores.insert(core, Sidecore { passes, found, busy, sleeps, asleep, now });
            }
            _ => {}
        }
    }

    /// By core, in ascending order.
    pub fn cores(&self) -> impl Iterator<Item = (u32, &Sidecore)> {
        self.cores.iter().map(|(core, counted)| (*core, counted))
    }

    /// The part of the time since the first VM started for which it had work, 0 to 1.
    fn busy(&self, counted: &Sidecore) -> Option<f64> {
        let ticks = counted.now.checked_sub(self.since?).filter(|ticks| *ticks > 0)?;
        Some((counted.busy as f64 / ticks as f64).min(1.0))
    }

    /// For programs; `docs/running.md` describes it.
    pub fn json(&self) -> Value {
        let core = |(core, counted): (u32, &Sidecore)| {
            json!({
                "core": core, "passes": counted.passes, "found": counted.found,
                "busy_cycles": counted.busy, "busy": self.busy(counted),
                "sleeps": counted.sleeps, "asleep": counted.asleep,
            })
        };
        self.cores().map(core).collect()
    }
}

/// A table; nothing if there is no sidecore.
impl fmt::Display for Sidecores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.cores.is_empty() {
            return Ok(());
        }
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let mut table = Table::new(["sidecore", "passes", "with work", "busy", "slept"]);
        for (core, counted) in self.cores() {
            let found = counted.found as f64 / counted.passes.max(1) as f64;
            table.row([
                format!("core {core}"),
                thousands(counted.passes),
                percent(found),
                self.busy(counted).map_or("?".to_owned(), percent),
                thousands(counted.sleeps),
            ]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Policy;

    fn started(vm: u32, now: u64) -> Record {
        let (policy, name, why) = (Policy::Eli, String::new(), String::new());
        Record::Started { vm, name, policy, why, memory: 0, overhead: 0, now }
    }

    fn counted(core: u32, busy: u64, now: u64) -> Record {
        Record::Sidecore { core, passes: 2_000, found: 500, busy, sleeps: 3, asleep: true, now }
    }

    #[test]
    fn the_newest_record_of_each_core_counts() {
        let mut sidecores = Sidecores::default();
        assert_eq!(sidecores.to_string(), "");
        assert_eq!(sidecores.json(), json!([]));
        let records = [started(0, 200), started(1, 100), counted(2, 10, 150), counted(2, 25, 200)];
        records.iter().for_each(|record| sidecores.see(record));
        let json = sidecores.json();
        assert_eq!(json[0]["busy"], 0.25);
        assert_eq!(json[0]["busy_cycles"], 25);
        assert_eq!(json[0]["passes"], 2_000);
        assert_eq!(json.as_array().map(Vec::len), Some(1));
        let text = sidecores.to_string();
        let row = text.lines().find(|line| line.contains("core 2")).expect("a row");
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>().join(" "),
            "core 2 2,000 25.0 % 25.0 % 3"
        );
    }

    /// Of records that a damaged line may bring, no more is kept than of any plan.
    #[test]
    fn there_is_a_bound() {
        let mut sidecores = Sidecores::default();
        (0..1_000).for_each(|core| sidecores.see(&counted(core, 1, 1)));
        assert_eq!(sidecores.cores().count(), MAX);
        sidecores.see(&counted(0, 7, 9));
        assert_eq!(sidecores.cores().next().map(|(_, counted)| counted.busy), Some(7));
    }
}
