//! Devices that can't be had keep no other from being served, are told of, and come once they can.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::FrontEnd;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const HOST: &str = "[host]\ncontrol = \"control\"\nmetrics = \"metrics\"\n";

fn disk(name: &str, what: &str) -> String {
    format!("[disk.{name}]\n{what}\nsocket = \"{name}\"\n")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn list(daemon: &Daemon) -> String {
    String::from_utf8_lossy(&daemon.ask(&["list"]).stdout).into_owned()
}

fn metrics(daemon: &Daemon) -> String {
    let mut socket = UnixStream::connect(daemon.path("metrics")).expect("it listens");
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it is taken");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("it is text");
    answer
}

/// Missing, locked, of half a sector, without its folder, a server that isn't there, a socket that
/// is another's, a way out without its TAP.
fn wrong() -> String {
    [
        disk("missing", "file = \"nope\""),
        disk("odd", "file = \"half\""),
        disk("server", "nbd = \"nbd+unix:///disk?socket=FOLDER/nowhere\""),
        disk("taken", "ram = \"1M\""),
        "[network.net]\nsocket = \"net\"\nswitch = \"lan\"\n[uplink.lan]\ntap = \"exitless-no\"\n"
            .into(),
    ]
    .concat()
}

#[test]
fn others_are_served_and_what_isnt_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("half"), [0; 700]).expect("it is written");
    let _taken = UnixListener::bind(folder.path().join("taken")).expect("a socket");
    let text = [&wrong(), &disk("a", "ram = \"1M\""), HOST].concat();
    let mut daemon = Daemon::run_in(folder, &text);
    let mut front = FrontEnd::at(&daemon, "a");
    for round in 0..2 {
        front.works();
        let listed = list(&daemon);
        for sentence in [
            "missing isn't served: ",
            "nope isn't there; `truncate -s 10G ",
            "odd isn't served: ",
            "has 700 bytes, which isn't a multiple of 512; `truncate -s %512 ",
            "nowhere can't be used: the server isn't there",
            "taken is in use: another program listens there",
            "uplink of lan isn't served: ",
        ] {
            assert!(listed.contains(sentence), "{sentence}: {listed}");
        }
        let row = listed.lines().find(|line| line.starts_with("missing  disk "));
        assert!(row.is_some_and(|row| row.contains("nope")), "{listed}");
        let told = metrics(&daemon);
        for line in ["served{device=\"a\"} 1", "served{device=\"missing\"} 0"] {
            assert!(told.lines().any(|own| own == format!("exitless_io_{line}")), "{told}");
        }
        assert!(told.contains("unserved_info{device=\"missing\",why=\""), "{told}");
        let top = daemon.ask(&["top", "--seconds", "0.01", "--count", "1"]);
        let top = String::from_utf8_lossy(&top.stdout).into_owned();
        let is_told = |line: &str| line.starts_with("missing ") && line.contains("not served");
        assert!(top.lines().any(is_told), "{top}");
        // A new program knows of them, too.
        if round == 0 {
            daemon.upgrade();
        }
    }
    // What is given up isn't missing any more.
    assert!(daemon.ask(&["remove", "odd"]).status.success());
    assert!(!list(&daemon).contains("odd"));
    assert!(said(&daemon.ask(&["remove", "odd"])).contains("there is no such device"));
}

/// By itself, by a reload, and by tables that are added.
#[test]
fn they_come_once_they_can() {
    let text = [&disk("b", "file = \"late\""), &disk("a", "ram = \"1M\""), HOST].concat();
    let daemon = Daemon::run(&text);
    let mut front = FrontEnd::at(&daemon, "a");
    let make = |name: &str| std::fs::write(daemon.path(name), vec![0; 1 << 20]);
    make("late").expect("it is written");
    daemon.wait_until_said("`b` was added", 1);
    FrontEnd::at(&daemon, "b").works();
    assert!(!list(&daemon).contains("isn't served"));
    // A file that is read again names another one, which keeps what is there.
    daemon.rewrite(&[&text, &disk("c", "file = \"later\"")[..]].concat());
    let reloaded = daemon.ask(&["reload"]);
    assert!(!reloaded.status.success() && said(&reloaded).contains("c: "), "{}", said(&reloaded));
    assert!(list(&daemon).contains("c isn't served: "));
    make("later").expect("it is written");
    // It may have come by itself by now; it is there after this, whoever was first.
    assert!(daemon.ask(&["reload"]).status.success());
    FrontEnd::at(&daemon, "c").works();
    // Tables that are added are no part of the file: nobody tries them again.
    std::fs::write(daemon.path("d.toml"), disk("d", "file = \"none\"")).expect("it is written");
    assert!(!daemon.ask(&["add", &daemon.path("d.toml")]).status.success());
    assert!(!list(&daemon).contains("d isn't served"));
    // What the file doesn't say any more isn't missing.
    daemon.rewrite(&[&text, &disk("e", "file = \"none\"")[..]].concat());
    assert!(!daemon.ask(&["reload"]).status.success());
    std::fs::write(daemon.path("e.toml"), disk("e", "ram = \"1M\"")).expect("it is written");
    assert!(daemon.ask(&["add", &daemon.path("e.toml")]).status.success());
    assert!(!list(&daemon).contains("isn't served"));
    daemon.rewrite(&[&text, &disk("f", "file = \"none\"")[..]].concat());
    assert!(!daemon.ask(&["reload"]).status.success());
    daemon.rewrite(&text);
    assert!(daemon.ask(&["reload"]).status.success());
    assert!(!list(&daemon).contains("isn't served"));
    front.works();
}

