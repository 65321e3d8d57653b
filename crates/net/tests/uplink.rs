//! A port to the wire: which frames go out and how, and who gets those that come in.
mod guest;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use guest::wire::{FAR, Wire};
use guest::{frame, mac, parameters};
use net::header::{GSO_TCPV4, GSO_UDP, Header, NEEDS_CSUM};
use net::{BadPort, Features, Finish, Mac, Plan, Task, UPLINK_MEMORY, WIRE_FRAME};
use window::Memory;

/// The frame with a tag behind the addresses.
fn tagged(control: u16, frame: &[u8]) -> Vec<u8> {
    let [a, b] = control.to_be_bytes();
    [&frame[..12], &[0x81, 0, a, b], &frame[12..]].concat()
}

#[test]
fn frames_for_nobody_here_go_out_and_others_stay() {
    let mut wire = Wire::new(&[0, 0]);
    let far = frame(FAR, mac(0), &[3; 100]);
    wire.lan.pass(0, Header::default(), &far);
    let near = frame(mac(1), mac(0), &[4; 100]);
    wire.lan.pass(0, Header::default(), &near);
    let all = frame(Mac::BROADCAST, mac(0), &[5; 50]);
    wire.lan.pass(0, Header::default(), &all);
    assert_eq!(wire.out(), [far, all.clone()]);
    assert_eq!(wire.lan.received(1), [near, all]);
    let counts = wire.lan.switch.statistics(wire.port);
    assert_eq!((counts.received, counts.received_bytes), (2, 114 + 64));
}

#[test]
fn what_comes_in_goes_to_whom_it_is_for() {
    let mut wire = Wire::new(&[0, 0]);
    let one = frame(mac(1), FAR, &[1; 1500]);
    assert_eq!(wire.arrives(&one).dropped, 0);
    let all = frame(Mac::BROADCAST, FAR, &[2; 46]);
    wire.arrives(&all);
    // Nobody here has it, and the wire knows it already.
    assert_eq!(wire.arrives(&frame(Mac([2; 6]), FAR, &[3; 46])).dropped, 1);
    assert_eq!(wire.lan.received(0), std::slice::from_ref(&all));
    assert_eq!(wire.lan.received(1), [one, all]);
    assert!(wire.out().is_empty());
}

/// Who shares a transmit queue with whom doesn't follow from addresses, which may be anything: of
/// as many ports as the controller has queues, made one after the other, none shares one.
#[test]
fn senders_are_told_apart_by_their_ports() {
    let mut wire = Wire::new(&[]);
    for last in [4, 8, 12, 16] {
        let parameters = net::Parameters { mac: Mac([2, 0, 0, 0, 0, last]), ..parameters(0) };
        let guest = wire.lan.add(parameters, Plan::default(), Features::empty());
        wire.lan.pass(guest, Header::default(), &frame(FAR, parameters.mac, &[3; 100]));
    }
    let leaving = std::iter::from_fn(|| wire.lan.switch.leaving(wire.port));
    let mut senders: Vec<_> = leaving.map(|leaving| leaving.sender % 4).collect();
    senders.sort_unstable();
    assert_eq!(senders, [0, 1, 2, 3]);
}

/// A frame with the address of a port's own isn't from the wire.
#[test]
fn the_wire_can_not_pose_as_a_guest() {
    let mut wire = Wire::new(&[0, 0]);
    for from in [mac(0), Mac::default(), Mac::BROADCAST] {
        assert_eq!(wire.arrives(&frame(mac(1), from, &[1; 46])).dropped, 1);
    }
    assert_eq!(wire.lan.switch.statistics(wire.port).spoofed, 3);
    assert!(wire.lan.received(1).is_empty());
}

