//! The corpus in the checkout: an archive for each target, `fuzz/corpus/NAME.tar.gz`.
//!
//! Guarantees: the same inputs give the same bytes, so that an archive changes only with what is
//! in it. Unpacking writes files of its folder alone, and none that is longer than [`LONGEST`].

use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::{
    fs::{self, File},
    io::Read,
    path::{Component, Path, PathBuf},
};

/// The longest input that is kept, in bytes.
pub const LONGEST: u64 = 4 << 10;

/// A target's archive, which needn't be there.
pub fn path(cx: &Context, name: &str) -> PathBuf {
    cx.root.join("fuzz/corpus").join(format!("{name}.tar.gz"))
}

/// Replaces an archive by one of these files, each with its contents.
pub fn pack(archive: &Path, mut files: Vec<(String, Vec<u8>)>) -> Result<()> {
    files.sort();
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for (name, bytes) in &files {
        // Neither a time nor an owner.
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes.as_slice())?;
    }
    let bytes = tar.into_inner()?.finish()?;
    fs::write(archive, bytes).with_context(|| format!("{} can't be written", archive.display()))
}

/// The files of an archive, with their contents.
pub fn unpack(archive: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let place = archive.display();
    let file = File::open(archive).with_context(|| format!("{place} can't be read"))?;
    let mut files = Vec::new();
    let mut tar = tar::Archive::new(GzDecoder::new(file));
    for entry in tar.entries().with_context(|| format!("{place} is no archive"))? {
        let entry = entry.with_context(|| format!("{place} is damaged"))?;
        let path = entry.path()?.into_owned();
        let mut parts = path.components();
        let name = match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => name.to_string_lossy().into_owned(),
            _ => bail!("{place} has {path:?} in it; an input has a name without a folder"),
        };
        if entry.size() > LONGEST {
            bail!("{place}: {name} has {} bytes; an input has at most {LONGEST}", entry.size());
        }
        let mut bytes = Vec::new();
        entry
            .take(LONGEST)
            .read_to_end(&mut bytes)
            .with_context(|| format!("{place} is damaged"))?;
        files.push((name, bytes));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_the_same_gives_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        let files = [("x", vec![1, 2]), ("empty", vec![]), ("y", vec![7; LONGEST as usize])];
        let mut files = files.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec();
        pack(&a, files.clone()).unwrap();
        files.reverse();
        pack(&b, files.clone()).unwrap();
        assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
        files.sort();
        assert_eq!(unpack(&a).unwrap(), files);
    }

    #[test]
    fn nothing_is_unpacked_that_is_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a");
        pack(&archive, vec![("long".into(), vec![0; LONGEST as usize + 1])]).unwrap();
        assert!(unpack(&archive).unwrap_err().to_string().ends_with("an input has at most 4096"));
        pack(&archive, vec![("above/x".into(), vec![])]).unwrap();
        assert!(unpack(&archive).unwrap_err().to_string().contains("without a folder"));
        fs::write(&archive, "no archive").unwrap();
        assert!(unpack(&archive).is_err());
        assert!(unpack(&folder.path().join("none")).is_err());
    }
}