/// Servers that take a connection and never say a word: the start waits for one of them, who is
/// served waits for none, and a change for one at most.
#[test]
fn servers_that_say_nothing_hold_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let _silent = UnixListener::bind(folder.path().join("silent")).expect("a socket");
    let server = |name: &str| disk(name, "nbd = \"nbd+unix:///disk?socket=FOLDER/silent\"");
    let servers: String = (0..8).map(|number| server(&format!("s{number}"))).collect();
    let began = Instant::now();
    let daemon = Daemon::run_in(folder, &[&servers, &disk("a", "ram = \"1M\""), HOST].concat());
    // Eight of them would be 80 s, at which systemd gives up. The bound is for a busy machine.
    assert!(began.elapsed() < Duration::from_secs(40));
    assert!(list(&daemon).contains("s7 isn't served: it waits for its turn"));
    let mut front = FrontEnd::at(&daemon, "a");
    front.works();
    std::fs::write(daemon.path("b.toml"), disk("b", "ram = \"1M\"")).expect("it is written");
    // Whether one is being tried by now or not.
    let began = Instant::now();
    assert!(daemon.ask(&["add", &daemon.path("b.toml")]).status.success());
    assert!(began.elapsed() < Duration::from_secs(40));
    FrontEnd::at(&daemon, "b").works();
    front.works();
}

/// Its socket is there for the next try.
#[test]
fn a_socket_of_systemds_waits_for_its_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = UnixListener::bind(folder.path().join("b")).expect("a socket");
    let text = [&disk("b", "file = \"late\""), &disk("a", "ram = \"1M\""), HOST].concat();
    let daemon = Daemon::listening(folder, &text, at);
    // A front end that comes early waits there.
    let early = UnixStream::connect(daemon.path("b")).expect("systemd listens");
    std::fs::write(daemon.path("late"), vec![0; 1 << 20]).expect("it is written");
    daemon.wait_until_said("`b` was added", 1);
    drop(early);
    FrontEnd::at(&daemon, "b").works();
    assert_eq!(daemon.said("no device has it"), 0);
}

/// With nothing to serve it ends: whoever starts it by hand sees why.
#[test]
fn nothing_at_all_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("io.toml");
    let text = [&disk("b", "file = \"nope\""), HOST].concat();
    std::fs::write(&file, text).expect("it is written");
    let ran = Command::new(PROGRAM).arg("run").arg(&file).output().expect("it runs");
    let lines = said(&ran);
    assert!(!ran.status.success() && lines.contains("exitless-io: b: "), "{lines}");
    assert!(lines.contains("nope isn't there"), "{lines}");
    for socket in ["b", "control", "metrics"] {
        assert!(!Path::new(&folder.path().join(socket)).exists(), "{socket} is left behind");
    }
}

/// How devices come is said where there is none.
#[test]
fn nothing_yet_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, notify) = (folder.path().join("io.toml"), folder.path().join("notify"));
    std::fs::write(&file, "[host]\ncontrol = \"control\"\n").expect("it is written");
    let hears = UnixDatagram::bind(&notify).expect("a socket");
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg(&file).env("NOTIFY_SOCKET", &notify).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut bytes = [0; 4096];
    let count = hears.recv(&mut bytes).expect("it says something");
    let first = String::from_utf8_lossy(&bytes[..count]).into_owned();
    assert!(first.contains("serves nothing yet; `exitless-io add FILE --control "), "{first}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

/// The service is ready, and its status says what it isn't ready for.
#[test]
fn systemd_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("io.toml");
    let text = [&disk("b", "file = \"late\""), &disk("a", "ram = \"1M\""), HOST].concat();
    std::fs::write(&file, text).expect("it is written");
    let notify = folder.path().join("notify");
    let hears = UnixDatagram::bind(&notify).expect("a socket");
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg(&file).env("NOTIFY_SOCKET", &notify).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut bytes = [0; 4096];
    let mut heard = || {
        let count = hears.recv(&mut bytes).expect("it says something");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let first = heard();
    assert!(first.starts_with("READY=1\nSTATUS=serves a; not b: "), "{first}");
    assert!(first.contains("late isn't there"), "{first}");
    std::fs::write(folder.path().join("late"), vec![0; 1 << 20]).expect("it is written");
    while heard() != "STATUS=serves a, b\n" {}
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}
