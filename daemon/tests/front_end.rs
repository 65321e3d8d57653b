//! The daemon as a program, and a front end by hand: messages, a split ring in a memfd, which is
//! written and read as a file. Killed, and started again.

#[allow(dead_code, reason = "the other test has the rest")]
mod front_end {
    mod begin;
    pub mod daemon;
    pub mod driver;
    mod home;
    mod reload;
    pub mod station;
    mod tap;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, IN, OUT};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

const MARK: [u8; 512] = [0xa5; 512];

#[test]
fn what_is_written_is_read() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    for sector in 0..300 {
        front.offer(OUT, sector, &[sector as u8; 512]);
        assert_eq!(front.answer(), 0);
    }
    for sector in (0..300).rev() {
        front.offer(IN, sector, &[0; 512]);
        assert_eq!(front.answer(), 0);
        assert_eq!(front.data(), [sector as u8; 512]);
    }
    front.offer(IN, 1 << 40, &[0; 512]);
    assert_eq!(front.answer(), 1, "beyond the end");
}

#[test]
fn a_ring_stops_and_goes_on_and_is_reset() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.offer(OUT, 3, &MARK);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.stop(), 1, "the available index");
    front.start(1);
    front.offer(IN, 3, &[0; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), MARK);
    front.reset();
    front.set_up(0, false);
    front.offer(IN, 3, &[0; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), MARK);
}

/// With nothing to do it sleeps, and each kick wakes it up.
#[test]
fn it_sleeps_and_is_woken_up() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    for round in 0..50 {
        daemon.wait_until_asleep();
        front.offer(OUT, round, &MARK);
        assert_eq!(front.answer(), 0);
    }
}

/// Killed with a request that nobody took. The base that the front end says is Cloud Hypervisor's,
/// the available index; the ring's used index counts.
#[test]
fn a_killed_daemon_goes_on_where_it_was() {
    let mut daemon = Daemon::file();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    front.offer(OUT, 5, &MARK);
    assert_eq!(front.answer(), 0);
    daemon.kill();
    front.offer(IN, 5, &[0; 512]);
    daemon.start_again();
    front.connect_again(&daemon);
    front.set_up(2, true);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), MARK);
}

/// The ring goes on with the new records: those before are no more, and their addresses are
/// others'.
#[test]
fn records_that_change_while_a_ring_runs_are_used() {
    let mut daemon = Daemon::file();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    for round in 1..4 {
        front.offer(OUT, 5, &[round; 512]);
        assert_eq!(front.answer(), 0);
        let file = front.change_records();
        let read = || {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 0).expect("it is there");
            bytes
        };
        let before = read();
        assert_ne!(before, [0; 4096], "the ring that runs begins them");
        front.offer(IN, 5, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
        assert_ne!(read(), before, "what is in flight is recorded");
    }
    daemon.kill();
    daemon.start_again();
    front.connect_again(&daemon);
    front.set_up(0, true);
    front.offer(IN, 5, &[0; 512]);
    assert_eq!((front.answer(), front.data()), (0, [3; 512]));
}

#[test]
fn memory_that_shrinks_ends_one_connection() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.shrink();
    front.expect_end();
    let mut next = FrontEnd::connect(&daemon);
    next.set_up(0, false);
    next.offer(IN, 0, &[1; 512]);
    assert_eq!(next.answer(), 0);
}

#[test]
fn nonsense_ends_one_connection() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.send_nonsense();
    front.expect_end();
    FrontEnd::connect(&daemon).set_up(0, false);
}

#[test]
fn failures_are_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let says = |arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_exitless-io");
        let ran = Command::new(program).arg("disk").args(arguments).output().expect("it runs");
        assert!(!ran.status.success());
        String::from_utf8(ran.stderr).expect("it is text")
    };
    let socket = path("s");
    let missing = says(&["--file", &path("none"), "--socket", &socket]);
    assert!(missing.contains("isn't there"), "{missing}");
    std::fs::write(path("odd"), [0; 700]).expect("it is written");
    let odd = says(&["--file", &path("odd"), "--socket", &socket]);
    assert!(odd.contains("has 700 bytes, which isn't a multiple of 512"), "{odd}");
    let daemon = Daemon::ram();
    let used = says(&["--null", "1M", "--socket", &daemon.socket()]);
    assert!(used.contains("is in use"), "{used}");
    assert!(says(&["--socket", &socket]).contains("required"));
}

/// Whatever a daemon is asked for, an upgrade too.
#[test]
fn a_daemon_that_is_not_there_is_said_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("file"), "x").expect("it is written");
    drop(UnixListener::bind(path("gone")).expect("it is bound"));
    for command in ["list", "top", "reload", "upgrade"] {
        let says = |name: &str| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_exitless-io"));
            let ran = program.args([command, "--control", &path(name)]).output().expect("it runs");
            assert!(!ran.status.success(), "{command}");
            String::from_utf8(ran.stderr).expect("it is text")
        };
        let nothing = format!("no daemon listens at {}; --control takes what ", path("nothing"));
        assert!(says("nothing").contains(&nothing), "{command}: {}", says("nothing"));
        let gone = format!("no daemon listens at {} any more", path("gone"));
        assert!(says("gone").contains(&gone), "{command}: {}", says("gone"));
        assert!(says("file").contains("file is no socket; --control takes "), "{command}");
    }
}
