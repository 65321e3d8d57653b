//! What the controller does for a frame that it sends: the checksum, or the segments (datasheet,
//! 7.2.4 and 7.2.5), by a context descriptor in front of the frame's.
//!
//! Guarantees: what fits is encoded within its fields; a frame that is to be cut has the headers
//! that the controller expects, whatever was in their lengths and checksums.

use crate::MOST;
use window::Span;

/// The most bytes of a frame that is cut into segments.
pub const MOST_CUT: u32 = 4 + 65550;
/// Bytes of data of a segment at least: below that the part isn't asked to.
pub const LEAST_SEGMENT: u16 = 256;
/// The most that MACLEN, IPLEN and L4LEN hold.
const FIELDS: [u16; 3] = [127, 511, 255];

/// A context descriptor: DTYP 2 with DEXT; TUCMD.IPV4 and TUCMD.L4T for TCP.
const CONTEXT: u64 = 2 << 20 | 1 << 29;
const IPV4: u64 = 1 << 10;
const TCP: u64 = 1 << 11;
/// A data descriptor: DTYP 3 with DEXT, IFCS.
const DATA: u64 = 3 << 20 | 1 << 29 | 1 << 25;
/// The last one of a frame: EOP, and RS, for DD.
pub const LAST: u64 = 1 << 24 | 1 << 27;
/// It is to be cut (TSE).
const CUT: u64 = 1 << 31;
/// POPTS: the checksum of IPv4, and of TCP or UDP.
const SUM_IP: u64 = 1 << 40;
const SUM: u64 = 1 << 41;
/// Where PAYLEN is.
const PAYLOAD: u32 = 46;
/// Where TCP's and UDP's checksums are in their headers.
pub const CHECKSUM_OF: [u16; 2] = [16, 6];

/// What is to be done for a frame. Places are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Nothing.
    #[default]
    Nothing,
    /// The checksum of what begins at `start`, behind an Ethernet header of so many bytes and an IP
    /// header; in its place is the sum of the pseudo header.
    Checksum {
        /// Bytes of the Ethernet header, with a tag if there is one.
        ethernet: u16,
        /// Where the TCP or UDP header is.
        start: u16,
        /// It is TCP's, else UDP's.
        tcp: bool,
    },
    /// It is to be cut into segments of TCP.
    Segments {
        /// As above.
        ethernet: u16,
        /// Where the TCP header is.
        start: u16,
        /// It is in IPv6, else in IPv4.
        six: bool,
        /// Bytes of all headers.
        headers: u16,
        /// Bytes of data of a segment.
        size: u16,
    },
}

/// The words of descriptors for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Of the context descriptor, if it needs one.
    pub context: Option<[u64; 2]>,
    /// Of the first data descriptor the second one, but for its length, and of all others.
    pub first: u64,
    /// See `first`.
    pub other: u64,
}

impl Task {
    /// In descriptors, for a frame of so many bytes; nothing if the controller can't do it.
    pub fn encoded(&self, bytes: u32) -> Option<Encoded> {
        let whole = |bytes: u32| u64::from(bytes) << PAYLOAD | DATA;
        let lengths = |[ethernet, ip, l4]: [u16; 3]| {
            let fit = [ethernet, ip, l4].into_iter().zip(FIELDS).all(|(it, most)| it <= most);
            fit.then_some(u64::from(ip) | u64::from(ethernet) << 9)
        };
        match *self {
            Task::Nothing => (bytes <= MOST).then_some(Encoded {
                context: None,
                first: whole(bytes),
                other: DATA,
            }),
            Task::Checksum { ethernet, start, tcp } => {
                let ip = start.checked_sub(ethernet).filter(|ip| *ip >= 20)?;
                let fits = bytes <= MOST && u32::from(start) < bytes;
                let first = lengths([ethernet, ip, 0]).filter(|_| fits)?;
                let context = Some([first, CONTEXT | if tcp { TCP } else { 0 }]);
                Some(Encoded { context, first: whole(bytes) | SUM, other: DATA })
            }
            Task::Segments { ethernet, start, six, headers, size } => {
                let ip = start.checked_sub(ethernet).filter(|ip| *ip >= 20)?;
                let l4 = headers.checked_sub(start).filter(|l4| *l4 >= 20)?;
                let data = bytes.checked_sub(headers.into()).filter(|data| *data > 0)?;
                let longest = u32::from(headers) + u32::from(size);
                let fits = bytes <= MOST_CUT && longest <= MOST && size >= LEAST_SEGMENT;
                let first = lengths([ethernet, ip, l4]).filter(|_| fits)?;
                let sizes = u64::from(size) << 48 | u64::from(l4) << 40;
                let (kind, sum) = if six { (0, 0) } else { (IPV4, SUM_IP) };
                let context = Some([first, sizes | CONTEXT | TCP | kind]);
                let first = u64::from(data) << PAYLOAD | DATA | CUT | SUM | sum;
                Some(Encoded { context, first, other: DATA | CUT })
            }
        }
    }

    /// Has the headers at the start of these bytes be as the controller expects them: without
    /// lengths, and with a pseudo header's sum that has none (7.2.4.5).
    pub fn prepare(&self, frame: &Span) -> Option<()> {
        let Task::Segments { ethernet, start, six, .. } = *self else { return Some(()) };
        let (ip, tcp) = (u64::from(ethernet), u64::from(start));
        let mut addresses = [0; 32];
        let (at, bytes) = if six { (8, 32) } else { (12, 8) };
        let addresses = addresses.get_mut(..bytes)?;
        frame.read(ip + at, addresses).ok()?;
        let words = addresses.chunks_exact(2);
        let sum = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>() + 6;
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = ((sum & 0xFFFF) + (sum >> 16)) as u16;
        if six {
            frame.write(ip + 4, &[0, 0]).ok()?;
        } else {
            frame.write(ip + 2, &[0, 0]).ok()?;
            frame.write(ip + 10, &[0, 0]).ok()?;
        }
        frame.write(tcp + u64::from(CHECKSUM_OF[0]), &sum.to_be_bytes()).ok()
    }
}
