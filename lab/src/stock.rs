//! A machine of stock QEMU as users have it, with Debian's kernel, whose memory is shared with
//! servers of vhost-user.

use anyhow::Result;
use exitless::{context::Context, recipe};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Makes the guest: the folder of its kernel and its initramfs.
pub fn guest(cx: &Context) -> Result<PathBuf> {
    let guest = cx.root.join("build/guest-disk");
    recipe::make(&cx.root.join("guests/linux/disk/build"), &guest, "guest")?;
    Ok(guest)
}

/// Has QEMU be such a machine, by this accelerator of its, with so much memory; its console is
/// QEMU's output.
pub fn machine<'a>(qemu: &'a mut Command, accelerator: &str, memory: &str) -> &'a mut Command {
    let shared = format!("memory-backend-memfd,id=memory,size={memory},share=on");
    qemu.args(["-machine", "q35,memory-backend=memory", "-accel", accelerator, "-m", memory]);
    qemu.args(["-object", &shared]);
    qemu.args(["-nodefaults", "-display", "none", "-serial", "stdio"])
}

/// A disk of the server at this socket.
pub fn disk<'a>(qemu: &'a mut Command, name: &str, socket: &Path, more: &str) -> &'a mut Command {
    qemu.args(["-chardev", &chardev(name, socket)]);
    qemu.args(["-device", &format!("vhost-user-blk-pci,chardev={name},num-queues=1{more}")])
}

/// QEMU's character device at this socket, which it connects to again and again.
pub fn chardev(name: &str, socket: &Path) -> String {
    format!("socket,id={name},path={},reconnect-ms=100", socket.display())
}

/// QEMU itself loads the guest, which hears these words.
pub fn starts<'a>(qemu: &'a mut Command, guest: &Path, words: &str) -> &'a mut Command {
    qemu.arg("-kernel").arg(guest.join("vmlinuz"));
    qemu.arg("-initrd").arg(guest.join("initrd.img")).args(["-append", words])
}