#[test]
fn what_is_no_frame_is_dropped() {
    let mut wire = Wire::new(&[0]);
    for bytes in [0, 1, 13] {
        assert_eq!(wire.arrives(&vec![0xFF; bytes]).dropped, 1);
    }
    let long = frame(mac(0), FAR, &[1; 1501]);
    assert_eq!(wire.arrives(&long).dropped, 1);
    // More than there is room for is no more than that.
    let port = wire.port;
    assert_eq!(wire.lan.switch.arrived(port, u32::MAX, 0).dropped, 1);
    let counts = wire.lan.switch.statistics(port);
    assert_eq!((counts.short, counts.long), (3, 2));
    assert!(wire.lan.received(0).is_empty());
}

#[test]
fn vlans_have_tags_on_the_wire() {
    let mut wire = Wire::new(&[0, 7, 9]);
    let sent = frame(FAR, mac(1), &[1; 1500]);
    wire.lan.pass(1, Header::default(), &sent);
    let out = wire.out();
    assert_eq!(out, [tagged(7, &sent)]);
    assert_eq!(out[0].len() as u32, WIRE_FRAME);
    let all = frame(Mac::BROADCAST, FAR, &[2; 1500]);
    wire.arrives(&tagged(0x6007, &all));
    assert_eq!(wire.lan.received(1), std::slice::from_ref(&all));
    // A tag for its priority alone, and a number that is none.
    wire.arrives(&tagged(0x6000, &all));
    wire.arrives(&tagged(0x0FFF, &all));
    assert_eq!(wire.lan.received(0), std::slice::from_ref(&all));
    // One of another VLAN isn't the guest's, whatever its address.
    wire.arrives(&tagged(9, &frame(mac(1), FAR, &[2; 46])));
    wire.arrives(&all);
    assert_eq!(wire.lan.received(0), [all]);
    assert!(wire.lan.received(1).is_empty() && wire.lan.received(2).is_empty());
}

/// A frame with 60,000 bytes of data that is to be cut into segments of this size, and the data.
fn long(size: u16) -> (Header, Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(0).0, FAR.0).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let data: Vec<u8> = (0..60000).map(|at| (at / 7) as u8).collect();
    builder.tcp(1234, 80, 1, 8192).write(&mut bytes, &data).unwrap();
    let header = Header {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: size,
        hdr_len: 54,
        csum_start: 34,
        csum_offset: 16,
        ..Header::default()
    };
    // The pseudo header's sum, which a driver leaves there.
    let len = (bytes.len() - 34) as u32;
    let words = bytes[26..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum = words.sum::<u32>() + 6 + len;
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    bytes[50..52].copy_from_slice(&(sum as u16).to_be_bytes());
    (header, bytes, data)
}

/// Checksums and segments that a guest left out are made before a frame leaves.
#[test]
fn frames_leave_whole() {
    let mut wire = Wire::new(&[0]);
    let (header, bytes, data) = long(1460);
    wire.lan.pass(0, header, &bytes);
    let out = wire.out();
    assert_eq!(out.len(), 60000usize.div_ceil(1460));
    let mut arrived = Vec::new();
    for frame in out {
        assert!(frame.len() <= 1514);
        let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = parsed.net else { panic!("{frame:?}") };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        let Some(TransportSlice::Tcp(tcp)) = parsed.transport else { panic!("{frame:?}") };
        let right = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
        assert_eq!(tcp.checksum(), right.unwrap());
        arrived.extend_from_slice(tcp.payload());
    }
    assert_eq!(arrived, data);
}

#[test]
fn frames_longer_than_the_wires_do_not_leave() {
    let mut wire = Wire::new(&[]);
    let asked = net::Parameters { mtu: 9000, ..parameters(0) };
    let guest = wire.lan.add(asked, Plan::default(), Features::empty());
    wire.lan.pass(guest, Header::default(), &frame(FAR, mac(0), &[1; 1501]));
    wire.lan.pass(guest, Header::default(), &frame(FAR, mac(0), &[1; 1500]));
    assert_eq!(wire.out().len(), 1);
    assert_eq!(wire.lan.switch.statistics(wire.port).oversized, 1);
}

