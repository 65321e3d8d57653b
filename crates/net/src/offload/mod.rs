//! What a driver left to do for a frame that it sent (5.1.6.2.1): the checksum, or the segments.
//!
//! A header is checked against the frame's own headers, so that later nothing is out of bounds:
//! lengths and offsets that a guest gives aren't used for anything else. `hdr_len` is only a hint,
//! and isn't looked at.

pub mod checksum;
pub mod segment;

use crate::Features;
use crate::frame::{ETHERNET, Fault};
use crate::header::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, Header, NEEDS_CSUM};

/// The types of frames that are cut into segments.
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// Protocol numbers: TCP, UDP, and the two extension headers of IPv6 that may be before them. A
/// routing header isn't one of them: it makes another pseudo header.
const TCP: u8 = 6;
const UDP: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
/// The most extension headers that are looked at.
const EXTENSIONS: usize = 4;
/// The least bytes of data of a segment: Linux' smallest MSS, 48, less 40 of TCP's options, its
/// TCP_MIN_GSO_SIZE. Below that whoever cuts a frame would make ten thousands of it.
pub const LEAST_SEGMENT: u16 = 8;
/// Where the checksums of TCP and UDP are in their headers.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
/// Bytes of UDP's header.
const UDP_BYTES: usize = 8;

/// What is to be done for a frame. Places are counted in the frame without a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    Nothing,
    /// A checksum is to be completed.
    Checksum(Partial),
    /// It is to be cut into segments.
    Segments(Cut),
}

/// A checksum in whose place is the sum of the pseudo header: it is to be made from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Where it starts, behind the Ethernet header.
    pub start: u16,
    /// Where it is put, from there. The place is in the head.
    pub offset: u16,
}

/// A TCP segment or a packet of UDP that is too long, with its headers in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// It is UDP, else TCP.
    pub udp: bool,
    /// It is IPv6, else IPv4.
    pub six: bool,
    /// Its CWR is only for the first segment.
    pub ecn: bool,
    /// Bytes of data of a segment: [`LEAST_SEGMENT`] at least with TCP, and not 0.
    pub size: u16,
    /// Where the header of TCP or UDP is.
    pub start: usize,
    /// Where its data is: the length of all headers.
    pub headers: usize,
}

impl Cut {
    /// The features that a receiver needs to take it uncut.
    pub fn asks_for(&self) -> Features {
        let kind = match (self.udp, self.six) {
            (false, false) => Features::GUEST_TSO4,
            (false, true) => Features::GUEST_TSO6,
            (true, false) => Features::GUEST_USO4,
            (true, true) => Features::GUEST_USO6,
        };
        if self.ecn { kind | Features::GUEST_ECN } else { kind }
    }

    /// `gso_type` for who takes it uncut.
    pub fn gso_type(&self) -> u8 {
        let kind = match (self.udp, self.six) {
            (true, _) => GSO_UDP,
            (false, true) => GSO_TCPV6,
            (false, false) => GSO_TCPV4,
        };
        if self.ecn { kind | GSO_ECN } else { kind }
    }

    /// Where its checksum is.
    pub fn partial(&self) -> Partial {
        let offset = if self.udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        Partial { start: self.start as u16, offset }
    }

    fn protocol(&self) -> u8 {
        if self.udp { UDP } else { TCP }
    }
}

impl Offload {
    /// Checks what a header asks for, of a frame of `len` bytes that starts with `head`, both
    /// without the tag of `tag` bytes that it had.
    ///
    /// # Errors
    ///
    /// [`Fault::NotAccepted`] if the driver hasn't accepted the feature for it, [`Fault::Header`]
    /// if it isn't so in the frame.
    pub fn check(
        header: &Header,
        head: &[u8],
        len: u32,
        tag: u16,
        accepted: Features,
    ) -> Result<Offload, Fault> {
        let partial = if header.flags & NEEDS_CSUM != 0 {
            if !accepted.contains(Features::CSUM) {
                return Err(Fault::NotAccepted);
            }
            let start = header.csum_start.checked_sub(tag).ok_or(Fault::Header)?;
            let end = usize::from(start) + usize::from(header.csum_offset) + 2;
            if usize::from(start) < ETHERNET || end > head.len() {
                return Err(Fault::Header);
            }
            Some(Partial { start, offset: header.csum_offset })
        } else {
            None
        };
        let is_six = head.get(12..14) == Some(&ETHERTYPE_IPV6);
        let (udp, six, feature) = match header.gso_type & !GSO_ECN {
            GSO_NONE if header.gso_type == GSO_NONE => {
                return Ok(partial.map_or(Offload::Nothing, Offload::Checksum));
            }
            GSO_TCPV4 => (false, false, Features::HOST_TSO4),
            GSO_TCPV6 => (false, true, Features::HOST_TSO6),
            GSO_UDP if header.gso_type == GSO_UDP => (true, is_six, Features::HOST_USO),
            _ => return Err(Fault::NotAccepted),
        };
        let ecn = header.gso_type & GSO_ECN != 0;
        if !accepted.contains(feature) || (ecn && !accepted.contains(Features::HOST_ECN)) {
            return Err(Fault::NotAccepted);
        }
        let partial = partial.ok_or(Fault::Header)?;
        let protocol = if udp { UDP } else { TCP };
        let behind = if six { behind_ipv6(head, protocol) } else { behind_ipv4(head, protocol) };
        let start = behind.ok_or(Fault::Header)?;
        let bytes = match udp {
            true => UDP_BYTES,
            false => usize::from(head.get(start + 12).ok_or(Fault::Header)? >> 4) * 4,
        };
        let (least, least_size) = if udp { (UDP_BYTES, 1) } else { (20, LEAST_SEGMENT) };
        let headers = start + bytes;
        let found = Cut { udp, six, ecn, size: header.gso_size, start, headers };
        let is_right = bytes >= least
            && headers <= head.len()
            && header.gso_size >= least_size
            && partial == found.partial();
        if !is_right {
            return Err(Fault::Header);
        }
        // What is one segment already needs the checksum alone.
        if len.saturating_sub(headers as u32) <= u32::from(header.gso_size) {
            return Ok(Offload::Checksum(partial));
        }
        Ok(Offload::Segments(found))
    }
}

/// Where the header of this protocol is in a whole IPv4 packet.
fn behind_ipv4(head: &[u8], protocol: u8) -> Option<usize> {
    let ip: &[u8; 20] = head.get(ETHERNET..)?.first_chunk()?;
    let bytes = usize::from(ip[0] & 15) * 4;
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    let right = head.get(12..14)? == ETHERTYPE_IPV4
        && ip[0] >> 4 == 4
        && bytes >= 20
        && fragment == 0
        && ip[9] == protocol;
    right.then_some(ETHERNET + bytes)
}

/// Where the header of this protocol is in an IPv6 packet.
fn behind_ipv6(head: &[u8], protocol: u8) -> Option<usize> {
    let ip: &[u8; 40] = head.get(ETHERNET..)?.first_chunk()?;
    if head.get(12..14)? != ETHERTYPE_IPV6 || ip[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (ip[6], ETHERNET + 40);
    for _ in 0..EXTENSIONS {
        match next {
            _ if next == protocol => return Some(at),
            HOP_BY_HOP | DESTINATION_OPTIONS => {
                let extension: &[u8; 2] = head.get(at..)?.first_chunk()?;
                next = extension[0];
                at += (usize::from(extension[1]) + 1) * 8;
            }
            _ => return None,
        }
    }
    (next == protocol).then_some(at)
}
