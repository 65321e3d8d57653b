//! What is done for a frame that a receiver doesn't take as it is: against etherparse's checksums.
mod guest;
mod packets;

use guest::{Lan, mac, parameters};
use net::header::{GSO_ECN, GSO_TCPV6, Header};
use net::{Features, Mac, Plan, Rate, Sources, Vlan, VlanSet};
use packets::*;
use proptest::prelude::*;

/// Guest 0, and guest 1 whose driver declines these.
fn two(declined: Features) -> Lan {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    lan.add(parameters(1), Plan::default(), declined);
    lan.post_many(1, 120, 1600);
    lan
}

const NO_TSO: Features =
    Features::GUEST_TSO4.union(Features::GUEST_TSO6).union(Features::GUEST_ECN);
const NO_USO: Features = Features::GUEST_USO4.union(Features::GUEST_USO6);
const NOTHING: Features = NO_TSO.union(NO_USO).union(Features::GUEST_CSUM);

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn who_takes_a_long_frame_gets_it_as_it_was_sent() {
    for six in [false, true] {
        let mut lan = two(Features::empty());
        let (header, frame) = long(&tcp(six, 12, &bytes(60_000)), six, 1400);
        let outcome = lan.pass(0, header, &frame);
        assert_eq!(frame.len() as u64, outcome.bytes);
        let received = lan.received_by(1, 0);
        let expected = Header {
            num_buffers: frame.len().div_ceil(1600) as u16,
            hdr_len: (transport(six) + 32) as u16,
            ..header
        };
        assert_eq!(vec![(expected, frame)], received);
    }
}

#[test]
fn who_doesnt_gets_segments() {
    for (six, declined) in [(false, NO_TSO), (true, NO_TSO), (false, NOTHING), (true, NOTHING)] {
        let mut lan = two(declined);
        let data = bytes(60_001);
        let whole = tcp(six, 12, &data);
        let (header, frame) = long(&whole, six, 1400);
        lan.send_cut(0, 0, header, &frame, &[12, 80, 5000, 5001, 40_000]);
        let outcome = lan.turn(0, 0).unwrap();
        assert!(outcome.charge > outcome.bytes);
        let received = lan.received_by(1, 0);
        assert_eq!(43, received.len());
        let mut got = Vec::new();
        for (index, (header, mut frame)) in received.into_iter().enumerate() {
            if declined == NO_TSO {
                let (expected, same) = partial(&frame, six, false);
                assert_eq!((Header { num_buffers: 1, ..expected }, &same), (header, &frame));
                let sum = checksum(&frame).to_be_bytes();
                frame[transport(six) + 16..][..2].copy_from_slice(&sum);
            } else {
                assert_eq!(Header { num_buffers: 1, ..Header::default() }, header);
            }
            let (header, data) = check(&frame);
            assert_eq!(0xffff_fff0u32.wrapping_add(got.len() as u32), header.sequence_number);
            assert_eq!((77, true), (header.acknowledgment_number, header.ack));
            assert_eq!((index == 42, index == 42), (header.fin, header.psh));
            assert_eq!(index == 0, header.cwr);
            if !six {
                assert_eq!([0, index as u8], frame[18..20]);
            }
            assert_eq!(if index == 42 { 60_001 % 1400 } else { 1400 }, data.len());
            got.extend(data);
        }
        assert_eq!(data, got);
        let counted = lan.statistics(1);
        assert_eq!((43, 43), (counted.received, counted.segments));
        assert_eq!(if declined == NOTHING { 43 } else { 0 }, counted.checksums);
    }
}

/// Of a port without tags into one with tags: places move by four bytes.
#[test]
fn offloads_and_tags_go_together() {
    for declined in [Features::empty(), NO_TSO, NOTHING] {
        let mut lan = Lan::new();
        let plan = |vlan| Plan { vlan, ..Plan::default() };
        lan.add(parameters(0), plan(Vlan::Access(9)), Features::empty());
        lan.add(parameters(1), plan(Vlan::Trunk(VlanSet::ALL)), declined);
        lan.post_many(0, 60, 1600);
        lan.post_many(1, 60, 1600);
        let whole = tcp(false, 0, &bytes(3000));
        let (header, frame) = long(&whole, false, 1460);
        lan.pass(0, header, &frame);
        for (header, mut frame) in lan.received_by(1, 0) {
            let tag: Vec<u8> = frame.drain(12..16).collect();
            assert_eq!(vec![0x81, 0, 0, 9], tag);
            if declined == NOTHING {
                check(&frame);
            } else {
                assert_eq!((38, 16), (header.csum_start, header.csum_offset));
            }
        }
        // And back: 4 bytes are taken off.
        let [(header, frame)] = [long(&whole, false, 1460)];
        let mut frame = [&frame[..12], &[0x81, 0, 0, 9], &frame[12..]].concat();
        frame[..6].copy_from_slice(&mac(0).0);
        frame[6..12].copy_from_slice(&mac(1).0);
        lan.pass(1, Header { csum_start: 38, ..header }, &frame);
        let received = lan.received_by(0, 0);
        assert_eq!(1, received.len());
        assert_eq!((34, 54), (received[0].0.csum_start, received[0].0.hdr_len));
        assert_eq!(frame[16..], received[0].1[12..]);
    }
}