#[test]
fn more_than_can_wait_is_dropped_and_counted() {
    let mut wire = Wire::new(&[0]);
    for round in 0..3 {
        for number in 0..=u8::MAX {
            wire.lan.pass(0, Header::default(), &frame(FAR, mac(0), &[number; 60]));
        }
        for number in 0..6 {
            wire.lan.pass(0, Header::default(), &frame(FAR, mac(0), &[number; 60]));
        }
        let out = wire.out();
        let numbers: Vec<u8> = out.iter().map(|frame| frame[14]).collect();
        assert_eq!(numbers, (0..=u8::MAX).collect::<Vec<u8>>());
        let counts = wire.lan.switch.statistics(wire.port);
        assert_eq!(counts.no_room, 6 * (round + 1));
    }
}

#[test]
fn without_a_link_nothing_goes_or_comes() {
    let mut wire = Wire::new(&[0]);
    wire.lan.switch.set_link(wire.port, false);
    wire.lan.pass(0, Header::default(), &frame(FAR, mac(0), &[1; 60]));
    assert_eq!(wire.arrives(&frame(mac(0), FAR, &[1; 60])).dropped, 1);
    assert!(wire.out().is_empty() && wire.lan.received(0).is_empty());
    assert_eq!(wire.lan.switch.statistics(wire.port).down, 2);
}

#[test]
fn a_switch_has_one_uplink() {
    let mut wire = Wire::new(&[0]);
    let memory = Memory::new(&[(0, UPLINK_MEMORY)], 0);
    let span = memory.window().span(0, UPLINK_MEMORY).unwrap();
    let short = span.sub(0, UPLINK_MEMORY - 4096).unwrap();
    assert_eq!(wire.lan.switch.add_uplink(short, Finish::Here), Err(BadPort::Memory));
    assert_eq!(
        wire.lan.switch.add_uplink(span, Finish::Here),
        Err(BadPort::Address(Mac::default()))
    );
}

/// A frame is left as it is, wherever in the memory it is, with the task that it needs.
#[test]
fn a_controller_that_can_cuts_segments() {
    let mut wire = Wire::finished(&[0, 7], Finish::ByController);
    let (header, bytes, _) = long(1460);
    let task = |start, headers| Task::Segments { start, six: false, headers, size: 1460 };
    for round in 0..40 {
        // 30 places, 1, and 30 again: it goes over the memory's end at many of its bytes.
        wire.lan.pass(0, header, &bytes);
        wire.lan.pass(0, Header::default(), &frame(FAR, mac(0), &[round; 60]));
        assert_eq!(wire.out(), [bytes.clone(), frame(FAR, mac(0), &[round; 60])]);
        assert_eq!(wire.last, Some((Task::Nothing, 14)));
        wire.lan.pass(0, header, &bytes);
        assert_eq!(wire.out(), std::slice::from_ref(&bytes));
        assert_eq!(wire.last, Some((task(34, 54), 14)));
    }
    assert_eq!(wire.lan.switch.statistics(wire.port).segments, 0);
    let mut from_one = bytes.clone();
    from_one[6..12].copy_from_slice(&mac(1).0);
    wire.lan.pass(1, header, &from_one);
    assert_eq!(wire.out(), [tagged(7, &from_one)]);
    assert_eq!(wire.last, Some((task(38, 58), 18)));
}

#[test]
fn seven_long_frames_may_wait_for_a_controller() {
    let mut wire = Wire::finished(&[0], Finish::ByController);
    let (header, bytes, _) = long(1460);
    for _ in 0..9 {
        wire.lan.pass(0, header, &bytes);
    }
    assert_eq!(wire.out().len(), 8, "of 30 places each");
    assert_eq!(wire.lan.switch.statistics(wire.port).no_room, 1);
    // Without one they would be 41 frames each.
    wire.lan.pass(0, header, &bytes);
    assert_eq!(wire.out().len(), 1);
}

