//! A new program takes over what another one serves, and its front ends notice nothing.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod station;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::{FrontEnd, IN, OUT};
use front_end::station::Station;
use front_end::wire::{Wire, words32};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

const FILE: &str = "
[disk.d]
file = \"disk\"
socket = \"socket\"
[host]
control = \"control\"
metrics = \"metrics\"
";

const RAM: &str = "
[disk.d]
ram = \"1M\"
socket = \"socket\"
[host]
control = \"control\"
";

/// Requests are offered right before each change, and nobody waits for their answers.
#[test]
fn front_ends_stay_and_nothing_is_lost() {
    for (text, records) in [(FILE, true), (FILE, false), (RAM, false)] {
        let mut daemon = Daemon::run(text);
        let mut front = FrontEnd::connect(&daemon);
        front.set_up(0, records);
        for round in 0..8_u64 {
            let mark = [round as u8 + 1; 512];
            front.offer(OUT, 8 * round, &mark);
            front.offer_beside(IN, 2000, &[1; 512]);
            daemon.upgrade();
            assert_eq!(front.answer(), 0);
            front.offer(IN, 8 * round, &[0; 512]);
            assert_eq!(front.answer(), 0);
            assert_eq!(front.data(), mark, "round {round} of {text}");
        }
        assert_eq!(front.stop(), 24);
        let report = daemon.report();
        let device = &report["devices"][0];
        assert_eq!(device["connected"], 1);
        let own = device["rings"][0]["numbers"]["completed"].as_u64().unwrap_or(0);
        let gone = device["gone"]["completed"].as_u64().unwrap_or(0);
        assert_eq!(own + gone, 24, "what others counted counts");
        // Who comes then finds the same disk at the same socket.
        drop(front);
        let mut next = FrontEnd::connect(&daemon);
        next.set_up(0, false);
        next.offer(IN, 56, &[0; 512]);
        assert_eq!((next.answer(), next.data()), (0, [8; 512]));
    }
}

/// From one command line to the next.
#[test]
fn a_disk_without_a_file_goes_on() {
    let mut daemon = Daemon::controlled(&["--ram", "1M"]);
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    for round in 1..4 {
        front.offer(OUT, 1, &[round; 512]);
        daemon.upgrade();
        front.offer(IN, 1, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
    }
}

#[test]
fn the_disk_stays_locked() {
    let mut daemon = Daemon::run(FILE);
    daemon.upgrade();
    let second = Command::new(PROGRAM)
        .args(["disk", "--file", &daemon.path("disk"), "--socket", &daemon.path("other")])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.ends_with(
            "is in use: another program has locked it for writing; `lslocks` says which\n"
        ),
        "{said}"
    );
}

/// A message whose first half one program has, and whose second half the next one reads.
#[test]
fn half_a_message_goes_along() {
    let mut daemon = Daemon::run(RAM);
    for cut in [1, 11, 12, 15] {
        let mut wire = Wire::connect(&daemon.socket());
        let message = [words32([2, 1, 8]), (1u64 << 32).to_le_bytes().to_vec()].concat();
        wire.send_bytes(&message[..cut]);
        // It was heard: a later message of somebody else was.
        daemon.report();
        daemon.upgrade();
        wire.send_bytes(&message[cut..]);
        let offered = u64::from_le_bytes(wire.ask(1, &[]).try_into().expect("a word"));
        assert!(offered & 1 << 32 != 0);
    }
}

#[test]
fn stations_at_a_switch_go_on() {
    let mut daemon = Daemon::run(
        "[network.a]\nsocket = \"a\"\nswitch = \"lan\"\n\
         [network.b]\nsocket = \"b\"\nswitch = \"lan\"\n[host]\ncontrol = \"control\"\n",
    );
    let mut a = Station::connect(&daemon.path("a"));
    let mut b = Station::connect(&daemon.path("b"));
    for round in 0..20_u8 {
        // More often than the ring has buffers: each is used before and after a change.
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xa], &[8, 0], &[round; 50]].concat();
        a.send(&frame);
        if round % 4 == 3 {
            daemon.upgrade();
        }
        assert_eq!(b.receive(), frame);
    }
    assert_eq!(b.waiting(), 0);
}

