//! How a server is to start, and what is behind it.

use super::started::SERVER_CORE;
use crate::server::Server;
use anyhow::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Bytes of a disk in memory, and of a file.
pub const BYTES: u64 = 64 << 20;
/// Requests a second of a disk that takes its time.
pub const PACE: u64 = 40_000;
/// What an NBD server calls the disk.
pub const EXPORT: &str = "disk";
/// Where a file is in memory, for a server that has no disk of its own there.
pub const MEMORY: &str = "/dev/shm";

/// What keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Back {
    /// Nothing does.
    Null,
    /// Memory; of other servers a file in /dev/shm, if they have no disk there.
    Ram,
    /// A file, in the page cache.
    File,
    /// The same, around it (O_DIRECT): what the device costs is in it.
    Direct,
    /// Nothing does, and each request takes 25 µs, one after the other: the daemon's limit.
    Paced,
    /// An NBD server, on the server's core, behind which nothing keeps it.
    Nbd,
    /// No disk: a network of two stations.
    Net,
}

impl Back {
    pub const fn name(self) -> &'static str {
        match self {
            Back::Null => "null",
            Back::Ram => "ram",
            Back::File => "file",
            Back::Direct => "direct",
            Back::Paced => "paced",
            Back::Nbd => "nbd",
            Back::Net => "net",
        }
    }
}

/// How a server is to start.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Before its program: programs and their arguments.
    pub wrap: &'a [String],
    /// The daemon's program.
    pub daemon: &'a Path,
    pub back: Back,
    pub clients: u32,
    /// For its files, and those of others.
    pub folder: &'a Path,
}

impl Start<'_> {
    /// Its program below what is before it.
    pub fn command(&self, program: &Path) -> Command {
        let mut words = self.wrap.iter();
        let mut command = Command::new(words.next().map_or("env", String::as_str));
        command.args(words).arg(program);
        command
    }

    /// Whether valgrind is before it, which opens files when it ends.
    pub fn is_open(&self) -> bool {
        self.wrap.iter().any(|word| word == "valgrind")
    }

    /// Sockets in the folder for so many, none of which is there.
    pub fn sockets(&self, name: &str, count: u32) -> Vec<PathBuf> {
        let sockets = (0..count).map(|one| self.folder.join(format!("{name}{one}")));
        // One that was killed left it.
        sockets.inspect(|socket| drop(fs::remove_file(socket))).collect()
    }

    /// The NBD server that is behind, and its socket, if there is to be one.
    pub fn behind(&self) -> Result<Option<(Server, PathBuf)>> {
        if self.back != Back::Nbd {
            return Ok(None);
        }
        let socket = self.folder.join("nbd");
        Ok(Some((nbd_server(&socket)?, socket)))
    }
}

/// QEMU's NBD server of a disk that keeps nothing, at this socket.
fn nbd_server(socket: &Path) -> Result<Server> {
    // One that was killed left it.
    let _ = fs::remove_file(socket);
    let mut command = Command::new("taskset");
    command.args(["-c", SERVER_CORE, "qemu-nbd", "--persistent", "--shared=16"]);
    command.args(["--export-name", EXPORT, "--socket"]).arg(socket).arg("--image-opts");
    command.arg(format!("driver=null-co,size={BYTES},read-zeroes=off"));
    Server::until(command, || socket.exists())
}

/// The file, with data in it.
pub fn full(path: PathBuf) -> Result<PathBuf> {
    fs::write(&path, vec![0x5a; BYTES as usize])?;
    Ok(path)
}
