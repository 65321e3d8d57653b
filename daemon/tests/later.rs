//! Changes that take long: whoever is served doesn't notice, and each change is answered.

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
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ONE: &str = "
[disk.a]
ram = \"1M\"
socket = \"a\"
[host]
control = \"control\"
";

/// A command that goes on while the test does.
fn begin(daemon: &Daemon, command: &[&str]) -> Child {
    let mut ask = Command::new(PROGRAM);
    ask.arg(command[0]).args(["--control", &daemon.path("control")]).args(&command[1..]);
    ask.stderr(Stdio::piped()).spawn().expect("it runs")
}

fn end(child: Child) -> (bool, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn is_under_way(child: &mut Child) -> bool {
    child.try_wait().expect("it can be asked").is_none()
}

fn nbd(daemon: &Daemon, name: &str) -> String {
    format!(
        "[disk.{name}]\nnbd = \"nbd+unix:///disk?socket={}\"\nsocket = \"{name}\"\n",
        daemon.path("server")
    )
}

/// A server that takes a connection and never says a word.
#[test]
fn guests_are_served_while_a_server_is_waited_for() {
    let daemon = Daemon::run(ONE);
    let listener = UnixListener::bind(daemon.path("server")).expect("a socket");
    std::fs::write(daemon.path("b.toml"), nbd(&daemon, "b")).expect("it is written");
    let mut front = FrontEnd::at(&daemon, "a");
    let mut adding = begin(&daemon, &["add", &daemon.path("b.toml")]);
    // Its connection came: from now on it waits.
    let (silent, _) = listener.accept().expect("it comes");
    for _ in 0..200 {
        front.works();
    }
    // It can be looked at meanwhile; what changes something comes after.
    assert_eq!(daemon.report()["devices"].as_array().map(Vec::len), Some(1));
    let mut removing = begin(&daemon, &["remove", "a"]);
    daemon.signal(Signal::HUP);
    (0..200).for_each(|_| front.works());
    assert!(is_under_way(&mut adding) && is_under_way(&mut removing));
    assert_eq!(daemon.said("the file was read again"), 0);
    drop((silent, listener));
    let (added, said) = end(adding);
    assert!(!added && said.contains("b: "), "{said}");
    assert!(!Path::new(&daemon.path("b")).exists(), "its socket isn't left behind");
    assert!(end(removing).0);
    front.expect_end();
    daemon.wait_until_said("the file was read again", 1);
    let wrong = "[disk.c]\nfile = \"none\"\nsocket = \"c\"\n";
    std::fs::write(daemon.path("c.toml"), wrong).expect("it is written");
    let (added, said) = end(begin(&daemon, &["add", &daemon.path("c.toml")]));
    assert!(!added && said.contains("c: ") && said.contains("isn't there"), "{said}");
    // The file says that there is one, whichever of the two was first.
    assert!(end(begin(&daemon, &["reload"])).0);
    FrontEnd::at(&daemon, "a").works();
}

#[test]
fn a_server_that_was_reached_is_gone_on_with() {
    let daemon = Daemon::run(ONE);
    let server = Server::at(Path::new(&daemon.path("server")));
    std::fs::write(daemon.path("b.toml"), nbd(&daemon, "b")).expect("it is written");
    for round in 1..4 {
        let (added, said) = end(begin(&daemon, &["add", &daemon.path("b.toml")]));
        assert!(added, "{said}");
        let mut front = FrontEnd::new(Wire::connect(&daemon.path("b")));
        front.set_up(0, false);
        front.offer(OUT, 7, &[round; 512]);
        assert_eq!(front.answer(), 0);
        // It is reached again without the process that opens.
        server.hold(true);
        server.crash();
        server.come_back();
        server.hold(false);
        front.offer(OUT, 8, &[round; 512]);
        assert_eq!(front.answer(), 0);
        front.offer(IN, 8, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, [round; 512]));
        drop(front);
        assert!(end(begin(&daemon, &["remove", "b"])).0);
    }
}

