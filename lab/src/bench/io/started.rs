//! A server that runs, and which core is whose.

use crate::server::Server;
use std::path::PathBuf;
use tempfile::TempDir;

/// The core of a server, and of what is behind it.
pub const SERVER_CORE: &str = "0";
/// The core of the generator.
pub const LOAD_CORE: &str = "1";

/// Before a program: it stays on the server's core.
pub fn pinned() -> [String; 3] {
    ["taskset", "-c", SERVER_CORE].map(str::to_owned)
}

/// A server that runs, and the socket of each client.
pub struct Started {
    pub server: Server,
    pub sockets: Vec<PathBuf>,
    /// Where a disk in memory is.
    pub memory: Option<TempDir>,
    /// What the server reaches the disk by.
    _behind: Option<Server>,
}

impl Started {
    /// A server that needs nothing else.
    pub fn alone(server: Server, sockets: Vec<PathBuf>) -> Started {
        Started::before(None, server, sockets)
    }

    /// A server that reaches its disk by this one.
    pub fn before(behind: Option<Server>, server: Server, sockets: Vec<PathBuf>) -> Started {
        Started { server, sockets, memory: None, _behind: behind }
    }
}
