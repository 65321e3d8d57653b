//! systemd: sockets that it listens at for this program, and what it is told of its state.
//!
//! A socket that is handed over is for the device whose `socket` has its path. Its file is
//! systemd's, and stays.

use rustix::fd::AsFd as _;
use rustix::net::getsockname;
use sd_notify::NotifyState;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

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

    /// The one of this path.
    pub fn at(&mut self, path: &Path) -> Option<UnixListener> {
        let wanted = std::path::absolute(path).ok()?;
        let at = self.0.iter().position(|(path, _)| *path == wanted)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Those that nobody took.
    pub fn left(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(path, _)| path.as_path())
    }
}

fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    let address = getsockname(listener.as_fd()).ok()?;
    let address = rustix::net::SocketAddrUnix::try_from(address).ok()?;
    Some(PathBuf::from(address.path()?.to_str().ok()?))
}

/// All that is asked for is served from now on. Without systemd nothing happens, as below.
pub fn ready(status: &str) {
    let _ = sd_notify::notify(false, &[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Another process is the service from now on.
pub fn replaced_by(process: u32) {
    let _ = sd_notify::notify(false, &[NotifyState::MainPid(process)]);
}

/// It ends.
pub fn stopping() {
    let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
}
