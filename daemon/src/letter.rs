//! What is served, written down for another program. The descriptors come along in the order in
//! which they are told of here.

use crate::build::Entry;
use crate::config;
use crate::device::Ended;
use crate::disk::Data;
use crate::report::Numbers;
use crate::sandbox::Folders;
use crate::storage::Reached;
use crate::unserved::Unserved;
use anyhow::Result;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The version of what is below. Programs of another one don't take over from each other.
pub const VERSION: u32 = 2;

/// Who wants to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub version: u32,
    /// The program's process, for systemd.
    pub process: u32,
}

/// All of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Letter {
    /// Where relative paths begin.
    pub folder: PathBuf,
    /// The file that it is all said in.
    pub file: Option<PathBuf>,
    /// What may be used later, if the rest was given up.
    pub sandbox: Option<Folders>,
    /// The control socket's file, and that of metrics; a descriptor of each.
    pub control: Option<PathBuf>,
    pub metrics: Option<PathBuf>,
    /// Sockets that systemd listens at and no device has; a descriptor of each.
    pub handed: Vec<PathBuf>,
    pub devices: Vec<Device>,
    /// What isn't served, and is to be.
    #[serde(default)]
    pub missing: Vec<Unserved>,
    /// Ways out of switches; a descriptor of each.
    pub uplinks: Vec<config::Uplink>,
    pub connections: Vec<Connection>,
    /// All descriptors.
    pub descriptors: usize,
}

/// A device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Device {
    pub entry: Entry,
    /// There is a descriptor of a socket that is listened at.
    pub listens: bool,
    /// The socket's file, if it is to be removed at the end.
    pub socket_file: Option<PathBuf>,
    /// What the disk's data lies in.
    pub data: Option<Told>,
    pub counted: Numbers,
    #[serde(default)]
    pub ended: Ended,
}

/// What a disk's data lies in, but for the descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    /// Bytes.
    size: u64,
    /// How many descriptors come along.
    files: usize,
    /// The disk's file became shorter: nothing of it is trusted any more.
    has_failed: bool,
    server: Option<Reached>,
}

impl Told {
    pub fn of(data: &Data) -> Told {
        let Data { size, files, has_failed, server } = data;
        let (server, has_failed) = (server.clone(), *has_failed);
        Told { size: *size, files: files.len(), has_failed, server }
    }

    /// With the descriptors, which are the next ones.
    ///
    /// # Errors
    ///
    /// If there are too few.
    pub fn with(self, next: &mut impl FnMut() -> Result<OwnedFd>) -> Result<Data> {
        let Told { size, files, has_failed, server } = self;
        let files = (0..files).map(|_| next()).collect::<Result<_>>()?;
        Ok(Data { size, files, has_failed, server })
    }
}

/// A front end: a descriptor of its socket, then those of what came of a message, then those of
/// the messages.
#[derive(Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The device's place in this letter.
    pub device: usize,
    /// What came of a message that isn't whole, and how many descriptors with it.
    pub came: Vec<u8>,
    pub descriptors: usize,
    pub said: Vec<Said>,
}

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub struct Said {
    pub request: u32,
    pub payload: Vec<u8>,
    pub descriptors: usize,
}