/// A file that is named from the working directory says the same when it is read again, also by a
/// program that took over from elsewhere: nobody is disconnected.
#[test]
fn what_stays_the_same_goes_on_wherever_it_is_named_from() {
    let mut daemon = Daemon::beside(ONE);
    let mut front = FrontEnd::at(&daemon, "a");
    for _ in 0..2 {
        assert!(end(begin(&daemon, &["reload"])).0);
        front.works();
        assert_eq!(daemon.report()["devices"][0]["connections"], 1);
        daemon.upgrade();
    }
}

/// The process that opens files is killed: what is served goes on, and a new program has a new one.
#[test]
fn without_the_process_that_opens_files_all_goes_on() {
    let mut daemon = Daemon::run(ONE);
    let mut front = FrontEnd::at(&daemon, "a");
    kill_process(daemon.opener(), Signal::KILL).expect("it runs");
    daemon.wait_until_said("nothing is added or read again from now on", 1);
    front.works();
    let text = "[disk.b]\nram = \"1M\"\nsocket = \"b\"\n";
    std::fs::write(daemon.path("b.toml"), text).expect("it is written");
    let add = |daemon: &Daemon| end(begin(daemon, &["add", &daemon.path("b.toml")]));
    let (added, said) = add(&daemon);
    assert!(!added && said.contains("`exitless-io upgrade` makes a new one"), "{said}");
    front.works();
    daemon.upgrade();
    assert!(add(&daemon).0);
    front.works();
}

/// Who keeps all rights opens what comes later itself, as below a program that counts what one
/// process does; the one that serves it next may give them up.
#[test]
fn who_keeps_all_rights_has_no_other_process() {
    let mut daemon = Daemon::unconfined(ONE);
    let mut front = FrontEnd::at(&daemon, "a");
    let children = format!("/proc/{0}/task/{0}/children", daemon.id());
    assert_eq!(std::fs::read_to_string(children).expect("it runs"), "");
    let add = |daemon: &Daemon, name: &str| {
        let disk = daemon.path(name);
        std::fs::write(&disk, vec![0; 1 << 20]).expect("it is written");
        let text = format!("[disk.{name}]\nfile = \"{disk}\"\nsocket = \"{name}.socket\"\n");
        std::fs::write(daemon.path("more.toml"), text).expect("it is written");
        end(begin(daemon, &["add", &daemon.path("more.toml")]))
    };
    assert_eq!(add(&daemon, "b"), (true, String::new()));
    FrontEnd::at(&daemon, "b.socket").works();
    daemon.upgrade();
    assert_eq!(add(&daemon, "c"), (true, String::new()));
    FrontEnd::at(&daemon, "c.socket").works();
    front.works();
}

/// A change that doesn't end is no reason not to upgrade. It is lost, and leaves nothing behind.
#[test]
fn an_upgrade_waits_for_no_change() {
    let mut daemon = Daemon::run(ONE);
    let listener = UnixListener::bind(daemon.path("server")).expect("a socket");
    std::fs::write(daemon.path("b.toml"), nbd(&daemon, "b")).expect("it is written");
    let mut front = FrontEnd::at(&daemon, "a");
    let adding = begin(&daemon, &["add", &daemon.path("b.toml")]);
    let (silent, _) = listener.accept().expect("it comes");
    front.works();
    daemon.upgrade();
    front.works();
    let (added, said) = end(adding);
    assert!(!added && said.contains("the daemon ended before it answered"), "{said}");
    assert!(Path::new(&daemon.path("b")).exists());
    drop((silent, listener));
    while Path::new(&daemon.path("b")).exists() {
        std::thread::yield_now();
    }
    front.works();
}

