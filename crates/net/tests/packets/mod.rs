//! Packets of TCP and UDP from guest 0 to guest 1, right or left to a device to be made right, and
//! etherparse's look at what arrives.
#![allow(dead_code, reason = "each test uses a part")]

use crate::guest::mac;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use net::header::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, Header, NEEDS_CSUM};

pub const A4: [u8; 4] = [10, 0, 0, 1];
pub const B4: [u8; 4] = [10, 0, 0, 255];
pub const A6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 1];
pub const B6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 2];

/// A frame of TCP from guest 0 to guest 1, all of it right.
pub fn tcp(six: bool, options: usize, data: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
    let ip = if six { ethernet.ipv6(A6, B6, 64) } else { ethernet.ipv4(A4, B4, 64) };
    let mut header = TcpHeader::new(1234, 80, 0xffff_fff0, 8192);
    header.acknowledgment_number = 77;
    (header.ack, header.psh, header.fin, header.cwr) = (true, true, true, true);
    header.set_options_raw(&vec![1; options]).unwrap();
    let builder = ip.tcp_header(header);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, data).unwrap();
    let sum = checksum(&bytes).to_be_bytes();
    bytes[transport(six) + 16..][..2].copy_from_slice(&sum);
    bytes
}

pub fn udp(six: bool, data: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(mac(0).0, mac(1).0);
    let ip = if six { ethernet.ipv6(A6, B6, 64) } else { ethernet.ipv4(A4, B4, 64) };
    let mut bytes = Vec::new();
    ip.udp(1234, 53).write(&mut bytes, data).unwrap();
    bytes
}

pub fn transport(six: bool) -> usize {
    if six { 54 } else { 34 }
}

/// The pseudo header's sum, by words (RFC 9293, 3.1; RFC 8200, 8.1).
pub fn pseudo(frame: &[u8], six: bool, protocol: u8) -> u16 {
    let addresses = if six { &frame[22..54] } else { &frame[26..34] };
    let words = addresses.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let len = (frame.len() - transport(six)) as u32;
    let mut sum = words.sum::<u32>() + u32::from(protocol) + (len >> 16) + (len & 0xffff);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The frame as a driver sends it that leaves the checksum to the device.
pub fn partial(frame: &[u8], six: bool, is_udp: bool) -> (Header, Vec<u8>) {
    let (protocol, offset) = if is_udp { (17, 6) } else { (6, 16) };
    let start = transport(six);
    let mut frame = frame.to_vec();
    let sum = pseudo(&frame, six, protocol);
    frame[start + offset..][..2].copy_from_slice(&sum.to_be_bytes());
    let header = Header {
        flags: NEEDS_CSUM,
        csum_start: start as u16,
        csum_offset: offset as u16,
        ..Header::default()
    };
    (header, frame)
}

/// As a driver sends it that leaves the segments to the device.
pub fn long(frame: &[u8], six: bool, size: u16) -> (Header, Vec<u8>) {
    let (mut header, frame) = partial(frame, six, false);
    header.gso_type = if six { GSO_TCPV6 } else { GSO_TCPV4 } | GSO_ECN;
    header.gso_size = size;
    (header, frame)
}

/// The checksum that the TCP frame should have. Lengths and IPv4's checksum are right.
///
/// All ones stand for zero. A device knows where a checksum is and not whether TCP or UDP reads it,
/// and UDP has zero for "no checksum" (RFC 768). Linux' `skb_checksum_help` does the same; who
/// adds up the packet finds either right (RFC 1624, 3).
pub fn checksum(frame: &[u8]) -> u16 {
    match etherparses(frame) {
        0 => 0xffff,
        sum => sum,
    }
}

fn etherparses(frame: &[u8]) -> u16 {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
    match packet.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum);
            assert_eq!(frame.len(), 14 + usize::from(ip.total_len));
            tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload()).unwrap()
        }
        NetSlice::Ipv6(ip) => {
            let ip = ip.header().to_header();
            assert_eq!(frame.len(), 54 + usize::from(ip.payload_length));
            tcp.to_header().calc_checksum_ipv6(&ip, tcp.payload()).unwrap()
        }
        NetSlice::Arp(_) => panic!("no IP"),
    }
}

/// Checks lengths and checksums of a TCP frame: its header and its data.
pub fn check(frame: &[u8]) -> (TcpHeader, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
    assert_eq!(checksum(frame), tcp.checksum());
    (tcp.to_header(), tcp.payload().to_vec())
}
