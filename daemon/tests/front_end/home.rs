//! Many devices and front ends in one program: those that go wrong, those that come and go, and
//! what is told of them.

use super::daemon::{Daemon, PROGRAM};
use super::driver::{FrontEnd, IN, OUT};
use super::station::Station;
use super::wire::Wire;
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

const MARK: [u8; 512] = [0xa5; 512];

const TWO: &str = "
[disk.a]
ram = \"1M\"
socket = \"a\"
[disk.b]
ram = \"1M\"
socket = \"b\"
front_ends = 2
[host]
control = \"control\"
metrics = \"metrics\"
";

pub(super) fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_disk_has_its_own_data() {
    let daemon = Daemon::run(TWO);
    let (mut a, mut b) = (FrontEnd::at(&daemon, "a"), FrontEnd::at(&daemon, "b"));
    for sector in 0..64 {
        a.offer(OUT, sector, &[1; 512]);
        b.offer(OUT, sector, &[2; 512]);
        assert_eq!((a.answer(), b.answer()), (0, 0));
    }
    let mut second = FrontEnd::at(&daemon, "b");
    for (front, byte) in [(&mut a, 1), (&mut b, 2), (&mut second, 2)] {
        front.offer(IN, 63, &[0; 512]);
        assert_eq!(front.answer(), 0);
        assert_eq!(front.data(), [byte; 512]);
    }
}

/// Half a message and half a header, a connection that says nothing, nonsense, a kick that is
/// always there: a front end of another disk doesn't notice.
#[test]
fn a_hostile_front_end_makes_nobody_wait() {
    let daemon = Daemon::run(TWO);
    let mut good = FrontEnd::at(&daemon, "a");
    for bytes in [&[][..], &[1, 0, 0], &[5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 1]] {
        let mut silent = Wire::connect(&daemon.path("b"));
        silent.send_bytes(bytes);
        good.works();
    }
    let mut bad = Wire::connect(&daemon.path("b"));
    bad.send(999, 1, &[], &[]);
    bad.expect_end();
    good.works();
    let kicker = FrontEnd::at(&daemon, "b");
    for _ in 0..100 {
        (0..1000).for_each(|_| kicker.kick());
        good.works();
    }
    let rings = &daemon.report()["devices"][1]["rings"];
    let numbers = &rings[0]["numbers"];
    assert!(numbers["throttled"].as_u64() > Some(0), "{numbers}");
}

/// A kick that isn't an eventfd could make all wait: its connection ends.
#[test]
fn a_kick_is_an_eventfd() {
    let daemon = Daemon::run(TWO);
    let mut good = FrontEnd::at(&daemon, "a");
    let mut bad = Wire::connect(&daemon.path("b"));
    let (ours, _theirs) = UnixStream::pair().expect("two sockets");
    bad.send(12, 1, &0u64.to_le_bytes(), &[rustix::fd::AsFd::as_fd(&ours)]);
    bad.expect_end();
    good.works();
}

#[test]
fn one_front_end_at_a_time_unless_said_otherwise() {
    let daemon = Daemon::run(TWO);
    let mut first = FrontEnd::at(&daemon, "a");
    let mut second = Wire::connect(&daemon.path("a"));
    second.send(1, 1, &[], &[]);
    first.works();
    assert_eq!(daemon.report()["devices"][0]["connections"], 1);
    drop(first);
    // It had to wait, and is served now.
    assert_eq!(second.receive().0.len(), 8);
}

