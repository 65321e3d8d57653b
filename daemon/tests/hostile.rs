//! Front ends that would have the daemon wait, or work without end, for nothing.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, two};
use front_end::driver::{FrontEnd, OUT};
use front_end::wire::{Wire, words32, words64};
use rustix::fd::AsFd as _;
use rustix::fd::AsRawFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use std::io::Read as _;
use std::os::unix::net::UnixStream;

/// It shares the file, its flags and its counter: nothing keeps it from that.
#[test]
fn an_eventfd_that_is_full_and_blocks_ends_one_connection() {
    let daemon = Daemon::two(64);
    let mut good = FrontEnd::at(&daemon, "a");
    for _ in 0..3 {
        let mut hostile = FrontEnd::at(&daemon, "b");
        hostile.works();
        hostile.fill_call();
        hostile.offer(OUT, 1, &[1; 512]);
        good.works();
        hostile.expect_end();
        good.works();
    }
    daemon.wait_until_said("its eventfd for calls is full and made the daemon wait", 3);
    FrontEnd::at(&daemon, "b").works();
    // Nothing ticks in one that has nothing to do.
    daemon.wait_until_asleep();
}

/// Who waits for one more file waits, and the daemon sleeps meanwhile.
#[test]
fn too_many_files_are_said_once_and_nothing_spins() {
    // Of them 32 are the rings for files that may come.
    let daemon = Daemon::limited(&two(64), 48 + 32);
    let mut good = FrontEnd::at(&daemon, "a");
    let others: Vec<_> = (0..40).map(|_| UnixStream::connect(daemon.path("b"))).collect();
    while daemon.said("nobody comes in at") == 0 {
        good.works();
    }
    daemon.wait_until_asleep();
    good.works();
    drop(others);
    FrontEnd::at(&daemon, "b").works();
    assert_eq!(daemon.said("nobody comes in at"), 1);
    assert_eq!(daemon.said("Too many open files"), 1);
}

/// Kilobytes of addresses.
fn addresses(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id()));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes.and_then(|number| number.parse().ok()).expect("it says how many")
}

/// Addresses that were taken stay taken, so what is too much is refused before.
#[test]
fn too_much_memory_takes_no_addresses() {
    let daemon = Daemon::two(64);
    let mut good = FrontEnd::at(&daemon, "a");
    let file = std::fs::File::from(memfd_create("m", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(1 << 46).expect("it grows");
    let region = |guest: u64, len: u64| words64([guest, len, guest, 0]);
    for len in [3_u64 << 40, 1 << 44, 1 << 46] {
        let mut wire = Wire::connect(&daemon.path("b"));
        let table = [words32([1, 0]), region(0, len)].concat();
        wire.send(5, 1, &table, &[file.as_fd()]);
        wire.expect_end();
        // In the same way, one by one.
        let mut wire = Wire::connect(&daemon.path("b"));
        let _ = wire.ask(15, &[]);
        wire.send(16, 1, &(1_u64 << 15).to_le_bytes(), &[]);
        wire.send(37, 1, &[words64([0]), region(0, len)].concat(), &[file.as_fd()]);
        wire.expect_end();
    }
    daemon.wait_until_said("a guest's memory has more than 2 TiB", 6);
    let kilobytes = addresses(&daemon);
    assert!(kilobytes < 1 << 30, "{kilobytes} kB of addresses");
    good.works();
}

/// An epoll instance looks like an eventfd, and who watches it asks all that it watches.
#[test]
fn what_looks_like_an_eventfd_isnt_watched() {
    let daemon = Daemon::two(64);
    let mut good = FrontEnd::at(&daemon, "a");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let epoll = epoll.expect("an epoll instance");
    for request in [12, 13] {
        let mut hostile = FrontEnd::at(&daemon, "b");
        hostile.wire.send(request, 1, &words64([0]), &[epoll.as_fd()]);
        hostile.expect_end();
    }
    daemon.wait_until_said("isn't an eventfd", 2);
    good.works();
}

/// Whoever got at the socket's file: as another user, which only root can be.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_other_users_change_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let daemon = Daemon::two(64);
    let path = daemon.path("control");
    let open = |path: &std::path::Path| {
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(path, all).expect("it is ours");
    };
    open(std::path::Path::new(&path));
    open(std::path::Path::new(&path).parent().expect("a folder"));
    let ask = |user: u32| {
        // By its descriptor, since the user may not reach its file.
        let program = std::fs::File::open(front_end::daemon::PROGRAM).expect("it is there");
        let copy = rustix::io::dup(&program).expect("a copy");
        let mut command = std::process::Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let output = command.args(["remove", "b", "--control", &path]).uid(user).gid(user).output();
        output.expect("it runs")
    };
    let other = ask(65_534);
    assert!(!other.status.success());
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!said.contains("ermission"), "it reached the socket: {said}");
    FrontEnd::at(&daemon, "b").works();
    assert!(ask(0).status.success());
}

/// Who reads metrics may be another user, whom the owner lets in.
#[test]
fn whoever_holds_the_metrics_socket_keeps_nobody_from_the_control_socket() {
    let daemon = Daemon::run(&format!("{}metrics = \"metrics\"\n", two(64)));
    let come = || UnixStream::connect(daemon.path("metrics")).expect("it listens");
    let mut all: Vec<_> = (0..40).map(|_| come()).collect();
    // One that comes when there are as many as there may be is shown the door.
    assert_eq!(all.pop().expect("there is one").read(&mut [0]).expect("it ends"), 0);
    assert!(daemon.ask(&["remove", "b"]).status.success());
    FrontEnd::at(&daemon, "a").works();
}

/// As many front ends as there may be: who comes then waits, and nothing spins.
#[test]
fn more_front_ends_than_there_may_be_wait() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it may");
    let table = |name: usize| {
        format!("[disk.d{name}]\nnull = \"1M\"\nsocket = \"d{name}\"\nfront_ends = 64\n")
    };
    let tables: Vec<String> = (0..9).map(table).collect();
    let daemon = Daemon::run(&(tables.concat() + "[host]\ncontrol = \"control\"\n"));
    let come = |name: usize| UnixStream::connect(daemon.path(&format!("d{name}")));
    let mut all: Vec<_> = (0..512).map(|at| come(at / 64).expect("it listens")).collect();
    let connected = || {
        let report = daemon.report();
        let devices = report["devices"].as_array().expect("a list").clone();
        devices.iter().filter_map(|device| device["connected"].as_u64()).sum::<u64>()
    };
    while connected() < 512 {}
    let mut late = Wire::connect(&daemon.path("d8"));
    late.send(1, 1, &[], &[]);
    assert_eq!(connected(), 512);
    daemon.wait_until_asleep();
    all.pop();
    assert_eq!(late.receive().0.len(), 8);
    assert_eq!(connected(), 512);
}
