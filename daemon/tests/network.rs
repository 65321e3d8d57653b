//! Networks with several pairs of queues, and what front ends do with their rings.

mod front_end {
    pub mod daemon;
    pub mod network;
    pub mod station;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::network::{CTRL_RX, CTRL_VQ, MQ, Network, flow};
use front_end::station::Station;

/// A network of two pairs and one of one, at a switch.
fn two() -> Daemon {
    let network = |name: &str, queues: u16| {
        format!("[network.{name}]\nsocket = 'FOLDER/{name}'\nswitch = 'lan'\nqueues = {queues}\n")
    };
    Daemon::run(&(network("a", 2) + &network("b", 1)))
}

/// Frames of 40 flows come from the other one: how many by each receive ring.
fn flows(from: &mut Station, to: &mut Network) -> [u16; 2] {
    (0..40).for_each(|number| from.send(&flow(number)));
    to.receive([0, 2], 40)
}

/// QEMU keeps the control queue, and passes on MQ without it.
#[test]
fn pairs_are_used_without_a_control_queue() {
    let daemon = two();
    let mut front = Network::connect(&daemon.path("a"), 4, MQ);
    let mut other = Station::connect(&daemon.path("b"));
    let both = flows(&mut other, &mut front);
    assert!(both[0] > 0 && both[1] > 0, "{both:?}");
    // What is sent by a pair is answered by it.
    for (ring, expected) in [(1, [40, 0]), (3, [0, 40])] {
        for number in 0..40 {
            front.send(ring, &flow(number));
            other.receive();
        }
        assert_eq!(flows(&mut other, &mut front), expected);
    }
}

/// What is disabled has no part in it, whichever it is, and nothing is lost.
#[test]
fn frames_go_to_the_receive_rings_that_are_enabled() {
    let daemon = two();
    let mut front = Network::connect(&daemon.path("a"), 4, MQ);
    let mut other = Station::connect(&daemon.path("b"));
    let both = flows(&mut other, &mut front);
    for (ring, expected) in [(2, [40, 0]), (0, [0, 40])] {
        front.enable(ring, false);
        assert_eq!(flows(&mut other, &mut front), expected);
        front.enable(ring, true);
    }
    assert_eq!(flows(&mut other, &mut front), both);
}

/// A front end that passes the control queue on: its driver says how many pairs it uses. That, and
/// all else that it has said, holds until the device is reset.
#[test]
fn what_a_driver_has_set_outlives_its_memory() {
    let daemon = two();
    let mut front = Network::connect(&daemon.path("a"), 5, MQ | CTRL_VQ | CTRL_RX);
    let mut other = Station::connect(&daemon.path("b"));
    assert_eq!(flows(&mut other, &mut front), [40, 0], "nothing was said yet");
    assert_eq!(front.command(4, 0, &[2, 0]), 0);
    let both = flows(&mut other, &mut front);
    assert!(both[1] > 0);
    front.say_memory();
    assert_eq!(flows(&mut other, &mut front), both);
    assert_eq!(front.command(4, 0, &[1, 0]), 0);
    assert_eq!(front.command(0, 0, &[0]), 0);
    front.say_memory();
    assert_eq!(flows(&mut other, &mut front), [40, 0]);
    let group = [&[0x33, 0x33, 0, 0, 0, 9], &flow(1)[6..]].concat();
    other.send(&group);
    other.send(&flow(1));
    assert_eq!(front.receive([0, 2], 1), [1, 0], "it doesn't want the other one");
    front.wire.tell(34, &[], &[]);
    for ring in 0..5 {
        front.set_up_again(ring);
    }
    other.send(&group);
    assert_eq!(front.receive([0, 2], 1), [1, 0]);
}

/// What a disabled ring is to send is taken, and goes nowhere; nothing comes by a disabled ring.
#[test]
fn a_disabled_ring_sends_nothing_and_is_emptied() {
    let daemon = two();
    let mut front = Network::begin(&daemon.path("a"), 4, MQ);
    let mut other = Station::connect(&daemon.path("b"));
    (0..4).for_each(|ring| front.set_up(ring, 0));
    (0..70).for_each(|_| front.send(1, &flow(1)));
    for (enabled, mark) in [(true, 7), (false, 8), (true, 9)] {
        front.enable(1, enabled);
        front.send(1, &flow(mark));
    }
    let mark = |frame: Vec<u8>| frame[35];
    assert_eq!([mark(other.receive()), mark(other.receive())], [7, 9]);
    assert_eq!((other.waiting(), front.used(1)), (0, 73));
    other.send(&flow(1));
    front.enable(0, true);
    other.send(&flow(1));
    assert_eq!(front.receive([0, 2], 1), [1, 0], "the one before was for no ring");
}

/// A guest that has moved here, and doesn't say so itself.
#[test]
fn a_station_that_has_moved_is_announced() {
    let daemon = two();
    let mut front = Network::connect(&daemon.path("a"), 4, MQ);
    let mut other = Station::connect(&daemon.path("b"));
    let mac = [2, 0, 0, 0, 0, 7];
    front.wire.tell(19, &[&mac[..], &[0, 0]].concat(), &[]);
    let frame = other.receive();
    let rarp = [&[0xff; 6][..], &mac, &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
    assert_eq!((&frame[..22], frame.len()), (&rarp[..], 60));
    assert_eq!((&frame[22..28], &frame[32..38]), (&mac[..], &mac[..]));
    assert_eq!(front.receive([0, 2], 0), [0, 0], "it doesn't come back");
}

/// With 1 KiB a second, 41 copies of a long frame are made up for after a minute: the next frame
/// for all is dropped, and one for a single network goes as before.
#[test]
fn frames_for_all_are_limited() {
    let network = |name: &str, number: u8, more: &str| {
        format!(
            "[network.{name}]\nsocket = 'FOLDER/{name}'\nswitch = 'lan'\n\
             mac = '02:00:00:00:00:{number:02}'\n{more}"
        )
    };
    let text = network("a", 1, "flood = '1K/s'\n") + &network("b", 2, "") + &network("c", 3, "");
    let text =
        (10..49).fold(text, |text, number| text + &network(&format!("n{number}"), number, ""));
    let daemon = Daemon::run(&text);
    let mut a = Station::connect(&daemon.path("a"));
    let mut others = ["b", "c"].map(|name| Station::connect(&daemon.path(name)));
    let frame = |to: [u8; 6], number: u8| {
        [&to[..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[number; 1400]].concat()
    };
    (0..3).for_each(|number| a.send(&frame([0xff; 6], number)));
    for (to, other) in [2, 3].into_iter().zip(&mut others) {
        let own = frame([2, 0, 0, 0, 0, to], 9);
        a.send(&own);
        assert_eq!(other.receive(), frame([0xff; 6], 0));
        assert_eq!(other.receive(), own);
    }
    // Others' aren't limited by that.
    let mut all = frame([0xff; 6], 4);
    all[11] = 2;
    for _ in 0..2 {
        others[0].send(&all);
        assert_eq!(others[1].receive(), all);
    }
}
