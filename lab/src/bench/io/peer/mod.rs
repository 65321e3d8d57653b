//! The servers that are measured: which there are, what each serves, and how it is started.

mod cloud_hypervisor;
mod daemon;
mod spdk;
mod storage_daemon;
mod testpmd;

use super::started::{SERVER_CORE, Started};
use crate::server::Server;
use anyhow::Result;
use exitless::{context::Context, needs};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Bytes of a disk in memory, and of a file.
const BYTES: u64 = 64 << 20;
/// What an NBD server calls the disk.
const EXPORT: &str = "disk";
/// Where a file is in memory, for a server that has no disk of its own there.
const MEMORY: &str = "/dev/shm";

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Exitless'.
    Daemon,
    /// QEMU's.
    StorageDaemon,
    /// SPDK's.
    Spdk,
    /// Cloud Hypervisor's.
    CloudHypervisor,
    /// DPDK's.
    Testpmd,
}

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
    fn command(&self, program: &Path) -> Command {
        let mut words = self.wrap.iter();
        let mut command = Command::new(words.next().map_or("env", String::as_str));
        command.args(words).arg(program);
        command
    }

    /// Whether valgrind is before it, which opens files when it ends.
    fn is_open(&self) -> bool {
        self.wrap.iter().any(|word| word == "valgrind")
    }

    /// Sockets in the folder for so many, none of which is there.
    fn sockets(&self, name: &str, count: u32) -> Vec<PathBuf> {
        let sockets = (0..count).map(|one| self.folder.join(format!("{name}{one}")));
        // One that was killed left it.
        sockets.inspect(|socket| drop(fs::remove_file(socket))).collect()
    }

    /// The NBD server that is behind, and its socket, if there is to be one.
    fn behind(&self) -> Result<Option<(Server, PathBuf)>> {
        if self.back != Back::Nbd {
            return Ok(None);
        }
        let socket = self.folder.join("nbd");
        Ok(Some((nbd_server(&socket)?, socket)))
    }
}

impl Peer {
    /// All of them, the daemon first.
    pub const ALL: [Peer; 5] =
        [Peer::Daemon, Peer::StorageDaemon, Peer::Spdk, Peer::CloudHypervisor, Peer::Testpmd];

    pub const fn name(self) -> &'static str {
        match self {
            Peer::Daemon => "exitless io",
            Peer::StorageDaemon => storage_daemon::PROGRAM,
            Peer::Spdk => spdk::PROGRAM,
            Peer::CloudHypervisor => cloud_hypervisor::PROGRAM,
            Peer::Testpmd => testpmd::PROGRAM,
        }
    }

    /// Has it installed, if a package has it; what is missing then, in a sentence.
    pub fn missing(self, cx: &Context) -> Option<String> {
        let needed = match self {
            Peer::Daemon => Ok(()),
            Peer::StorageDaemon => needs::storage_daemon(cx),
            Peer::Testpmd => needs::testpmd(cx),
            Peer::Spdk | Peer::CloudHypervisor => needs::program(self.name()),
        };
        needed.err().map(|error| format!("{error:#}"))
    }

    /// What it says of its version.
    pub fn version(self, daemon: &Path) -> Option<String> {
        let first = |program: &Path| {
            let said = Command::new(program).arg("--version").output().ok()?;
            let all = [said.stdout, said.stderr].concat();
            Some(String::from_utf8_lossy(&all).lines().next()?.to_owned())
        };
        match self {
            Peer::Daemon => first(daemon),
            Peer::Testpmd => testpmd::version(),
            _ => first(Path::new(self.name())),
        }
    }

    /// Whether its instructions can be counted: below valgrind DPDK (22.11) forwards no frame, and
    /// serves no disk.
    pub fn is_counted(self) -> bool {
        !matches!(self, Peer::Testpmd | Peer::Spdk)
    }

    /// Whether it has such a thing for so many clients.
    pub fn serves(self, back: Back, clients: u32) -> bool {
        match self {
            Peer::Daemon => true,
            Peer::StorageDaemon => back != Back::Net,
            Peer::Spdk => matches!(back, Back::Null | Back::Ram | Back::Direct),
            // A process of its own for each client.
            Peer::CloudHypervisor => {
                matches!(back, Back::Ram | Back::File | Back::Direct) && clients == 1
            }
            Peer::Testpmd => back == Back::Net,
        }
    }

    /// Starts it.
    pub fn start(self, start: &Start<'_>) -> Result<Started> {
        match self {
            Peer::Daemon if start.back == Back::Net => daemon::network(start),
            Peer::Daemon => daemon::disk(start),
            Peer::StorageDaemon => storage_daemon::disk(start),
            Peer::Spdk => spdk::disk(start),
            Peer::CloudHypervisor => cloud_hypervisor::disk(start),
            Peer::Testpmd => testpmd::network(start),
        }
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
fn full(path: PathBuf) -> Result<PathBuf> {
    fs::write(&path, vec![0x5a; BYTES as usize])?;
    Ok(path)
}
