//! `io.toml`, as a person writes it, to what is to be served.
//!
//! Guarantees: every line that is wrong is named in one sentence each, with the file, the line, the
//! table and the key, what was found and what would be right. No file is opened; paths are taken
//! from the folder of the file.

mod disk;
mod field;
mod meant;
mod nvme;
mod server;
mod tables;
#[cfg(test)]
mod tests;
mod values;

pub use nvme::{Nvme, pci_address};
pub use server::{Server, Tls, parse_timeout, server_name};
pub use tables::by_line;

use plan::Mac;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// What is to be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub disks: Vec<Disk>,
    pub networks: Vec<Network>,
    pub uplinks: Vec<Uplink>,
    pub host: Host,
}

/// `[host]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The socket for `exitless io list` and the like.
    pub control: Option<PathBuf>,
    /// The socket for metrics.
    pub metrics: Option<PathBuf>,
    /// Folders that files and sockets may be in that are added later.
    pub paths: Vec<PathBuf>,
}

/// How front ends come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    Socket(PathBuf),
    Connect(PathBuf),
}

impl Way {
    pub fn path(&self) -> &Path {
        match self {
            Way::Socket(path) | Way::Connect(path) => path,
        }
    }
}

/// What keeps a disk's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    File {
        path: PathBuf,
        /// Whole pages go through the page cache, too.
        page_cache: bool,
        /// It isn't refused for looking like another program's image.
        #[serde(default)]
        raw: bool,
        /// A guest's memory stays where it is while it is connected, and is locked.
        #[serde(default)]
        pinned: bool,
    },
    Nbd(Server),
    Nvme(Nvme),
    Ram(u64),
    Null(u64),
}

/// What a device may have of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub weight: u32,
    pub iops: Option<u64>,
    pub bytes_per_second: Option<u64>,
    /// For so many nanoseconds a device saves up what its limits allow.
    pub burst: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { weight: plan::DEFAULT_WEIGHT, iops: None, bytes_per_second: None, burst: None }
    }
}

impl Limits {
    pub fn share(&self) -> sidecore::Share {
        let Limits { weight, iops: requests, bytes_per_second: bytes, .. } = *self;
        sidecore::Share { weight, requests, bytes }
    }
}

/// `[disk.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub name: String,
    pub backing: Backing,
    pub way: Way,
    pub queues: u16,
    pub read_only: bool,
    /// Packed rings are offered, too.
    pub packed: bool,
    /// Which completions a driver is told of at once is decided by vIC; else it is of all.
    #[serde(default = "yes")]
    pub coalesce: bool,
    pub serial: String,
    pub front_ends: usize,
    pub limits: Limits,
}

/// What a daemon before did that has no word for it.
const fn yes() -> bool {
    true
}

impl Disk {
    /// Its content is gone with it.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.backing, Backing::Ram(_))
    }
}

/// `[network.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub name: String,
    pub way: Way,
    pub switch: String,
    /// The one address that it may send from; none: any that no other has.
    pub mac: Option<Mac>,
    pub vlan: Option<u16>,
    pub queues: u16,
    pub packed: bool,
    pub mtu: u16,
    /// Bytes that it may send in a second.
    pub rate: Option<u64>,
    /// Bytes that all copies of its frames for several others may have in a second.
    #[serde(default)]
    pub flood: Option<u64>,
    pub weight: u32,
}

/// `[uplink.SWITCH]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    pub switch: String,
    pub out: Out,
}

impl Uplink {
    /// It takes calls of its own.
    pub fn is_interface(&self) -> bool {
        matches!(self.out, Out::Packet(_))
    }
}

/// Where a switch's way out leads, by the name of an interface of the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Out {
    /// A TAP: to the host itself.
    Tap(String),
    /// An interface, by a packet socket.
    Packet(String),
}

impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Out::Tap(name) => write!(f, "the TAP {name}"),
            Out::Packet(name) => write!(f, "the interface {name}"),
        }
    }
}

/// A line that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub file: String,
    pub line: usize,
    /// Where in the file, as in `[disk.web] queues: `; or nothing.
    pub place: String,
    pub problem: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { file, line, place, problem } = self;
        write!(f, "{file}:{line}: {place}{problem}")
    }
}

/// Reads the text of a file of this name.
///
/// # Errors
///
/// Each line that is wrong, in the file's order.
pub fn parse(file: &Path, text: &str) -> Result<Plan, Vec<Wrong>> {
    match read(file, text) {
        (plan, wrong) if wrong.is_empty() => Ok(plan),
        (_, wrong) => Err(wrong),
    }
}

/// The same, with what of the file can be read all the same.
pub fn read(file: &Path, text: &str) -> (Plan, Vec<Wrong>) {
    tables::read(file, text)
}

/// Something is wrong with what stands here, such as `["disk", "web", "file"]`: a key, or a table.
/// The text can be read.
pub fn wrong(file: &Path, text: &str, at: &[&str], problem: impl fmt::Display) -> Wrong {
    tables::wrong(file, text, at, &problem.to_string())
}

/// The names of all devices of a plan.
impl Plan {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let disks = self.disks.iter().map(|disk| disk.name.as_str());
        disks.chain(self.networks.iter().map(|network| network.name.as_str()))
    }
}
