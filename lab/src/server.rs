//! The daemon, built and run as a user would.
//!
//! Guarantees: it has ended when the value is gone.

use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

/// How much of cargo's messages is shown when the build fails.
const SHOWN_LINES: usize = 20;

/// Builds the daemon: its program.
pub fn build(cx: &Context) -> Result<PathBuf> {
    let mut cargo = cx.cargo();
    cargo.args(["build", "--quiet", "--release", "-p", "exitless-io"]);
    let built = cargo.stdin(Stdio::null()).output().context("cargo can't be started")?;
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        let lines: Vec<_> = text.lines().collect();
        bail!(
            "the daemon can't be built: {}",
            lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
        );
    }
    Ok(cx.target.join("release/exitless-io"))
}

/// One that runs.
pub struct Server(Child);

impl Server {
    /// Starts it with these arguments (`disk …`), and waits until it serves.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Server> {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} can't be started", program.display()))?;
        let mut server = Server(child);
        let stderr = server.0.stderr.take().context("its messages can't be read")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut said = Vec::new();
        for line in lines.by_ref().map_while(Result::ok) {
            if line.contains("serves") {
                // It must never wait for room for what it says later.
                thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
                return Ok(server);
            }
            said.push(line);
        }
        bail!("the daemon doesn't start: {}", said.join("; "))
    }

    /// Stops it where it is, until it is ended.
    pub fn freeze(&self) -> Result<()> {
        self.tell(Signal::STOP)
    }

    /// As `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    fn tell(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("the daemon has no process")?;
        kill_process(pid, signal).context("the daemon takes no signal")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