/// Who asked and left is answered all the same, and the others after it.
#[test]
fn a_client_that_leaves_has_nobody_wait() {
    let daemon = Daemon::run(ONE);
    let listener = UnixListener::bind(daemon.path("server")).expect("a socket");
    std::fs::write(daemon.path("b.toml"), nbd(&daemon, "b")).expect("it is written");
    let mut front = FrontEnd::at(&daemon, "a");
    let mut adding = begin(&daemon, &["add", &daemon.path("b.toml")]);
    let (silent, _) = listener.accept().expect("it comes");
    adding.kill().expect("it runs");
    adding.wait().expect("it ends");
    front.works();
    drop((silent, listener));
    let (removed, said) = end(begin(&daemon, &["remove", "none"]));
    assert!(!removed && said.contains("there is no such device"), "{said}");
    front.works();
}

/// As many as may come ask for changes behind one that doesn't end: who looks is let in, and so is
/// the upgrade that helps.
#[test]
fn changes_that_wait_leave_room_for_an_upgrade() {
    let mut daemon = Daemon::run(ONE);
    let listener = UnixListener::bind(daemon.path("server")).expect("a socket");
    std::fs::write(daemon.path("b.toml"), nbd(&daemon, "b")).expect("it is written");
    let adding = begin(&daemon, &["add", &daemon.path("b.toml")]);
    let (_silent, _) = listener.accept().expect("it comes");
    let ask = || {
        let mut socket = UnixStream::connect(daemon.path("control")).expect("it listens");
        socket.write_all(b"\"reload\"\n").expect("it is sent");
        socket
    };
    let waiting: Vec<_> = (0..7).map(|_| ask()).collect();
    for _ in 0..9 {
        let socket = ask();
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it may");
        let mut said = String::new();
        BufReader::new(socket).read_line(&mut said).expect("it is answered");
        assert!(said.contains("8 others wait for their changes"), "{said}");
    }
    assert_eq!(daemon.report()["devices"].as_array().map(Vec::len), Some(1));
    daemon.upgrade();
    assert!(!end(adding).0);
    drop(waiting);
    FrontEnd::at(&daemon, "a").works();
}

/// A daemon that may not have one file more says so, leaves nothing behind, and can be asked again.
#[test]
fn a_change_that_takes_too_many_files_fails_alone() {
    let daemon = Daemon::run(ONE);
    let text = "[disk.b]\nram = \"1M\"\nsocket = \"b\"\n";
    std::fs::write(daemon.path("b.toml"), text).expect("it is written");
    let pid = Pid::from_raw(daemon.id().cast_signed());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |files: Option<u64>| {
        let new = Rlimit { current: files.or(maximum), maximum };
        prlimit(pid, Resource::Nofile, new).expect("it may");
    };
    let is_free = |file: &u64| !Path::new(&format!("/proc/{}/fd/{file}", daemon.id())).exists();
    // One for who asks, and none for what is opened.
    let free = (0..).find(is_free).expect("there is one");
    limit(Some(free + 1));
    let add = || end(begin(&daemon, &["add", &daemon.path("b.toml")]));
    let (added, said) = add();
    assert!(!added && said.contains("b: this program may not have as many files"), "{said}");
    assert!(!Path::new(&daemon.path("b")).exists());
    limit(None);
    let (added, said) = add();
    assert!(added, "{said}");
    FrontEnd::at(&daemon, "b").works();
}

/// A signal for all processes of a service, or of a terminal, ends the one that opens files, too,
/// and may end it first: that isn't said.
#[test]
fn an_end_of_all_is_no_news() {
    let mut daemon = Daemon::run(ONE);
    let mut front = FrontEnd::at(&daemon, "a");
    let opener = daemon.opener();
    daemon.signal(Signal::STOP);
    kill_process(opener, Signal::INT).expect("it runs");
    let state = || std::fs::read_to_string(format!("/proc/{opener}/stat")).expect("it is a child");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
    daemon.signal(Signal::INT);
    daemon.signal(Signal::CONT);
    assert!(daemon.wait());
    front.expect_end();
    daemon.wait_until_said("the daemon ends", 1);
    assert_eq!(daemon.said("nothing is added"), 0);
}
