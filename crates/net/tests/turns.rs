//! What a core that serves a switch is told: which queues have something for a turn, and what came
//! of it for whom.
mod guest;

use guest::{Lan, SECOND, frame, mac, parameters};
use net::config::QueueKind;
use net::header::Header;
use net::{Broken, Counts, Features, Mac, Parameters, Plan, PortNumber, Rate, Touched};

fn waiting(lan: &Lan, guest: usize, index: u16) -> u16 {
    lan.switch.waiting(lan.guests[guest].port, index, lan.now)
}

#[test]
fn what_waits_is_seen_without_a_turn() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    assert_eq!([0, 1, 2, 3].map(|index| waiting(&lan, 0, index)), [0; 4]);
    let sent = frame(mac(1), mac(0), b"one");
    (0..3).for_each(|_| lan.send(0, &sent));
    lan.guests[0].try_command(2, &[0, 0, 1]).unwrap();
    // Receive queues have buffers, and no turns.
    assert_eq!([0, 1, 2, 3].map(|index| waiting(&lan, 0, index)), [0, 3, 1, 0]);
    assert_eq!(waiting(&lan, 1, 1), 0);
    lan.turn(0, 0).unwrap();
    assert_eq!(waiting(&lan, 0, 1), 2);
    lan.switch.stop(lan.guests[0].port);
    assert_eq!([1, 2].map(|index| waiting(&lan, 0, index)), [0; 2]);
    assert_eq!(lan.switch.waiting(PortNumber(9), 1, 0), 0);
}

#[test]
fn nothing_waits_while_the_rate_lets_nothing_through() {
    let rate = Some(Rate { bytes_per_second: 1000, burst: 1 });
    let mut lan = Lan::of(2, Plan { rate, ..Plan::default() }, 2048);
    let sent = frame(mac(1), mac(0), &[0; 974]);
    (0..2).for_each(|_| lan.send(0, &sent));
    lan.guests[0].try_command(2, &[0, 0, 1]).unwrap();
    assert_eq!(waiting(&lan, 0, 1), 2);
    assert!(lan.turn(0, 0).unwrap().completed == 1);
    assert_eq!(waiting(&lan, 0, 1), 0);
    assert_eq!(waiting(&lan, 0, 2), 1, "commands aren't what is limited");
    lan.now = lan.switch.ready_at(lan.guests[0].port);
    assert_eq!(waiting(&lan, 0, 1), 1);
    lan.now += SECOND;
    assert_eq!(waiting(&lan, 0, 1), 1);
}

#[test]
fn a_queue_s_purpose_is_known_while_the_device_runs() {
    let asked = Parameters { pairs: 3, ..parameters(0) };
    let mut lan = Lan::new();
    let many = lan.add(asked, Plan::default(), Features::empty());
    let one = lan.add(Parameters { mac: mac(1), ..asked }, Plan::default(), Features::MQ);
    let kinds = |lan: &Lan, guest: usize| {
        [0, 1, 2, 5, 6, 7].map(|index| lan.switch.kind(lan.guests[guest].port, index))
    };
    use QueueKind::{Control, Receive, Transmit};
    let (receive, transmit) = (|pair| Some(Receive(pair)), |pair| Some(Transmit(pair)));
    assert_eq!(
        kinds(&lan, many),
        [receive(0), transmit(0), receive(1), transmit(2), Some(Control), None]
    );
    assert_eq!(kinds(&lan, one), [receive(0), transmit(0), Some(Control), None, None, None]);
    lan.switch.stop(lan.guests[one].port);
    assert_eq!(kinds(&lan, one), [None; 6]);
}

/// Serves a frame without looking at what was touched.
fn serve(lan: &mut Lan, guest: usize, bytes: &[u8]) -> net::Outcome {
    lan.send(guest, bytes);
    lan.switch.serve(lan.guests[guest].port, 1, lan.now).unwrap()
}

#[test]
fn each_side_s_frames_are_counted_once() {
    let mut lan = Lan::of(3, Plan::default(), 2048);
    let sent = frame(mac(2), mac(0), &[7; 100]);
    for _ in 0..2 {
        let outcome = serve(&mut lan, 0, &sent);
        assert_eq!((outcome.sent, outcome.dropped), (114, 0));
    }
    let counts = Counts { frames: 2, bytes: 228, dropped: 0 };
    let (port, queue) = (lan.guests[2].port, 0);
    assert_eq!(lan.switch.touched(), Some(Touched { port, queue, counts, broken: None }));
    assert_eq!(lan.switch.touched(), None);
    // To nobody, from nobody's address, and too short to be one: the sender's loss.
    let lost = [frame(mac(9), mac(0), &[0; 10]), frame(mac(2), mac(9), &[0; 10]), vec![0; 13]];
    for (bytes, sent) in lost.iter().zip([24, 24, 0]) {
        let outcome = serve(&mut lan, 0, bytes);
        assert_eq!((outcome.sent, outcome.dropped, outcome.completed), (sent, 1, 1));
    }
    assert_eq!(lan.switch.touched(), None);
    // Without buffers it is the receiver's.
    let empty = lan.add(parameters(3), Plan::default(), Features::empty());
    let outcome = serve(&mut lan, 0, &frame(mac(3), mac(0), &[0; 10]));
    assert_eq!((outcome.sent, outcome.dropped), (24, 0));
    let touched = lan.switch.touched().unwrap();
    assert_eq!(touched.port, lan.guests[empty].port);
    assert_eq!(touched.counts, Counts { dropped: 1, ..Counts::default() });
}

