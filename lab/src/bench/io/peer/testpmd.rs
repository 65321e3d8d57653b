//! DPDK's testpmd between two ports of its vhost driver, each with a station of a network. It
//! copies frames from the sender's memory to the receiver's, as a switch does, takes what comes at
//! one port to the other, and looks at no address.

use crate::{
    bench::io::{
        start::Start,
        started::{LOAD_CORE, SERVER_CORE, Started, raise},
    },
    server::Server,
};
use anyhow::Result;
use std::process::{Command, Stdio};

pub const PROGRAM: &str = "dpdk-testpmd";
/// What it calls its thread that polls.
const WORKER: &str = "rte-worker-1";

/// The version of testpmd's libraries, as it says it.
pub fn version() -> Option<String> {
    let said = Command::new(PROGRAM).arg("--version").output().ok()?;
    let all = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&all).into_owned();
    let found = text.lines().find_map(|line| line.split("RTE Version: ").nth(1));
    found.map(|version| version.trim_matches('\'').to_owned())
}

/// A thread that polls both ports on the server's core, and one that sleeps on the other.
/// No huge pages; its ports are asked for what frames to be cut need. It begins as an ordinary
/// process: its threads wait for each other by turning round, so those of real time would for good.
pub fn network(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("testpmd", 2);
    let mut command = Command::new(PROGRAM);
    command.args(["--lcores", &format!("0@{LOAD_CORE},1@{SERVER_CORE}")]);
    command.args(["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"]);
    for (number, socket) in sockets.iter().enumerate() {
        let device = format!("net_vhost{number},iface={},queues=1,tso=1", socket.display());
        command.args(["--vdev", &device]);
    }
    command.args(["--", "--forward-mode=io", "--auto-start", "--nb-cores=1"]);
    // With a period it waits for a signal, and not for what is typed.
    command.args(["--total-num-mbufs=16384", "--no-mlockall", "--stats-period=3600"]);
    command.stdout(Stdio::null());
    let server = Server::until(command, || sockets.iter().all(|socket| socket.exists()))?;
    raise(start.wrap, server.id(), WORKER)?;
    Ok(Started::alone(server, sockets))
}
