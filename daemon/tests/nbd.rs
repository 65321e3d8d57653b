//! The daemon in front of NBD servers: one of the test's own, which holds back, loses and hangs up;
//! and qemu-nbd and nbdkit, where they are installed.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod nbd_server;
    pub mod program;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FLUSH, FrontEnd, IN, OUT};
use front_end::nbd_server::Server;
use front_end::program::{Program, program};
use front_end::wire::Wire;
use std::path::Path;
use std::process::Command;

const MARK: [u8; 512] = [0xa5; 512];

fn start() -> (Server, Daemon) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::at(&folder.path().join("server"));
    let daemon = Daemon::nbd(folder);
    (server, daemon)
}

/// A write that the server holds back, and a read behind it that is answered.
fn one_waits(server: &Server, front: &mut FrontEnd) {
    server.hold(true);
    let before = front.used();
    front.offer(OUT, 5, &MARK);
    front.offer_beside(IN, 9, &[1; 512]);
    front.wait_for(before + 1);
    server.wait_for((1, 5 * 512), 1);
}

#[test]
fn what_is_written_is_read() {
    let (server, daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    for sector in 0..100 {
        front.offer(OUT, sector, &[sector as u8; 512]);
        assert_eq!(front.answer(), 0);
    }
    front.offer(FLUSH, 0, &MARK);
    assert_eq!(front.answer(), 0);
    assert_eq!(server.count((3, 0)), 1);
    for sector in (0..100).rev() {
        front.offer(IN, sector, &[0; 512]);
        assert_eq!(front.answer(), 0);
        assert_eq!(front.data(), [sector as u8; 512]);
    }
}

/// Each request counts once, when it is answered: the held-back one as long as it was held back.
#[test]
fn what_a_server_takes_is_in_the_latency() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::at(&folder.path().join("server"));
    let uri = format!("nbd+unix:///disk?socket={}", folder.path().join("server").display());
    let disk = format!("[disk.a]\nnbd = \"{uri}\"\nsocket = \"a\"\n");
    let daemon = Daemon::run(&format!("{disk}[host]\ncontrol = \"control\"\n"));
    let mut front = FrontEnd::new(Wire::connect(&daemon.path("a")));
    front.set_up(0, false);
    let noted = |daemon: &Daemon| {
        let report = daemon.report();
        let numbers = &report["devices"][0]["rings"][0]["numbers"];
        let classes = numbers["latencies"].as_array().expect("a histogram");
        let count = classes.iter().filter_map(serde_json::Value::as_u64).sum::<u64>();
        (count, numbers["latencies_sum"].as_u64().expect("a number"))
    };
    one_waits(&server, &mut front);
    let began = std::time::Instant::now();
    let (count, before) = noted(&daemon);
    assert_eq!(count, 1, "the read alone was answered");
    let held = began.elapsed().as_nanos() as u64;
    server.hold(false);
    front.wait_for(2);
    let (count, after) = noted(&daemon);
    assert_eq!(count, 2);
    assert!(after - before >= held, "{after} {before} {held}");
}

