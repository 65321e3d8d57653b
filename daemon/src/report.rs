//! What there is and what it did, as it is told to others.

use crate::counts::{CLASSES, Counts, Time};
use crate::device::{Ended, Kind};
use crate::rings::Rings;
use crate::unserved::Wished;
use blk::SECTOR;
use serde::{Deserialize, Serialize};

/// What a network is called as a kind.
pub const NETWORK: &str = "network";
/// What a way out is called as a kind.
pub const UPLINK: &str = "uplink";

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Nanoseconds since the system's start.
    pub at: u64,
    /// The thread's time, in nanoseconds.
    pub busy: u64,
    pub polling: u64,
    pub asleep: u64,
    pub sleeps: u64,
    /// Looks for work, and those that found some.
    pub passes: u64,
    pub found: u64,
    pub devices: Vec<Device>,
    /// What isn't served, and is to be.
    #[serde(default)]
    pub unserved: Vec<Unserved>,
}

/// What isn't served, and is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unserved {
    pub name: String,
    /// `disk`, `network` or `uplink`.
    pub kind: String,
    pub backing: String,
    pub socket: String,
    /// A sentence.
    pub why: String,
}

impl From<&crate::unserved::Unserved> for Unserved {
    fn from(own: &crate::unserved::Unserved) -> Unserved {
        let (kind, backing, socket) = match &own.wished {
            Wished::Device(entry) => {
                let socket = entry.way().path().display().to_string();
                (entry.kind(), entry.backing(), socket)
            }
            Wished::Uplink(uplink) => (UPLINK, uplink.out.to_string(), String::new()),
        };
        let (name, why) = (own.wished.name(), own.why.clone());
        Unserved { name, kind: kind.into(), backing, socket, why }
    }
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    /// `disk` or `network`.
    pub kind: String,
    /// Of a disk, in bytes.
    #[serde(default)]
    pub size: Option<u64>,
    /// What is behind it: what keeps a disk's data, which switch a network is at.
    #[serde(default)]
    pub backing: String,
    pub socket: String,
    /// Its file was removed: nobody can connect.
    #[serde(default)]
    pub is_closed: bool,
    /// What keeps a disk's data from being read and written now, in words.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Front ends that are connected, and all so far.
    pub connected: usize,
    pub connections: u64,
    /// Connections that ended with a reason.
    #[serde(default)]
    pub ended: Ended,
    /// Its limits: requests a second, and bytes, which a network sends.
    #[serde(default)]
    pub iops: Option<u64>,
    #[serde(default)]
    pub rate: Option<u64>,
    pub rings: Vec<Ring>,
    /// Of rings that are gone.
    pub gone: Numbers,
}

/// A ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    pub connection: usize,
    pub index: u16,
    pub running: bool,
    pub polled: bool,
    /// What the driver accepted, by virtio's names, while it runs.
    #[serde(default)]
    pub features: Vec<String>,
    pub numbers: Numbers,
}

/// What [`Counts`] has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    pub completed: u64,
    #[serde(default)]
    pub left: u64,
    pub bytes: u64,
    #[serde(default)]
    pub errors: u64,
    pub dropped: u64,
    pub calls: u64,
    pub withheld: u64,
    pub kicks: u64,
    pub throttled: u64,
    #[serde(default)]
    pub held: u64,
    #[serde(default)]
    pub limited: u64,
    /// Turns by how long the ring was seen waiting: see [`crate::counts`].
    pub waits: Vec<u64>,
    pub waits_sum: u64,
    /// Requests or frames by how long they took, the same way.
    #[serde(default)]
    pub latencies: Vec<u64>,
    #[serde(default)]
    pub latencies_sum: u64,
}

impl From<&Counts> for Numbers {
    fn from(counts: &Counts) -> Numbers {
        Numbers {
            completed: counts.completed,
            left: counts.left,
            bytes: counts.bytes,
            errors: counts.errors,
            dropped: counts.dropped,
            calls: counts.calls,
            withheld: counts.withheld,
            kicks: counts.kicks,
            throttled: counts.throttled,
            held: counts.held,
            limited: counts.limited,
            waits: counts.waits.classes.to_vec(),
            waits_sum: counts.waits.sum,
            latencies: counts.latencies.classes.to_vec(),
            latencies_sum: counts.latencies.sum,
        }
    }
}

impl Numbers {
    /// As they are counted. Classes that aren't there are 0.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            completed: self.completed,
            left: self.left,
            bytes: self.bytes,
            errors: self.errors,
            dropped: self.dropped,
            calls: self.calls,
            withheld: self.withheld,
            kicks: self.kicks,
            throttled: self.throttled,
            held: self.held,
            limited: self.limited,
            ..Counts::default()
        };
        for class in 0..CLASSES {
            let of = |classes: &[u64]| classes.get(class).copied().unwrap_or(0);
            counts.waits.classes[class] = of(&self.waits);
            counts.latencies.classes[class] = of(&self.latencies);
        }
        counts.waits.sum = self.waits_sum;
        counts.latencies.sum = self.latencies_sum;
        counts
    }
}

impl Device {
    /// Of all its rings, those that are gone, too.
    pub fn all(&self) -> Counts {
        let mut all = self.gone.counts();
        self.rings.iter().for_each(|ring| all.add(&ring.numbers.counts()));
        all
    }
}

/// Virtio's names of these features.
fn names(kind: &Kind, features: u64) -> Vec<String> {
    let names: Vec<&str> = match kind {
        Kind::Disk(_) => {
            blk::Features::from_bits_truncate(features).iter_names().map(|(name, _)| name).collect()
        }
        Kind::Port(_) => {
            net::Features::from_bits_truncate(features).iter_names().map(|(name, _)| name).collect()
        }
    };
    names.into_iter().map(str::to_ascii_lowercase).collect()
}

/// What the file says of a device.
#[derive(Default)]
pub struct Said {
    pub backing: String,
    pub socket: String,
    pub is_closed: bool,
    pub rate: Option<u64>,
}

/// What there is now.
pub fn report(rings: &mut Rings, said: impl Fn(usize) -> Said) -> Report {
    let at = rings.look_at_clock();
    let sidecore::Statistics { passes, found } = rings.schedule().statistics();
    let Time { busy, polling, asleep, sleeps } = rings.time;
    let devices = rings.served.devices.iter().map(|(place, device)| {
        let own = rings.served.all.iter().filter(|(_, ring)| ring.device == place);
        let own = own.map(|(at, ring)| Ring {
            connection: ring.connection,
            index: ring.index,
            running: ring.running,
            polled: rings.schedule().is_polled(at),
            features: names(&device.kind, if ring.running { ring.features } else { 0 }),
            numbers: Numbers::from(&ring.counted()),
        });
        let Said { backing, socket, is_closed, rate } = said(place);
        let (kind, size, trouble) = match &device.kind {
            Kind::Disk(disk) => {
                let size = disk.config.parameters().capacity * SECTOR;
                ("disk", Some(size), disk.store.trouble())
            }
            Kind::Port(_) => (NETWORK, None, None),
        };
        Device {
            name: device.name.clone(),
            kind: kind.into(),
            size,
            backing,
            socket,
            is_closed,
            trouble,
            connected: device.connected,
            connections: device.connections,
            ended: device.ended.clone(),
            iops: device.limits.iops,
            rate,
            rings: own.collect(),
            gone: Numbers::from(&device.gone),
        }
    });
    let devices = devices.collect();
    let unserved = Vec::new();
    Report { at, busy, polling, asleep, sleeps, passes, found, devices, unserved }
}
