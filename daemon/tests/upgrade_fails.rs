//! New programs that fail at each step of taking over, played by hand and by the program itself:
//! the old one serves on.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod nbd_server;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::{FrontEnd, IN, OUT};
use front_end::nbd_server::Server;
use front_end::wire::Wire;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use rustix::process::{Signal, kill_process};
use std::io::{BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FILE: &str = "
[disk.d]
file = \"disk\"
socket = \"socket\"
[network.n]
switch = \"lan\"
socket = \"n\"
[host]
control = \"control\"
metrics = \"metrics\"
";

const ASKED: &[u8] = b"{\"upgrade\":{\"version\":2,\"process\":1}}\n";

/// A front end whose requests go on.
struct Busy {
    front: FrontEnd,
    round: u8,
}

impl Busy {
    fn new(daemon: &Daemon) -> Busy {
        let mut front = FrontEnd::connect(daemon);
        front.set_up(0, true);
        Busy { front, round: 0 }
    }

    /// A request that waits while somebody tries to take over.
    fn offer(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.front.offer(OUT, 1, &[self.round; 512]);
    }

    /// It is answered, and so are others.
    fn goes_on(&mut self) {
        assert_eq!(self.front.answer(), 0);
        self.front.offer(IN, 1, &[0; 512]);
        assert_eq!((self.front.answer(), self.front.data()), (0, [self.round; 512]));
    }
}

/// Reads the letter's line, which may come in parts, and descriptors with none of it.
fn letter(socket: &mut UnixStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        assert_eq!(socket.read(&mut byte).expect("it answers"), 1);
        line.extend(byte);
    }
    String::from_utf8(line).expect("it is text")
}

/// Takes descriptors, as far as they are there.
fn descriptors(socket: &UnixStream) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 16];
    let into = &mut [IoSliceMut::new(&mut bytes)];
    recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC).expect("they come");
    assert!(control.drain().count() > 0);
}

/// A step, and what the old one says if it hears that it failed.
type Step = (&'static str, fn(&mut UnixStream));

const STEPS: [Step; 7] = [
    ("it comes and leaves", |_| ()),
    ("it asks by half and leaves", |socket| socket.write_all(&ASKED[..9]).expect("it is sent")),
    ("it asks and leaves", |socket| socket.write_all(ASKED).expect("it is sent")),
    ("it reads a part of the letter", |socket| {
        socket.write_all(ASKED).expect("it is sent");
        socket.read_exact(&mut [0; 40]).expect("it answers");
    }),
    ("it reads the letter", |socket| {
        socket.write_all(ASKED).expect("it is sent");
        assert!(letter(socket).contains("letter"));
    }),
    ("it has the descriptors", |socket| {
        socket.write_all(ASKED).expect("it is sent");
        letter(socket);
        descriptors(socket);
    }),
    ("it says that it failed", |socket| {
        socket.write_all(ASKED).expect("it is sent");
        letter(socket);
        descriptors(socket);
        socket.write_all(b"no\n").expect("it is sent");
        let mut said = String::new();
        BufReader::new(socket).read_line(&mut said).expect("it answers");
        assert!(said.contains("the other program says: no"), "{said}");
    }),
];

#[test]
fn a_program_that_fails_at_any_step_leaves_all_where_it_is() {
    let mut daemon = Daemon::run(FILE);
    let mut busy = Busy::new(&daemon);
    for (step, play) in STEPS {
        println!("{step}");
        let mut socket = UnixStream::connect(daemon.path("control")).expect("it listens");
        busy.offer();
        play(&mut socket);
        drop(socket);
        busy.goes_on();
        // Who asks then is answered: no change is stuck.
        assert_eq!(daemon.report()["devices"].as_array().map(Vec::len), Some(2));
    }
    busy.offer();
    daemon.upgrade();
    busy.goes_on();
}

/// The program itself, with so few files that it fails at another one each time: at its own, at
/// those that come along, at what it makes of them.
#[test]
fn the_program_with_too_few_files_leaves_all_where_it_is() {
    let mut daemon = Daemon::run(FILE);
    let mut busy = Busy::new(&daemon);
    let mut failed = 0;
    let is_over = |files: u32, busy: &mut Busy| {
        let upgrade = format!(
            "ulimit -n {files}; exec {PROGRAM} upgrade --control {}",
            daemon.path("control")
        );
        busy.offer();
        let mut child = Command::new("sh")
            .args(["-c", &upgrade])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
        let serves = |line: String| line.starts_with("exitless-io: serves ");
        let serves = lines.by_ref().map_while(Result::ok).any(serves);
        if serves {
            child.kill().expect("it runs");
        }
        child.wait().expect("it ends");
        serves
    };
    for files in 4.. {
        if is_over(files, &mut busy) {
            break;
        }
        failed += 1;
        busy.goes_on();
    }
    println!("{failed} failed");
    assert!(failed > 20, "{failed}");
    assert!(daemon.wait(), "the one that went ended well");
}

/// What was opened while all was held, for a change that is lost with the old program, isn't left
/// behind: nobody serves at its socket.
#[test]
fn what_is_opened_too_late_leaves_no_socket() {
    let mut daemon = Daemon::run(FILE);
    let tell = |signal| kill_process(daemon.opener(), signal).expect("it runs");
    let connect = || UnixStream::connect(daemon.path("control")).expect("it listens");
    let mut upgrading = connect();
    upgrading.write_all(b"\"list\"\n").expect("it is sent");
    letter(&mut upgrading);
    let opener = daemon.opener();
    tell(Signal::STOP);
    let added = daemon.path("b");
    let text = format!("[disk.b]\\nram = \\\"1M\\\"\\nsocket = \\\"{added}\\\"\\n");
    let file = daemon.path("b.toml");
    let add = format!("{{\"add\":{{\"file\":\"{file}\",\"text\":\"{text}\"}}}}\n");
    let mut adding = connect();
    adding.write_all(add.as_bytes()).expect("it is sent");
    // Who looks after that is answered after it was asked for.
    daemon.report();
    daemon.signal(Signal::STOP);
    upgrading.write_all(ASKED).expect("it is sent");
    tell(Signal::CONT);
    let is_asleep = || {
        let state = std::fs::read_to_string(format!("/proc/{opener}/stat"));
        state.expect("it runs").contains(") S ")
    };
    while !(Path::new(&added).exists() && is_asleep()) {
        std::thread::yield_now();
    }
    daemon.signal(Signal::CONT);
    letter(&mut upgrading);
    descriptors(&upgrading);
    upgrading.write_all(b"taken\n").expect("it is sent");
    assert_eq!(letter(&mut upgrading), "yours\n");
    assert!(daemon.wait(), "it ends well");
    assert!(!Path::new(&added).exists());
}

/// It takes all of it, and is never heard of again: the old one gives up after its time.
#[test]
fn a_program_that_says_nothing_is_given_up() {
    let daemon = Daemon::run(FILE);
    let mut busy = Busy::new(&daemon);
    let mut socket = UnixStream::connect(daemon.path("control")).expect("it listens");
    socket.write_all(ASKED).expect("it is sent");
    letter(&mut socket);
    descriptors(&socket);
    let began = Instant::now();
    busy.offer();
    let mut said = String::new();
    BufReader::new(&socket).read_line(&mut said).expect("it answers");
    assert!(said.contains("the other program doesn't answer"), "{said}");
    // So long it could still have taken over, and the old one touched no ring.
    let took = began.elapsed();
    assert!(took > Duration::from_secs(15), "{took:?}");
    busy.goes_on();
}

/// A disk that doesn't end what it was asked for: it is said what is waited for, and all stays
/// after the disk's 10 s, not after the 40 s that a program waited once.
#[test]
fn what_a_disk_doesnt_end_isnt_waited_for_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::at(&folder.path().join("server"));
    let uri = format!("nbd+unix:///disk?socket={}", folder.path().join("server").display());
    let text = format!("[disk.d]\nnbd = \"{uri}\"\nsocket = \"socket\"\n");
    let daemon = Daemon::run_in(folder, &format!("{text}[host]\ncontrol = \"control\"\n"));
    let mut busy = Busy::new(&daemon);
    busy.offer();
    busy.goes_on();
    server.hold(true);
    busy.offer();
    let began = Instant::now();
    let failed = daemon.ask(&["upgrade"]);
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success(), "{said}");
    assert!(said.contains("haven't ended what they were asked for within 5 seconds"), "{said}");
    assert!(said.contains("d: the disk doesn't end what it was asked for"), "{said}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    server.hold(false);
    busy.goes_on();
}

