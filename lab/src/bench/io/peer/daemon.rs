//! The daemon: a disk for all clients, or a switch with both stations of a network.

use crate::{
    bench::io::{
        start::{BYTES, Back, EXPORT, PACE, Start, full},
        started::Started,
    },
    server::Server,
};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// What a frame of the generator has as its sender and receiver.
const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// A disk, by one socket for all clients. vIC has it which completions are told of at once, or all
/// are.
pub fn disk(start: &Start<'_>, coalesces: bool) -> Result<Started> {
    let behind = start.behind()?;
    let sockets = start.sockets("daemon", 1);
    let socket = &sockets[0];
    let kept = match (start.back, &behind) {
        (Back::Null, _) => "null = \"1G\"\n".to_owned(),
        // Nothing is saved up: each is as far from the one before.
        (Back::Paced, _) => {
            format!("null = \"1G\"\nlimit = {{ iops = {PACE}, burst = \"1us\" }}\n")
        }
        (Back::Ram, _) => format!("ram = \"{}M\"\n", BYTES >> 20),
        (Back::File | Back::Direct, _) => {
            let file = full(start.folder.join("daemon-disk"))?;
            format!("file = {file:?}\npage_cache = {}\n", start.back == Back::File)
        }
        (Back::Nbd, Some((_, nbd))) => {
            format!("nbd = \"nbd+unix:///{EXPORT}?socket={}\"\n", nbd.display())
        }
        (back, _) => bail!("{} is no disk", back.name()),
    };
    let (file, control) = (start.folder.join("disk.toml"), start.sockets("daemon-control", 1));
    let control = &control[0];
    let text = format!(
        "[disk.disk]\nsocket = {socket:?}\nfront_ends = {}\ncoalesce = {coalesces}\n{kept}\
         [host]\ncontrol = {control:?}\n",
        start.clients
    );
    let server = run(start, &file, &text)?;
    let all = vec![socket.clone(); start.clients as usize];
    let mut started = Started::before(behind.map(|(server, _)| server), server, all);
    started.control = Some(control.clone());
    Ok(started)
}

/// What it has counted of its disk so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub completed: u64,
    /// Requests in flight that each of them left, all told.
    pub left: u64,
}

/// Asks the daemon that has this control socket.
pub fn counted(program: &Path, control: &Path) -> Result<Counted> {
    let mut ask = Command::new(program);
    ask.args(["list", "--json", "--control"]).arg(control).stdin(Stdio::null());
    let said = ask.output().context("the daemon can't be asked")?;
    if !said.status.success() {
        bail!("the daemon says: {}", String::from_utf8_lossy(&said.stderr).trim());
    }
    read(&said.stdout)
}

/// Of the one device: its rings, and those that are gone.
fn read(json: &[u8]) -> Result<Counted> {
    let report: serde_json::Value = serde_json::from_slice(json)?;
    let device = &report["devices"][0];
    let rings = device["rings"].as_array().context("the daemon has no disk")?;
    let all = || rings.iter().map(|ring| &ring["numbers"]).chain([&device["gone"]]);
    let sum = |key: &str| {
        let numbers = all().map(|numbers| numbers[key].as_u64());
        numbers.sum::<Option<u64>>().with_context(|| format!("the daemon counts no {key}"))
    };
    Ok(Counted { completed: sum("completed")?, left: sum("left")? })
}

/// The daemon, of this file.
fn run(start: &Start<'_>, file: &Path, text: &str) -> Result<Server> {
    fs::write(file, text)?;
    let mut command = start.command(start.daemon);
    command.arg("run").arg(file);
    command.args(start.is_open().then_some("--no-sandbox"));
    Server::run(command, |line| line.contains("serves"))
}

/// Both stations at a switch, each with its own address.
pub fn network(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("daemon-net", 2);
    let tables = sockets.iter().zip(ADDRESSES).zip(["from", "to"]).map(|((socket, mac), name)| {
        let socket = socket.display();
        format!("[network.{name}]\nsocket = \"{socket}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n")
    });
    let server = run(start, &start.folder.join("net.toml"), &tables.collect::<String>())?;
    Ok(Started::alone(server, sockets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_are_gone_count_too() {
        let good = r#"{"devices": [{"rings": [{"numbers": {"completed": 5, "left": 7}},
            {"numbers": {"completed": 1, "left": 0}}], "gone": {"completed": 10, "left": 20}}]}"#;
        assert_eq!(read(good.as_bytes()).unwrap(), Counted { completed: 16, left: 27 });
        for bad in ["{", "{}", r#"{"devices": []}"#, &good.replace("left", "right")] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
