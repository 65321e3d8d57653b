//! A copy of the checkout in which changes are made.
//!
//! Guarantees: it has what git knows of the checkout or would take, as it is now; a file that is
//! the same already isn't written, so that only what changed is built again.

use super::results::hashed;
use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Where the lists of changes are.
pub const LISTS: &str = "lab/mutants";

/// What of the checkout is built from.
const PARTS: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "rustfmt.toml",
    ".cargo",
    "bench",
    "cli",
    "crates",
    "daemon",
    "guests",
    "hypervisor",
    "lab",
    "loader",
];

/// The copy.
pub struct Copy {
    /// Its root.
    pub root: PathBuf,
    /// Of all that is in it but the lists of changes: another one, if the code is.
    pub key: u64,
    original: PathBuf,
}

impl Copy {
    /// Makes the one of this name in the build directory, or brings it up to date.
    pub fn make(cx: &Context, name: &str) -> Result<Copy> {
        let root = cx.target.join("mutants").join(name);
        let mut git = Command::new("git");
        git.arg("-C").arg(&cx.root);
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]);
        git.args(PARTS);
        let output = git.output().context("git can't be started")?;
        if !output.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let names = String::from_utf8(output.stdout)?;
        let names: BTreeSet<_> = names.split('\0').filter(|n| !n.is_empty()).collect();
        let mut key = hashed(());
        for name in &names {
            let (from, to) = (cx.root.join(name), root.join(name));
            // One that git knows may have been deleted.
            let Ok(bytes) = fs::read(&from) else { continue };
            write(&to, &bytes)?;
            key = with(key, name, &bytes);
        }
        for file in files(&root)? {
            let name = file.strip_prefix(&root)?.to_string_lossy().into_owned();
            if !names.contains(name.as_str()) {
                fs::remove_file(&file)?;
            }
        }
        Ok(Copy { root, key, original: cx.root.clone() })
    }

    /// Puts a text in place of a file.
    pub fn change(&self, file: &Path, text: &str) -> Result<()> {
        write(&self.root.join(file), text.as_bytes())
    }

    /// Puts the file back as it is in the checkout.
    pub fn restore(&self, file: &Path) -> Result<()> {
        write(&self.root.join(file), &fs::read(self.original.join(file))?)
    }
}

/// The key with one more file.
fn with(key: u64, name: &str, bytes: &[u8]) -> u64 {
    if name.starts_with(LISTS) { key } else { hashed((key, name, bytes)) }
}

fn write(to: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, bytes).with_context(|| format!("{} can't be written", to.display()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo reads them all, whichever is built.
    #[test]
    fn every_member_of_the_workspace_is_copied() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let text = fs::read_to_string(root).unwrap();
        let members = text.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
        let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
        assert!(members.len() > 5, "{members:?}");
        for member in members {
            let part = member.split('/').next().unwrap();
            assert!(PARTS.contains(&part), "{member}");
        }
    }

    #[test]
    fn the_key_is_of_the_code_and_not_of_the_lists() {
        let key = |kernel: &[u8], list: &[u8]| {
            let files = [("guests/kernels/a.rs", kernel), ("lab/mutants/state.toml", list)];
            files.iter().fold(0, |key, (name, bytes)| with(key, name, bytes))
        };
        assert_eq!(key(b"a", b"b"), key(b"a", b"c"));
        assert_ne!(key(b"a", b"b"), key(b"c", b"b"));
    }
}
