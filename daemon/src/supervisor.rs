//! systemd: sockets that it listens at for this program, and what it is told of its state.
//!
//! A socket that is handed over is for the device whose `socket` has its path. Its file is
//! systemd's, and stays; the socket is kept while no device has it.

use anyhow::{Context as _, Result};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::net::getsockname;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Sockets that were handed over, with their paths.
#[derive(Default)]
pub struct Handed(Vec<(PathBuf, UnixListener)>);

impl Handed {
    /// Those of this process' environment, which are taken out of it.
    pub fn take() -> Handed {
        let mut listening = listenfd::ListenFd::from_env();
        let mut handed = Vec::new();
        for at in 0..listening.len() {
            if let Ok(Some(listener)) = listening.take_unix_listener(at)
                && let Some(path) = path_of(&listener)
            {
                handed.push((path, listener));
            }
        }
        Handed(handed)
    }

    fn position(&self, path: &Path) -> Option<usize> {
        let wanted = std::path::absolute(path).ok()?;
        self.0.iter().position(|(path, _)| *path == wanted)
    }

    /// Is there one of this path?
    pub fn has(&self, path: &Path) -> bool {
        self.position(path).is_some()
    }

    /// The one of this path.
    pub fn at(&mut self, path: &Path) -> Option<UnixListener> {
        Some(self.0.swap_remove(self.position(path)?).1)
    }

    /// No device has this one any more.
    pub fn keep(&mut self, path: &Path, listener: Option<UnixListener>) {
        let path = std::path::absolute(path).ok();
        self.0.extend(path.zip(listener));
    }

    /// Those that no device has.
    pub fn all(&self) -> impl Iterator<Item = (&Path, BorrowedFd<'_>)> {
        self.0.iter().map(|(path, listener)| (path.as_path(), listener.as_fd()))
    }
}

fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    let address = getsockname(listener.as_fd()).ok()?;
    let address = rustix::net::SocketAddrUnix::try_from(address).ok()?;
    Some(PathBuf::from(address.path()?.to_str().ok()?))
}

/// Where systemd hears, if it does: connected before the right to is given up.
static HEARD: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to systemd, if it started this program.
///
/// # Errors
///
/// If it can't be reached.
pub fn prepare() -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&name),
    };
    let connected = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(socket)
    });
    let shown = name.display();
    let socket = connected.with_context(|| format!("systemd can't be reached at {shown}"))?;
    let _ = HEARD.set(socket);
    Ok(())
}

/// By `write`, which every sandbox allows. Without systemd nothing happens.
fn say(what: &str) {
    if let Some(socket) = HEARD.get() {
        let _ = rustix::io::write(socket, what.as_bytes());
    }
}

/// All that is asked for is served from now on.
pub fn ready(status: &str) {
    say(&format!("READY=1\nSTATUS={status}\n"));
}

/// What is served from now on.
pub fn status(status: &str) {
    say(&format!("STATUS={status}\n"));
}

/// Another process is the service from now on.
pub fn replaced_by(process: u32) {
    say(&format!("MAINPID={process}\n"));
}

/// It ends.
pub fn stopping() {
    say("STOPPING=1\n");
}
