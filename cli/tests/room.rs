//! The script in the root says so when the disk has no room for what it builds, and builds nothing.

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// What the script says when `df` finds so many KiB free.
fn said(free: u64, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let df = folder.path().join("df");
    fs::write(&df, format!("#!/bin/sh\necho head\necho disk 9999999 1 {free} 1% /\n")).unwrap();
    fs::set_permissions(&df, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exitless");
    let mut command = Command::new(script);
    command.args(arguments).env("PATH", path).env("CARGO_TARGET_DIR", folder.path().join("target"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!folder.path().join("target/release").exists(), "something was built");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn too_little_room_is_said_before_anything_is_built() {
    let help = said(499 * 1024, &["--help"]);
    assert!(help.contains("needs 500 MiB"), "{help}");
    assert!(help.contains("has 499 MiB free"), "{help}");
    assert!(help.contains("CARGO_TARGET_DIR"), "{help}");
    let test = said(1024 * 1024, &["test", "--quick"]);
    assert!(test.contains("needs 6000 MiB") && test.contains("has 1024 MiB free"), "{test}");
}
