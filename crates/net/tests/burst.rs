//! Many frames in a turn: what ends it, and that each frame goes where it would go alone.
mod guest;

use guest::{Lan, SECOND, frame, mac, parameters};
use net::header::{Header, NEEDS_CSUM};
use net::{
    BURST, BURST_CHARGE, Broken, Counts, Features, LEAST_CHARGE, Mac, Parameters, Plan, Rate, Vlan,
};

const SMALL: &[u8] = &[7; 50];

fn send_many(lan: &mut Lan, to: &[u8]) {
    to.iter().for_each(|to| lan.send(0, &frame(mac(*to), mac(0), SMALL)));
}

#[test]
fn a_turn_has_no_more_than_a_burst() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    send_many(&mut lan, &[1; BURST as usize + 3]);
    let first = lan.burst(0).unwrap();
    assert_eq!((BURST, true, BURST_CHARGE), (first.completed, first.more, first.charge));
    assert_eq!((64 * 8, 64 * 8, 0), (first.sent, first.bytes, first.dropped));
    let rest = lan.burst(0).unwrap();
    assert_eq!((3, false, 3 * LEAST_CHARGE), (rest.completed, rest.more, rest.charge));
    assert_eq!(net::Outcome::default(), lan.burst(0).unwrap());
    assert_eq!((11, 11), (lan.received(1).len(), lan.guests[0].returned));
    let (sent, received) = (lan.statistics(0), lan.statistics(1));
    assert_eq!((11, 11 * 64), (sent.sent, sent.sent_bytes));
    assert_eq!((11, 11 * 64), (received.received, received.received_bytes));
}

/// A frame to many costs as much as many.
#[test]
fn what_is_dear_ends_a_burst() {
    let mut lan = Lan::of(7, Plan::default(), 2048);
    (0..6).for_each(|_| lan.send(0, &frame(Mac::BROADCAST, mac(0), SMALL)));
    for (completed, more) in [(2, true), (2, true), (2, true), (0, false)] {
        let outcome = lan.burst(0).unwrap();
        assert_eq!((completed, more), (outcome.completed, outcome.more));
        assert_eq!(u64::from(completed) * 6 * LEAST_CHARGE, outcome.charge);
    }
}

/// Long frames cost what they have, on the short way, too.
#[test]
fn long_frames_end_a_burst() {
    const MTU: u16 = 9000;
    let longest = vec![7; MTU.into()];
    let each = (longest.len() + 14) as u64;
    let taken = BURST_CHARGE.div_ceil(each);
    assert!(taken < BURST.into());
    for (to, cuts) in EVERY_WAY {
        let mut lan = Lan::new();
        for number in 0..3 {
            let asked = Parameters { mtu: MTU, ..parameters(number) };
            let guest = lan.add(asked, Plan::default(), Features::empty());
            lan.post_many(guest, 20, 10_000);
        }
        for _ in 0..5 {
            let one = frame(mac(to), mac(0), &longest);
            lan.send_cut(0, 0, Header::default(), &one, cuts);
        }
        // The first one has to find its way.
        for _ in 0..2 {
            let outcome = lan.burst(0).unwrap();
            assert_eq!((taken, true), (outcome.completed.into(), outcome.more));
            assert_eq!(taken * each, outcome.charge);
        }
    }
}

/// Who has a limit is asked for one at a time.
#[test]
fn no_more_are_taken_than_may_be() {
    let mut lan = Lan::of(4, Plan::default(), 2048);
    send_many(&mut lan, &[1, 1, 1, 2, 1]);
    for (most, taken) in [(1, 1), (3, 3), (0, 1), (8, 0)] {
        let outcome = lan.switch.serve_some(lan.guests[0].port, 1, lan.now, most).unwrap();
        assert_eq!(outcome.completed, taken, "{most}");
    }
}