/// Extension headers of IPv6 stay in front of each segment; with one that changes the pseudo header
/// a frame isn't cut.
#[test]
fn extension_headers_are_in_each_segment() {
    // Hop-by-hop options and destination options, of padding.
    let extensions = [60, 0, 1, 4, 0, 0, 0, 0, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let data = bytes(5000);
    let (mut header, mut frame) = long(&tcp(true, 0, &data), true, 1000);
    frame[20] = 0;
    frame.splice(54..54, extensions);
    header.csum_start += 24;
    let mut lan = two(NOTHING);
    lan.pass(0, header, &frame);
    let received = lan.received(1);
    assert_eq!(5, received.len());
    let mut got = Vec::new();
    for mut frame in received {
        assert_eq!(frame.len() - 54, usize::from(u16::from_be_bytes([frame[18], frame[19]])));
        assert_eq!(extensions[..], frame[54..78]);
        // Without them the checksum is the same: their bytes aren't in it.
        frame.drain(54..78);
        frame[20] = 6;
        let len = (frame.len() as u16 - 54).to_be_bytes();
        frame[18..20].copy_from_slice(&len);
        got.extend(check(&frame).1);
    }
    assert_eq!(data, got);
    // A routing header, and one behind another without an end.
    for (at, value) in [(20, 43), (54, 43), (62, 0), (62, 60)] {
        let mut other = frame.clone();
        other[at] = value;
        assert_eq!(0, lan.pass(0, header, &other).bytes);
    }
    assert_eq!(4, lan.statistics(0).bad_header);
}

/// A frame in one segment needs the checksum alone.
#[test]
fn a_short_long_frame_isnt_long() {
    let mut lan = two(NOTHING);
    let whole = tcp(false, 0, &bytes(1000));
    let (header, frame) = long(&whole, false, 1000);
    lan.pass(0, header, &frame);
    assert_eq!(vec![whole], lan.received(1));
}

/// RFC 768: a sum of zero is sent as all ones.
#[test]
fn a_udp_checksum_is_never_zero() {
    let mut lan = two(NOTHING);
    for value in 0..=u16::MAX {
        let data = value.to_be_bytes();
        let frame = udp(false, &data);
        if frame[40..42] == [0xff, 0xff] {
            let (header, sent) = partial(&frame, false, true);
            lan.pass(0, header, &sent);
            assert_eq!(vec![frame], lan.received(1));
            return;
        }
    }
    panic!("there is such a value");
}

#[test]
fn segments_without_room_end_the_frame() {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    lan.add(parameters(1), Plan::default(), NOTHING);
    lan.post_many(1, 2, 1600);
    let (header, frame) = long(&tcp(false, 0, &bytes(7000)), false, 1000);
    lan.pass(0, header, &frame);
    assert_eq!(2, lan.received(1).len());
    assert_eq!(5, lan.statistics(1).no_room);
}

/// Segments of 8 bytes would be some eight thousand frames.
#[test]
fn too_many_segments_arent_made() {
    let mut lan = two(NOTHING);
    let (header, frame) = long(&tcp(false, 0, &bytes(60_000)), false, 8);
    assert_eq!(0, lan.pass(0, header, &frame).bytes);
    assert_eq!(1, lan.statistics(1).oversized);
    let mut lan = two(Features::empty());
    lan.pass(0, header, &frame);
    assert_eq!(1, lan.received(1).len(), "who cuts it itself may have it");
    // Of a byte they would be sixty thousand: no TCP does that.
    lan.pass(0, Header { gso_size: 7, ..header }, &frame);
    assert_eq!((1, 0), (lan.statistics(0).bad_header, lan.received(1).len()));
}

/// A frame for many is copied in one piece of work. Of 64 KiB, cut for each of 63 ports, it would
/// keep all others waiting for milliseconds; TCP sends none to groups.
#[test]
fn a_long_frame_is_not_for_many() {
    let any = Plan { sources: Sources::Any, ..Plan::default() };
    let mut lan = Lan::of(8, any, 2048);
    let (header, mut frame) = long(&tcp(false, 0, &bytes(56_000)), false, 1400);
    for to in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        frame[..6].copy_from_slice(&to.0);
        assert_eq!(0, lan.pass(0, header, &frame).bytes);
    }
    assert_eq!(2, lan.statistics(0).bad_header);
    // 40 segments for a station that any of seven ports may have: 573,440 bytes as charged.
    frame[..6].copy_from_slice(&mac(99).0);
    assert!(lan.pass(0, header, &frame).bytes > 7 * 56_000);
    let (header, mut frame) = long(&tcp(false, 0, &bytes(58_000)), false, 1400);
    frame[..6].copy_from_slice(&mac(99).0);
    assert_eq!(0, lan.pass(0, header, &frame).bytes);
    assert_eq!(1, lan.statistics(0).flooded);
    // What is one segment is for all.
    let (header, mut frame) = long(&tcp(false, 0, &bytes(1000)), false, 1400);
    frame[..6].copy_from_slice(&Mac::BROADCAST.0);
    assert!(lan.pass(0, header, &frame).bytes > 7 * 1000);
}

