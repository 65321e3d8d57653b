//! What is refused without an end of the connection.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod network;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::FrontEnd;
use front_end::network::{MQ, Network};
use front_end::wire::words32;

/// A version, and the front end waits for a word.
const ASKS: u32 = 1 | 1 << 3;

/// The guest's own wish among them: QEMU passes on what it writes to the configuration space.
#[test]
fn a_front_end_that_is_refused_something_goes_on() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    front.wire.send(8, ASKS, &words32([0, 1024]), &[]);
    assert_eq!(front.wire.receive().0, 1u64.to_le_bytes());
    let beyond = [words32([250, 20, 0]), vec![0; 20]].concat();
    assert!(front.wire.ask(24, &beyond).is_empty());
    let wce = [words32([32, 1, 0]), vec![1]].concat();
    front.wire.send(25, 1, &wce, &[]);
    front.wire.send(25, ASKS, &wce, &[]);
    assert_eq!(front.wire.receive().0, 1u64.to_le_bytes());
    front.works();
    daemon.wait_until_said("the front end is refused what it asks for", 1);
}

#[test]
fn a_front_end_with_too_many_pairs_is_told_how_many_there_are() {
    let daemon = Daemon::run("[network.a]\nsocket = 'FOLDER/a'\nswitch = 'lan'\nqueues = 2\n");
    let mut front = Network::begin(&daemon.path("a"), 2, MQ);
    front.wire.send(18, 1, &words32([5, 1]), &[]);
    front.wire.expect_end();
    daemon.wait_until_said(
        "the front end asks for 3 pairs of queues, the network has 2: queues = 3: ring 5 isn't",
        1,
    );
}