/// Asks to take over, as a program that then does something else. What it was told.
fn ask(daemon: &Daemon, version: u32) -> (UnixStream, String) {
    let mut socket = UnixStream::connect(daemon.path("control")).expect("it listens");
    let asked = format!("{{\"upgrade\":{{\"version\":{version},\"process\":1}}}}\n");
    socket.write_all(asked.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    let copy = socket.try_clone().expect("a copy");
    BufReader::new(copy).read_line(&mut answer).expect("it answers");
    (socket, answer)
}

#[test]
fn who_doesnt_take_it_leaves_it_where_it_is() {
    let mut daemon = Daemon::run(FILE);
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    let mut round = 0;
    let mut goes_on = |daemon: &mut Daemon| {
        round += 1;
        front.offer(OUT, 1, &[round; 512]);
        assert_eq!(front.answer(), 0);
        daemon.wait_until_asleep();
        front.offer(IN, 1, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
    };
    // It leaves without a word.
    let (socket, answer) = ask(&daemon, 2);
    assert!(answer.contains("letter"), "{answer}");
    drop(socket);
    goes_on(&mut daemon);
    // It says something else.
    let (mut socket, _) = ask(&daemon, 2);
    socket.write_all(b"no\n").expect("it is sent");
    let mut said = String::new();
    let mut lines = BufReader::new(&socket);
    while !said.contains("failed") {
        said.clear();
        assert!(lines.read_line(&mut said).expect("it answers") > 0, "it says that it failed");
    }
    assert!(said.contains("the other program says: no"), "{said}");
    drop(socket);
    goes_on(&mut daemon);
    // It is of another time.
    let (_, answer) = ask(&daemon, 99);
    assert!(answer.contains("hands over as version 2, and 99 is asked for"), "{answer}");
    goes_on(&mut daemon);
    // It can't go on with what it is given: its files are few.
    let limited =
        format!("ulimit -n 12; exec {PROGRAM} upgrade --control {}", daemon.path("control"));
    let failed = Command::new("sh").args(["-c", &limited]).output().expect("it runs");
    assert!(!failed.status.success());
    goes_on(&mut daemon);
    daemon.upgrade();
    goes_on(&mut daemon);
}

#[test]
fn metrics_are_told_by_the_next_one() {
    let mut daemon = Daemon::run(FILE);
    daemon.upgrade();
    let mut socket = UnixStream::connect(daemon.path("metrics")).expect("it listens");
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers");
    assert!(text.contains("exitless_io"), "{text}");
    // Nothing is left behind by the last one.
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait());
    for name in ["socket", "control", "metrics"] {
        assert!(!std::path::Path::new(&daemon.path(name)).exists(), "{name}");
    }
}

/// A daemon that gives up right after its letter: nothing of it is touched.
#[test]
fn who_hears_that_the_other_one_stays_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let control = folder.path().join("control").display().to_string();
    let listener = std::os::unix::net::UnixListener::bind(&control).expect("it can be made");
    let mut child = Command::new(PROGRAM)
        .args(["upgrade", "--control", &control])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let (mut socket, _) = listener.accept().expect("it comes");
    let mut lines = BufReader::new(socket.try_clone().expect("a copy"));
    let mut asked = String::new();
    lines.read_line(&mut asked).expect("it asks");
    assert_eq!(asked, "\"list\"\n", "whether anybody is there");
    socket.write_all(b"\"done\"\n").expect("it is sent");
    asked.clear();
    lines.read_line(&mut asked).expect("it asks");
    assert!(asked.contains("upgrade"), "{asked}");
    let letter = format!(
        "{{\"letter\":{{\"folder\":\"{}\",\"file\":null,\"sandbox\":null,\"control\":null,\
         \"metrics\":null,\"handed\":[],\"devices\":[],\"uplinks\":[],\"connections\":[],\
         \"descriptors\":0}}}}\n\
         {{\"failed\":[\"the other program doesn't answer\"]}}\n",
        folder.path().display()
    );
    socket.write_all(letter.as_bytes()).expect("it is sent");
    let mut rest = String::new();
    let _ = lines.read_to_string(&mut rest);
    assert_eq!(rest, "", "it takes nothing");
    let mut said = String::new();
    let stderr = child.stderr.as_mut().expect("it was asked for");
    stderr.read_to_string(&mut said).expect("it is text");
    assert!(said.contains("the daemon stays: it has given up waiting"), "{said}");
    assert!(!child.wait().expect("it ends").success());
}

const TWO: &str = "
[disk.a]
ram = \"1M\"
socket = \"socket\"
[disk.b]
ram = \"1M\"
socket = \"b\"
front_ends = 8
[host]
control = \"control\"
";

/// What they said was good when they said it, and isn't when it is said anew.
#[test]
fn a_front_end_that_cant_be_gone_on_with_ends_alone() {
    let mut daemon = Daemon::run(TWO);
    let mut good = FrontEnd::connect(&daemon);
    good.set_up(0, true);
    let set_up = || {
        let mut one = FrontEnd::new(Wire::connect(&daemon.path("b")));
        one.set_up(0, false);
        one
    };
    let (mut size, mut short, mut fine) = (set_up(), set_up(), set_up());
    size.wire.tell(8, &words32([0, 3]), &[]);
    // The rings are still there, so that the one that goes has no reason to end it.
    short.memory().set_len(0x4000).expect("it shrinks");
    for round in 1..4 {
        good.offer(OUT, 1, &[round; 512]);
        fine.offer(OUT, 2, &[round + 100; 512]);
        daemon.upgrade();
        for (front, sector, mark) in [(&mut good, 1, round), (&mut fine, 2, round + 100)] {
            front.offer(IN, sector, &[0; 512]);
            assert_eq!((front.answer(), front.data()), (0, [mark; 512]));
        }
    }
    size.expect_end();
    short.expect_end();
    assert_eq!(daemon.report()["devices"][1]["connected"], 1);
}