/// Segments that are too short for a controller are cut here, with their checksums.
#[test]
fn segments_too_short_for_a_controller_are_cut_here() {
    let mut wire = Wire::finished(&[0], Finish::ByController);
    let (header, bytes, _) = long(255);
    wire.lan.pass(0, header, &bytes);
    assert_eq!(wire.out().len(), 60000usize.div_ceil(255));
    assert_eq!(wire.last, Some((Task::Nothing, 14)));
    let made = wire.lan.switch.statistics(wire.port).checksums;
    assert_eq!(made, 60000_u64.div_ceil(255));
    let ecn = Header { gso_type: GSO_TCPV4 | 0x80, gso_size: 1460, ..header };
    wire.lan.pass(0, ecn, &bytes);
    assert_eq!(wire.out().len(), 60000usize.div_ceil(1460), "and those with CWR");
    assert_eq!(wire.last, Some((Task::Nothing, 14)));
}

/// A frame that ends where its last place would, but for its header, has another one.
#[test]
fn frames_that_fill_their_places_leave_whole() {
    let mut wire = Wire::finished(&[0], Finish::ByHeader { udp: true });
    let (header, bytes, _) = long(1460);
    let bytes = &bytes[..4096];
    wire.lan.pass(0, header, bytes);
    wire.lan.pass(0, header, bytes);
    assert_eq!(wire.out(), [bytes, bytes]);
}

#[test]
fn a_checksum_that_a_controller_knows_is_left_to_it() {
    let mut wire = Wire::finished(&[0], Finish::ByController);
    let header = |start, offset| Header {
        flags: NEEDS_CSUM,
        csum_start: start,
        csum_offset: offset,
        ..Header::default()
    };
    let mut ip = frame(FAR, mac(0), &[0x45; 100]);
    ip[12..14].copy_from_slice(&[8, 0]);
    let short = ip[..59].to_vec();
    let mut other = ip.clone();
    other[12..14].copy_from_slice(&[0x88, 0xB5]);
    for (frame, start, offset, task) in [
        (&ip, 34, 16, Task::Checksum { start: 34, tcp: true }),
        (&ip, 54, 6, Task::Checksum { start: 54, tcp: false }),
        // Nowhere that it knows; no IP header in front; no IP.
        (&ip, 34, 8, Task::Nothing),
        (&ip, 33, 16, Task::Nothing),
        (&other, 34, 16, Task::Nothing),
        // It would be padded, and the sum of the pseudo header knows nothing of that.
        (&short, 34, 16, Task::Nothing),
    ] {
        wire.lan.pass(0, header(start, offset), frame);
        let out = wire.out();
        assert_eq!(wire.last.unwrap().0, task, "{start} {offset}");
        assert_eq!(out[0] == *frame, task != Task::Nothing, "{start} {offset}");
    }
    assert_eq!(wire.lan.switch.statistics(wire.port).checksums, 4);
}

/// What a guest asks for goes out as it is, segments of any size and those with CWR among it.
#[test]
fn with_headers_all_is_left_to_who_reads_them() {
    let mut wire = Wire::finished(&[0, 7], Finish::ByHeader { udp: true });
    let (header, bytes, _) = long(255);
    let ecn = Header { gso_type: GSO_TCPV4 | 0x80, ..header };
    let expected = |header: Header| Header { num_buffers: 1, ..header };
    for asked in [header, ecn] {
        // Its own length of the headers isn't believed.
        wire.lan.pass(0, Header { hdr_len: 9999, ..asked }, &bytes);
        assert_eq!(wire.out(), std::slice::from_ref(&bytes));
        assert_eq!(wire.headers.pop(), Some(expected(asked)));
    }
    let short = Header { flags: NEEDS_CSUM, csum_start: 14, csum_offset: 2, ..Header::default() };
    wire.lan.pass(0, short, &frame(FAR, mac(0), &[1; 40]));
    assert_eq!(wire.out(), [frame(FAR, mac(0), &[1; 40])]);
    assert_eq!(wire.headers.pop(), Some(expected(short)));
    let mut from_one = bytes.clone();
    from_one[6..12].copy_from_slice(&mac(1).0);
    wire.lan.pass(1, header, &from_one);
    assert_eq!(wire.out(), [tagged(7, &from_one)]);
    let behind_tag = Header { hdr_len: 58, csum_start: 38, ..header };
    assert_eq!(wire.headers.pop(), Some(expected(behind_tag)));
    let counts = wire.lan.switch.statistics(wire.port);
    assert_eq!((counts.segments, counts.checksums), (0, 0));
}