#[test]
fn a_broken_receive_queue_counts_what_it_loses() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    // Behind a hundred good buffers one that can't be written.
    lan.guests[1].offer(0, &[(5 << 20, 64)], false);
    for round in 0..103 {
        serve(&mut lan, 0, &frame(mac(1), mac(0), &[0; 10]));
        let touched = lan.switch.touched().unwrap();
        assert_eq!(touched.broken.is_some(), round >= 100);
        assert_eq!(touched.counts.dropped, u32::from(round >= 100));
    }
}

/// A guest that cuts what it sends small is charged for it.
#[test]
fn each_descriptor_that_is_sent_is_charged() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let sent = frame(mac(1), mac(0), &[7; 100]);
    let mut charge = |cuts: &[usize]| {
        lan.send_cut(0, 0, Header::default(), &sent, cuts);
        lan.turn(0, 0).unwrap().charge
    };
    assert_eq!(net::LEAST_CHARGE, charge(&[12]));
    let cuts: Vec<usize> = (1..=60).collect();
    assert_eq!(61 * net::DESCRIPTOR_CHARGE, charge(&cuts));
}

/// A VM with two ports would have many times its share: what one receives lies in pieces of a byte.
#[test]
fn each_descriptor_that_is_written_is_charged() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let cut = lan.add(parameters(1), Plan::default(), Features::empty());
    let mut charge = |room: &[u32]| {
        lan.post(cut, 0, room);
        let outcome = lan.pass(0, Header::default(), &frame(mac(1), mac(0), &[7; 50]));
        assert_eq!(64, outcome.bytes);
        outcome.charge
    };
    assert_eq!(net::LEAST_CHARGE, charge(&[2048]));
    assert_eq!(net::LEAST_CHARGE, charge(&[12, 2048]));
    assert_eq!(100 * net::DESCRIPTOR_CHARGE, charge(&[1; 100]));
}

/// Whoever sends would read a receiver's empty buffers, by the hundred for a frame.
#[test]
fn a_receive_buffer_without_bytes_ends_its_queue() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let empty =
        lan.add(Parameters { mac: mac(7), ..parameters(7) }, Plan::default(), Features::empty());
    lan.post(empty, 0, &[64, 0, 1024]);
    let sent = frame(mac(7), mac(0), &[7; 1500]);
    lan.send(0, &sent);
    lan.turn(0, 0).unwrap();
    let port = lan.guests[empty].port;
    assert_eq!(lan.broken, [(port, 0, Broken::Empty)]);
}

/// Nor what it could only read.
#[test]
fn a_receive_buffer_with_a_part_to_read_ends_its_queue() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let odd =
        lan.add(Parameters { mac: mac(7), ..parameters(7) }, Plan::default(), Features::empty());
    lan.guests[odd].offer_mixed(0, &[(5 << 20, 64), (6 << 20, 2048)], |at| at == 1);
    lan.send(0, &frame(mac(7), mac(0), &[7; 10]));
    lan.turn(0, 0).unwrap();
    let port = lan.guests[odd].port;
    assert_eq!(lan.broken, [(port, 0, Broken::Empty)]);
}

/// What one guest does to its rings is reported as its own, and harms nobody else.
#[test]
fn a_broken_receive_queue_is_its_owners() {
    let mut lan = Lan::of(3, Plan::default(), 2048);
    let third = lan.add(parameters(3), Plan::default(), Features::empty());
    lan.guests[third].offer(0, &[(1 << 20, 100)], false);
    let all = frame(Mac::BROADCAST, mac(0), b"x");
    lan.pass(0, Header::default(), &all);
    lan.pass(0, Header::default(), &all);
    assert_eq!((2, 2), (lan.received(1).len(), lan.received(2).len()));
    assert_eq!((lan.guests[third].port, 0, Broken::NoRoom), lan.broken[0]);
    assert!(lan.broken.iter().all(|(port, ..)| *port == lan.guests[third].port));
    lan.reset(third);
    lan.post_many(third, 1, 2048);
    lan.pass(0, Header::default(), &all);
    assert_eq!(1, lan.received(third).len());
}

#[test]
fn a_command_without_room_for_the_answer_breaks_the_queue() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    lan.guests[0].give(2, &[0, 0, 1], &[]);
    for _ in 0..2 {
        assert_eq!(Err(Broken::NoRoom), lan.serve(0, 2));
    }
}