#[test]
fn devices_come_change_and_go_while_others_go_on() {
    let daemon = Daemon::run(TWO);
    let (mut a, mut b) = (FrontEnd::at(&daemon, "a"), FrontEnd::at(&daemon, "b"));
    std::fs::write(daemon.path("c.toml"), "[disk.c]\nram = \"1M\"\nsocket = \"c\"\n")
        .expect("it is written");
    let added = daemon.ask(&["add", &daemon.path("c.toml")]);
    assert!(added.status.success(), "{}", said(&added));
    let mut c = FrontEnd::at(&daemon, "c");
    c.works();
    let twice = said(&daemon.ask(&["add", &daemon.path("c.toml")]));
    assert!(twice.contains("c: there is such a device already"), "{twice}");
    let list = String::from_utf8(daemon.ask(&["list"]).stdout).expect("it is text");
    let devices = list.lines().filter(|line| line.contains(" disk ")).count();
    assert_eq!(devices, 3, "{list}");

    assert!(daemon.ask(&["remove", "c"]).status.success());
    c.expect_end();
    assert!(!Path::new(&daemon.path("c")).exists());
    let gone = said(&daemon.ask(&["remove", "c"]));
    assert!(gone.contains("c: there is no such device"), "{gone}");

    // A wrong line changes nothing; a limit that changed leaves the front end where it is.
    daemon.rewrite("[disk.a]\nrom = 1\n");
    let wrong = said(&daemon.ask(&["reload"]));
    assert!(
        wrong.contains("io.toml:2: [disk.a]: unknown key `rom`; did you mean `ram`?"),
        "{wrong}"
    );
    b.works();
    daemon.rewrite(
        "[disk.a]\nram = \"1M\"\nsocket = \"a\"\nweight = 50\nlimit = { iops = 100000 }\n\
         [disk.d]\nnull = \"1M\"\nsocket = \"d\"\n",
    );
    daemon.signal(Signal::HUP);
    b.expect_end();
    daemon.wait_until_said("the file was read again", 1);
    a.works();
    FrontEnd::at(&daemon, "d");
    let devices = daemon.report()["devices"].as_array().map(Vec::len);
    assert_eq!(devices, Some(2));
}

#[test]
fn it_ends_on_a_signal_and_leaves_no_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::run(TWO);
        let mut front = FrontEnd::at(&daemon, "a");
        front.works();
        daemon.signal(signal);
        assert!(daemon.wait());
        front.expect_end();
        for socket in ["a", "b", "control", "metrics"] {
            assert!(!Path::new(&daemon.path(socket)).exists(), "{socket}");
        }
    }
}

/// The sandbox of `disk` allows fewer calls than that of `run`: to tell signals apart is one of
/// those.
#[test]
fn a_disk_without_a_file_goes_on_after_a_reload() {
    let mut daemon = Daemon::ram();
    let mut front = FrontEnd::new(Wire::connect(&daemon.socket()));
    front.set_up(0, false);
    front.works();
    daemon.signal(Signal::HUP);
    // It has taken the signal.
    let hup = 1_u64 << (Signal::HUP.as_raw() - 1);
    let state =
        || std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).expect("it is there");
    let pending = || {
        let state = state();
        let pending = state.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        pending.is_some_and(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|s| s & hup != 0))
    };
    while pending() {
        std::thread::yield_now();
    }
    front.works();
    assert!(!state().contains("Z (zombie)"), "it ended");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait());
    front.expect_end();
}

#[test]
fn it_connects_to_a_front_end_that_listens() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join("theirs")).expect("a socket");
    let _daemon = Daemon::connecting(folder);
    for _ in 0..2 {
        let (socket, _) = listener.accept().expect("it connects");
        let mut front = FrontEnd::new(Wire::new(socket));
        front.set_up(0, false);
        front.works();
    }
}

