//! UDP that is to be cut into packets, of guests and of ways out: against etherparse's packets.
mod guest;
mod packets;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use guest::wire::{FAR, Wire};
use guest::{Lan, frame, mac, parameters};
use net::header::{GSO_UDP, Header, NEEDS_CSUM};
use net::{Features, Finish, MAX_SEGMENTS, MAX_UNCUT, Mac, Parameters, Plan, Task};
use packets::{partial, transport, udp};
use proptest::prelude::*;

const NO_USO: Features = Features::GUEST_USO4.union(Features::GUEST_USO6);
const NO_TSO: Features =
    Features::GUEST_TSO4.union(Features::GUEST_TSO6).union(Features::GUEST_ECN);
const NOTHING: Features = NO_USO.union(NO_TSO).union(Features::GUEST_CSUM);

/// Guest 0, and guest 1 whose driver declines these.
fn two(declined: Features) -> Lan {
    let mut lan = Lan::of(1, Plan::default(), 2048);
    lan.add(parameters(1), Plan::default(), declined);
    lan.post_many(1, 120, 1600);
    lan
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// As a driver sends it that leaves the packets to the device.
fn long(six: bool, data: &[u8], size: u16) -> (Header, Vec<u8>) {
    let (header, frame) = partial(&udp(six, data), six, true);
    (Header { gso_type: GSO_UDP, gso_size: size, ..header }, frame)
}

/// The packets that a system without any offload would have sent instead: etherparse's, with IDs
/// that count.
fn model(six: bool, data: &[u8], size: u16) -> Vec<Vec<u8>> {
    let packet = |(index, part): (usize, &[u8])| {
        let mut frame = udp(six, part);
        if !six {
            frame[18..20].copy_from_slice(&(index as u16).to_be_bytes());
            let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(NetSlice::Ipv4(ip)) = &parsed.net else { panic!("{frame:?}") };
            let sum = ip.header().to_header().calc_header_checksum();
            drop(parsed);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    data.chunks(size.into()).enumerate().map(packet).collect()
}

#[test]
fn who_takes_a_long_packet_gets_it_as_it_was_sent() {
    for six in [false, true] {
        // Whether it takes TCP uncut is another question.
        let mut lan = two(NO_TSO);
        let (header, frame) = long(six, &bytes(60_000), 1400);
        let outcome = lan.pass(0, header, &frame);
        assert_eq!(frame.len() as u64, outcome.bytes);
        let expected = Header {
            num_buffers: frame.len().div_ceil(1600) as u16,
            hdr_len: (transport(six) + 8) as u16,
            ..header
        };
        assert_eq!(vec![(expected, frame)], lan.received_by(1, 0));
        // Four and six are apart.
        let other = if six { Features::GUEST_USO6 } else { Features::GUEST_USO4 };
        let mut lan = two(other);
        let (header, frame) = long(six, &bytes(3000), 1400);
        lan.pass(0, header, &frame);
        assert_eq!(3, lan.received(1).len());
    }
}

/// Of a byte each they would be sixty thousand, whoever makes them.
#[test]
fn too_many_packets_arent_made_nor_handed_on() {
    for declined in [Features::empty(), NOTHING] {
        let mut lan = two(declined);
        let most = MAX_SEGMENTS as usize;
        let (header, frame) = long(false, &bytes(most + 1), 1);
        assert_eq!(0, lan.pass(0, header, &frame).bytes);
        assert_eq!((1, 0), (lan.statistics(1).oversized, lan.received(1).len()));
        let (header, frame) = long(false, &bytes(most), 1);
        lan.post_many(1, most - 120, 100);
        lan.pass(0, header, &frame);
        assert_eq!(most, lan.received(1).len());
        // Linux takes no more than so many uncut.
        for (count, whole) in [(MAX_UNCUT as usize, 1), (MAX_UNCUT as usize + 1, 65)] {
            let (header, frame) = long(false, &bytes(count), 1);
            lan.post_many(1, count, 100);
            lan.pass(0, header, &frame);
            let expected = if declined == NOTHING { count } else { whole };
            assert_eq!(expected, lan.received(1).len());
        }
    }
}

/// A controller isn't asked to cut UDP. The last packet may be shorter than it takes a checksum
/// for.
#[test]
fn packets_are_cut_for_a_controller() {
    let mut wire = Wire::finished(&[0], Finish::ByController);
    let data = bytes(2 * 1400 + 3);
    let (header, mut frame) = long(false, &data, 1400);
    frame[..6].copy_from_slice(&FAR.0);
    frame[6..12].copy_from_slice(&mac(0).0);
    wire.lan.pass(0, header, &frame);
    let mut expected = model(false, &data, 1400);
    for frame in &mut expected {
        frame[..6].copy_from_slice(&FAR.0);
        frame[6..12].copy_from_slice(&mac(0).0);
    }
    assert_eq!(expected, wire.out());
    assert_eq!(wire.last, Some((Task::Nothing, 14)));
}

/// The host's kernel cuts it, if it is one that does.
#[test]
fn packets_go_out_whole_to_who_cuts_them() {
    for udp in [false, true] {
        let mut wire = Wire::finished(&[0], Finish::ByHeader { udp });
        let (header, mut frame) = long(true, &bytes(5000), 1400);
        frame[..6].copy_from_slice(&FAR.0);
        frame[6..12].copy_from_slice(&mac(0).0);
        wire.lan.pass(0, header, &frame);
        let out = wire.out();
        let kind = wire.headers.pop().unwrap().gso_type;
        assert_eq!(if udp { (1, GSO_UDP) } else { (4, 0) }, (out.len(), kind));
        assert_eq!(udp, out[0] == frame);
    }
}

/// Each field of a header wrong, and the feature missing.
#[test]
fn wrong_headers_are_dropped_and_counted() {
    let (right, frame) = long(false, &bytes(3000), 1000);
    let mut tcp = frame.clone();
    tcp[23] = 6;
    let mut fragment = frame.clone();
    fragment[20] |= 0x20;
    let wrong = [
        (Header { flags: 0, ..right }, &frame),
        (Header { gso_size: 0, ..right }, &frame),
        // UDP has no CWR.
        (Header { gso_type: GSO_UDP | 0x80, ..right }, &frame),
        (Header { gso_type: 3, ..right }, &frame),
        (Header { csum_start: 35, ..right }, &frame),
        (Header { csum_offset: 16, ..right }, &frame),
        (right, &tcp),
        (right, &fragment),
    ];
    let mut lan = two(NOTHING);
    for (count, (header, frame)) in wrong.iter().enumerate() {
        assert_eq!(0, lan.pass(0, *header, frame).bytes, "{header:?}");
        assert_eq!(count as u64 + 1, lan.statistics(0).bad_header, "{header:?}");
    }
    for len in 0..42 {
        assert_eq!(0, lan.pass(0, right, &frame[..len]).bytes, "{len}");
    }
    let mut lan = Lan::new();
    lan.add(parameters(0), Plan::default(), Features::HOST_USO);
    lan.add(parameters(1), Plan::default(), Features::empty());
    lan.post_many(1, 20, 1600);
    lan.pass(0, right, &frame);
    assert_eq!((1, 0), (lan.statistics(0).bad_header, lan.received(1).len()));
}

/// One that doesn't make or take checksums isn't offered what asks for them.
#[test]
fn features_go_together() {
    let offered = |withheld| {
        let asked = Parameters { withheld, ..parameters(0) };
        net::Config::new(asked).unwrap().features()
    };
    let all = NO_USO | Features::HOST_USO;
    assert!(offered(Features::empty()).contains(all));
    assert!(!offered(Features::CSUM).intersects(Features::HOST_USO));
    assert!(!offered(Features::GUEST_CSUM).intersects(NO_USO));
    let config = net::Config::new(parameters(0)).unwrap();
    let accepted = Features::VERSION_1 | Features::GUEST_USO6;
    assert!(config.accept(accepted.bits()).is_err());
    assert!(config.accept((accepted | Features::GUEST_CSUM).bits()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever cuts it, what arrives is what was sent without.
    #[test]
    fn packets_are_as_etherparse_makes_them(
        six: bool,
        data in prop::collection::vec(any::<u8>(), 1..20_000),
        size in 200..1400u16,
        cuts in prop::collection::vec(0..20_000usize, 0..8),
        sums: bool,
    ) {
        let (header, frame) = long(six, &data, size);
        let mut lan = two(if sums { NOTHING } else { NO_USO });
        lan.send_cut(0, 0, header, &frame, &cuts);
        lan.turn(0, 0).unwrap();
        let mut expected = model(six, &data, size);
        if !sums {
            // The sum of the pseudo header is in the checksum's place.
            expected = expected.iter().map(|frame| partial(frame, six, true).1).collect();
        }
        prop_assert_eq!(expected, lan.received(1));
    }
}

/// It comes from a system that asks nobody what is left to be done for its packets (a packet socket
/// at one end of a veth, QUIC at the other). It may be for a group.
#[test]
fn long_packets_of_udp_come_in_with_headers() {
    let mut wire = Wire::finished(&[], Finish::ByHeader { udp: true });
    for (guest, declined) in (0..).zip([NO_USO, NOTHING]) {
        wire.lan.add(parameters(guest), Plan::default(), declined);
        wire.lan.post_many(guest.into(), 100, 2048);
    }
    let data: Vec<u8> = (0..5000u32).map(|at| (at * at) as u8).collect();
    for (six, to) in [(false, mac(1)), (true, mac(1)), (true, Mac::BROADCAST), (false, mac(0))] {
        let ethernet = PacketBuilder::ethernet2(FAR.0, to.0);
        let ip = match six {
            true => ethernet.ipv6([0xfd; 16], [0xfe; 16], 9),
            false => ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9),
        };
        let (mut bytes, start) = (Vec::new(), if six { 54 } else { 34 });
        ip.udp(1, 443).write(&mut bytes, &data).unwrap();
        let header = Header {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP,
            gso_size: 1200,
            csum_start: start as u16,
            csum_offset: 6,
            ..Header::default()
        };
        assert_eq!(0, wire.arrives(&[&header.bytes()[..], &bytes].concat()).dropped);
        let receivers = if to == mac(0) { vec![0] } else { vec![1] };
        for receiver in receivers {
            let received = wire.lan.received_by(receiver, 0);
            assert_eq!(
                vec![1200, 1200, 1200, 1200, 200],
                received.iter().map(|(_, frame)| frame.len() - start - 8).collect::<Vec<_>>()
            );
            let got = received.iter().flat_map(|(_, frame)| &frame[start + 8..]);
            assert_eq!(data, got.copied().collect::<Vec<u8>>());
            for (at, (header, frame)) in (0..).zip(&received) {
                assert_eq!(0, header.gso_type);
                let parsed = SlicedPacket::from_ethernet(frame).unwrap();
                let Some(TransportSlice::Udp(udp)) = parsed.transport else { panic!("{frame:?}") };
                assert_eq!(usize::from(udp.length()), frame.len() - start);
                let sum = match parsed.net {
                    Some(NetSlice::Ipv4(ip)) => {
                        let ip = ip.header().to_header();
                        assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
                        assert_eq!(
                            (at, frame.len()),
                            (ip.identification, 14 + usize::from(ip.total_len))
                        );
                        udp.to_header().calc_checksum_ipv4(&ip, udp.payload())
                    }
                    Some(NetSlice::Ipv6(ip)) => {
                        assert_eq!(frame.len(), 54 + usize::from(ip.header().payload_length()));
                        udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                    }
                    _ => panic!("no IP"),
                };
                // A guest that does it itself gets the pseudo header's.
                assert!(header.flags == NEEDS_CSUM || udp.checksum() == sum.unwrap());
            }
        }
        wire.lan.received(0);
    }
    // UDP has no CWR.
    let ecn =
        Header { flags: NEEDS_CSUM, gso_type: GSO_UDP | 0x80, gso_size: 9, ..Header::default() };
    let ecn = Header { csum_start: 34, csum_offset: 6, ..ecn };
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(FAR.0, mac(1).0).ipv4([1; 4], [2; 4], 9).udp(1, 2);
    builder.write(&mut bytes, &[0; 99]).unwrap();
    assert_eq!(1, wire.arrives(&[&ecn.bytes()[..], &bytes].concat()).dropped);
    // Nor what is no UDP.
    let wrong = wire.lan.statistics(0).bad_header;
    let header = Header { flags: NEEDS_CSUM, gso_type: GSO_UDP, gso_size: 9, ..Header::default() };
    wire.lan.pass(0, header, &frame(mac(1), mac(0), &[0; 100]));
    assert_eq!(wrong + 1, wire.lan.statistics(0).bad_header);
}
