//! A text that one process hands to another.
//!
//! Guarantees: it is a file of memory, so who takes it waits for no file system.

use anyhow::{Context as _, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};

/// This text, to be read from its start on.
///
/// # Errors
///
/// If the system has no memory for it.
pub fn given(text: &[u8]) -> Result<OwnedFd> {
    let file = memfd_create("exitless-io-text", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.context("the system gives no memory for a text")?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file.into())
}

/// What a file says, up to so many bytes.
///
/// # Errors
///
/// The system's.
pub fn taken(file: OwnedFd, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // By `take`, without which std asks where the file stands, which a sandbox refuses.
    File::from(file).take(most).read_to_end(&mut text)?;
    Ok(text)
}
