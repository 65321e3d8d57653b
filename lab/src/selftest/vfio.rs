//! The daemon with an NVMe controller that VFIO gives it, in a guest that has both: Debian's
//! kernel, QEMU's controller behind QEMU's IOMMU.
//!
//! Guarantees: what is wrong with the machine was mended by the commands that the daemon said, and
//! by nothing else; it served as a user without rights. What a client wrote was read, before and
//! after the daemon was killed while it served; the bytes around the disk's part are what they
//! were.

use super::{alone::says, names::named, tally::Tally};
use crate::{cmdline::LINUX, console::tail, server, summary::Summary};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    helper,
    options::file_option,
    recipe,
    session::{self, Ended, Framing, Seen, Setup},
    stream::Piece,
};
use std::{fs, ops::ControlFlow, path::Path, process::Command, time::Duration};

/// What it is called.
pub const NAME: &str = "daemon/vfio";
/// For a boot, and some starts, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(200);
/// The controller's disk: the part that is served, and as much around it.
const BYTES: u64 = 64 << 20;
/// What must be said, in this order.
const SAYS: [&str; 11] = [
    "@exitless said exitless-io: disk: 0000:00:01.0 has nvme, and has to have vfio-pci: `",
    "@exitless said exitless-io: disk: this user may not open /dev/vfio/",
    "@exitless said exitless-io: disk: ",
    " of memory would be locked for 0000:00:01.0, and this program may lock 64K",
    "@exitless said exitless-io: disk: the connection ends: the guest's memory: ",
    " of memory would be locked for 0000:00:01.0",
    "@exitless serves seccomp=2 user=1000",
    "@exitless verified {\"blocks\":4096,\"failed\":0,\"wrong\":0,",
    "@exitless left locked=same",
    "@exitless again {\"blocks\":4096,\"failed\":0,\"wrong\":0,",
    "@exitless ended around=same part=other complaints=0",
];
/// Ticks of the daemon's in a second without work: where one ends another may begin.
const IDLE: u64 = 1;

/// Whether it is chosen by a part of its name, or with all; a quick test hasn't it.
pub fn is_chosen(quick: bool, only: Option<&str>) -> bool {
    only.map_or(!quick, |text| named(NAME, text))
}

/// Runs it.
pub fn run(cx: &Context, tally: &Tally) -> Result<Summary> {
    let guest = cx.root.join("build/guest-vfio");
    recipe::make(&cx.root.join("guests/linux/vfio/build"), &guest, "guest")?;
    let programs = [server::packed(cx)?, server::packed_load(cx)?];
    let folder = tempfile::tempdir().context("no directory for temporary files")?;
    let initrd = folder.path().join("initrd.img");
    let mut join = Command::new(cx.root.join("guests/linux/vfio/join"));
    join.arg(&guest).arg(&initrd).args(&programs);
    helper::run(&mut join, "the guest's initramfs", cx)?;
    let (kernel, disk) = (guest.join("vmlinuz"), folder.path().join("disk.img"));
    tally.play(cx, NAME, || boot(cx, &kernel, &initrd, &disk))
}

/// Boots it, and gives what is to be told; an error is what was wrong.
fn boot(cx: &Context, kernel: &Path, initrd: &Path, disk: &Path) -> Result<String> {
    fs::File::create(disk)?.set_len(BYTES)?;
    let mut command = Command::new(cx.qemu(None)?.program());
    command.args(["-machine", "q35,kernel-irqchip=split", "-accel", "tcg", "-cpu", "max"]);
    command.args(["-m", "512M", "-smp", "2", "-nodefaults", "-display", "none"]);
    command.args(["-serial", "stdio", "-no-reboot"]);
    command.args(["-device", "intel-iommu,caching-mode=on,intremap=on"]);
    let drive = file_option("format=raw,if=none,id=disk,cache=unsafe,file=", disk);
    command.arg("-drive").arg(drive);
    command.args(["-device", "nvme,drive=disk,serial=vfio,addr=1"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    command.args(["-append", &format!("{LINUX} quiet no_timer_check intel_iommu=on")]);
    let setup = Setup { command, framing: Framing::Raw, timeout: Some(PATIENCE), typed: None };
    let mut console = Vec::new();
    let ended = session::run(setup, cx, |seen| {
        if let Seen::Said(Piece::Console { bytes, .. }) = seen {
            console.extend_from_slice(bytes);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let console = String::from_utf8_lossy(&console);
    if !matches!(ended, Ended::Exited { status: 0, .. }) {
        bail!("QEMU ended so: {ended:?}; the console's end: {}", tail(&console));
    }
    judge(&console)
}

fn judge(console: &str) -> Result<String> {
    says(console, &SAYS)?;
    let idle = console.split_once("@exitless idle ticks=").map_or("", |(_, said)| said);
    let idle = idle.lines().next().unwrap_or_default().trim();
    if !idle.parse().is_ok_and(|ticks: u64| ticks <= IDLE) {
        bail!("in a second without work it had {idle} ticks of a core, and {IDLE} are too many");
    }
    Ok("4096 blocks written and read as a user, twice, with a `kill -9` between; 4 ills mended by \
        what was said of them"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_all_right_passes() {
        let good = format!("@exitless idle ticks=1\r\n{}", SAYS.join("\n"));
        judge(&good).unwrap();
        for (from, to) in [
            ("ticks=1", "ticks=2"),
            ("@exitless idle", "@exitless"),
            ("has nvme", "has none"),
            ("user=1000", "user=0"),
            ("\"wrong\":0", "\"wrong\":1"),
            ("around=same", "around=other"),
            ("complaints=0", "complaints=1"),
        ] {
            judge(&good.replacen(from, to, 1)).unwrap_err();
        }
    }
}