/// Whoever cuts it, a frame counts for the rate as it is on a wire: with 54 bytes of headers for 8
/// of data a port would send eight times its share.
#[test]
fn segments_count_with_their_headers() {
    for declined in [Features::empty(), NOTHING] {
        for size in [8, 400, 1400] {
            let mut lan = Lan::new();
            let rate = Some(Rate { bytes_per_second: 1_000_000, burst: 1 });
            lan.add(parameters(0), Plan { rate, ..Plan::default() }, Features::empty());
            lan.add(parameters(1), Plan::default(), declined);
            lan.post_many(1, 120, 1600);
            let (header, frame) = long(&tcp(false, 0, &bytes(56_000)), false, size);
            lan.pass(0, header, &frame);
            let wire = 12 + 56_000 + 54 * 56_000u64.div_ceil(size.into());
            let waits = lan.switch.ready_at(lan.guests[0].port) - lan.now;
            // A byte may be ahead, and one nanosecond's worth is to be there again.
            assert_eq!(1000 * (wire - 1) + 1, waits, "{size} {declined:?}");
        }
    }
}

/// A TCP checksum of zero leaves as all ones, in a frame that is whole and in a segment.
#[test]
fn a_checksum_of_zero_is_all_ones() {
    for six in [false, true] {
        let (header, mut frame) = partial(&tcp(six, 0, &bytes(1000)), six, false);
        let end = frame.len() - 2;
        // What the checksum would be with zeros at the end makes it zero, standing there.
        frame[end..].fill(0);
        let missing = checksum(&frame).to_be_bytes();
        frame[end..].copy_from_slice(&missing);
        let mut lan = two(NOTHING);
        lan.pass(0, header, &frame);
        let received = lan.received(1);
        assert_eq!([0xff, 0xff], received[0][transport(six) + 16..][..2]);
        check(&received[0]);

        // The first of two segments, in the same way.
        let (header, mut frame) = long(&tcp(six, 0, &bytes(1500)), six, 1000);
        let end = transport(six) + 20 + 1000 - 2;
        frame[end..][..2].fill(0);
        let mut lan = two(NOTHING);
        lan.pass(0, header, &frame);
        let with_zeros = &lan.received(1)[0];
        let missing = with_zeros[transport(six) + 16..][..2].to_vec();
        frame[end..][..2].copy_from_slice(&missing);
        let mut lan = two(NOTHING);
        lan.pass(0, header, &frame);
        let received = lan.received(1);
        assert_eq!([0xff, 0xff], received[0][transport(six) + 16..][..2]);
        received.iter().for_each(|frame| drop(check(frame)));
    }
}

#[test]
fn the_mtu_holds() {
    let mut lan = two(Features::empty());
    let frame = tcp(false, 0, &bytes(1461));
    lan.pass(0, Header::default(), &frame);
    let (header, frame) = partial(&frame, false, false);
    lan.pass(0, header, &frame);
    let (header, frame) = long(&tcp(false, 0, &bytes(5000)), false, 1461);
    lan.pass(0, header, &frame);
    assert_eq!(3, lan.statistics(0).long);
    let (header, frame) = long(&tcp(false, 0, &bytes(5000)), false, 1460);
    lan.pass(0, header, &frame);
    lan.pass(0, Header::default(), &tcp(false, 0, &bytes(1460)));
    assert_eq!(2, lan.received(1).len());
}

