//! Descriptors that a front end sends along with what they aren't for: whoever closes the last one
//! of such a file may wait for others.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, two};
use front_end::driver::FrontEnd;
use front_end::wire::{Wire, words32, words64};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, send};
use rustix::process::Signal;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Descriptors of a device that may wait to be closed.
const MOST: usize = 64;

/// Sockets that whoever closes last waits for, until somebody takes what is in them or the listener
/// is gone.
struct Slow {
    _listener: TcpListener,
    sockets: Vec<TcpStream>,
}

impl Slow {
    fn new(count: usize) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("it has one");
        let slow = || {
            let socket = TcpStream::connect(address).expect("there is room for it");
            set_socket_linger(&socket, Some(Duration::from_secs(1000))).expect("it can be set");
            let full = loop {
                if let Err(full) = send(&socket, &[0; 1 << 16], SendFlags::DONTWAIT) {
                    break full;
                }
            };
            assert_eq!(full, Errno::AGAIN);
            socket
        };
        let sockets = (0..count).map(|_| slow()).collect();
        Slow { _listener: listener, sockets }
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.as_fd()).collect()
    }
}

/// Has a front end of `b` send it this; then the daemon alone has the sockets. That of `a` is
/// served nevertheless.
fn plays(count: usize, send: impl Fn(&mut FrontEnd, &[BorrowedFd<'_>])) {
    let daemon = Daemon::two(1);
    let listener = ends(&daemon, count, send);
    FrontEnd::at(&daemon, "b").works();
    drop(listener);
}

/// The same up to the end of that front end. As long as the listener is there, so are the sockets.
fn ends(
    daemon: &Daemon,
    count: usize,
    send: impl Fn(&mut FrontEnd, &[BorrowedFd<'_>]),
) -> TcpListener {
    let mut good = FrontEnd::at(daemon, "a");
    let mut hostile = FrontEnd::at(daemon, "b");
    let slow = Slow::new(count);
    daemon.signal(Signal::STOP);
    send(&mut hostile, &slow.files());
    // The listener stays until the end of this.
    let Slow { _listener: listener, sockets } = slow;
    drop(sockets);
    daemon.signal(Signal::CONT);
    hostile.expect_end();
    good.works();
    listener
}

/// Those for which there is no place among its files are closed by the system, in the thread that
/// serves.
#[test]
fn what_finds_no_place_makes_nobody_wait_for_its_end() {
    // Of them 32 are the rings for files that may come.
    let daemon = Daemon::limited(&two(1), 48 + 32);
    let listener = ends(&daemon, 100, |hostile, files| hostile.wire.send(1, 1, &[], files));
    drop(listener);
    FrontEnd::at(&daemon, "b").works();
}

/// One that is refused, as it is neither memory nor an eventfd.
#[test]
fn whoever_is_refused_a_descriptor_makes_nobody_wait_for_its_end() {
    let region = [words32([1, 0]), words64([0, 4096, 0, 0])].concat();
    for (request, payload) in [(5, region), (12, words64([0])), (13, words64([0]))] {
        plays(1, |hostile, files| hostile.wire.send(request, 1, &payload, files));
    }
}

/// Those that a message has no use for.
#[test]
fn descriptors_that_are_not_looked_at_make_nobody_wait() {
    for (request, payload) in [(14, words64([0])), (7, vec![]), (1, vec![])] {
        plays(1, |hostile, files| hostile.wire.send(request, 1, &payload, files));
    }
}

/// More than a message may have: the system would close those that aren't taken.
#[test]
fn too_many_descriptors_make_nobody_wait() {
    plays(12, |hostile, files| hostile.wire.send(5, 1, &words64([0]), files));
}

/// They are in a socket when it is closed.
#[test]
fn descriptors_that_are_not_taken_make_nobody_wait() {
    plays(1, |hostile, files| {
        hostile.send_nonsense();
        hostile.wire.send(1, 1, &[], files);
    });
}

/// Each of them stays open for as long as its end takes, so there is an end to how many there are.
#[test]
fn who_gives_up_descriptors_without_end_is_not_heard() {
    let daemon = Daemon::two(1);
    let mut good = FrontEnd::at(&daemon, "a");
    let send = |wire: &mut Wire, files: &[BorrowedFd<'_>]| wire.send(5, 1, &words64([0]), files);
    let mut first = Wire::connect(&daemon.path("b"));
    let Slow { _listener: listener, sockets } = Slow::new(1);
    let ours =
        TcpStream::connect(listener.local_addr().expect("it has one")).expect("there is room");
    daemon.signal(Signal::STOP);
    send(&mut first, &[sockets[0].as_fd()]);
    drop(sockets);
    daemon.signal(Signal::CONT);
    first.expect_end();
    // Each leaves two behind: what it sent, and its socket.
    for _ in 1..MOST / 2 {
        let mut wire = Wire::connect(&daemon.path("b"));
        send(&mut wire, &[ours.as_fd()]);
        wire.expect_end();
        good.works();
    }
    let mut late = Wire::connect(&daemon.path("b"));
    daemon.wait_until_said("descriptors that its front ends sent aren't closed yet", 1);
    good.works();
    // What the first one was waited for is gone.
    drop(listener);
    late.send(1, 1, &[], &[]);
    assert_eq!(late.receive().0.len(), 8);
}
