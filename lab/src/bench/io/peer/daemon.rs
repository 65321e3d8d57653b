//! The daemon: a disk for all clients, or a switch with both stations of a network.

use crate::{
    bench::io::{
        start::{BYTES, Back, EXPORT, Start, full},
        started::Started,
    },
    server::Server,
};
use anyhow::{Result, bail};
use std::fs;

/// What a frame of the generator has as its sender and receiver.
const ADDRESSES: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];

/// A disk, by one socket for all clients.
pub fn disk(start: &Start<'_>) -> Result<Started> {
    let behind = start.behind()?;
    let sockets = start.sockets("daemon", 1);
    let socket = &sockets[0];
    let mut command = start.command(start.daemon);
    command.arg("disk").arg("--socket").arg(socket);
    match (start.back, &behind) {
        (Back::Null, _) => command.args(["--null", "1G"]),
        (Back::Ram, _) => command.args(["--ram", &BYTES.to_string()]),
        (Back::File | Back::Direct, _) => {
            command.args((start.back == Back::File).then_some("--page-cache"));
            command.arg("--file").arg(full(start.folder.join("daemon-disk"))?)
        }
        (Back::Nbd, Some((_, nbd))) => {
            let uri = format!("nbd+unix:///{EXPORT}?socket={}", nbd.display());
            command.args(["--nbd", &uri])
        }
        (back, _) => bail!("{} is no disk", back.name()),
    };
    command.args(start.is_open().then_some("--no-sandbox"));
    if start.clients > 1 {
        command.args(["--front-ends", &start.clients.to_string()]);
    }
    let server = Server::run(command, |line| line.contains("serves"))?;
    let all = vec![socket.clone(); start.clients as usize];
    Ok(Started::before(behind.map(|(server, _)| server), server, all))
}

/// Both stations at a switch, each with its own address.
pub fn network(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("daemon-net", 2);
    let tables = sockets.iter().zip(ADDRESSES).zip(["from", "to"]).map(|((socket, mac), name)| {
        let socket = socket.display();
        format!("[network.{name}]\nsocket = \"{socket}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n")
    });
    let file = start.folder.join("net.toml");
    fs::write(&file, tables.collect::<String>())?;
    let mut command = start.command(start.daemon);
    command.arg("run").arg(&file);
    command.args(start.is_open().then_some("--no-sandbox"));
    let server = Server::run(command, |line| line.contains("serves"))?;
    Ok(Started::alone(server, sockets))
}
