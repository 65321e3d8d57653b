//! What is served, written down for another program. The descriptors come along in the order in
//! which they are told of here.

use crate::build::Entry;
use crate::config::Uplink;
use crate::report::Numbers;
use crate::sandbox::Folders;
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
    /// Ways out of switches; a descriptor of each.
    pub uplinks: Vec<Uplink>,
    pub devices: Vec<Device>,
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
    /// The disk's bytes, and descriptors of its files.
    pub data: Option<(u64, usize)>,
    /// The disk's file became shorter: nothing of it is trusted any more.
    #[serde(default)]
    pub has_failed: bool,
    pub counted: Numbers,
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
