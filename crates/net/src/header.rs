//! The header in front of each frame in a buffer (`struct virtio_net_hdr`, 5.1.6).

/// Bytes of the header, `num_buffers` included, as with VERSION_1.
pub const HEADER_BYTES: usize = 12;

/// `flags`: the checksum is to be completed from `csum_start` on.
pub const NEEDS_CSUM: u8 = 1;
/// `gso_type`: one frame as it is.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4, to be cut into segments.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: TCP over IPv6, to be cut into segments.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP, to be cut into packets of the same length, but for the last one.
pub const GSO_UDP: u8 = 5;
/// `gso_type`, with another one: the first segment has CWR set (RFC 3168), the others must not.
pub const GSO_ECN: u8 = 0x80;

/// The fields, as they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Flags: [`NEEDS_CSUM`].
    pub flags: u8,
    /// What is to be cut into segments.
    pub gso_type: u8,
    /// Bytes of all headers: a hint.
    pub hdr_len: u16,
    /// Bytes of data of a segment.
    pub gso_size: u16,
    /// From which byte of the frame on the checksum is made.
    pub csum_start: u16,
    /// Where it is put, from there.
    pub csum_offset: u16,
    /// Of a frame that is received: how many chains of descriptors it has.
    pub num_buffers: u16,
}

impl Header {
    /// The header in these bytes. Nothing is checked.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Header {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Header {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        }
    }

    /// Whether the frame behind it is to go as it is.
    #[inline]
    pub fn asks_nothing(&self) -> bool {
        self.flags & NEEDS_CSUM == 0 && self.gso_type == GSO_NONE
    }

    /// The bytes of one that says nothing but that the frame is in one buffer.
    #[inline(always)]
    pub(crate) fn of_one_buffer() -> [u8; HEADER_BYTES] {
        Header { num_buffers: 1, ..Header::default() }.bytes()
    }

    /// The bytes of it.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let [a, b] = self.hdr_len.to_le_bytes();
        let [c, d] = self.gso_size.to_le_bytes();
        let [e, f] = self.csum_start.to_le_bytes();
        let [g, h] = self.csum_offset.to_le_bytes();
        let [i, j] = self.num_buffers.to_le_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h, i, j]
    }
}
