//! Ubicloud's server of disks, ubiblk: a process for one client, a file read by io_uring.
//!
//! No package has it. Built from its sources (`cargo build --release --bin vhost-backend`) and put
//! on PATH, `vhost-backend` is measured; else it is left out. It polls for a while after each
//! request, as long as its sources have it by themselves.

use crate::{
    bench::io::{
        start::{Back, MEMORY, Start, full},
        started::Started,
    },
    server::Server,
};
use anyhow::Result;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::{fs, path::Path};

pub const PROGRAM: &str = "vhost-backend";
/// Elements of its ring: as many as the generator has.
const ELEMENTS: u32 = 256;

/// Has it such a disk? In memory where the system's files there may be opened around the page
/// cache, as it opens all (Linux 6.6).
pub fn serves(back: Back) -> bool {
    let unnamed = OFlags::RDWR | OFlags::DIRECT | OFlags::TMPFILE | OFlags::CLOEXEC;
    match back {
        Back::Direct => true,
        Back::Ram => openat(CWD, MEMORY, unnamed, Mode::RUSR | Mode::WUSR).is_ok(),
        _ => false,
    }
}

pub fn disk(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("ubiblk", 1);
    let mut memory = None;
    let file = match start.back {
        Back::Ram => memory.insert(tempfile::tempdir_in(MEMORY)?).path().join("disk"),
        _ => start.folder.join("ubiblk-disk"),
    };
    let (file, socket) = (full(file)?, sockets[0].clone());
    let config = start.folder.join("ubiblk.toml");
    fs::write(&config, text(&file, &socket))?;
    let mut command = start.command(Path::new(PROGRAM));
    command.arg("--config").arg(&config);
    let server = Server::until(command, || socket.exists())?;
    let mut started = Started::alone(server, sockets);
    started.memory = memory;
    Ok(started)
}

/// Its configuration. Without encryption, which it calls dangerous; the other servers have none.
fn text(file: &Path, socket: &Path) -> String {
    format!(
        "[device]\ndata_path = {file:?}\nvhost_socket = {socket:?}\n\
         [tuning]\nnum_queues = 1\nqueue_size = {ELEMENTS}\n\
         [danger_zone]\nenabled = true\nallow_unencrypted_disk = true\n"
    )
}
