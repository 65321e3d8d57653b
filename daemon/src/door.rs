//! How front ends come to a device: by a socket that is listened at, or one that is connected to.

use crate::listen;
use anyhow::{Context as _, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{accept_with, connect, socket_with};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A device's door.
pub enum Door {
    /// A socket of ours, whose file is removed at the end if it was made here. While there is a
    /// time, it isn't listened at before that.
    Listening { listener: UnixListener, file: Option<PathBuf>, again_at: Option<u64>, said: bool },
    /// A front end's socket, which is tried again and again.
    Connecting { path: PathBuf, again_at: u64, said: bool },
}

/// What came of a try.
pub enum Came {
    Socket(OwnedFd),
    Nobody,
}

impl Door {
    /// Listens at this path.
    pub fn listen(path: &Path) -> Result<Door> {
        Self::listening(listen::at(path)?, Some(path.to_owned()))
    }

    /// Listens at this socket. `file` is to be removed at the end.
    pub fn listening(listener: UnixListener, file: Option<PathBuf>) -> Result<Door> {
        // Not by std, which has a system call of its own for it.
        fcntl_setfl(&listener, OFlags::RDWR | OFlags::NONBLOCK)
            .context("the socket can't be made non-blocking")?;
        Ok(Door::Listening { listener, file, again_at: None, said: false })
    }

    /// Connects to this path, as soon as somebody listens there.
    pub fn connecting(path: &Path) -> Door {
        Door::Connecting { path: path.to_owned(), again_at: 0, said: false }
    }

    /// What to wait for.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Door::Listening { listener, .. } => Some(listener.as_fd()),
            Door::Connecting { .. } => None,
        }
    }

    /// The socket's file, if it is to be removed at the end.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Door::Listening { file, .. } => file.as_deref(),
            Door::Connecting { .. } => None,
        }
    }

    /// When to try it without being told.
    pub fn again_at(&self) -> Option<u64> {
        match self {
            Door::Connecting { again_at, .. } => Some(*again_at),
            Door::Listening { again_at, .. } => *again_at,
        }
    }

    /// Nobody comes before this time.
    pub fn pause(&mut self, until: u64) {
        match self {
            Door::Connecting { again_at, .. } => *again_at = until,
            Door::Listening { again_at, .. } => *again_at = Some(until),
        }
    }

    /// Why nobody comes is to be said, as it wasn't since somebody came.
    pub fn is_news(&mut self) -> bool {
        match self {
            Door::Connecting { said, .. } | Door::Listening { said, .. } => {
                !std::mem::replace(said, true)
            }
        }
    }

    /// Is there a front end? It doesn't wait.
    pub fn try_it(&mut self, now: u64) -> Came {
        let came = match self {
            Door::Listening { listener, file, again_at, said } => {
                *again_at = None;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(listener, flags) {
                    Ok(socket) => {
                        *said = false;
                        Some(socket)
                    }
                    Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
                    // Such as too many files: who waits there is told of again and again.
                    Err(error) => {
                        *again_at = Some(now.saturating_add(crate::clock::HERTZ));
                        if !std::mem::replace(said, true) {
                            let shown = file.as_deref().unwrap_or(Path::new("a socket"));
                            let shown = shown.display();
                            eprintln!("exitless-io: nobody comes in at {shown} for now: {error}");
                        }
                        None
                    }
                }
            }
            Door::Connecting { path, again_at, said } => {
                *again_at = now.saturating_add(crate::clock::HERTZ);
                match reach(path) {
                    Ok(socket) => {
                        *said = false;
                        Some(socket)
                    }
                    Err(error) => {
                        if !std::mem::replace(said, true) {
                            let shown = path.display();
                            eprintln!("exitless-io: {shown} can't be reached yet: {error:#}");
                        }
                        None
                    }
                }
            }
        };
        came.map_or(Came::Nobody, Came::Socket)
    }

    /// The socket, if it is another's, who listens on: systemd's.
    pub fn into_handed(self) -> Option<UnixListener> {
        match self {
            Door::Listening { listener, file: None, .. } => Some(listener),
            _ => None,
        }
    }

    /// It is no more.
    pub fn close(&self) {
        if let Door::Listening { file: Some(file), .. } = self {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Connects, if somebody listens and has room. Nothing is waited for.
pub fn reach(path: &Path) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