#[test]
fn metrics_and_the_control_socket_are_the_owners_and_tell_what_was_done() {
    let daemon = Daemon::run(TWO);
    let mut front = FrontEnd::at(&daemon, "a");
    (0..10).for_each(|_| front.works());
    for socket in ["control", "metrics"] {
        let kind = std::fs::metadata(daemon.path(socket)).expect("it is there");
        assert_eq!(kind.permissions().mode() & 0o777, 0o600);
    }
    let mut metrics = UnixStream::connect(daemon.path("metrics")).expect("it listens");
    metrics.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is sent");
    let mut text = String::new();
    metrics.read_to_string(&mut text).expect("it is text");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert!(text.contains("exitless_io_completed_total{device=\"a\"} 20\n"), "{text}");
    let count = "exitless_io_latency_seconds_count{device=\"a\",queue=\"0\"} 20\n";
    assert!(text.contains(count), "{text}");
    let top = daemon.ask(&["top", "--seconds", "0.05", "--count", "1"]);
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("busy") && top.contains("no front end"), "{top}");
    let list = String::from_utf8_lossy(&daemon.ask(&["list"]).stdout).into_owned();
    assert!(list.lines().any(|line| line.starts_with("a       disk    1M  ram")), "{list}");
    assert!(list.contains("\na: its driver accepted "), "{list}");
    let device = &daemon.report()["devices"][0];
    assert_eq!((&device["size"], &device["backing"]), (&(1 << 20).into(), &"ram".into()));
    assert!(device["rings"][0]["features"].as_array().is_some_and(|all| !all.is_empty()));
}

const LAN: &str = "
[network.a]
socket = \"a\"
switch = \"lan\"
mac = \"02:00:00:00:00:01\"
[network.b]
socket = \"b\"
switch = \"lan\"
mac = \"02:00:00:00:00:02\"
[network.c]
socket = \"c\"
switch = \"lan\"
vlan = 7
[host]
control = \"control\"
";

/// From the station of this number, with a byte to know it by.
pub(super) fn frame(to: [u8; 6], from: u8, byte: u8) -> Vec<u8> {
    [&to[..], &[2, 0, 0, 0, 0, from, 0x88, 0xb5], &[byte; 64]].concat()
}

#[test]
fn two_guests_on_a_switch_reach_each_other() {
    let daemon = Daemon::run(LAN);
    let mut a = Station::connect(&daemon.path("a"));
    let mut b = Station::connect(&daemon.path("b"));
    let c = Station::connect(&daemon.path("c"));
    for byte in 0..40 {
        let (there, back) = (frame([2, 0, 0, 0, 0, 2], 1, byte), frame([0xff; 6], 2, byte));
        a.send(&there);
        assert_eq!(b.receive(), there);
        b.send(&back);
        assert_eq!(a.receive(), back);
    }
    // Not its own address: it goes nowhere. The one after it arrives.
    a.send(&frame([2, 0, 0, 0, 0, 2], 9, 1));
    let last = frame([2, 0, 0, 0, 0, 2], 1, 2);
    a.send(&last);
    assert_eq!(b.receive(), last);
    let mut b = b.stop_and_go_on();
    a.send(&last);
    assert_eq!(b.receive(), last);
    // Another VLAN.
    assert_eq!(c.waiting(), 0);
    drop(a);
    b.send(&frame([0xff; 6], 2, 3));
    assert_eq!(b.waiting(), 0);
}

#[test]
fn a_file_that_is_wrong_is_said_line_by_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("io.toml");
    let says = |text: &str| {
        std::fs::write(&file, text).expect("it is written");
        let ran = Command::new(PROGRAM).arg("run").arg(&file).output().expect("it runs");
        assert!(!ran.status.success());
        said(&ran)
    };
    let wrong = says("[disk.a]\nram = 1\nsocket = \"s\"\nweigth = 3\n");
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
    assert!(wrong.contains("io.toml:4: [disk.a]: unknown key `weigth`; did you mean `weight`?"));
    assert!(!folder.path().join("s").exists());
    assert!(says("").contains("has no device"));
}

