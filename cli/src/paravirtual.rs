//! What sidecores did for a VM's disks, queue by queue: as a table, and as JSON.
//!
//! Guarantees: however many records come, what is kept is bounded by what any plan may have.

use crate::table::{Table, thousands};
use plan::{MAX_DISKS, MAX_QUEUES};
use proto::Served;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// The queues of a VM's disks that were reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paravirtual(BTreeMap<(u32, u32), Served>);

impl Paravirtual {
    /// Takes in what was reported of a queue last; one that no plan has is ignored.
    pub fn see(&mut self, disk: u32, queue: u32, served: Served) {
        if (disk as usize) < MAX_DISKS && queue < u32::from(MAX_QUEUES) {
            self.0.insert((disk, queue), served);
        }
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All queues together.
    pub fn total(&self) -> Served {
        let mut sum = Served::default();
        self.0.values().for_each(|served| sum.add(served));
        sum
    }

    /// A list of disks, each with its queues; `docs/running.md` describes it.
    pub fn json(&self) -> Value {
        let of = |served: &Served| {
            json!({
                "requests": served.requests,
                "bytes": served.bytes,
                "calls": served.calls,
                "calls_withheld": served.calls_withheld,
                "kicks": served.kicks,
                "longest_wait": served.longest_wait,
            })
        };
        let mut disks: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
        for ((disk, queue), served) in &self.0 {
            let mut object = of(served);
            object["queue"] = json!(queue);
            disks.entry(*disk).or_default().push(object);
        }
        let disk = |(disk, queues)| json!({ "disk": format!("disk{disk}"), "queues": queues });
        disks.into_iter().map(disk).collect()
    }
}

impl fmt::Display for Paravirtual {
    /// A row for each queue; with several queues one for all of them, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "served", "queue", "requests", "bytes", "calls", "withheld", "kicks", "waited",
        ]);
        let counts = |s: &Served| {
            [s.requests, s.bytes, s.calls, s.calls_withheld, s.kicks, s.longest_wait].map(thousands)
        };
        for ((disk, queue), served) in &self.0 {
            let place = [format!("disk{disk}"), queue.to_string()];
            table.row(place.into_iter().chain(counts(served)));
        }
        if self.0.len() > 1 {
            let place = ["all".to_owned(), String::new()];
            table.row(place.into_iter().chain(counts(&self.total())));
        }
        if self.is_empty() { Ok(()) } else { write!(f, "{table}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(requests: u64) -> Served {
        Served {
            requests,
            bytes: 512 * requests,
            calls: 7,
            calls_withheld: 3,
            kicks: 1,
            longest_wait: 2,
        }
    }

    #[test]
    fn each_queue_has_a_row_and_all_have_one() {
        let mut seen = Paravirtual::default();
        assert_eq!((seen.to_string().as_str(), seen.json()), ("", json!([])));
        seen.see(0, 1, served(1_500));
        let one = "  served  queue  requests    bytes  calls  withheld  kicks  waited\n  disk0       1     1,500  768,000      7         3      1       2\n";
        assert_eq!(seen.to_string(), one);
        seen.see(1, 0, served(500));
        seen.see(0, 1, served(2_000));
        let two = "
  served  queue  requests      bytes  calls  withheld  kicks  waited
  disk0       1     2,000  1,024,000      7         3      1       2
  disk1       0       500    256,000      7         3      1       2
  all                2,500  1,280,000     14         6      2       2
";
        let shown = format!("\n{seen}");
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&shown), squeezed(two));
        let json = seen.json();
        assert_eq!((&json[0]["disk"], &json[1]["disk"]), (&json!("disk0"), &json!("disk1")));
        let queue = json!({ "queue": 0, "requests": 500, "bytes": 256_000, "calls": 7, "calls_withheld": 3, "kicks": 1, "longest_wait": 2 });
        assert_eq!(json[1]["queues"], json!([queue]));
    }

    #[test]
    fn what_no_plan_has_is_not_kept() {
        let mut seen = Paravirtual::default();
        for (disk, queue) in [(4, 0), (0, 16), (u32::MAX, u32::MAX)] {
            seen.see(disk, queue, served(1));
        }
        assert!(seen.is_empty());
        seen.see(3, 15, served(1));
        assert_eq!(seen.total(), served(1));
    }
}
