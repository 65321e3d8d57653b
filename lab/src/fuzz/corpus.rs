//! What goes into the corpus of the checkout: few and small inputs that together reach what all of
//! them reach.

use super::{
    archive::{self, LONGEST},
    target,
};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, say::say};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

/// The most that is kept of one target, in bytes.
const MOST: u64 = 24 << 10;

/// Replaces the archive of each target by the least of what is known.
pub fn keep(cx: &Context, names: &[String]) -> Result<()> {
    for name in names {
        let (files, bytes) = keep_one(cx, name)?;
        say(format_args!("exitless: fuzz/corpus/{name}.tar.gz: {files} inputs, {bytes} bytes"));
    }
    Ok(())
}

fn keep_one(cx: &Context, name: &str) -> Result<(usize, u64)> {
    let scratch = tempfile::tempdir().context("no temporary directory can be made")?;
    let (short, least) = (scratch.path().join("short"), scratch.path().join("least"));
    fs::create_dir(&short)?;
    fs::create_dir(&least)?;
    let known = [vec![target::place(cx, "corpus", name)?], target::kept(cx, name)?].concat();
    copy(inputs(&known)?, &short)?;
    let mut command = target::command(cx, name);
    command.args(["-set_cover_merge=1"]).arg(&least).arg(&short);
    let merged = command.stdout(Stdio::null()).output()?;
    if !merged.status.success() {
        bail!("{name}: the inputs can't be minimised: {}", String::from_utf8_lossy(&merged.stderr));
    }
    let mut sum = 0;
    let mut chosen = inputs(&[least])?;
    chosen.retain(|(bytes, _)| {
        sum += bytes;
        sum <= MOST
    });
    let files = chosen.iter().map(|(_, file)| Ok((name_of(file)?, fs::read(file)?)));
    archive::pack(&archive::path(cx, name), files.collect::<Result<_>>()?)?;
    Ok((chosen.len(), chosen.iter().map(|(bytes, _)| bytes).sum()))
}

/// The inputs in these folders that aren't too long, the shortest first.
fn inputs(folders: &[PathBuf]) -> Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            found.push((entry.metadata()?.len(), entry.path()));
        }
    }
    found.retain(|(bytes, _)| *bytes <= LONGEST);
    found.sort();
    Ok(found)
}

fn copy(files: Vec<(u64, PathBuf)>, to: &Path) -> Result<()> {
    for (_, file) in files {
        fs::copy(&file, to.join(name_of(&file)?))?;
    }
    Ok(())
}

fn name_of(file: &Path) -> Result<String> {
    let name = file.file_name().context("a file without a name")?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_inputs_come_first_and_long_ones_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("a", 100), ("b", 7), ("c", 5000)] {
            fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        let found = inputs(&[folder.path().to_owned()]).unwrap();
        assert_eq!(found.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), [7, 100]);
    }
}