#[test]
fn receivers_take_turns_in_a_burst() {
    let mut lan = Lan::of(4, Plan::default(), 2048);
    send_many(&mut lan, &[1, 1, 2, 9, 1, 3, 3, 2]);
    let outcome = lan.switch.serve_burst(lan.guests[0].port, 1, lan.now).unwrap();
    assert_eq!((8, 1), (outcome.completed, outcome.dropped));
    let mut counts = Vec::new();
    while let Some(touched) = lan.switch.touched() {
        assert_eq!((None, 0), (touched.broken, touched.queue));
        counts.push((touched.port.0, touched.counts.frames, touched.counts.bytes));
        lan.switch.queue(touched.port, 0).unwrap().publish();
    }
    assert_eq!(vec![(1, 3, 192), (2, 2, 128), (3, 2, 128)], counts);
    assert_eq!([3, 2, 2], [1, 2, 3].map(|guest| lan.received(guest).len()));
    assert_eq!(1, lan.statistics(0).unknown);
}

/// Whatever was decided for the frame before isn't for one that is something else.
#[test]
fn each_frame_of_a_burst_is_looked_at() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    let good = frame(mac(1), mac(0), SMALL);
    lan.send(0, &good);
    assert_eq!(1, lan.burst(0).unwrap().completed);
    for round in 0..2 {
        let spoofed = frame(mac(1), mac(5), SMALL);
        let mut tagged = good.clone();
        tagged.splice(12..12, [0x81, 0, 0, 3]);
        let mut other_tag = good.clone();
        other_tag[12..14].copy_from_slice(&[0x88, 0xa8]);
        for bytes in [&good, &spoofed, &tagged, &other_tag, &good[..13].to_vec(), &good] {
            lan.send(0, bytes);
        }
        let header = Header { gso_type: 9, ..Header::default() };
        lan.send_cut(0, 0, header, &good, &[12]);
        lan.send(0, &[0; 3]);
        let outcome = lan.burst(0).unwrap();
        assert_eq!((8, 6), (outcome.completed, outcome.dropped), "round {round}");
    }
    assert_eq!(vec![good; 5], lan.received(1));
    let counts = lan.statistics(0);
    assert_eq!((2, 4, 4, 2), (counts.spoofed, counts.bad_vlan, counts.short, counts.bad_header));
}

/// To a packed ring and to a split one, in one buffer with the header or apart: the innermost loop
/// is for split rings and one buffer.
const EVERY_WAY: [(u8, &[usize]); 4] = [(1, &[12]), (1, &[]), (2, &[12]), (2, &[])];

#[test]
fn a_frame_that_is_too_long_is_dropped_wherever_it_lies() {
    for (to, cuts) in EVERY_WAY {
        let mut lan = Lan::of(3, Plan::default(), 2048);
        for bytes in [50, 1500, 1501, 50] {
            let one = frame(mac(to), mac(0), &vec![7; bytes]);
            lan.send_cut(0, 0, Header::default(), &one, cuts);
        }
        let outcome = lan.burst(0).unwrap();
        assert_eq!((4, 1), (outcome.completed, outcome.dropped));
        assert_eq!((3, 1), (lan.received(to.into()).len(), lan.statistics(0).long));
    }
}

#[test]
fn a_share_is_sent_wherever_frames_lie() {
    for (to, cuts) in EVERY_WAY {
        let rate = Some(Rate { bytes_per_second: 1000, burst: 200 });
        let mut lan = Lan::of(3, Plan { rate, ..Plan::default() }, 2048);
        for _ in 0..6 {
            let one = frame(mac(to), mac(0), SMALL);
            lan.send_cut(0, 0, Header::default(), &one, cuts);
        }
        // 76 bytes with the header: the third goes beyond it.
        let outcome = lan.burst(0).unwrap();
        assert_eq!((3, true), (outcome.completed, outcome.full));
        lan.now += SECOND / 10;
        assert_eq!(1, lan.burst(0).unwrap().completed);
    }
}