/// What ended out of order isn't done again, and what hadn't ended is.
#[test]
fn a_killed_daemon_does_again_what_was_under_way() {
    let (server, mut daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    one_waits(&server, &mut front);
    daemon.kill();
    daemon.start_again();
    front.connect_again(&daemon);
    front.set_up(2, true);
    server.wait_for((1, 5 * 512), 2);
    server.hold(false);
    front.wait_for(2);
    assert_eq!(front.status(), 0);
    assert_eq!(server.count((0, 9 * 512)), 1, "it was answered before");
    front.offer(IN, 5, &[0; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), MARK);
}

/// The base comes when all that was taken is answered.
#[test]
fn a_ring_stops_when_nothing_is_under_way() {
    let (server, daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    one_waits(&server, &mut front);
    front.begin_to_stop();
    assert_eq!(front.used(), 1);
    server.hold(false);
    assert_eq!(front.stopped(), 2);
    assert_eq!(front.used(), 2);
    front.start(2);
    front.offer(IN, 5, &[0; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), MARK);
}

const TWO: &str = "
[disk.d]
nbd = \"nbd+unix:///disk?socket=FOLDER/server\"
socket = \"socket\"
[disk.other]
ram = \"1M\"
socket = \"other\"
[host]
control = \"control\"
";

fn two() -> (Server, Daemon) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::at(&folder.path().join("server"));
    let daemon = Daemon::run_in(folder, TWO);
    (server, daemon)
}

/// A ring that is to stop, and can't yet; then a front end that left, and whose ring can't stop.
#[test]
fn others_are_heard_and_kicked_while_a_ring_stops() {
    let (server, daemon) = two();
    for leaves in [false, true] {
        let mut front = FrontEnd::connect(&daemon);
        front.set_up(0, false);
        one_waits(&server, &mut front);
        let mut other = FrontEnd::new(Wire::connect(&daemon.path("other")));
        other.set_up(0, false);
        if leaves {
            drop(front);
            daemon.wait_until_asleep();
            other.works();
            assert_eq!(daemon.report()["devices"][0]["connected"], 1, "it isn't gone yet");
            server.hold(false);
        } else {
            front.begin_to_stop();
            for _ in 0..3 {
                daemon.wait_until_asleep();
                other.works();
            }
            let mut more = FrontEnd::new(Wire::connect(&daemon.path("other")));
            drop(other);
            more.set_up(0, false);
            more.works();
            assert_eq!(daemon.report()["devices"][0]["connected"], 1);
            let refused = daemon.ask(&["upgrade"]);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(said.contains("a ring is being stopped; try again"), "{said}");
            assert!(!front.is_answered());
            server.hold(false);
            assert_eq!(front.stopped(), 2);
            front.start(2);
            front.offer(IN, 5, &[0; 512]);
            assert_eq!((front.answer(), front.data()), (0, MARK));
        }
    }
    let mut next = FrontEnd::connect(&daemon);
    next.set_up(0, false);
    next.works();
}

/// The new program has connections of its own; what was written before is durable.
#[test]
fn a_new_program_goes_on_with_a_servers_disk() {
    let (server, mut daemon) = two();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    for round in 0..4 {
        front.offer(OUT, 7, &[round; 512]);
        front.offer_beside(IN, 9, &[1; 512]);
        daemon.upgrade();
        assert_eq!(front.answer(), 0);
        assert_eq!(server.count((3, 0)), usize::from(round) + 1, "it was flushed");
        front.offer(IN, 7, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
    }
}

/// A front end that goes with a write under way is no trouble for the next one.
#[test]
fn a_front_end_leaves_while_something_is_under_way() {
    let (server, daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    one_waits(&server, &mut front);
    drop(front);
    server.hold(false);
    let mut next = FrontEnd::connect(&daemon);
    next.set_up(0, false);
    next.offer(IN, 5, &[0; 512]);
    assert_eq!(next.answer(), 0);
    assert_eq!(next.data(), MARK);
}

/// A server that doesn't answer for 10 s costs the connection. Nobody else comes in until it has
/// answered; then all is as it was.
#[test]
fn a_server_that_hangs_keeps_front_ends_out() {
    let (server, daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    one_waits(&server, &mut front);
    front.begin_to_stop();
    front.expect_end();
    front.connect_again(&daemon);
    assert!(front.ask_features());
    assert!(!front.is_answered(), "it isn't let in");
    server.hold(false);
    assert!(front.waits_for_answer());
    front.connect_again(&daemon);
    front.set_up(2, true);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.used(), 2);
    assert_eq!(server.count((1, 5 * 512)), 2, "nobody knew that it ended");
}

/// What was asked for is asked for again; what was answered and not flushed is lost, and the next
/// flush says so, once.
#[test]
fn a_server_that_crashed_is_gone_on_with() {
    let (server, daemon) = start();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.offer(OUT, 3, &MARK);
    assert_eq!(front.answer(), 0);
    one_waits(&server, &mut front);
    server.crash();
    server.come_back();
    server.wait_for((1, 5 * 512), 2);
    server.hold(false);
    front.wait_for(3);
    front.offer(FLUSH, 0, &MARK);
    assert_eq!(front.answer(), 1, "sector 3 is lost");
    front.offer(FLUSH, 0, &MARK);
    assert_eq!(front.answer(), 0);
    let trouble = || daemon.report()["devices"][0]["trouble"].clone();
    assert!(trouble().is_null());
    server.crash();
    front.offer(IN, 5, &[0; 512]);
    daemon.wait_until_said("the server is gone", 2);
    let said = trouble().to_string();
    assert!(said.contains("has been gone for") && said.contains("requests wait"), "{said}");
    server.come_back();
    assert_eq!(front.answer(), 0);
    assert!(trouble().is_null());
    assert_eq!(front.data(), MARK, "it was flushed");
    front.offer(FLUSH, 0, &MARK);
    assert_eq!(front.answer(), 0, "nothing was lost");
}

#[test]
fn failures_are_a_sentence() {
    let says = |uri: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let program = Command::new(env!("CARGO_BIN_EXE_exitless-io"))
            .args(["disk", "--nbd", uri, "--socket"])
            .arg(folder.path().join("s"))
            .output()
            .expect("it runs");
        assert!(!program.status.success());
        String::from_utf8(program.stderr).expect("it is text")
    };
    assert!(says("http://x").contains("doesn't begin with nbd://"));
    let none = says("nbd+unix:///x?socket=/nowhere/s");
    assert!(none.contains("can't be used: the server isn't there"), "{none}");
}

fn try_program(make: impl FnOnce(&Path, &str) -> Program) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("server");
    let _server = make(folder.path(), socket.to_str().expect("text"));
    let daemon = Daemon::nbd(folder);
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.tries_disk();
    front.offer(IN, 1000, &[1; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.data(), [0; 512]);
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs qemu-nbd"]
fn qemu_nbd_is_a_server() {
    try_program(|folder, socket| {
        let disk = folder.join("disk");
        std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).expect("a file");
        let disk = disk.to_str().expect("text");
        let arguments = ["-f", "raw", "-t", "-e", "4", "-x", "disk", "-k", socket, disk];
        program("qemu-nbd", &arguments, Path::new(socket))
    });
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs nbdkit"]
fn nbdkit_is_a_server() {
    try_program(|_, socket| {
        program("nbdkit", &["-f", "-U", socket, "memory", "1M"], Path::new(socket))
    });
}
