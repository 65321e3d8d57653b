//! From what the file says to devices: disks are opened, switches and ports are made.

use crate::config::{self, Plan};
use crate::config::{Backing, Limits, Network, Way};
use crate::counts::Counts;
use crate::device::{Device, Ended, Kind, Port};
use crate::disk::{Data, Disk};
use crate::door::Door;
use crate::foreign::Unclosed;
use crate::report::NETWORK;
use crate::rings::Rings;
use crate::storage::{Access, Controllers};
use crate::supervisor::Handed;
use crate::uplink::Uplink;
use anyhow::{Context as _, Result};
use net::{MAX_PORTS, Mac, Parameters, Rate, Sources, Switch, Vlan};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a switch learns holds for five minutes, in nanoseconds.
const AGEING: u64 = 300_000_000_000;
/// What a network may send at once, in parts of a second of its rate.
const BURST: u64 = 100;

/// A device of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    Disk(config::Disk),
    Network(Network),
}

impl Entry {
    pub fn of(plan: &Plan) -> Vec<Entry> {
        let disks = plan.disks.iter().cloned().map(Entry::Disk);
        disks.chain(plan.networks.iter().cloned().map(Entry::Network)).collect()
    }

    pub fn name(&self) -> &str {
        match self {
            Entry::Disk(disk) => &disk.name,
            Entry::Network(network) => &network.name,
        }
    }

    pub fn way(&self) -> &Way {
        match self {
            Entry::Disk(disk) => &disk.way,
            Entry::Network(network) => &network.way,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Entry::Disk(_) => "disk",
            Entry::Network(_) => NETWORK,
        }
    }

    /// What is behind it, in a word or two.
    pub fn backing(&self) -> String {
        match self {
            Entry::Disk(disk) => match &disk.backing {
                Backing::File { path, .. } => path.display().to_string(),
                Backing::Nbd(server) => server.uri.clone(),
                Backing::Nvme(part) => part.address.clone(),
                Backing::Ram(_) => "ram".into(),
                Backing::Null(_) => "null".into(),
            },
            Entry::Network(network) => format!("switch {}", network.switch),
        }
    }

    /// Bytes that it may move in a second: of a network, those that it sends.
    pub fn rate(&self) -> Option<u64> {
        match self {
            Entry::Disk(disk) => disk.limits.bytes_per_second,
            Entry::Network(network) => network.rate,
        }
    }

    pub fn limits(&self) -> Limits {
        match self {
            Entry::Disk(disk) => disk.limits,
            Entry::Network(network) => Limits { weight: network.weight, ..Limits::default() },
        }
    }

    /// The same but for its limits: what can change while it runs.
    pub fn is_like(&self, other: &Entry) -> bool {
        match (self.clone(), other) {
            (Entry::Disk(own), Entry::Disk(other)) => {
                config::Disk { limits: other.limits, ..own } == *other
            }
            (Entry::Network(own), Entry::Network(other)) => {
                Network { weight: other.weight, ..own } == *other
            }
            _ => false,
        }
    }
}

/// A switch by its name.
pub struct Named {
    pub name: String,
    pub place: usize,
}

/// Makes the device; it opens files, unless another program hands them over.
///
/// # Errors
///
/// A sentence without the device's name.
pub fn device(
    entry: &Entry,
    data: Option<Data>,
    rings: &mut Rings,
    switches: &mut Vec<Named>,
) -> Result<Device> {
    Ok(named(
        entry,
        match entry {
            Entry::Disk(disk) => Kind::Disk(open(disk, data, &mut rings.controllers)?),
            Entry::Network(network) => Kind::Port(port(network, rings, switches)?),
        },
    ))
}

/// A device of this kind that nobody has used.
pub fn named(entry: &Entry, kind: Kind) -> Device {
    let (front_ends, coalesces) = match entry {
        Entry::Disk(disk) => (disk.front_ends, disk.coalesce),
        Entry::Network(_) => (1, true),
    };
    Device {
        name: entry.name().to_owned(),
        kind,
        limits: entry.limits(),
        coalesces,
        front_ends,
        connected: 0,
        connections: 0,
        ended: Ended::default(),
        gone: Counts::default(),
        unclosed: Unclosed::default(),
    }
}