/// What comes in with a header is cut for a guest that can't take it, and for others it isn't.
#[test]
fn long_frames_come_in_with_headers() {
    let mut wire = Wire::finished(&[0], Finish::ByHeader { udp: true });
    let plain = net::Parameters { packed: false, ..parameters(1) };
    let declined = Features::GUEST_CSUM | Features::GUEST_TSO4 | Features::GUEST_TSO6;
    let declined = declined | Features::GUEST_ECN;
    let declined = declined | Features::GUEST_USO4 | Features::GUEST_USO6;
    let second = wire.lan.add(plain, Plan::default(), declined);
    wire.lan.post_many(second, 100, 2048);
    let (header, bytes, data) = long(1460);
    let to = |guest: u8| {
        let addresses = [&mac(guest).0[..], &FAR.0].concat();
        [&header.bytes()[..], &addresses, &bytes[12..]].concat()
    };
    assert_eq!(wire.arrives(&to(0)).dropped, 0);
    let received = wire.lan.received_by(0, 0);
    let [(asked, whole)] = &received[..] else { panic!("one frame, uncut") };
    assert_eq!((asked.gso_type, asked.gso_size, asked.hdr_len), (GSO_TCPV4, 1460, 54));
    assert_eq!(whole[12..], bytes[12..]);
    assert_eq!(wire.arrives(&to(1)).dropped, 0);
    let received = wire.lan.received(second);
    assert_eq!(received.len(), 60000usize.div_ceil(1460));
    assert_eq!(received.iter().flat_map(|frame| &frame[54..]).copied().collect::<Vec<_>>(), data);
    for frame in received {
        let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = parsed.net else { panic!("{frame:?}") };
        let Some(TransportSlice::Tcp(tcp)) = parsed.transport else { panic!("{frame:?}") };
        let right = tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination());
        assert_eq!(tcp.checksum(), right.unwrap());
    }
}

/// Headers that say what isn't so, or what nobody asked for, and frames that are none.
#[test]
fn headers_from_the_wire_are_checked() {
    let mut wire = Wire::finished(&[0], Finish::ByHeader { udp: true });
    let (header, bytes, _) = long(1460);
    let for_guest = [&mac(0).0[..], &FAR.0, &bytes[12..]].concat();
    let wrong = [
        // UDP that is TCP, with ECN, which UDP doesn't have.
        Header { gso_type: GSO_UDP, ..header },
        Header { gso_type: GSO_UDP | 0x80, ..header },
        Header { gso_size: 0, ..header },
        Header { csum_start: 0xFFFF, ..header },
        Header { csum_offset: 0xFFF0, gso_type: 0, ..header },
        Header { flags: 0, ..header },
        // As it is it is longer than the wire's.
        Header::default(),
    ];
    for header in wrong {
        let came = [&header.bytes()[..], &for_guest].concat();
        assert_eq!(wire.arrives(&came).dropped, 1, "{header:?}");
    }
    for bytes in [0, 1, 11, 12, 25] {
        assert_eq!(wire.arrives(&vec![0; bytes]).dropped, 1);
    }
    let port = wire.port;
    assert_eq!(wire.lan.switch.arrived(port, u32::MAX, 0).dropped, 1);
    assert!(wire.lan.received(0).is_empty());
}
