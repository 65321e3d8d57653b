//! A frame that was sent, checked: its first bytes copied, its tag taken off.
use crate::header::{GSO_NONE, HEADER_BYTES, Header, NEEDS_CSUM};
use crate::offload::{Cut, Offload};
use crate::{Features, LEAST_CHARGE, MAX_FRAME, Mac};
use core::ops::{Deref, DerefMut};
use virtqueue::Chain;
use window::Outside;

/// The most bytes that are copied before they are checked, the tag not counted. All headers of
/// what is cut into segments must be in them, and a checksum's place.
pub const HEAD: usize = 256;
/// Bytes of the Ethernet header, and of a tag.
pub const ETHERNET: usize = 14;
/// Bytes of a tag, between the addresses and the type (802.1Q).
pub const TAG: usize = 4;
/// Where it is.
const TAG_AT: usize = 12;
/// The bytes that are read first: header, addresses, type or tag, and some more, for words are
/// read.
pub const FRONT: usize = 32;
/// The type of a tag, and those of others, which aren't forwarded.
const TAG_TYPE: [u8; 2] = [0x81, 0x00];
const OTHER_TAGS: [[u8; 2]; 3] = [[0x88, 0xa8], [0x91, 0x00], [0x92, 0x00]];
/// An address in a word.
const MAC: u64 = (1 << 48) - 1;

/// Whether these first bytes are of a frame that has no tag, goes from and to these addresses
/// (in words), and asks for nothing.
#[inline(always)]
pub fn goes_as_it_is(front: &[u8; FRONT], from: u64, to: u64) -> bool {
    let word = |at: usize| -> u64 {
        let bytes = front.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let source = word(HEADER_BYTES + 6);
    let kind = ((source >> 48) as u16).to_le_bytes();
    word(HEADER_BYTES) & MAC == to
        && source & MAC == from
        && front[0] & NEEDS_CSUM == 0
        && front[1] == GSO_NONE
        && kind != TAG_TYPE
        && OTHER_TAGS.iter().all(|other| kind != *other)
}

/// The bytes that are delivered from our copy: with a tag, perhaps. In front of them is room for a
/// virtio header, so that both are copied together.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEADER_BYTES + HEAD + TAG],
    /// The header not counted.
    len: usize,
}

impl Head {
    /// Of no bytes.
    pub(crate) const fn new() -> Head {
        Head { bytes: [0; HEADER_BYTES + HEAD + TAG], len: 0 }
    }

    /// These bytes behind the others, as many as there is room for.
    pub fn extend(&mut self, part: &[u8]) {
        let room = self.bytes.get_mut(HEADER_BYTES + self.len..).unwrap_or(&mut []);
        let count = part.len().min(room.len());
        room[..count].copy_from_slice(&part[..count]);
        self.len += count;
    }

    /// Becomes the first of so many bytes of this chain, which has a header in front of them. The
    /// first ones, header included, are here already; there may be none.
    #[inline]
    fn take(&mut self, chain: &Chain, len: u32, here: usize) -> Result<Header, Fault> {
        self.len = (len as usize).min(HEAD + TAG);
        let bytes = self.bytes.get_mut(here..HEADER_BYTES + self.len).ok_or(Fault::Short)?;
        chain.read(here as u32, bytes).map_err(|_| Fault::Short)?;
        Ok(self.bytes.first_chunk().map(Header::parse).unwrap_or_default())
    }

    /// With the header of a frame for which there is nothing to do, in one buffer of a receiver's.
    #[inline(always)]
    fn set_plain(&mut self) {
        if let Some(bytes) = self.bytes.first_chunk_mut() {
            *bytes = Header::of_one_buffer();
        }
    }

    /// The header of [`Frame::is_plain`], and the bytes behind it.
    #[inline]
    pub fn with_header(&self) -> &[u8] {
        self.bytes.get(..HEADER_BYTES + self.len).unwrap_or(&[])
    }

    /// So many bytes at most.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Head {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..HEADER_BYTES + self.len).unwrap_or(&[])
    }
}

impl DerefMut for Head {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(HEADER_BYTES..HEADER_BYTES + self.len).unwrap_or(&mut [])
    }
}

/// Why a frame isn't forwarded, whoever it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is shorter than its headers.
    Short,
    /// It, or a segment of it, is longer than the MTU or [`MAX_FRAME`].
    Long,
    /// The virtio header asks for what the driver hasn't accepted.
    NotAccepted,
    /// The virtio header says what isn't so.
    Header,
    /// It has a tag of another kind, or two.
    Tag,
}

/// What of a frame is known and kept while it is forwarded.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its first bytes, without the tag.
    pub head: Head,
    /// Its tag's control information: priority and VLAN.
    pub tag: Option<u16>,
    /// How long it is, without the tag.
    pub len: u32,
    /// What is to be done for it.
    pub offload: Offload,
    /// How long it is, or the longest of its segments.
    pub longest: u32,
    /// The port that it came from: of what is forwarded alone.
    pub port: u8,
}

impl Frame {
    /// None: to take frames into.
    pub(crate) const fn new() -> Frame {
        let (head, offload) = (Head::new(), Offload::Nothing);
        Frame { head, tag: None, len: 0, offload, longest: 0, port: 0 }
    }

    /// Where the first bytes of a chain are read to, header and addresses among them, if it has so
    /// many. They are looked at here; [`Self::take`] doesn't read them again.
    #[inline(always)]
    pub fn front(&mut self) -> Option<&mut [u8; FRONT]> {
        self.head.bytes.first_chunk_mut()
    }

    /// The front with the header of a frame for which there is nothing to do.
    #[inline(always)]
    pub fn front_to_deliver(&mut self) -> Option<&[u8; FRONT]> {
        self.head.set_plain();
        self.head.bytes.first_chunk()
    }

