//! The script at the root says what keeps it from going on, in one sentence, and ends with 1.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
};

/// What the script itself takes from any system.
const USUAL: [&str; 10] =
    ["dirname", "env", "head", "mkdir", "mktemp", "readlink", "rm", "sed", "tail", "touch"];

/// Has it say its version where nothing is but these programs, each a line of shell.
fn said(programs: &[(&str, &str)], target: &str) -> (Option<i32>, String) {
    said_by("--version", programs, target)
}

fn said_by(command: &str, programs: &[(&str, &str)], target: &str) -> (Option<i32>, String) {
    let system = tempfile::tempdir().unwrap();
    for name in USUAL {
        let place = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
        let found = place.into_iter().find(|path| path.exists()).expect(name);
        symlink(found, system.path().join(name)).unwrap();
    }
    for (name, line) in [("uname", "echo x86_64")].iter().chain(programs) {
        let program = system.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../exitless");
    let mut shell = Command::new("/bin/sh");
    shell.arg(script).arg(command).env_clear().env("PATH", system.path());
    shell.env("HOME", system.path()).env("TMPDIR", system.path());
    let output = shell.env("CARGO_TARGET_DIR", target).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn who_may_not_install_is_told_what_is_missing() {
    let (status, text) = said(&[("id", "echo 1000"), ("apt-get", "exit 9")], "/nowhere");
    assert_eq!(
        (status, text.as_str()),
        (
            Some(1),
            "exitless: gcc is missing, and to install it takes root: become root, or install sudo\n"
        )
    );
}

#[test]
fn what_keeps_packages_away_is_shown() {
    let (status, text) =
        said(&[("id", "echo 0"), ("apt-get", "echo no mirror; exit 9")], "/nowhere");
    assert_eq!(status, Some(1));
    assert!(text.contains("\nno mirror\nexitless: the package lists can't be updated"), "{text}");
}

/// What builds it, each without a word, and Rust's target.
const BUILDERS: [(&str, &str); 5] = [
    ("gcc", ""),
    ("setpriv", ""),
    ("cargo", ""),
    ("rustc", "[ $1 = --version ] && echo rustc 1.95.0 || echo \"$HOME\""),
    ("uname", "mkdir -p \"$HOME/lib/rustlib/x86_64-unknown-none\"; echo x86_64"),
];

/// As a checkout that can only be read.
#[test]
fn a_folder_that_takes_no_build_is_told_of() {
    let (status, text) = said(&BUILDERS, "/dev/null/target");
    assert_eq!(status, Some(1));
    assert!(text.contains("nothing can be built in /dev/null/target"), "{text}");
    assert!(text.contains("CARGO_TARGET_DIR=FOLDER has it built elsewhere"), "{text}");
}

/// A linker that runs out of it dies of a bus error, and says nothing of the disk.
#[test]
fn a_disk_without_room_is_told_of_before_anything_is_built() {
    let target = tempfile::tempdir().unwrap();
    let place = target.path().to_str().unwrap();
    for (command, needed) in [("--version", 500), ("fuzz", 2000)] {
        let free = needed * 1024 - 1;
        let df = format!("echo Filesystem; echo /dev/sda 9999999 1 {free} 99% /mount 7% /");
        let programs = [&BUILDERS[..], &[("df", df.as_str())]].concat();
        let (status, text) = said_by(command, &programs, place);
        assert_eq!(status, Some(1));
        assert!(text.contains(&format!("needs {needed} MiB")), "{text}");
        assert!(text.contains(&format!("has {} MiB free", needed - 1)), "{text}");
        assert!(text.contains("CARGO_TARGET_DIR=FOLDER"), "{text}");
        assert!(!target.path().join("release/exitless").exists());
    }
}
