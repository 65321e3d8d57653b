//! Runs the recipes that make what isn't part of the checkout: guests out of Debian's packages, a
//! newer QEMU.
//!
//! Guarantees: a recipe's progress is shown, and why it failed is one sentence.

use crate::say::say;
use anyhow::{Context as _, Result, bail};
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

/// Runs a recipe, which makes things in `out`, and shows what it says. `made` is the word for what
/// it makes.
pub fn make(script: &Path, out: &Path, made: &str) -> Result<()> {
    make_one(script, out, &[], made)
}

/// The same for a recipe that makes one thing or another, as these arguments say.
pub fn make_one(script: &Path, out: &Path, which: &[&str], made: &str) -> Result<()> {
    let mut child = command(script, out, which)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} can't be started", script.display()))?;
    if let Some(progress) = child.stdout.take() {
        for line in BufReader::new(progress).lines().map_while(Result::ok) {
            say(format_args!("  {made}: {}", line.trim_start_matches("==> ")));
        }
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    if !child.wait()?.success() {
        let sentence = said.lines().last().unwrap_or("no reason was given");
        let prefix = format!("{made}: ");
        bail!("the {made} can't be made: {}", sentence.strip_prefix(&prefix).unwrap_or(sentence));
    }
    Ok(())
}

/// What runs a recipe.
pub fn command(script: &Path, out: &Path, which: &[&str]) -> Command {
    let mut command = Command::new(script);
    command.arg(out).args(which);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn run(lines: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("build");
        fs::write(&script, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        make(&script, folder.path(), "cake").map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn why_a_recipe_failed_is_its_last_sentence() {
        assert_eq!(run("echo '==> eggs'"), Ok(()));
        let failed = run("echo noise >&2; echo 'cake: no eggs' >&2; exit 1");
        assert_eq!(failed, Err("the cake can't be made: no eggs".to_owned()));
        let silent = run("exit 1");
        assert_eq!(silent, Err("the cake can't be made: no reason was given".to_owned()));
        let gone = make(Path::new("/nonexistent/build"), Path::new("/"), "cake").unwrap_err();
        assert!(gone.to_string().ends_with("/build can't be started"));
    }
}