#[test]
fn a_frame_has_as_many_buffers_as_it_needs_wherever_it_lies() {
    for (to, cuts) in EVERY_WAY {
        let mut lan = Lan::of(3, Plan::default(), 40);
        let one = frame(mac(to), mac(0), SMALL);
        (0..4).for_each(|_| lan.send_cut(0, 0, Header::default(), &one, cuts));
        assert_eq!(4, lan.burst(0).unwrap().completed);
        assert_eq!(vec![one; 4], lan.received(to.into()));
    }
}

/// A checksum that is left to make is made, or told to who makes it, whatever went before.
#[test]
fn a_checksum_is_not_forgotten() {
    for (to, cuts) in EVERY_WAY {
        let mut lan = Lan::of(3, Plan::default(), 2048);
        let plain = frame(mac(to), mac(0), SMALL);
        let left =
            Header { flags: NEEDS_CSUM, csum_start: 20, csum_offset: 6, ..Header::default() };
        for header in [Header::default(), Header::default(), left, Header::default()] {
            lan.send_cut(0, 0, header, &plain, cuts);
        }
        assert_eq!(4, lan.burst(0).unwrap().completed);
        let flags =
            |(header, _): &(Header, Vec<u8>)| (header.flags, header.csum_start, header.csum_offset);
        let received = lan.received_by(to.into(), 0);
        let expected = [(0, 0, 0), (0, 0, 0), (NEEDS_CSUM, 20, 6), (0, 0, 0)];
        assert_eq!(received.iter().map(flags).collect::<Vec<_>>(), expected);
    }
}

/// What a command, a plan or the link says holds from the next turn on.
#[test]
fn what_was_decided_is_forgotten_after_a_burst() {
    let mut lan = Lan::of(3, Plan::default(), 2048);
    send_many(&mut lan, &[1, 1]);
    assert_eq!(128, lan.burst(0).unwrap().bytes);
    // No stations any more.
    assert_eq!(0, lan.command(1, 0, 0, &[0]));
    assert_eq!(0, lan.command(1, 0, 4, &[1]));
    send_many(&mut lan, &[1, 1]);
    assert_eq!(0, lan.burst(0).unwrap().bytes);
    assert_eq!(2, lan.statistics(1).filtered);
    assert_eq!(0, lan.command(1, 0, 4, &[0]));
    send_many(&mut lan, &[1]);
    assert_eq!(64, lan.burst(0).unwrap().bytes);
    for (number, up) in [(1, false), (0, false)] {
        lan.switch.set_link(lan.guests[number].port, up);
        send_many(&mut lan, &[1]);
        assert_eq!(0, lan.burst(0).unwrap().bytes);
        lan.switch.set_link(lan.guests[number].port, true);
    }
    assert_eq!((1, 1), (lan.statistics(0).down, lan.statistics(1).down));
    lan.switch.stop(lan.guests[1].port);
    send_many(&mut lan, &[1]);
    assert_eq!(0, lan.burst(0).unwrap().bytes);
    assert_eq!(2, lan.statistics(1).down);
}

/// The guess is about a port that is another one now, or none.
#[test]
fn a_port_s_place_is_another_s() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    send_many(&mut lan, &[1]);
    assert_eq!(64, lan.burst(0).unwrap().bytes);
    lan.switch.remove(lan.guests[1].port);
    send_many(&mut lan, &[1]);
    let outcome = lan.burst(0).unwrap();
    assert_eq!((0, 1), (outcome.bytes, outcome.dropped));
    // In another VLAN, and of the same address.
    let apart = Plan { vlan: Vlan::Access(7), ..Plan::default() };
    let guest = lan.add(parameters(1), apart, Features::empty());
    assert_eq!(lan.guests[1].port, lan.guests[guest].port);
    lan.post_many(guest, 10, 2048);
    send_many(&mut lan, &[1]);
    let outcome = lan.burst(0).unwrap();
    assert_eq!((0, 1), (outcome.bytes, outcome.dropped));
}