/// Files outside of what the file names can't be opened any more, and the daemon goes on.
#[test]
fn the_sandbox_lets_nothing_else_be_opened() {
    let daemon = Daemon::run(TWO);
    let other = tempfile::tempdir().expect("a folder");
    let image = other.path().join("d.img");
    std::fs::write(&image, vec![0; 1 << 20]).expect("it is written");
    let add = |name: &str, image: &Path, socket: &Path| {
        let (image, socket) = (image.display(), socket.display());
        let text = format!("[disk.{name}]\nfile = \"{image}\"\nsocket = \"{socket}\"\n");
        std::fs::write(daemon.path("more.toml"), text).expect("it is written");
        said(&daemon.ask(&["add", &daemon.path("more.toml")]))
    };
    let inside = Path::new(&daemon.path("x")).to_owned();
    let refused = add("x", &image, &inside);
    assert!(refused.contains("x: ") && refused.contains("can't be opened"), "{refused}");
    assert!(refused.contains("Permission denied"), "{refused}");
    let helps = format!("add {} to `paths` of [host], and restart it", other.path().display());
    assert!(refused.contains(&helps), "{refused}");
    assert!(!inside.exists());
    let refused = add("y", &image, &other.path().join("y"));
    assert!(refused.contains("can't be made a socket") && refused.contains(&helps), "{refused}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id()));
    let status = status.expect("it runs");
    let line = |key: &str| status.lines().find(|line| line.starts_with(key)).map(str::to_owned);
    assert_eq!(line("NoNewPrivs").as_deref(), Some("NoNewPrivs:\t1"));
    assert_eq!(line("Seccomp:").as_deref(), Some("Seccomp:\t2"));
    FrontEnd::at(&daemon, "a").works();
}

/// A file below `paths` can be added, with all that it takes to open and serve it.
#[test]
fn a_file_of_a_named_folder_is_added() {
    let more = tempfile::tempdir().expect("a folder");
    let path = |name: &str| more.path().join(name).display().to_string();
    let daemon = Daemon::run(&format!("{TWO}paths = [\"{}\"]\n", more.path().display()));
    std::fs::write(path("d.img"), vec![0; 1 << 20]).expect("it is written");
    let text = "[disk.d]\nfile = \"d.img\"\nsocket = \"d\"\n";
    std::fs::write(path("more.toml"), text).expect("it is written");
    let add = || {
        let added = daemon.ask(&["add", &path("more.toml")]);
        assert!(added.status.success(), "{}", said(&added));
    };
    // More often than there are rings for files that are added.
    for _ in 0..40 {
        add();
        assert!(daemon.ask(&["remove", "d"]).status.success());
    }
    add();
    daemon.wait_until_said("d is ", 41);
    assert_eq!(daemon.said("by io_uring"), 41, "each has a ring");
    let mut front = FrontEnd::new(Wire::connect(&path("d")));
    front.set_up(0, false);
    front.works();
    drop(front);
    assert!(daemon.ask(&["remove", "d"]).status.success());
    let written = std::fs::read(path("d.img")).expect("it is there");
    assert_eq!(written[512..1024], MARK);
}

/// As systemd starts it: the socket is there before the program, which says when it is ready.
#[test]
fn sockets_are_handed_over_and_readiness_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let listener = UnixListener::bind(path("a")).expect("a socket");
    let notified = UnixDatagram::bind(path("notify")).expect("a socket");
    std::fs::write(path("io.toml"), "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n").expect("written");
    // The shell gives its own number, which stays the program's, and the descriptor its place.
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&0; exec \"$0\" run \"$1\"";
    let mut child = Command::new("sh")
        .args(["-c", script, PROGRAM])
        .arg(path("io.toml"))
        .env("NOTIFY_SOCKET", path("notify"))
        .stdin(OwnedFd::from(listener))
        .spawn()
        .expect("it starts");
    let mut text = [0; 256];
    let count = notified.recv(&mut text).expect("it tells");
    let told = String::from_utf8_lossy(&text[..count]);
    assert!(told.contains("READY=1\n") && told.contains("STATUS=serves a"), "{told}");
    let mut front = FrontEnd::new(Wire::connect(&path("a").display().to_string()));
    front.set_up(0, false);
    front.works();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    let count = notified.recv(&mut text).expect("it tells");
    assert!(text[..count].starts_with(b"STOPPING=1"));
    // The socket's file is whose it was.
    assert!(path("a").exists());
}
