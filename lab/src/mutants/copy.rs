//! A copy of the checkout in which changes are made.
//!
//! Guarantees: it has what git knows of the checkout or would take, as it is now; a file that is
//! the same already isn't written, so that only what changed is built again.

use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The copy.
pub struct Copy {
    /// Its root.
    pub root: PathBuf,
    original: PathBuf,
}

impl Copy {
    /// Makes the one of this name in the build directory, or brings it up to date.
    pub fn make(cx: &Context, name: &str) -> Result<Copy> {
        let root = cx.target.join("mutants").join(name);
        let mut git = Command::new("git");
        git.arg("-C").arg(&cx.root);
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]);
        git.args(["Cargo.toml", "Cargo.lock", "rustfmt.toml", ".cargo", "cli", "lab", "crates"]);
        git.args(["hypervisor", "guests", "bench"]);
        let output = git.output().context("git can't be started")?;
        if !output.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let names = String::from_utf8(output.stdout)?;
        let names: HashSet<_> = names.split('\0').filter(|n| !n.is_empty()).collect();
        for name in &names {
            let (from, to) = (cx.root.join(name), root.join(name));
            // One that git knows may have been deleted.
            let Ok(bytes) = fs::read(&from) else { continue };
            write(&to, &bytes)?;
        }
        for file in files(&root)? {
            let name = file.strip_prefix(&root)?.to_string_lossy().into_owned();
            if !names.contains(name.as_str()) {
                fs::remove_file(&file)?;
            }
        }
        Ok(Copy { root, original: cx.root.clone() })
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
