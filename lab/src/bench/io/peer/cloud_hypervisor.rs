//! Cloud Hypervisor's server of disks: a process for one client, a file read by io_uring.
//!
//! No package has it. Built from Cloud Hypervisor's sources (`cargo build --release -p
//! vhost_user_block`) and put on PATH, it is measured; else it is left out.

use crate::{
    bench::io::{
        start::{Back, MEMORY, Start, full},
        started::Started,
    },
    server::Server,
};
use anyhow::Result;
use std::path::Path;

pub const PROGRAM: &str = "vhost_user_block";

pub fn disk(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("cloud-hypervisor", 1);
    let mut memory = None;
    let file = match start.back {
        Back::Ram => memory.insert(tempfile::tempdir_in(MEMORY)?).path().join("disk"),
        _ => start.folder.join("cloud-hypervisor-disk"),
    };
    let (file, socket) = (full(file)?, sockets[0].clone());
    let mut command = start.command(Path::new(PROGRAM));
    command.args([
        "--block-backend",
        &format!(
            "path={},socket={},num_queues=1,queue_size=256,readonly=true,direct={}",
            file.display(),
            socket.display(),
            start.back == Back::Direct
        ),
    ]);
    let server = Server::until(command, || socket.exists())?;
    let mut started = Started::alone(server, sockets);
    started.memory = memory;
    Ok(started)
}
