//! Files without a name, so that none is left behind however the run ends.

use anyhow::{Context, Result};
use std::{fs::File, io::Write, os::fd::AsRawFd, path::PathBuf, process};

/// A file that other processes of this user can open while this lives.
#[derive(Debug)]
pub struct Unnamed(File);

impl Unnamed {
    /// An empty one.
    pub fn new() -> Result<Unnamed> {
        tempfile::tempfile().map(Unnamed).context("no temporary file can be made")
    }

    /// One with these bytes, which `what` names in an error.
    pub fn with(bytes: &[u8], what: &str) -> Result<Unnamed> {
        let mut file = Unnamed::new()?;
        file.0
            .write_all(bytes)
            .with_context(|| format!("{what} can't be written to a temporary file"))?;
        Ok(file)
    }

    /// Itself.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Where others find it: a path that leads to the open file, in a folder of such.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_can_be_opened_by_its_path_and_has_no_name() {
        let file = Unnamed::with(b"bytes", "it").unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"bytes");
        assert!(fs::read_link(file.path()).unwrap().to_string_lossy().ends_with("(deleted)"));
    }
}