/// Makes the door: of a socket that was handed over; of `made`, which another process made; or a
/// new one.
pub fn door(way: &Way, folder: &Path, handed: &mut Handed, made: Option<OwnedFd>) -> Result<Door> {
    match (way, made) {
        (Way::Socket(path), Some(made)) => Door::listening(made.into(), Some(path.to_owned())),
        (Way::Socket(path), None) => match handed.at(&folder.join(path)) {
            Some(listener) => Door::listening(listener, None),
            None => Door::listen(path),
        },
        (Way::Connect(path), _) => Ok(Door::connecting(path)),
    }
}

/// Gives a switch its way out, which another program or process may have opened: the place among
/// all of them.
pub fn uplink(
    asked: &config::Uplink,
    handed: Option<OwnedFd>,
    rings: &mut Rings,
    switches: &mut Vec<Named>,
) -> Result<usize> {
    let place = switch(&asked.switch, rings, switches);
    let on = rings.served.switches.get_mut(place).context("the switch is gone")?;
    let uplink = Uplink::new(asked, handed, rings.cuts_udp, place, on)?;
    Ok(rings.served.uplinks.insert(uplink))
}

fn open(disk: &config::Disk, data: Option<Data>, controllers: &mut Controllers) -> Result<Disk> {
    let config::Disk { queues, read_only, packed, serial, .. } = disk;
    let opened = match (&disk.backing, data) {
        (Backing::File { path, page_cache, raw, pinned }, None) => {
            let access = Access { read_only: *read_only, page_cache: *page_cache, raw: *raw };
            Disk::file(path, access, *queues)?.pinning(*pinned)
        }
        (Backing::File { path, pinned, .. }, Some(data)) => {
            Disk::opened_file(path, data, *queues, *read_only)?.pinning(*pinned)
        }
        (Backing::Nbd(server), data) => Disk::nbd(server, data, *queues, *read_only)?,
        (Backing::Nvme(part), _) => {
            Disk::nvme(controllers.disk(part, *read_only)?, *queues, *read_only)?
        }
        (Backing::Ram(bytes), None) => Disk::ram(*bytes, *queues, *read_only)?,
        (Backing::Ram(bytes), Some(data)) => {
            let disk = Disk::ram(*bytes, *queues, *read_only)?;
            disk.fill(data)?;
            disk
        }
        (Backing::Null(bytes), _) => Disk::null(*bytes, *queues, *read_only)?,
    };
    opened.with(serial, *packed)
}

/// The place of the switch of this name, which is made if there is none.
fn switch(name: &str, rings: &mut Rings, switches: &mut Vec<Named>) -> usize {
    if let Some(found) = switches.iter().find(|named| named.name == name) {
        return found.place;
    }
    let place = rings.served.switches.len();
    rings.served.switches.push(Switch::new(MAX_PORTS, AGEING));
    switches.push(Named { name: name.to_owned(), place });
    place
}

fn port(network: &Network, rings: &mut Rings, switches: &mut Vec<Named>) -> Result<Port> {
    let place = switch(&network.switch, rings, switches);
    let on = rings.served.switches.get_mut(place).context("the switch is gone")?;
    let mac = network.mac.map_or_else(|| free_address(on, &network.name), |mac| Mac(mac.0));
    let Network { mtu, queues: pairs, packed, .. } = *network;
    let announces = true;
    let parameters = Parameters { mac, mtu, pairs, packed, announces, ..Parameters::default() };
    let config = net::Config::new(parameters)?;
    let rate = |bytes_per_second: u64| Rate { bytes_per_second, burst: bytes_per_second / BURST };
    let plan = net::Plan {
        vlan: Vlan::Access(network.vlan.unwrap_or(0)),
        sources: if network.mac.is_some() { Sources::Planned } else { Sources::Any },
        rate: network.rate.map(rate),
        flood: network.flood.map(rate),
    };
    let number = on.add(config, plan);
    let number = number.with_context(|| format!("switch {}", network.switch))?;
    Ok(Port { switch: place, number, config })
}

/// An address that no port has, from the device's name: of FNV-1a, marked as given locally.
fn free_address(switch: &Switch, name: &str) -> Mac {
    let mut hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    loop {
        let [a, b, c, d, e, ..] = hash.to_le_bytes();
        let mac = Mac([2, a, b, c, d, e]);
        if !switch.has_address(mac) {
            return mac;
        }
        hash = hash.wrapping_add(1);
    }
}
