//! A long command that runs beside the rest, at the lowest priority.
//!
//! Guarantees: when it has ended or is dropped, no process of its group runs any more; its output
//! is kept whole. It doesn't guarantee any progress while others use all cores.

use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    fs::File,
    io::{Read, Seek},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often it is looked at while it is waited for.
const TICK: Duration = Duration::from_millis(50);

/// The command, running.
pub struct Aside {
    child: Child,
    output: File,
    start: Instant,
}

/// How it ended.
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// What it wrote to both its outputs.
    pub output: String,
    /// How long it ran.
    pub took: Duration,
}

impl Aside {
    /// Starts it.
    pub fn start(command: &Command) -> Result<Self> {
        let output = tempfile::tempfile().context("no temporary file for a command's output")?;
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nice.env(name, value),
                None => nice.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            nice.current_dir(folder);
        }
        nice.process_group(0).stdin(Stdio::null());
        nice.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = nice.spawn().context("nice can't be started")?;
        Ok(Aside { child, output, start: Instant::now() })
    }

    /// Waits for its end, or stops it when the user wants that.
    pub fn wait(mut self, cx: &Context) -> Result<Ended> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if cx.interrupted() {
                bail!("stopped");
            }
            thread::sleep(TICK);
        };
        let took = self.start.elapsed();
        let mut bytes = Vec::new();
        self.output.rewind()?;
        self.output.read_to_end(&mut bytes)?;
        Ok(Ended { status, output: String::from_utf8_lossy(&bytes).into_owned(), took })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // Nothing is left to be done about either.
        if let Ok(None) = self.child.try_wait()
            && let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