#[test]
fn a_burst_ends_when_the_share_is_sent() {
    let rate = Some(Rate { bytes_per_second: 1000, burst: 200 });
    let mut lan = Lan::of(2, Plan { rate, ..Plan::default() }, 2048);
    send_many(&mut lan, &[1; 5]);
    // 76 bytes each.
    let outcome = lan.burst(0).unwrap();
    assert_eq!((3, true, false), (outcome.completed, outcome.full, outcome.more));
    assert_eq!((0, true), { (lan.burst(0).unwrap().completed, lan.burst(0).unwrap().full) });
    lan.now += SECOND;
    let outcome = lan.burst(0).unwrap();
    assert_eq!((2, false), (outcome.completed, outcome.full));
}

/// Frames for nobody, and for all: none of them goes the short way.
#[test]
fn a_share_holds_for_frames_that_go_the_long_way() {
    let rate = Some(Rate { bytes_per_second: 1000, burst: 200 });
    for to in [mac(9), Mac::BROADCAST] {
        for others in [0, 2] {
            let mut lan = Lan::of(1 + others, Plan { rate, ..Plan::default() }, 2048);
            (0..5).for_each(|_| lan.send(0, &frame(to, mac(0), SMALL)));
            // 76 bytes each.
            for (completed, full) in [(3, true), (0, true)] {
                let outcome = lan.burst(0).unwrap();
                assert_eq!((completed, full), (outcome.completed, outcome.full), "{to:?}");
            }
            lan.now += SECOND;
            let outcome = lan.burst(0).unwrap();
            assert_eq!((2, false), (outcome.completed, outcome.full), "{to:?}");
        }
    }
}

#[test]
fn a_burst_without_buffers_is_lost_frame_by_frame() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    let other = lan.add(parameters(1), Plan::default(), Features::empty());
    lan.post_many(other, 2, 2048);
    send_many(&mut lan, &[1; 6]);
    let outcome = lan.switch.serve_burst(lan.guests[0].port, 1, lan.now).unwrap();
    assert_eq!((6, 0, 128), (outcome.completed, outcome.dropped, outcome.bytes));
    assert_eq!(6 * LEAST_CHARGE, outcome.charge);
    let counts = Counts { frames: 2, bytes: 128, dropped: 4 };
    assert_eq!(Some(counts), lan.switch.touched().map(|touched| touched.counts));
    assert_eq!(4, lan.statistics(1).no_room);
}

/// What was served before the ring broke is a turn; the next one says that it is broken.
#[test]
fn a_ring_that_breaks_in_a_burst() {
    let mut lan = Lan::of(2, Plan::default(), 2048);
    send_many(&mut lan, &[1; 3]);
    lan.guests[0].offer(1, &[(1 << 40, 64)], false);
    let outcome = lan.burst(0).unwrap();
    assert_eq!((3, true, 192), (outcome.completed, outcome.more, outcome.bytes));
    assert!(lan.switch.waiting(lan.guests[0].port, 1, lan.now) > 0);
    for _ in 0..2 {
        assert!(matches!(lan.burst(0), Err(Broken::Ring(_))));
    }
    assert_eq!(3, lan.received(1).len());
}

