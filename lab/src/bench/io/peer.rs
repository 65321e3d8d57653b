//! The servers that are measured, and how each is started.

use super::{
    nets,
    started::{SERVER_CORE, Started},
};
use crate::server::Server;
use anyhow::{Result, bail};
use exitless::{context::Context, needs};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Bytes of a disk in memory, and of a file.
const BYTES: u64 = 64 << 20;
/// QEMU's, and the package that has it.
const STORAGE_DAEMON: &str = "qemu-storage-daemon";
/// What an NBD server calls the disk.
const EXPORT: &str = "disk";
/// In memory, where the other server has no disk of its own there.
const MEMORY: &str = "/dev/shm";

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Exitless'.
    Daemon,
    /// QEMU's.
    StorageDaemon,
    /// DPDK's.
    Testpmd,
}

/// What keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Back {
    /// Nothing does.
    Null,
    /// Memory; of the other server a file in /dev/shm.
    Ram,
    /// A file, in the page cache.
    File,
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
            Back::Nbd => "nbd",
            Back::Net => "net",
        }
    }
}

impl Peer {
    pub const fn name(self) -> &'static str {
        match self {
            Peer::Daemon => "exitless io",
            Peer::StorageDaemon => STORAGE_DAEMON,
            Peer::Testpmd => nets::TESTPMD,
        }
    }

    /// Has it installed; what is missing then, in a sentence.
    pub fn missing(self, cx: &Context) -> Option<String> {
        let needed = match self {
            Peer::Daemon => Ok(()),
            Peer::StorageDaemon => needs::storage_daemon(cx),
            Peer::Testpmd => needs::testpmd(cx),
        };
        needed.err().map(|error| format!("{error:#}"))
    }

    /// Whether its instructions can be counted: below valgrind testpmd (22.11) forwards no frame.
    pub fn is_counted(self) -> bool {
        self != Peer::Testpmd
    }

    /// Whether it has such a thing.
    pub fn serves(self, back: Back) -> bool {
        match self {
            Peer::Daemon => true,
            Peer::StorageDaemon => back != Back::Net,
            Peer::Testpmd => back == Back::Net,
        }
    }

    /// Starts it below `wrap`, which is a program and its arguments, for so many clients.
    pub fn start(
        self,
        wrap: &[String],
        daemon: &Path,
        back: Back,
        clients: u32,
        folder: &Path,
    ) -> Result<Started> {
        let path = |name: &str| folder.join(format!("{}-{name}", self as u8));
        let mut words = wrap.iter();
        let mut command = Command::new(words.next().map_or("env", String::as_str));
        command.args(words);
        // Valgrind opens files when it ends.
        let is_open = wrap.iter().any(|word| word == "valgrind");
        match self {
            Peer::Daemon if back == Back::Net => {
                return nets::daemon(command, daemon, folder, is_open);
            }
            Peer::Testpmd => return nets::testpmd(wrap, folder),
            _ => {}
        }
        let nbd = path("nbd");
        let behind = match back {
            Back::Nbd => Some(nbd_server(&nbd)?),
            _ => None,
        };
        match self {
            Peer::Daemon => {
                let socket = path("socket");
                command.arg(daemon).arg("disk").arg("--socket").arg(&socket);
                match back {
                    Back::Null => command.args(["--null", "1G"]),
                    Back::Ram => command.args(["--ram", &BYTES.to_string()]),
                    Back::File => command.arg("--file").arg(full(path("disk"))?),
                    Back::Nbd => {
                        let uri = format!("nbd+unix:///{EXPORT}?socket={}", nbd.display());
                        command.args(["--nbd", &uri])
                    }
                    Back::Net => bail!("a network is no disk"),
                };
                if is_open {
                    command.arg("--no-sandbox");
                }
                if clients > 1 {
                    command.args(["--front-ends", &clients.to_string()]);
                }
                let server = Server::run(command, |line| line.contains("serves"))?;
                let sockets = vec![socket; clients as usize];
                Ok(Started::before(behind, server, sockets))
            }
            Peer::StorageDaemon | Peer::Testpmd => {
                let (mut sockets, mut memory) = (Vec::new(), None);
                command.arg(STORAGE_DAEMON).args(["--object", "iothread,id=serves"]);
                let disk = match back {
                    Back::Null | Back::Nbd | Back::Net => None,
                    Back::File => Some(full(path("disk"))?),
                    Back::Ram => {
                        let folder = memory.insert(tempfile::tempdir_in(MEMORY)?);
                        Some(full(folder.path().join("disk"))?)
                    }
                };
                let node = match &disk {
                    None if back == Back::Nbd => format!(
                        "driver=nbd,server.type=unix,server.path={},export={EXPORT},node-name=disk",
                        nbd.display()
                    ),
                    None => {
                        "driver=null-co,size=1073741824,read-zeroes=off,node-name=disk".to_owned()
                    }
                    Some(file) => {
                        format!(
                            "driver=file,filename={},aio=io_uring,node-name=disk",
                            file.display()
                        )
                    }
                };
                command.args(["--blockdev", &node]);
                for client in 0..clients {
                    let socket = path(&format!("socket{client}"));
                    command.args(["--export", &format!(
                        "vhost-user-blk,id=export{client},node-name=disk,addr.type=unix,addr.path={},writable=off,num-queues=1,iothread=serves",
                        socket.display()
                    )]);
                    sockets.push(socket);
                }
                // It says nothing when it is ready, but writes this file, which one that was killed
                // left.
                let pid = path("pid");
                let _ = fs::remove_file(&pid);
                command.arg("--pidfile").arg(&pid);
                let server = Server::until(command, || pid.exists())?;
                let mut started = Started::before(behind, server, sockets);
                started.memory = memory;
                Ok(started)
            }
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
