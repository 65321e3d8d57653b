//! What commands say when nobody reads it, or when there is no room for it; and a log that nobody
//! reads.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::FrontEnd;
use front_end::wire::Wire;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// A command's code and what it has to say against it, with this as its output.
fn told(arguments: &[&str], output: Stdio) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    let ran = command.args(arguments).stdout(output).stderr(Stdio::piped()).output();
    let ran = ran.expect("it runs");
    (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
}

#[test]
fn nobody_reads_it_or_there_is_no_room() {
    let daemon = Daemon::two(1);
    let (control, file) = (daemon.path("control"), daemon.path("io.toml"));
    for command in [
        &["list", "--control", &control][..],
        &["list", "--json", "--control", &control],
        &["check", &file],
        &["top", "--count", "1", "--seconds", "0.01", "--control", &control],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(told(command, writer.into()), (Some(141), String::new()), "{command:?}");
        let full = File::options().write(true).open("/dev/full").expect("it is there");
        let (code, said) = told(command, full.into());
        let sentence = "exitless-io: the output can't be written: No space left on device";
        assert!(code == Some(1) && said.starts_with(sentence), "{command:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Whoever kept the log has ended.
#[test]
fn a_log_that_nobody_reads_ends_no_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let mut command = Command::new(PROGRAM);
    command.args(["disk", "--ram", "1M", "--socket"]).arg(&socket).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("it was asked for"));
    let mut line = String::new();
    while !line.contains(": serves ") {
        line.clear();
        assert!(log.read_line(&mut line).expect("it is text") > 0, "it doesn't serve");
    }
    drop(log);
    let socket = socket.display().to_string();
    for _ in 0..2 {
        // That each one left is said.
        let mut front = FrontEnd::new(Wire::connect(&socket));
        front.set_up(0, false);
        front.works();
    }
    assert!(child.try_wait().expect("it was started").is_none(), "it serves on");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}
