//! What sidecores did for a VM's disks, networks and IOMMU, queue by queue: as tables, and as JSON.
//!
//! Guarantees: however many records come, what is kept is bounded by what any plan may have.

use crate::table::{Table, thousands};
use proto::{Served, ServedDevice};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// The queues of a VM's paravirtual devices that were reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paravirtual(BTreeMap<(ServedDevice, u32), Served>);

impl Paravirtual {
    /// Takes in what was reported of a queue last; one that no plan has is ignored.
    pub fn see(&mut self, device: ServedDevice, queue: u32, served: Served) {
        if plan::may_have(device, queue) {
            self.0.insert((device, queue), served);
        }
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All queues together.
    pub fn total(&self) -> Served {
        sum(self.0.values())
    }

    /// What was reported of a queue.
    pub fn of(&self, device: ServedDevice, queue: u32) -> Served {
        self.0.get(&(device, queue)).copied().unwrap_or_default()
    }

    /// A list of disks, each with its queues; `docs/running.md` describes it.
    pub fn disks(&self) -> Value {
        self.list("disk", "requests", |device| matches!(device, ServedDevice::Disk(_)))
    }

    /// The same of networks.
    pub fn networks(&self) -> Value {
        self.list("network", "frames", |device| matches!(device, ServedDevice::Network(_)))
    }

    /// The same of the guest's own IOMMU, if it has one.
    pub fn iommus(&self) -> Value {
        self.list("iommu", "requests", |device| matches!(device, ServedDevice::Iommu))
    }

    fn list(&self, word: &str, completed: &str, wanted: fn(&ServedDevice) -> bool) -> Value {
        let mut devices: BTreeMap<ServedDevice, Vec<Value>> = BTreeMap::new();
        for ((device, queue), served) in self.0.iter().filter(|((device, _), _)| wanted(device)) {
            let mut object = json!({
                "queue": queue,
                "bytes": served.bytes,
                "calls": served.calls,
                "calls_withheld": served.calls_withheld,
                "kicks": served.kicks,
                "longest_wait": served.longest_wait,
                "longest_wait_bytes": served.longest_wait_bytes,
                "moves": served.moves,
                "limited_cycles": served.held,
            });
            object[completed] = json!(served.completed);
            if let ServedDevice::Network(_) = device {
                object["dropped"] = json!(served.dropped);
            }
            devices.entry(*device).or_default().push(object);
        }
        let object = |(device, queues): (ServedDevice, _)| json!({ word: device.to_string(), "queues": queues });
        devices.into_iter().map(object).collect()
    }

    /// The rows of one kind of device, in a table of its own.
    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        heads: &[&'static str],
        row: fn(u32, bool, &Served) -> Vec<String>,
        wanted: fn(&ServedDevice) -> bool,
    ) -> fmt::Result {
        let rows = || self.0.iter().filter(|((device, _), _)| wanted(device));
        let mut table = Table::new(heads.iter().copied());
        for ((device, queue), served) in rows() {
            let is_last = !self.0.contains_key(&(*device, queue + 1));
            table.row([device.to_string()].into_iter().chain(row(*queue, is_last, served)));
        }
        if rows().count() > 1 {
            let mut cells = row(0, false, &sum(rows().map(|(_, served)| served)));
            if let Some(queue) = cells.first_mut() {
                queue.clear();
            }
            table.row(["all".to_owned()].into_iter().chain(cells));
        }
        if rows().count() > 0 { write!(f, "{table}") } else { Ok(()) }
    }
}

fn sum<'a>(all: impl Iterator<Item = &'a Served>) -> Served {
    let mut sum = Served::default();
    all.for_each(|served| sum.add(served));
    sum
}

/// What a network's queue is for (virtio 1.2, 5.1.2), if its driver uses all there are: the last
/// one is for commands.
fn purpose(queue: u32, is_last: bool) -> String {
    match queue % 2 {
        0 if is_last && queue > 0 => format!("{queue}, commands"),
        0 => format!("{queue}, in"),
        _ => format!("{queue}, out"),
    }
}

