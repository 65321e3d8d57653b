//! Queues that come and go one by one, and ports that are removed.
mod guest;

use guest::{Lan, frame, mac, parameters};
use net::{BadPort, Features, Parameters, Plan};

#[test]
fn a_queue_is_taken_back_and_the_others_go_on() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let (a, b) = (lan.guests[0].port, lan.guests[1].port);
    let sent = frame(mac(1), mac(0), b"one");
    lan.send(0, &sent);
    lan.turn(0, 0).unwrap();
    assert_eq!(lan.received(1).len(), 1);
    // The sender's transmit queue: what is sent waits, and the receiver has its own still.
    let queue = lan.switch.detach(a, 1).expect("it was there");
    assert!(lan.switch.detach(a, 1).is_none());
    lan.send(0, &sent);
    assert_eq!(lan.switch.waiting(a, 1, lan.now), 0);
    assert!(lan.switch.queue(b, 0).is_some() && lan.switch.has_turns(a, 1));
    lan.switch.attach(a, 1, queue).expect("it is its place");
    assert_eq!(lan.switch.waiting(a, 1, lan.now), 1);
    lan.turn(0, 0).unwrap();
    assert_eq!(lan.received(1).len(), 1);
    // The receive queue: frames are dropped without one.
    let queue = lan.switch.detach(b, 0).expect("it was there");
    lan.send(0, &sent);
    lan.switch.serve(a, 1, lan.now).unwrap();
    assert_eq!(lan.switch.touched().map(|touched| touched.counts.dropped), Some(1));
    assert_eq!(lan.statistics(1).no_room, 1);
    lan.switch.attach(b, 0, queue).expect("it is its place");
    lan.send(0, &sent);
    lan.turn(0, 0).unwrap();
    assert_eq!(lan.received(1).len(), 1);
    assert!(!lan.switch.has_turns(b, 0) && lan.switch.has_turns(b, 2));
}

#[test]
fn pairs_are_as_many_as_there_are() {
    let mut lan = Lan::new();
    let asked = Parameters { pairs: 2, ..parameters(0) };
    let guest = lan.add(asked, Plan::default(), Features::empty());
    let port = lan.guests[guest].port;
    let set = [0, 1, 2, 3].map(|pairs| lan.switch.set_pairs(port, pairs));
    assert_eq!(set, [false, true, true, false]);
}

#[test]
fn a_port_that_is_removed_makes_room_and_gives_its_address_back() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let config = || net::Config::new(parameters(0)).unwrap();
    assert!(lan.switch.has_address(mac(0)) && !lan.switch.has_address(mac(7)));
    assert_eq!(lan.switch.add(config(), Plan::default()), Err(BadPort::Address(mac(0))));
    let port = lan.guests[0].port;
    lan.switch.remove(port);
    assert!(!lan.switch.has_address(mac(0)) && lan.switch.queue(port, 1).is_none());
    assert_eq!(lan.switch.add(config(), Plan::default()), Ok(port));
}
