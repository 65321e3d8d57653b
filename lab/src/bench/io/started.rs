//! A server that runs, and which core is whose.

use crate::server::Server;
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// The core of a server, and of what is behind it.
pub const SERVER_CORE: &str = "0";
/// The core of the generator.
pub const LOAD_CORE: &str = "1";

/// Before a program: it stays on the server's core.
pub fn pinned() -> [String; 3] {
    ["taskset", "-c", SERVER_CORE].map(str::to_owned)
}

/// A server that runs, and the socket of each client.
pub struct Started {
    pub server: Server,
    pub sockets: Vec<PathBuf>,
    /// Where it says what it counted, if it does.
    pub control: Option<PathBuf>,
    /// Where a disk in memory is.
    pub memory: Option<TempDir>,
    /// What the server reaches the disk by.
    _behind: Option<Server>,
}

impl Started {
    /// A server that needs nothing else.
    pub fn alone(server: Server, sockets: Vec<PathBuf>) -> Started {
        Started::before(None, server, sockets)
    }

    /// A server that reaches its disk by this one.
    pub fn before(behind: Option<Server>, server: Server, sockets: Vec<PathBuf>) -> Started {
        Started { server, sockets, control: None, memory: None, _behind: behind }
    }
}

/// Does for a thread that runs what the words before the core would have done for its program: it
/// becomes one of real time, or nothing.
pub fn raise(wrap: &[String], process: u32, name: &str) -> Result<()> {
    let Some([program, policy @ .., priority]) = wrap.strip_suffix(&pinned()) else {
        return Ok(());
    };
    let thread = thread(process, name)?.to_string();
    let mut raise = Command::new(program);
    raise.args(policy).args(["-p", priority, &thread]);
    if !raise.stdout(Stdio::null()).status()?.success() {
        bail!("the thread {name} can't be one of real time");
    }
    Ok(())
}

/// The number of a process's thread.
fn thread(process: u32, name: &str) -> Result<u32> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let folder = thread?.path();
        if fs::read_to_string(folder.join("comm"))?.trim_end() == name {
            let number = folder.file_name().context("a thread has a number")?;
            return Ok(number.to_string_lossy().parse()?);
        }
    }
    bail!("the server has no thread {name}")
}
