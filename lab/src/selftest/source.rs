//! A machine that a guest leaves while it runs: it migrates to another QEMU.
//!
//! Guarantees: the guest leaves once it said that requests wait, and the other QEMU listens. The
//! machine has ended when the value is gone.

use anyhow::{Context as _, Result, bail};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

/// One that runs.
pub struct Source {
    qemu: Child,
    reader: Option<JoinHandle<Result<u64>>>,
}

impl Source {
    /// Starts it. The guest goes to who listens at the socket `to`, as the monitor is told.
    pub fn start(mut command: Command, monitor: PathBuf, to: PathBuf) -> Result<Source> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut qemu = command.spawn().context("QEMU can't be started")?;
        let console = qemu.stdout.take().context("its console can't be read")?;
        let reader = thread::spawn(move || {
            let (mut left, mut waited) = (None, 0);
            // Its console is read to the end, so that it never waits for room.
            for line in BufReader::new(console).lines().map_while(Result::ok) {
                let waiting = line.split("waiting=").nth(1).and_then(|n| n.trim().parse().ok());
                let Some(waiting @ 1_u64..) = waiting else { continue };
                if left.is_none() && to.exists() {
                    let mut socket = UnixStream::connect(&monitor)?;
                    // The monitor hears the second line when the migration has ended.
                    socket
                        .write_all(format!("migrate unix:{}\nquit\n", to.display()).as_bytes())?;
                    (left, waited) = (Some(socket), waiting);
                }
            }
            match left {
                Some(_) => Ok(waited),
                None => bail!("the guest didn't leave"),
            }
        });
        Ok(Source { qemu, reader: Some(reader) })
    }

    /// The guest has left: how many requests waited when it was told to.
    pub fn left(mut self) -> Result<u64> {
        let ended = self.qemu.wait()?;
        if !ended.success() {
            bail!("the QEMU that the guest left ended so: {ended}");
        }
        let reader = self.reader.take().context("it is asked once")?;
        reader.join().unwrap_or_else(|_| bail!("nobody read the console"))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
