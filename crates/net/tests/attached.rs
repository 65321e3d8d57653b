//! Queues that come and go one by one, and ports that are removed.
mod guest;

use guest::{Guest, Lan, SECOND, frame, mac, parameters};
use net::{ANNOUNCE_BYTES, BURST, BadPort, Features, Mac, Parameters, Plan, Rate};
use window::Memory;

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

/// The control queue of a driver without MQ has the index of another's second receive queue.
#[test]
fn a_queue_is_what_its_driver_has_at_that_index() {
    for (declined, control) in [(Features::empty(), 4), (Features::MQ, 2)] {
        let mut lan = Lan::of(1, Plan::default(), 2048);
        let asked = Parameters { pairs: 2, ..parameters(1) };
        let guest = lan.add(asked, Plan::default(), declined);
        let (port, now) = (lan.guests[guest].port, lan.now);
        for index in 0..8 {
            let is_there = index <= control;
            assert_eq!(lan.switch.kind(port, index).is_some(), is_there);
            assert_eq!(lan.switch.queue(port, index).is_some(), is_there, "{declined:?} {index}");
            let has_turns = lan.switch.has_turns(port, index);
            assert_eq!(has_turns, is_there && (index % 2 == 1 || index == control));
        }
        lan.guests[guest].try_command(control, &[0; 4]).expect("the ring has room");
        for index in 0..8 {
            let waits = u16::from(index == control);
            assert_eq!(lan.switch.waiting(port, index, now), waits, "{declined:?} {index}");
            assert_eq!(lan.switch.detach(port, index).is_some(), index <= control);
            assert!(lan.switch.queue(port, index).is_none());
            assert_eq!(lan.switch.waiting(port, index, now), 0);
        }
        lan.reset(guest);
        assert!(lan.switch.queue(port, control).is_some());
        lan.switch.stop(port);
        assert!((0..8).all(|index| lan.switch.queue(port, index).is_none()));
    }
}

/// A guest with two pairs, and one that sends it flows that nobody answered.
fn two_pairs() -> (Lan, usize) {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let asked = Parameters { pairs: 2, ..parameters(1) };
    let guest = lan.add(asked, Plan::default(), Features::empty());
    for pair in [0, 1] {
        (0..40).for_each(|_| lan.post(guest, pair, &[2048]));
    }
    (lan, guest)
}

/// Frames of eight flows: how many came by each pair.
fn flows(lan: &mut Lan, guest: usize) -> [usize; 2] {
    for flow in 0..8 {
        let mut bytes = [&mac(1).0[..], &mac(0).0, &[8, 0, 0x45, 0, 0, 0]].concat();
        bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, flow, 0, 53, 0, 0, 0, 0]);
        lan.send(0, &bytes);
        lan.turn(0, 0).unwrap();
    }
    [0, 1].map(|pair| match lan.switch.queue(lan.guests[guest].port, 2 * pair) {
        Some(_) => lan.received_by(guest, pair).len(),
        None => 0,
    })
}

#[test]
fn flows_go_to_the_pairs_that_are_there() {
    let (mut lan, guest) = two_pairs();
    let port = lan.guests[guest].port;
    assert_eq!(flows(&mut lan, guest), [8, 0], "one is used until the driver says so");
    assert_eq!(lan.command(guest, 4, 0, &2u16.to_le_bytes()), 0);
    let both = flows(&mut lan, guest);
    assert!(both[0] > 0 && both[1] > 0 && both[0] + both[1] == 8, "{both:?}");
    for (gone, expected) in [(2, [8, 0]), (0, [0, 8])] {
        let queue = lan.switch.detach(port, gone).expect("it was there");
        assert_eq!(flows(&mut lan, guest), expected);
        lan.switch.attach(port, gone, queue).expect("it is its place");
    }
    assert_eq!(flows(&mut lan, guest), both);
    assert_eq!(lan.statistics(guest).no_room, 0);
}

/// As where a front end keeps the control queue to itself: it says by the queues which are used.
#[test]
fn without_a_control_queue_all_pairs_are_used() {
    let (mut lan, guest) = two_pairs();
    let (config, accepted) = (lan.guests[guest].config, lan.guests[guest].accepted);
    let kept = accepted - Features::CTRL_VQ;
    assert!(config.accept(kept.bits()).is_err());
    assert_eq!(config.accept_behind_front_end(kept.bits()), Ok(kept));
    let wrong = kept - Features::CSUM;
    assert!(config.accept_behind_front_end(wrong.bits()).is_err(), "HOST_TSO4 asks for it still");
    lan.guests[guest].accepted = kept;
    lan.reset(guest);
    for pair in [0, 1] {
        (0..40).for_each(|_| lan.post(guest, pair, &[2048]));
    }
    let both = flows(&mut lan, guest);
    assert!(both[0] > 0 && both[1] > 0, "{both:?}");
}

