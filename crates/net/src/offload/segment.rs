//! TCP in segments, UDP in packets: the headers of each (RFC 9293; ID of IPv4, RFC 6864; CWR,
//! RFC 3168; UDP, RFC 768).
use super::Cut;
use super::checksum::Sum;
use crate::frame::ETHERNET;

/// Flags in byte 13 of a TCP header.
const FIN: u8 = 1;
const PSH: u8 = 8;
const CWR: u8 = 0x80;

/// One segment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which one, from 0.
    pub index: u32,
    /// Bytes of data before it.
    pub before: u32,
    /// Bytes of its data.
    pub len: u32,
    /// No other follows.
    pub last: bool,
}

impl Cut {
    /// How many segments make up `data` bytes.
    pub fn count(&self, data: u32) -> u32 {
        data.div_ceil(u32::from(self.size).max(1))
    }

    /// The segments of `data` bytes, in order.
    pub fn segments(&self, data: u32) -> impl Iterator<Item = Segment> + use<> {
        let size = u32::from(self.size).max(1);
        (0..self.count(data)).map(move |index| {
            let before = index * size;
            let left = data - before;
            Segment { index, before, len: left.min(size), last: left <= size }
        })
    }

    /// Makes of the frame's headers those of a segment: lengths, ID, sequence number, flags, and
    /// the checksum of IPv4. In place of the segment's checksum is the sum of the pseudo header.
    /// `head` are the frame's headers as [`super::Offload::check`] saw them.
    pub fn write_headers(&self, segment: &Segment, head: &mut [u8]) -> Option<()> {
        let len = (self.headers - self.start) as u32 + segment.len;
        let mut pseudo = Sum::default();
        let ip = head.get_mut(ETHERNET..self.start)?;
        // A frame is less than 2^16 bytes behind the Ethernet header, so that both fit.
        let ip_len = ip.len() as u32 + len;
        if self.six {
            put(ip, 4, &((ip_len - 40) as u16).to_be_bytes())?;
            pseudo.add(ip.get(8..40)?);
        } else {
            let id = word(ip, 4)?.wrapping_add(segment.index as u16);
            put(ip, 2, &(ip_len as u16).to_be_bytes())?;
            put(ip, 4, &id.to_be_bytes())?;
            put(ip, 10, &[0, 0])?;
            let mut sum = Sum::default();
            sum.add(ip);
            put(ip, 10, &sum.checksum().to_be_bytes())?;
            pseudo.add(ip.get(12..20)?);
        }
        pseudo.add_word(self.protocol().into());
        pseudo.add_word(len as u16);
        let own = head.get_mut(self.start..self.headers)?;
        if self.udp {
            put(own, 4, &(len as u16).to_be_bytes())?;
        } else {
            let sequence: &[u8; 4] = own.get(4..)?.first_chunk()?;
            let sequence = u32::from_be_bytes(*sequence).wrapping_add(segment.before);
            put(own, 4, &sequence.to_be_bytes())?;
            let flags = own.get_mut(13)?;
            if !segment.last {
                *flags &= !(FIN | PSH);
            }
            if segment.index > 0 {
                *flags &= !CWR;
            }
        }
        put(own, self.partial().offset.into(), &pseudo.folded().to_be_bytes())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) -> Option<()> {
    bytes.get_mut(at..at + field.len())?.copy_from_slice(field);
    Some(())
}
