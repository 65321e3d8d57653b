//! QEMU's storage daemon: one thread for the disk, and an export of it for each client.

use crate::{
    bench::io::{
        start::{Back, EXPORT, MEMORY, Start, full},
        started::Started,
    },
    server::Server,
};
use anyhow::Result;
use std::{fs, path::Path};

pub const PROGRAM: &str = "qemu-storage-daemon";

pub fn disk(start: &Start<'_>) -> Result<Started> {
    let behind = start.behind()?;
    let mut memory = None;
    let file = match start.back {
        Back::Null | Back::Paced | Back::Nbd | Back::Net => None,
        Back::File | Back::Direct => Some(full(start.folder.join("storage-daemon-disk"))?),
        Back::Ram => {
            let folder = memory.insert(tempfile::tempdir_in(MEMORY)?);
            Some(full(folder.path().join("disk"))?)
        }
    };
    let node = match (&file, &behind) {
        (Some(file), _) => {
            let direct = if start.back == Back::Direct { "on" } else { "off" };
            let file = file.display();
            format!("driver=file,filename={file},aio=io_uring,cache.direct={direct},node-name=disk")
        }
        (None, Some((_, nbd))) => format!(
            "driver=nbd,server.type=unix,server.path={},export={EXPORT},node-name=disk",
            nbd.display()
        ),
        (None, None) => "driver=null-co,size=1073741824,read-zeroes=off,node-name=disk".to_owned(),
    };
    let mut command = start.command(Path::new(PROGRAM));
    command.args(["--object", "iothread,id=serves", "--blockdev", &node]);
    let sockets = start.sockets("storage-daemon", start.clients);
    for (client, socket) in sockets.iter().enumerate() {
        command.args(["--export", &format!(
            "vhost-user-blk,id=export{client},node-name=disk,addr.type=unix,addr.path={},writable=on,num-queues=1,iothread=serves",
            socket.display()
        )]);
    }
    // It says nothing when it is ready, but writes this file, which one that was killed left.
    let pid = start.folder.join("storage-daemon-pid");
    let _ = fs::remove_file(&pid);
    command.arg("--pidfile").arg(&pid);
    let server = Server::until(command, || pid.exists())?;
    let mut started = Started::before(behind.map(|(server, _)| server), server, sockets);
    started.memory = memory;
    Ok(started)
}
