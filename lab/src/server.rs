//! The daemon and other servers, built and run as a user would.
//!
//! Guarantees: a server has ended when the value is gone.

use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, helper, package};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    ffi::OsString,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// How much of cargo's messages is shown when the build fails.
const SHOWN_LINES: usize = 20;
/// How often one that says nothing is looked at.
const TICK: Duration = Duration::from_millis(5);

/// Builds the program of this package.
pub fn build(cx: &Context, package: &str) -> Result<PathBuf> {
    let mut cargo = cx.cargo();
    cargo.args(["build", "--quiet", "--release", "-p", package]);
    let built = cargo.stdin(Stdio::null()).output().context("cargo can't be started")?;
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        let lines: Vec<_> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        bail!("{package} can't be built: {end}");
    }
    Ok(cx.target.join("release").join(package))
}

/// Builds the daemon as it is packed: static, by the checkout's script.
pub fn packed(cx: &Context) -> Result<PathBuf> {
    let built = packed_command(cx).stdin(Stdio::null()).output();
    let built = built.context("the checkout's script can't be started")?;
    if !built.status.success() {
        bail!("the daemon can't be built: {}", String::from_utf8_lossy(&built.stderr).trim());
    }
    Ok(cx.target.join(package::PROGRAM))
}

/// What does that.
pub fn packed_command(cx: &Context) -> Command {
    let mut script = Command::new(cx.root.join("exitless"));
    script.args(["io", "--version"]);
    script
}

/// Builds the generator of requests so that it runs in any guest, as the daemon is packed.
pub fn packed_load(cx: &Context) -> Result<PathBuf> {
    helper::run(&mut packed_load_command(cx), "exitless-load", cx)?;
    Ok(cx.target.join(package::PROGRAM).with_file_name("exitless-load"))
}

/// What does that.
pub fn packed_load_command(cx: &Context) -> Command {
    let mut cargo = cx.cargo();
    // As the checkout's script has it: what both need is built once.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", packed_flags());
    let target = ["--profile", "io", "--target", "x86_64-unknown-linux-gnu"];
    cargo.args(["build", "--quiet"]).args(target).args(["-p", "exitless-load"]);
    cargo
}

/// As the checkout's script has them.
fn packed_flags() -> OsString {
    let cargo = env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).unwrap_or_else(|| {
        let mut home = env::var_os("HOME").unwrap_or_default();
        home.push("/.cargo");
        home
    });
    let mut flags = OsString::from(
        "-Ctarget-feature=+crt-static\x1f-Clink-arg=-Wl,--no-eh-frame-hdr\x1f--remap-path-prefix=",
    );
    flags.push(cargo);
    flags.push("/registry/src=");
    flags
}

/// One that runs.
pub struct Server(Child);

impl Server {
    /// Starts it, and waits until it says a line that is `ready`.
    pub fn run(command: Command, ready: impl Fn(&str) -> bool) -> Result<Server> {
        let (server, mut lines) = Self::spawn(command)?;
        let mut said = Vec::new();
        for line in lines.by_ref() {
            if ready(&line) {
                // It must never wait for room for what it says later.
                thread::spawn(move || lines.for_each(drop));
                return Ok(server);
            }
            said.push(line);
        }
        bail!("it ends at once: {}", said.join("; "))
    }

    /// Starts one that doesn't say when it is `ready`.
    pub fn until(command: Command, ready: impl Fn() -> bool) -> Result<Server> {
        let (mut server, lines) = Self::spawn(command)?;
        let said = thread::spawn(move || lines.collect::<Vec<_>>());
        while !ready() {
            if server.0.try_wait()?.is_some() {
                bail!("it ends at once: {}", said.join().unwrap_or_default().join("; "));
            }
            thread::sleep(TICK);
        }
        Ok(server)
    }

    fn spawn(mut command: Command) -> Result<(Server, impl Iterator<Item = String> + Send)> {
        let shown = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut server = Server(child.with_context(|| format!("{shown} can't be started"))?);
        let stderr = server.0.stderr.take().context("its messages can't be read")?;
        Ok((server, BufReader::new(stderr).lines().map_while(Result::ok)))
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Asks it to end, and waits for that.
    pub fn end(mut self) -> Result<()> {
        self.tell(Signal::TERM)?;
        self.0.wait()?;
        Ok(())
    }

    /// Waits until it ends by itself, well.
    pub fn ended(mut self) -> Result<()> {
        match self.0.wait()? {
            status if status.success() => Ok(()),
            status => bail!("it ended so: {status}"),
        }
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