/// Each field of a header wrong, and each feature missing.
#[test]
fn wrong_headers_are_dropped_and_counted() {
    let whole = tcp(false, 0, &bytes(3000));
    let (right, frame) = long(&whole, false, 1000);
    let six = long(&tcp(true, 0, &bytes(3000)), true, 1000).1;
    let mut fragment = frame.clone();
    fragment[20] |= 0x20;
    let mut other = frame.clone();
    other[23] = 17;
    let mut options = frame.clone();
    options[46] = 0x40; // A TCP header of 16 bytes.
    let mut ip = frame.clone();
    ip[14] = 0x44;
    let wrong = [
        (Header { flags: 0, ..right }, &frame),
        (Header { gso_size: 0, ..right }, &frame),
        (Header { gso_type: 2, ..right }, &frame),
        (Header { gso_type: 3, ..right }, &frame),
        (Header { gso_type: 5, ..right }, &frame),
        (Header { gso_type: GSO_ECN, ..right }, &frame),
        (Header { gso_type: GSO_TCPV6, ..right }, &frame),
        (Header { csum_start: 13, ..right }, &frame),
        (Header { csum_start: 35, ..right }, &frame),
        (Header { csum_start: u16::MAX, ..right }, &frame),
        (Header { csum_offset: 15, ..right }, &frame),
        (Header { csum_offset: u16::MAX, ..right }, &frame),
        (Header { csum_start: u16::MAX, csum_offset: u16::MAX, ..right }, &frame),
        (right, &six),
        (right, &fragment),
        (right, &other),
        (right, &options),
        (right, &ip),
    ];
    let mut lan = two(NOTHING);
    for (count, (header, frame)) in wrong.iter().enumerate() {
        assert_eq!(0, lan.pass(0, *header, frame).bytes, "{header:?}");
        assert_eq!(count as u64 + 1, lan.statistics(0).bad_header, "{header:?}");
    }
    // `hdr_len` is a hint: anything goes.
    lan.pass(0, Header { hdr_len: u16::MAX, ..right }, &frame);
    assert_eq!(3, lan.received(1).len());
    // Frames that end before their headers do.
    for len in (0..54).rev() {
        let cut = &frame[..len];
        assert_eq!(0, lan.pass(0, right, cut).bytes, "{len}");
    }
    for missing in [Features::CSUM, Features::HOST_TSO4, Features::HOST_ECN] {
        let mut lan = Lan::new();
        let mut declined = missing;
        if missing == Features::CSUM {
            declined |= Features::HOST_TSO4 | Features::HOST_TSO6 | Features::HOST_ECN;
            declined |= Features::HOST_USO;
        }
        lan.add(parameters(0), Plan::default(), declined);
        lan.add(parameters(1), Plan::default(), Features::empty());
        lan.post_many(1, 20, 1600);
        lan.pass(0, right, &frame);
        assert_eq!(1, lan.statistics(0).bad_header);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is left to the device, what arrives is what etherparse makes.
    #[test]
    fn checksums_are_as_etherparse_makes_them(
        six: bool,
        is_udp: bool,
        data in prop::collection::vec(any::<u8>(), 0..1400),
        options in 0..10usize,
        cuts in prop::collection::vec(0..1500usize, 0..5),
    ) {
        let whole = if is_udp { udp(six, &data) } else { tcp(six, options * 4, &data) };
        let (header, frame) = partial(&whole, six, is_udp);
        let mut lan = two(NOTHING);
        lan.send_cut(0, 0, header, &frame, &cuts);
        lan.turn(0, 0).unwrap();
        prop_assert_eq!(vec![whole], lan.received(1));
    }

    /// Segments together are the data, and each is right.
    #[test]
    fn segments_are_right(
        six: bool,
        data in prop::collection::vec(any::<u8>(), 1..20_000),
        options in 0..10usize,
        size in 400..1400u16,
        cuts in prop::collection::vec(0..20_000usize, 0..8),
    ) {
        let (mut header, frame) = long(&tcp(six, options * 4, &data), six, size);
        header.gso_type &= !GSO_ECN;
        let mut lan = two(NOTHING);
        lan.send_cut(0, 0, header, &frame, &cuts);
        lan.turn(0, 0).unwrap();
        let mut got = Vec::new();
        for frame in lan.received(1) {
            let (header, part) = check(&frame);
            prop_assert_eq!(0xffff_fff0u32.wrapping_add(got.len() as u32), header.sequence_number);
            prop_assert!(part.len() <= size.into());
            got.extend(part);
        }
        prop_assert_eq!(data, got);
    }
}
