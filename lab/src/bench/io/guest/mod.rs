//! The part `guest`: Debian's kernel below a stock QEMU with a disk of each server, and fio in it,
//! which reads, says what it measured, and verifies what it wrote.
//!
//! Guarantees: servers take turns, with a core of their own; the machine is the same but for the
//! socket. A block that came back otherwise, or a complaint of the guest's kernel, ends the bench.
//! Where KVM can't run the guest the CPU is emulated, and what is shown says so.

mod accelerator;
mod cell;
mod output;
mod said;

use super::{
    cell::{Load, Programs, WARM_UP},
    output::Shown,
    peer::Peer,
    started::{LOAD_CORE, pinned},
};
use crate::{
    cmdline::LINUX,
    console::{Console, tail},
    stock,
};
use accelerator::Accelerator;
use anyhow::{Context as _, Result, bail};
pub use cell::BACK;
use cell::{Cell, DEPTHS};
use daemon_usage::Had;
use exitless::{
    context::Context,
    say::say,
    session::{self, Ended, Framing, Setup},
};
use said::{Hearing, Rate};
use std::{fs, ops::ControlFlow, path::Path, process::Command, time::Duration};

/// A boot, fio's start and a round that verifies, by a slow emulator.
const PATIENCE: Duration = Duration::from_secs(180);
const MEMORY: &str = "256M";

/// Measures it: so many runs, in which fio reads for so many seconds at each depth.
pub fn shown(
    cx: &Context,
    programs: &Programs,
    peers: &[Peer],
    runs: u32,
    seconds: u32,
) -> Result<Shown> {
    let guest = stock::guest(cx)?;
    let accelerator = Accelerator::find(cx, &guest)?;
    let folder = tempfile::tempdir().context("no directory for temporary files")?;
    let serves = |peer: &&Peer| peer.serves(BACK, 1);
    let new = |peer: &Peer| Cell { peer: *peer, runs: Vec::new() };
    let mut cells: Vec<Cell> = peers.iter().filter(serves).map(new).collect();
    for run in 1..=runs {
        for cell in &mut cells {
            let name = cell.peer.name();
            say(format_args!("  a guest at {name}, {run} of {runs}"));
            let rates = one(cx, programs, cell.peer, accelerator, &guest, folder.path(), seconds);
            cell.runs.push(rates.with_context(|| format!("a guest at {name}"))?);
        }
    }
    output::shown(accelerator, seconds, &cells)
}

/// A guest at a server that is started for it.
fn one(
    cx: &Context,
    programs: &Programs,
    peer: Peer,
    accelerator: Accelerator,
    guest: &Path,
    folder: &Path,
    seconds: u32,
) -> Result<Vec<Rate>> {
    let load = Load {
        back: BACK,
        calls: true,
        clients: 1,
        depth: 1,
        lone: false,
        frame: 0,
        warm_up: WARM_UP,
    };
    let started = programs.start(peer, &pinned(), load, folder)?;
    let socket = started.sockets.first().context("a server has a socket")?;
    let pid = folder.join("qemu-pid");
    let mut command = Command::new("taskset");
    command.args(["-c", LOAD_CORE]).arg(cx.qemu(None)?.program());
    stock::machine(&mut command, accelerator.name(), MEMORY).arg("-pidfile").arg(&pid);
    accelerator.processor(&mut command);
    stock::disk(&mut command, "disk", socket, "");
    let depths = DEPTHS.map(|depth| depth.to_string()).join(",");
    // What fio reads the time by is the processor's counter, which costs the guest the least.
    let words = format!(
        "{LINUX} quiet no_timer_check tsc=reliable exitless.workload=rates exitless.disk=vda \
         exitless.depths={depths} exitless.seconds={seconds}"
    );
    stock::starts(&mut command, guest, &words);
    let (mut console, mut hearing) = (Console::default(), Hearing::default());
    let look = || -> Result<[Had; 2]> {
        let qemu = fs::read_to_string(&pid)?.trim().parse()?;
        Ok([Had::process(started.server.id())?, Had::process(qemu)?])
    };
    let timeout = Some(PATIENCE + Duration::from_secs(u64::from(seconds)) * DEPTHS.len() as u32);
    let setup = Setup { command, framing: Framing::Raw, timeout, typed: None };
    let ended = session::run(setup, cx, |seen| {
        console.see(&seen);
        while let Some(line) = console.line() {
            hearing.hear(&line, look)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if cx.interrupted() {
        bail!("stopped");
    }
    let end = || tail(&console.text());
    if !matches!(ended, Ended::Exited { status: 0, .. }) {
        bail!("QEMU ended so: {ended:?}; the console's end: {}", end());
    }
    let rates = hearing.rates(&DEPTHS).with_context(|| format!("the console's end: {}", end()))?;
    started.server.kill()?;
    Ok(rates)
}