/// The server of the test takes one client; the daemon's connection goes along.
#[test]
fn a_server_that_takes_one_client_goes_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::for_one(&folder.path().join("server"));
    let uri = format!("nbd+unix:///disk?socket={}", folder.path().join("server").display());
    let text = format!("[disk.d]\nnbd = \"{uri}\"\nsocket = \"socket\"\n");
    let mut daemon = Daemon::run_in(folder, &format!("{text}[host]\ncontrol = \"control\"\n"));
    let mut busy = Busy::new(&daemon);
    for _ in 0..5 {
        busy.offer();
        daemon.upgrade();
        busy.goes_on();
    }
    // One that fails has the connection, too, and leaves it alone.
    let mut socket = UnixStream::connect(daemon.path("control")).expect("it listens");
    socket.write_all(ASKED).expect("it is sent");
    letter(&mut socket);
    descriptors(&socket);
    drop(socket);
    busy.offer();
    busy.goes_on();
    assert_eq!(server.connections(), 1);
}

/// As systemd starts it: a socket that it listens at is for the device that has its path, also
/// after that one went and came again, and in a program that took over.
#[test]
fn sockets_of_systemd_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join("a"));
    let with = "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n[host]\ncontrol = \"control\"\n";
    let without = "[disk.b]\nram = \"1M\"\nsocket = \"b\"\n[host]\ncontrol = \"control\"\n";
    let mut daemon = Daemon::listening(folder, with, listener.expect("a socket"));
    let serves = |daemon: &Daemon| {
        let mut front = FrontEnd::new(Wire::connect(&daemon.path("a")));
        front.set_up(0, false);
        front.works();
    };
    let reload = |daemon: &Daemon, text: &str| {
        daemon.rewrite(text);
        let done = daemon.ask(&["reload"]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    serves(&daemon);
    for _ in 0..2 {
        // Made anew, since it is another one.
        reload(&daemon, &with.replace("1M\"", "1M\"\nserial = \"new\""));
        serves(&daemon);
        reload(&daemon, without);
        // Nobody serves there, but who comes can wait.
        let early = Wire::connect(&daemon.path("a"));
        daemon.upgrade();
        reload(&daemon, with);
        drop(early);
        serves(&daemon);
        daemon.upgrade();
        serves(&daemon);
    }
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait());
    assert!(Path::new(&daemon.path("a")).exists(), "the file is systemd's");
}