/// By whatever buffers, on both sides, and whatever length.
#[test]
fn frames_of_a_burst_are_whole() {
    for mergeable in [false, true] {
        let declined = if mergeable { Features::empty() } else { Features::MRG_RXBUF };
        let mut lan = Lan::new();
        for number in 0..2 {
            lan.add(parameters(number), Plan::default(), declined);
        }
        let mut sent = Vec::new();
        for (number, len) in
            [0, 5, 6, 7, 17, 18, 19, 50, 255, 256, 1000, 1500].into_iter().enumerate()
        {
            let data: Vec<u8> = (0..len).map(|at| (at + number) as u8).collect();
            let bytes = frame(mac(1), mac(0), &data);
            let cuts = [vec![], vec![12], vec![5, 14, 31, 33], vec![26, 400]];
            for cuts in cuts {
                match number % 3 {
                    0 => lan.post(1, 0, &[2048]),
                    1 => lan.post(1, 0, &[12, 20, 2016]),
                    _ if mergeable => (0..4).for_each(|_| lan.post(1, 0, &[500])),
                    _ => lan.post(1, 0, &[1, 40, 1600]),
                }
                lan.send_cut(0, 0, Header::default(), &bytes, &cuts);
                sent.push(bytes.clone());
            }
            while lan.burst(0).unwrap().completed > 0 {}
            assert_eq!(std::mem::take(&mut sent), lan.received(1), "{len} bytes, {mergeable}");
        }
    }
}

/// Buffers in stock make no difference to how much a port may send.
#[test]
fn a_share_holds_for_a_receiver_with_buffers_in_stock() {
    let rate = Some(Rate { bytes_per_second: 1000, burst: 200 });
    let mut lan = Lan::of(1, Plan { rate, ..Plan::default() }, 2048);
    let other = lan.add(parameters(1), Plan::default(), Features::empty());
    lan.post_many(other, 2, 100);
    send_many(&mut lan, &[1]);
    assert_eq!(1, lan.burst(0).unwrap().completed);
    // It has room for a part only, and keeps that.
    lan.now += SECOND;
    lan.send(0, &frame(mac(1), mac(0), &[7; 150]));
    assert_eq!((1, 0), { lan.burst(0).map(|it| (it.completed, it.bytes)).unwrap() });
    lan.now += SECOND;
    lan.post_many(other, 10, 2048);
    send_many(&mut lan, &[1; 5]);
    let outcome = lan.burst(0).unwrap();
    assert_eq!((3, true, 192), (outcome.completed, outcome.full, outcome.bytes));
}

/// Each flow comes back by the pair that sent it, though they are in one burst.
#[test]
fn flows_of_a_burst_go_to_their_pairs() {
    let asked = |number| Parameters { pairs: 3, ..parameters(number) };
    let mut lan = Lan::new();
    for number in 0..2 {
        let guest = lan.add(asked(number), Plan::default(), Features::empty());
        assert_eq!(0, lan.command(guest, 4, 0, &3u16.to_le_bytes()));
        for pair in 0..3 {
            (0..40).for_each(|_| lan.post(guest, pair, &[2048]));
        }
    }
    let packet = |to: u8, from: u8, ports: [u8; 2], data: &[u8]| {
        let mut bytes = [&mac(to).0[..], &mac(from).0, &[8, 0, 0x45, 0, 0, 0]].concat();
        bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
        bytes.extend([0, ports[0], 0, ports[1], 0, 0, 0, 0]);
        [&bytes[..], data].concat()
    };
    // Guest 1 asks by a pair for each flow, guest 0 answers all by one.
    for flow in 0..3 {
        lan.send_cut(1, flow, Header::default(), &packet(0, 1, [flow as u8, 53], b"?"), &[12]);
        assert_eq!(1, lan.turn(1, flow).unwrap().completed);
    }
    for cuts in [vec![], vec![12], vec![12, 40], vec![30]] {
        let mut expected = vec![Vec::new(); 3];
        for (number, flow) in [0, 0, 1, 1, 1, 2, 0, 2].into_iter().enumerate() {
            let bytes = packet(1, 0, [53, flow], &[number as u8; 30]);
            lan.send_cut(0, 0, Header::default(), &bytes, &cuts);
            expected[usize::from(flow)].push(bytes);
        }
        assert_eq!(BURST, lan.burst(0).unwrap().completed);
        for (pair, expected) in expected.into_iter().enumerate() {
            let got = lan.received_by(1, pair as u16);
            assert_eq!(expected, got.into_iter().map(|it| it.1).collect::<Vec<_>>());
        }
    }
}
