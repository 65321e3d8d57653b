//! UDP that is to be cut into packets, as some ways out hand it in: against etherparse's checksums.
mod guest;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use guest::wire::{FAR, Wire};
use guest::{frame, mac, parameters};
use net::header::{GSO_UDP, Header, NEEDS_CSUM};
use net::{Features, Finish, Mac, Plan};

/// No guest sends or takes it so. It comes from a system that asks nobody what is left to be done
/// for its packets (a packet socket at one end of a veth, QUIC at the other). It may be for a
/// group.
#[test]
fn long_packets_of_udp_come_in_with_headers() {
    let mut wire = Wire::finished(&[0], Finish::ByHeader);
    let declined = Features::GUEST_CSUM | Features::GUEST_TSO4 | Features::GUEST_TSO6;
    let declined = declined | Features::GUEST_ECN;
    let second = wire.lan.add(parameters(1), Plan::default(), declined);
    wire.lan.post_many(second, 100, 2048);
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
        let receivers = if to == mac(0) { vec![0] } else { vec![second] };
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
    // No guest may.
    let wrong = wire.lan.statistics(0).bad_header;
    let header = Header { flags: NEEDS_CSUM, gso_type: GSO_UDP, gso_size: 9, ..Header::default() };
    wire.lan.pass(0, header, &frame(mac(1), mac(0), &[0; 100]));
    assert_eq!(wrong + 1, wire.lan.statistics(0).bad_header);
}