    /// Has `read` go on behind the front, up to so many bytes of a chain of `all`, and gives as
    /// many of the frame as are there then. They are for nothing that must be right: [`Self::take`]
    /// reads them again.
    pub fn glance(
        &mut self,
        all: u32,
        count: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), Outside>,
    ) -> Option<&[u8]> {
        let count = (HEADER_BYTES + count).min(all as usize);
        read(self.head.bytes.get_mut(FRONT..count)?).ok()?;
        self.head.bytes.get(HEADER_BYTES..count)
    }

    /// Becomes the frame in the readable buffers of this chain, of which `here` bytes are in the
    /// front: all of it, or none.
    ///
    /// # Errors
    ///
    /// [`Fault`] if it isn't to be forwarded. Then it is none.
    pub fn take(
        &mut self,
        chain: &Chain,
        here: usize,
        accepted: Features,
        mtu: u16,
    ) -> Result<(), Fault> {
        let len = chain.readable_len().checked_sub(HEADER_BYTES as u32).ok_or(Fault::Short)?;
        let head = &mut self.head;
        let header = head.take(chain, len, here)?;
        let tag = untag(head)?;
        let tag_len = if tag.is_some() { TAG as u32 } else { 0 };
        let len = len - tag_len;
        // Nothing, as nearly always if frames are small.
        let (mut offload, mut longest) = (Offload::Nothing, len);
        if !header.asks_nothing() {
            (offload, longest) = asked(&header, head, len, tag_len as u16, accepted)?;
        }
        if len > MAX_FRAME || longest > ETHERNET as u32 + u32::from(mtu) {
            return Err(Fault::Long);
        }
        head.set_plain();
        (self.tag, self.len, self.offload, self.longest) = (tag, len, offload, longest);
        Ok(())
    }

    /// Into how many segments it is to be cut, and how long the headers of each are.
    fn segments(&self) -> Option<(u64, u64)> {
        let Offload::Segments(cut) = self.offload else { return None };
        let count = cut.count(self.len.saturating_sub(cut.headers as u32));
        Some((count.into(), cut.headers as u64))
    }

    /// Whether it is TCP that is to be cut.
    pub fn is_long_tcp(&self) -> bool {
        matches!(self.offload, Offload::Segments(Cut { udp: false, .. }))
    }

    /// Bytes of it on a wire: those of each segment's headers, too.
    pub fn wire_len(&self) -> u64 {
        let more = self.segments().map_or(0, |(count, headers)| (count - 1) * headers);
        u64::from(self.len) + more
    }

    /// The most that one copy of it may cost, as it is charged.
    pub fn cost(&self) -> u64 {
        let count = self.segments().map_or(1, |(count, _)| count);
        self.wire_len().max(count * LEAST_CHARGE)
    }

    /// Whether nothing is to be done for it, and all of it is in the head.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.offload == Offload::Nothing && self.len as usize == self.head.len
    }

    /// Whom it is for.
    pub fn destination(&self) -> Mac {
        Mac::at(&self.head, 0)
    }

    /// Whom it is from.
    pub fn source(&self) -> Mac {
        Mac::at(&self.head, 6)
    }

    /// Where in the chain's readable bytes its byte of this number is.
    pub fn in_chain(&self, at: usize) -> u32 {
        (HEADER_BYTES + self.tag.map_or(0, |_| TAG) + at) as u32
    }

    /// The first bytes of it (of its headers, as they are to be delivered), with a tag of this VLAN
    /// and its priority.
    pub fn tagged(&self, head: &[u8], vlan: u16) -> Head {
        let control = self.tag.unwrap_or(0) & 0xf000 | vlan;
        let mut tagged = Head::new();
        let parts = [head.get(..TAG_AT), Some(&TAG_TYPE), Some(&control.to_be_bytes()[..])];
        for part in parts.into_iter().chain([head.get(TAG_AT..)]).flatten() {
            // The head of a frame without a tag leaves room for one.
            tagged.extend(part);
        }
        tagged
    }
}

/// What such a header asks for, of a frame of `len` bytes that had a tag of `tag` bytes; and how
/// long the frame is then, or the longest of its segments.
#[inline(never)]
fn asked(
    header: &Header,
    head: &Head,
    len: u32,
    tag: u16,
    accepted: Features,
) -> Result<(Offload, u32), Fault> {
    let offload = Offload::check(header, head, len, tag, accepted)?;
    let longest = match offload {
        Offload::Segments(Cut { headers, size, .. }) => headers as u32 + u32::from(size),
        _ => len,
    };
    Ok((offload, longest))
}

/// Takes the tag off the first bytes of a frame. They are [`HEAD`] at most then.
fn untag(head: &mut Head) -> Result<Option<u16>, Fault> {
    let kind = |at: usize| head.get(at..at + 2).ok_or(Fault::Short);
    let outer = kind(TAG_AT)?;
    if OTHER_TAGS.iter().any(|other| outer == other) {
        return Err(Fault::Tag);
    }
    if outer != TAG_TYPE {
        head.truncate(HEAD);
        return Ok(None);
    }
    let control = head.get(TAG_AT + 2..TAG_AT + TAG).and_then(|bytes| bytes.first_chunk());
    let tag = u16::from_be_bytes(*control.ok_or(Fault::Short)?);
    let inner = kind(TAG_AT + TAG)?;
    if inner == TAG_TYPE || OTHER_TAGS.iter().any(|other| inner == other) {
        return Err(Fault::Tag);
    }
    head.copy_within(TAG_AT + TAG.., TAG_AT);
    head.truncate(head.len() - TAG);
    Ok(Some(tag))
}
