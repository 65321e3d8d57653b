//! SPDK's target: a reactor that polls a controller for each client, of one disk in memory, of one
//! that keeps nothing, or of a file by io_uring. No huge pages.
//!
//! No package has it. Built from SPDK's sources (`./configure --with-vhost`) and put on PATH,
//! `spdk_tgt` is measured; else it is left out.

use crate::{
    bench::io::{
        start::{BYTES, Back, Start, full},
        started::{SERVER_CORE, Started, raise},
    },
    server::Server,
};
use anyhow::Result;
use serde_json::json;
use std::{
    fs,
    process::{Command, Stdio},
};

pub const PROGRAM: &str = "spdk_tgt";
/// What it calls its thread that polls.
const REACTOR: &str = "reactor_0";
const BLOCK: u64 = 512;

/// It begins as an ordinary process: what answers the front ends is a thread of its own, which one
/// of real time that polls would keep away.
pub fn disk(start: &Start<'_>) -> Result<Started> {
    let sockets = start.sockets("spdk", start.clients);
    let (method, bytes) = match start.back {
        Back::Ram => ("bdev_malloc_create", BYTES),
        Back::Direct => ("bdev_uring_create", BYTES),
        _ => ("bdev_null_create", 1 << 30),
    };
    let disk = match start.back {
        Back::Direct => {
            let file = full(start.folder.join("spdk-disk"))?;
            json!({ "name": "disk", "filename": file, "block_size": BLOCK })
        }
        _ => json!({ "name": "disk", "num_blocks": bytes / BLOCK, "block_size": BLOCK }),
    };
    let controllers = (0..start.clients).map(|client| {
        let params = json!({ "ctrlr": format!("spdk{client}"), "dev_name": "disk" });
        json!({ "method": "vhost_create_blk_controller", "params": params })
    });
    let config = json!({ "subsystems": [
        { "subsystem": "bdev", "config": [{ "method": method, "params": disk }] },
        { "subsystem": "vhost_blk", "config": controllers.collect::<Vec<_>>() },
    ] });
    let [file, calls] = ["spdk.json", "spdk-calls"].map(|name| start.folder.join(name));
    fs::write(&file, config.to_string())?;
    let mut command = Command::new(PROGRAM);
    command.args(["--cpumask", &format!("[{SERVER_CORE}]"), "--no-huge", "--no-pci"]);
    command.args(["--mem-size", "2048", "--config"]).arg(&file);
    command.arg("--rpc-socket").arg(&calls).arg("-S").arg(start.folder).stdout(Stdio::null());
    let server = Server::until(command, || sockets.iter().all(|socket| socket.exists()))?;
    raise(start.wrap, server.id(), REACTOR)?;
    Ok(Started::alone(server, sockets))
}
