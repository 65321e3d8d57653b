//! Networks of two stations: the daemon's switch, and DPDK's testpmd between two ports of its vhost
//! driver. Both copy frames from the sender's memory to the receiver's; testpmd takes what comes at
//! one port to the other and looks at no address.

use super::started::{LOAD_CORE, SERVER_CORE, Started, pinned};
use crate::server::Server;
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// DPDK's program.
pub const TESTPMD: &str = "dpdk-testpmd";
/// What it calls its thread that polls.
const WORKER: &str = "rte-worker-1";
/// What a frame of the generator has as its sender and receiver.
const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// The version of testpmd's libraries, as it says it.
pub fn version() -> Option<String> {
    let said = Command::new(TESTPMD).arg("--version").output().ok()?;
    let all = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&all).into_owned();
    let found = text.lines().find_map(|line| line.split("RTE Version: ").nth(1));
    found.map(|version| version.trim_matches('\'').to_owned())
}

fn sockets(folder: &Path) -> [PathBuf; 2] {
    ["from", "to"].map(|name| folder.join(format!("net-{name}")))
}

/// Both stations at a switch of the daemon, each with its own address.
pub fn daemon(
    mut command: Command,
    daemon: &Path,
    folder: &Path,
    is_open: bool,
) -> Result<Started> {
    let sockets = sockets(folder);
    let tables = sockets.iter().zip(ADDRESSES).zip(["from", "to"]).map(|((socket, mac), name)| {
        let socket = socket.display();
        format!("[network.{name}]\nsocket = \"{socket}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n")
    });
    let file = folder.join("net.toml");
    fs::write(&file, tables.collect::<String>())?;
    command.arg(daemon).arg("run").arg(&file);
    command.args(is_open.then_some("--no-sandbox"));
    let server = Server::run(command, |line| line.contains("serves"))?;
    Ok(Started::alone(server, sockets.to_vec()))
}

/// Testpmd: a thread that polls both ports on the server's core, and one that sleeps on the other.
/// No huge pages; its ports are asked for what frames to be cut need. It begins as an ordinary
/// process: its threads wait for each other by turning round, so those of real time would for good.
pub fn testpmd(wrap: &[String], folder: &Path) -> Result<Started> {
    let sockets = sockets(folder);
    let mut command = Command::new(TESTPMD);
    command.args(["--lcores", &format!("0@{LOAD_CORE},1@{SERVER_CORE}")]);
    command.args(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"]);
    for (number, socket) in sockets.iter().enumerate() {
        // One that was killed left it.
        let _ = fs::remove_file(socket);
        let device = format!("net_vhost{number},iface={},queues=1,tso=1", socket.display());
        command.args(["--vdev", &device]);
    }
    command.args(["--", "--forward-mode=io", "--auto-start", "--nb-cores=1"]);
    // With a period it waits for a signal, and not for what is typed.
    command.args(["--total-num-mbufs=16384", "--no-mlockall", "--stats-period=3600"]);
    command.stdout(Stdio::null());
    let server = Server::until(command, || sockets.iter().all(|socket| socket.exists()))?;
    if let Some([program, policy @ .., priority]) = wrap.strip_suffix(&pinned()) {
        // As before a program, of a thread that is there.
        let worker = worker(server.id())?.to_string();
        let mut raise = Command::new(program);
        raise.args(policy).args(["-p", priority, &worker]);
        if !raise.stdout(Stdio::null()).status()?.success() {
            bail!("testpmd's thread can't be one of real time");
        }
    }
    Ok(Started::alone(server, sockets.to_vec()))
}

/// Testpmd's thread that polls.
fn worker(process: u32) -> Result<u32> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let folder = thread?.path();
        if fs::read_to_string(folder.join("comm"))?.trim_end() == WORKER {
            let name = folder.file_name().context("a thread has a number")?;
            return Ok(name.to_string_lossy().parse()?);
        }
    }
    bail!("testpmd has no thread {WORKER}")
}
