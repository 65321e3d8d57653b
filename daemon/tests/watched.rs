//! Front ends of which a very large number waits for what the daemon tells: it is who tells that
//! wakes each of them up.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, OUT};
use front_end::wire::words64;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets, and entries of each: together they take some 20 ms to be told.
const SETS: usize = 300;
const ENTRIES: usize = 1000;
/// So often something is told at most before that is found out: some take a millisecond on a fast
/// computer.
const TIMES: u32 = 500;

/// Has so many wait for it.
fn watch(file: impl AsFd) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("it may");
    let copy = |_| file.as_fd().try_clone_to_owned().expect("there is room");
    let copies: Vec<_> = (0..ENTRIES).map(copy).collect();
    let set = |_| {
        let set = epoll::create(CreateFlags::CLOEXEC).expect("there is room");
        for copy in &copies {
            epoll::add(&set, copy, EventData::new_u64(0), EventFlags::IN | EventFlags::OUT)
                .expect("there is room");
        }
        set
    };
    ((0..SETS).map(set).collect(), copies)
}

#[test]
fn an_eventfd_for_which_too_many_wait_isnt_taken() {
    let daemon = Daemon::two(1);
    let mut good = FrontEnd::at(&daemon, "a");
    let mut hostile = FrontEnd::at(&daemon, "b");
    let call = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let _all = watch(&call);
    hostile.wire.send(13, 1, &words64([0]), &[call.as_fd()]);
    daemon.wait_until_said("so many wait for an eventfd that telling them took", 1);
    good.works();
}

#[test]
fn calls_for_which_too_many_wait_end_one_connection() {
    let daemon = Daemon::two(1);
    let mut good = FrontEnd::at(&daemon, "a");
    let mut hostile = FrontEnd::at(&daemon, "b");
    hostile.works();
    let _all = watch(hostile.call());
    let found = (0..TIMES).any(|_| {
        hostile.offer(OUT, 1, &[1; 512]);
        while !hostile.is_served() && daemon.said("the connection ends") == 0 {}
        good.works();
        daemon.said("so many wait for its eventfd for calls that a call takes long") > 0
    });
    assert!(found);
    good.works();
}

#[test]
fn a_socket_at_which_too_many_wait_is_left() {
    let daemon = Daemon::two(1);
    let mut good = FrontEnd::at(&daemon, "a");
    let mut hostile = FrontEnd::at(&daemon, "b");
    let _all = watch(hostile.wire.socket());
    // What it says is taken, and replied to.
    let is_left = (0..TIMES).any(|_| {
        // It may end behind a reply as well as in the place of one.
        let ended = !hostile.ask_features() || hostile.wire.has_ended();
        if !ended {
            hostile.wire.receive();
        }
        good.works();
        ended
    });
    assert!(is_left);
    daemon.wait_until_said("so many wait at the front end's socket", 1);
}
