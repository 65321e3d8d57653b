//! The servers that are measured: which there are, what each serves, and how it is started.

mod cloud_hypervisor;
pub mod daemon;
mod spdk;
mod storage_daemon;
mod testpmd;
mod ubiblk;

use super::{
    start::{Back, Start},
    started::Started,
};
use anyhow::Result;
use exitless::{context::Context, needs};
use std::{path::Path, process::Command};

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Exitless'.
    Daemon,
    /// The same, told to withhold nothing.
    AllTold,
    /// QEMU's.
    StorageDaemon,
    /// SPDK's.
    Spdk,
    /// Cloud Hypervisor's.
    CloudHypervisor,
    /// Ubicloud's.
    Ubiblk,
    /// DPDK's.
    Testpmd,
}

impl Peer {
    /// All that differ, the daemon first.
    pub const ALL: [Peer; 6] = [
        Peer::Daemon,
        Peer::StorageDaemon,
        Peer::Spdk,
        Peer::CloudHypervisor,
        Peer::Ubiblk,
        Peer::Testpmd,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Peer::Daemon => "exitless io",
            Peer::AllTold => "the same, without vIC",
            Peer::StorageDaemon => storage_daemon::PROGRAM,
            Peer::Spdk => spdk::PROGRAM,
            Peer::CloudHypervisor => cloud_hypervisor::PROGRAM,
            Peer::Ubiblk => ubiblk::PROGRAM,
            Peer::Testpmd => testpmd::PROGRAM,
        }
    }

    /// Has it installed, if a package has it; what is missing then, in a sentence.
    pub fn missing(self, cx: &Context) -> Option<String> {
        let needed = match self {
            Peer::Daemon | Peer::AllTold => Ok(()),
            Peer::StorageDaemon => needs::storage_daemon(cx),
            Peer::Testpmd => needs::testpmd(cx),
            Peer::Spdk | Peer::CloudHypervisor | Peer::Ubiblk => needs::program(self.name()),
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
            Peer::Daemon | Peer::AllTold => first(daemon),
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
            Peer::AllTold => back != Back::Net,
            Peer::StorageDaemon => !matches!(back, Back::Net | Back::Paced),
            Peer::Spdk => matches!(back, Back::Null | Back::Ram | Back::Direct),
            // A process of its own for each client.
            Peer::CloudHypervisor => {
                matches!(back, Back::Ram | Back::File | Back::Direct) && clients == 1
            }
            // The same, and always around the page cache.
            Peer::Ubiblk => clients == 1 && ubiblk::serves(back),
            Peer::Testpmd => back == Back::Net,
        }
    }

    /// Starts it.
    pub fn start(self, start: &Start<'_>) -> Result<Started> {
        match self {
            Peer::Daemon if start.back == Back::Net => daemon::network(start),
            Peer::Daemon => daemon::disk(start, true),
            Peer::AllTold => daemon::disk(start, false),
            Peer::StorageDaemon => storage_daemon::disk(start),
            Peer::Spdk => spdk::disk(start),
            Peer::CloudHypervisor => cloud_hypervisor::disk(start),
            Peer::Ubiblk => ubiblk::disk(start),
            Peer::Testpmd => testpmd::network(start),
        }
    }
}
