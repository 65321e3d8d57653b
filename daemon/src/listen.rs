//! The socket's file: made, or taken over from a daemon that isn't there any more.

use anyhow::{Context as _, Result, bail};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Listens at this path.
///
/// # Errors
///
/// If a daemon serves it already, if something else is there, or if it can't be made.
pub fn at(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    if let Ok(there) = path.symlink_metadata() {
        if !there.file_type().is_socket() {
            bail!("{shown} is there already, and isn't a socket");
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)
                    .with_context(|| format!("{shown} is left over and can't be removed"))?;
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be tried")),
            Ok(_) => bail!("{shown} is in use: another program listens there"),
        }
    }
    UnixListener::bind(path).with_context(|| format!("{shown} can't be made a socket"))
}
