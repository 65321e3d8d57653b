//! The socket's file: made, or taken over from a daemon that isn't there any more.

use crate::sandbox::folder;
use anyhow::{Context as _, Result, bail};
use rustix::fs::{Access as Rights, access};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Bytes of a socket's path at most, as Linux has room for them.
const LONGEST_PATH: usize = 107;

/// The paths of all sockets that somebody listens at, as far as the system tells of them.
pub fn all() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // Its place in memory, users, protocol, flags (one is: it listens), type, state, number, path.
    let path = |line: &str| {
        let mut words = line.splitn(7, ' ');
        (words.nth(3)? == "00010000").then_some(())?;
        Some(PathBuf::from(words.nth(2)?.trim_start().split_once(' ')?.1))
    };
    text.lines().filter_map(path).collect()
}

/// Is there a file of this path, as far as the system says?
pub fn is_there(path: &Path) -> bool {
    path.symlink_metadata().err().is_none_or(|error| error.kind() != ErrorKind::NotFound)
}

/// Fails if the system has no room for the path.
///
/// # Errors
///
/// With what would be right.
pub fn is_short(path: &Path) -> Result<()> {
    let (shown, bytes) = (path.display(), path.as_os_str().len());
    if bytes > LONGEST_PATH {
        bail!("{shown} has {bytes} bytes, and {LONGEST_PATH} are the most");
    }
    Ok(())
}

/// Fails if no socket could be made of this path, or the one there be taken over, whoever asks.
///
/// # Errors
///
/// With what would be right.
pub fn may_be(path: &Path) -> Result<()> {
    is_short(path)?;
    let (shown, folder) = (path.display(), folder(path));
    if !folder.is_dir() {
        let folder = folder.display();
        bail!("{folder} is no folder; `mkdir -p {folder}` helps");
    }
    match path.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => {
            bail!("{shown} is there already, and isn't a socket; name another")
        }
        _ => Ok(()),
    }
}

/// Listens at this path.
///
/// # Errors
///
/// If a daemon serves it already, if something else is there, or if it can't be made.
pub fn at(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    may_be(path)?;
    if path.symlink_metadata().is_ok() {
        match try_it(path) {
            Err(Errno::CONNREFUSED) => {
                std::fs::remove_file(path)
                    .with_context(|| format!("{shown} is left over and can't be removed"))?;
            }
            // One that has no room for us listens nevertheless.
            Ok(()) | Err(Errno::AGAIN) => bail!("{shown} is in use: another program listens there"),
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be tried")),
        }
    }
    UnixListener::bind(path).with_context(|| {
        let folder = folder(path);
        // By what the user may: whose rights were given up is refused otherwise.
        match access(&folder, Rights::WRITE_OK | Rights::EXEC_OK) {
            Err(Errno::ACCESS) => {
                let folder = folder.display();
                format!("this user can't write in {folder}; name a folder of its own for {shown}")
            }
            _ => format!("{shown} can't be made a socket"),
        }
    })
}

/// Does anybody listen? Nothing is waited for.
fn try_it(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::{all, at};
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    };

    /// It listens, and has taken nobody for so long that it takes nobody more.
    #[test]
    fn one_that_has_no_room_is_in_use() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let socket = || {
            let flags = SocketFlags::NONBLOCK;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket")
        };
        let (listener, address) = (socket(), SocketAddrUnix::new(&path).expect("it is short"));
        bind(&listener, &address).expect("a name");
        listen(&listener, 0).expect("it listens");
        let full: Vec<_> = (0..8).map(|_| socket()).collect();
        assert!(full.iter().any(|one| connect(one, &address).is_err()), "it is full");
        let error = at(&path).expect_err("it is in use");
        assert!(error.to_string().contains("in use"), "{error}");
        assert!(all().contains(&path));
        drop(listener);
        assert!(!all().contains(&path));
        at(&path).expect("it is left over");
    }
}