/// Its memory changes: all queues go and come; the device is reset between, or not.
fn move_memory(lan: &mut Lan, guest: usize, accepted: Features, is_reset: bool) {
    let Guest { port, window, .. } = lan.guests[guest];
    let taken: Vec<_> = (0..5).map(|index| lan.switch.detach(port, index)).collect();
    lan.switch.pause(port);
    assert!(lan.switch.kind(port, 0).is_none());
    if is_reset {
        lan.switch.stop(port);
    }
    lan.switch.resume(port, window, accepted);
    for (index, queue) in taken.into_iter().enumerate() {
        let queue = queue.expect("it was there");
        lan.switch.attach(port, index as u16, queue).expect("it is its place");
    }
}

#[test]
fn what_a_driver_has_set_outlives_its_memory() {
    let (mut lan, guest) = two_pairs();
    let port = lan.guests[guest].port;
    lan.switch.detach(port, 2).map(|queue| lan.switch.attach(port, 2, queue));
    assert_eq!(lan.command(guest, 4, 0, &2u16.to_le_bytes()), 0);
    assert_eq!(lan.command(guest, 0, 0, &[0]), 0, "not promiscuous");
    let both = flows(&mut lan, guest);
    let accepted = lan.guests[guest].accepted;
    move_memory(&mut lan, guest, accepted, false);
    assert_eq!(flows(&mut lan, guest), both);
    let group = frame(Mac([0x33, 0x33, 0, 0, 0, 9]), mac(0), b"to a group");
    let filtered = |lan: &mut Lan| {
        let before = lan.statistics(guest).filtered;
        lan.send(0, &group);
        lan.turn(0, 0).unwrap();
        lan.received_by(guest, 0);
        lan.statistics(guest).filtered - before
    };
    assert_eq!(filtered(&mut lan), 1);
    // A driver that accepts something else is another one, and so is one after a reset.
    move_memory(&mut lan, guest, accepted - Features::CTRL_RX_EXTRA, false);
    assert_eq!(filtered(&mut lan), 0);
    assert_eq!(flows(&mut lan, guest), [8, 0]);
    assert_eq!(lan.command(guest, 0, 0, &[0]), 0);
    move_memory(&mut lan, guest, accepted - Features::CTRL_RX_EXTRA, true);
    assert_eq!(filtered(&mut lan), 0);
}

#[test]
fn a_queue_that_discards_is_emptied() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let port = lan.guests[0].port;
    let sent = frame(mac(1), mac(0), b"one");
    lan.switch.set_discards(port, 1, true);
    (0..20).for_each(|_| lan.send(0, &sent));
    let mut taken = 0;
    while lan.switch.waiting(port, 1, lan.now) > 0 {
        let outcome = lan.burst(0).unwrap();
        assert!(outcome.completed <= BURST && outcome.dropped == outcome.completed);
        assert!(outcome.charge > 0);
        taken += outcome.completed;
    }
    assert_eq!((taken, lan.guests[0].returned, lan.received(1).len()), (20, 20, 0));
    assert_eq!(lan.statistics(0).down, 20);
    lan.switch.set_discards(port, 1, false);
    lan.send(0, &sent);
    lan.turn(0, 0).unwrap();
    assert_eq!(lan.received(1).len(), 1);
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

/// A front end that passes the control queue on has asked for it.
#[test]
fn a_driver_that_has_announced_itself_is_answered() {
    let mut lan = Lan::new();
    let asked = Parameters { announces: true, ..parameters(0) };
    let guest = lan.add(asked, Plan::default(), Features::empty());
    assert_eq!(lan.command(guest, 3, 0, &[]), 0);
    assert_eq!(lan.command(guest, 3, 1, &[]), 1, "there is no such command");
    let other = lan.add(parameters(1), Plan::default(), Features::empty());
    assert_eq!(lan.command(other, 3, 0, &[]), 1, "it isn't offered");
}

/// Only from an address that the port may have, and within what it may send.
#[test]
fn a_station_is_announced_as_if_it_sent_a_frame() {
    let rate = Some(Rate { bytes_per_second: 10, burst: 1 });
    let mut lan = Lan::of(2, Plan { rate, ..Plan::default() }, 2048);
    let (port, now) = (lan.guests[0].port, lan.now);
    let memory = Memory::new(&[(0, 4096)], 0);
    let span = memory.window().span(0, ANNOUNCE_BYTES).expect("it is there");
    let short = memory.window().span(0, ANNOUNCE_BYTES - 1).expect("it is there");
    assert_eq!(lan.switch.announce(port, mac(0), short, now).bytes, 0);
    assert_eq!(lan.switch.announce(port, mac(1), span, now).bytes, 0);
    assert_eq!(lan.statistics(0).spoofed, 1);
    lan.now += 100 * SECOND;
    assert_eq!(lan.switch.announce(port, mac(0), span, lan.now).bytes, 60);
    assert_eq!(lan.switch.announce(port, mac(0), span, lan.now).bytes, 0, "it has sent its share");
    let touched = lan.switch.touched().expect("it came");
    lan.switch.queue(touched.port, touched.queue).expect("it is attached").publish();
    let frames = lan.received(1);
    let start = [&[0xff; 6][..], &mac(0).0, &[0x80, 0x35]].concat();
    assert!(frames.len() == 1 && frames[0].starts_with(&start) && lan.received(0).is_empty());
}