impl fmt::Display for Paravirtual {
    /// A row for each queue; with several queues one for all of them, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table(
            f,
            &["served", "queue", "requests", "bytes", "calls", "withheld", "kicks", "waited"],
            |queue, _, s| {
                let counts =
                    [s.completed, s.bytes, s.calls, s.calls_withheld, s.kicks, s.longest_wait];
                [queue.to_string()].into_iter().chain(counts.map(thousands)).collect()
            },
            |device| matches!(device, ServedDevice::Disk(_) | ServedDevice::Iommu),
        )?;
        self.table(
            f,
            &[
                "served", "queue", "frames", "bytes", "dropped", "calls", "withheld", "kicks",
                "waited",
            ],
            |queue, is_last, s| {
                let Served { completed, bytes, dropped, calls, calls_withheld, .. } = *s;
                let counts =
                    [completed, bytes, dropped, calls, calls_withheld, s.kicks, s.longest_wait];
                [purpose(queue, is_last)].into_iter().chain(counts.map(thousands)).collect()
            },
            |device| matches!(device, ServedDevice::Network(_)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServedDevice::{Disk, Network};

    fn served(completed: u64) -> Served {
        Served {
            completed,
            bytes: 512 * completed,
            dropped: 4,
            calls: 7,
            calls_withheld: 3,
            kicks: 1,
            longest_wait: 2,
            longest_wait_bytes: 4096,
            moves: 9,
            held: 5,
        }
    }

    fn squeezed(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_queue_has_a_row_and_all_have_one() {
        let mut seen = Paravirtual::default();
        assert_eq!((seen.to_string().as_str(), seen.disks()), ("", json!([])));
        seen.see(Disk(0), 1, served(1_500));
        let one = "  served  queue  requests    bytes  calls  withheld  kicks  waited\n  disk0       1     1,500  768,000      7         3      1       2\n";
        assert_eq!(seen.to_string(), one);
        seen.see(Disk(1), 0, served(500));
        seen.see(Disk(0), 1, served(2_000));
        let two = "
  served  queue  requests      bytes  calls  withheld  kicks  waited
  disk0       1     2,000  1,024,000      7         3      1       2
  disk1       0       500    256,000      7         3      1       2
  all                2,500  1,280,000     14         6      2       2
";
        let shown = format!("\n{seen}");
        assert_eq!(squeezed(&shown), squeezed(two));
        let json = seen.disks();
        assert_eq!((&json[0]["disk"], &json[1]["disk"]), (&json!("disk0"), &json!("disk1")));
        let queue = json!({ "queue": 0, "requests": 500, "bytes": 256_000, "calls": 7, "calls_withheld": 3, "kicks": 1, "longest_wait": 2, "longest_wait_bytes": 4096, "moves": 9, "limited_cycles": 5 });
        assert_eq!(json[1]["queues"], json!([queue]));
        assert_eq!((seen.networks(), seen.iommus()), (json!([]), json!([])));
        // An IOMMU is with the disks in the table, and apart from them in JSON.
        seen.see(ServedDevice::Iommu, 0, served(9));
        assert!(squeezed(&seen.to_string()).contains("iommu 0 9 4,608 7 3 1 2"), "{seen}");
        assert_eq!(
            (seen.iommus()[0]["queues"][0]["requests"].clone(), seen.disks()),
            (json!(9), json)
        );
    }

    #[test]
    fn networks_have_a_table_of_their_own() {
        let mut seen = Paravirtual::default();
        seen.see(Disk(0), 0, served(1));
        seen.see(Network(2), 0, served(10));
        seen.see(Network(2), 1, served(30));
        seen.see(Network(2), 2, Served::default());
        let wanted = "
  served  queue  requests  bytes  calls  withheld  kicks  waited
  disk0       0         1    512      7         3      1       2
  served    queue        frames   bytes  dropped  calls  withheld  kicks  waited
  network2  0, in            10   5,120        4      7         3      1       2
  network2  1, out           30  15,360        4      7         3      1       2
  network2  2, commands       0       0        0      0         0      0       0
  all                   40  20,480        8     14         6      2       2
";
        assert_eq!(squeezed(&seen.to_string()), squeezed(wanted));
        let json = seen.networks();
        let queue = json!({ "queue": 1, "frames": 30, "bytes": 15_360, "dropped": 4, "calls": 7, "calls_withheld": 3, "kicks": 1, "longest_wait": 2, "longest_wait_bytes": 4096, "moves": 9, "limited_cycles": 5 });
        assert_eq!((&json[0]["network"], &json[0]["queues"][1]), (&json!("network2"), &queue));
        assert_eq!(seen.disks()[0]["queues"][0]["requests"], 1);
        assert_eq!(
            (seen.of(Network(2), 1), seen.of(Network(0), 1)),
            (served(30), Served::default())
        );
    }

    #[test]
    fn what_no_plan_has_is_not_kept() {
        let mut seen = Paravirtual::default();
        let odd = [(Disk(4), 0), (Disk(0), 16), (Network(4), 0), (Network(0), 15)];
        for (device, queue) in odd.into_iter().chain([(Network(u32::MAX), u32::MAX)]) {
            seen.see(device, queue, served(1));
        }
        assert!(seen.is_empty());
        seen.see(Disk(3), 15, served(1));
        assert_eq!(seen.total(), served(1));
    }
}
