//! One frame to one receiver: as it is, with its checksum completed, or in segments.
use crate::copy::Cursor;
use crate::error::Broken;
use crate::frame::{Frame, TAG};
use crate::header::{HEADER_BYTES, Header, NEEDS_CSUM};
use crate::offload::checksum::Sum;
use crate::offload::{Cut, Offload, Partial};
use crate::{DESCRIPTOR_CHARGE, Features, LEAST_CHARGE, MAX_SEGMENTS, MAX_UNCUT};
use virtqueue::{Chain, Head as Buffer};
use window::{Outside, Span};

/// What became of a frame at a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames that arrived: more than one if it was cut.
    pub frames: u32,
    /// Their bytes.
    pub bytes: u64,
    /// What that cost, in bytes.
    pub charge: u64,
    /// Of the frames, segments.
    pub segments: u32,
    /// Checksums that were made here.
    pub checksums: u32,
    /// Frames or segments for which there was no room.
    pub no_room: u32,
    /// 1 if it would have been too many segments.
    pub too_many: u32,
}

/// What frames are put into, each behind a header.
pub trait Buffers {
    /// How many buffers, from the first one on, are for the header and so many bytes of a frame;
    /// none if there aren't enough.
    fn reserve(&mut self, bytes: u32) -> Result<Option<u16>, Broken>;
    /// Their memory, in order; there may be more than that.
    fn spans(&self) -> &[Span];
    /// The first `count` buffers have the header and this many bytes. Gives of how many spans of
    /// the driver's making they are.
    fn complete(&mut self, count: u16, bytes: u32) -> u64;
    /// A buffer for so many bytes, the header among them, if that is had at once.
    fn one(&mut self, bytes: u32) -> Result<Option<(Buffer, Span)>, Broken>;
    /// The buffer of [`Self::one`] has so many.
    fn complete_one(&mut self, buffer: Buffer, bytes: u32);
}

/// A receiver, and what its driver accepted.
pub struct To<'a> {
    /// Its buffers. The code that fills them is large: there is one of it for all kinds.
    pub buffers: &'a mut dyn Buffers,
    /// By its driver.
    pub accepted: Features,
    /// Frames get a tag of this VLAN.
    pub tag: Option<u16>,
}

/// What is put into buffers: its head, then so many bytes of the chain.
struct Piece<'a> {
    head: &'a [u8],
    rest: u32,
    partial: Option<Partial>,
    /// The receiver cuts it itself.
    uncut: Option<Cut>,
}

impl To<'_> {
    /// Copies the frame whose rest is in `sent` into the receiver's buffers.
    ///
    /// # Errors
    ///
    /// [`Broken`] if the receiver's queue is.
    #[inline]
    pub fn deliver(&mut self, frame: &Frame, sent: &Chain) -> Result<Delivered, Broken> {
        if self.tag.is_none() && plain(self.buffers, frame)? {
            let (bytes, charge) = (frame.len.into(), charge(frame.len));
            return Ok(Delivered { frames: 1, bytes, charge, ..Delivered::default() });
        }
        self.deliver_otherwise(frame, sent)
    }

    /// The same, of a frame that isn't [`plain`].
    ///
    /// # Errors
    ///
    /// As for [`Self::deliver`].
    #[inline(never)]
    pub fn deliver_otherwise(&mut self, frame: &Frame, sent: &Chain) -> Result<Delivered, Broken> {
        let mut delivered = Delivered::default();
        let (partial, uncut) = match frame.offload {
            Offload::Nothing => (None, None),
            Offload::Checksum(partial) => (Some(partial), None),
            Offload::Segments(cut)
                if self.accepted.contains(cut.asks_for()) && is_taken_whole(cut, frame.len) =>
            {
                (Some(cut.partial()), Some(cut))
            }
            Offload::Segments(cut) => {
                self.segments(frame, cut, sent, &mut delivered)?;
                return Ok(delivered);
            }
        };
        let head: &[u8] = &frame.head;
        let rest = frame.len.saturating_sub(head.len() as u32);
        let mut source = Cursor::new(sent.readable());
        if source.skip(frame.in_chain(head.len()).into()).is_ok() {
            let piece = Piece { head, rest, partial, uncut };
            self.piece(frame, piece, &mut source, &mut delivered)?;
        }
        Ok(delivered)
    }

    /// Cuts the frame. If there is no room for a segment, those behind it aren't delivered, either.
    fn segments(
        &mut self,
        frame: &Frame,
        cut: Cut,
        sent: &Chain,
        delivered: &mut Delivered,
    ) -> Result<(), Broken> {
        let data = frame.len.saturating_sub(cut.headers as u32);
        let count = cut.count(data);
        if count > MAX_SEGMENTS {
            delivered.too_many = 1;
            return Ok(());
        }
        let mut source = Cursor::new(sent.readable());
        let Ok(()) = source.skip(frame.in_chain(cut.headers).into()) else { return Ok(()) };
        for segment in cut.segments(data) {
            let mut head = frame.head.clone();
            head.truncate(cut.headers);
            let Some(()) = cut.write_headers(&segment, &mut head) else { return Ok(()) };
            let partial = Some(cut.partial());
            let piece = Piece { head: &head, rest: segment.len, partial, uncut: None };
            if !self.piece(frame, piece, &mut source, delivered)? {
                delivered.no_room += count - segment.index - 1;
                break;
            }
            delivered.segments += 1;
        }
        Ok(())
    }

    /// Delivers one frame. False if there is no room.
    fn piece(
        &mut self,
        frame: &Frame,
        piece: Piece<'_>,
        source: &mut Cursor<'_>,
        delivered: &mut Delivered,
    ) -> Result<bool, Broken> {
        let tagged = self.tag.map(|vlan| frame.tagged(piece.head, vlan));
        let (head, shift): (&[u8], u16) = match &tagged {
            Some(tagged) => (tagged, TAG as u16),
            None => (piece.head, 0),
        };
        let bytes = head.len() as u32 + piece.rest;
        let Some(buffers) = self.buffers.reserve(bytes)? else {
            delivered.no_room += 1;
            return Ok(false);
        };
        let mut header = Header { num_buffers: buffers, ..Header::default() };
        let mut complete = None;
        if let Some(partial) = piece.partial {
            let start = partial.start + shift;
            if self.accepted.contains(Features::GUEST_CSUM) {
                header.flags = NEEDS_CSUM;
                (header.csum_start, header.csum_offset) = (start, partial.offset);
            } else {
                complete = Some(Partial { start, ..partial });
                delivered.checksums += 1;
            }
        }
        if let Some(cut) = piece.uncut {
            header.gso_type = cut.gso_type();
            header.gso_size = cut.size;
            header.hdr_len = cut.headers as u16 + shift;
        }
        let mut into = Cursor::new(self.buffers.spans());
        // The buffers have room, and the chain has as many bytes: neither is outside.
        if put(&header, head, piece.rest, complete, source, &mut into).is_err() {
            delivered.no_room += 1;
            return Ok(false);
        }
        let spans = self.buffers.complete(buffers, bytes);
        delivered.frames += 1;
        delivered.bytes += u64::from(bytes);
        delivered.charge += charge(bytes).max(spans * DESCRIPTOR_CHARGE);
        Ok(true)
    }
}

/// Puts a frame without a tag into one buffer, if it goes there as it is and all of it is in our
/// copy, as with most frames by their count. False, and nothing was done: it doesn't.
///
/// # Errors
///
/// [`Broken`] if the receiver's queue is.
#[inline(always)]
pub fn plain<B: Buffers + ?Sized>(buffers: &mut B, frame: &Frame) -> Result<bool, Broken> {
    if !frame.is_plain() {
        return Ok(false);
    }
    let bytes = frame.len + HEADER_BYTES as u32;
    let Some((head, span)) = buffers.one(bytes)? else { return Ok(false) };
    // It has room for both.
    let _ = span.write(0, frame.head.with_header());
    buffers.complete_one(head, bytes);
    Ok(true)
}

/// Whether who accepts such frames takes one of so many bytes: Linux drops a frame of UDP that is
/// to be cut into more than 64 packets (`UDP_MAX_SEGMENTS`; 128 later), as it would make them. TCP
/// has a least size of segments instead.
fn is_taken_whole(cut: Cut, len: u32) -> bool {
    !cut.udp || cut.count(len.saturating_sub(cut.headers as u32)) <= MAX_UNCUT
}

/// What it costs to deliver so many bytes.
#[inline(always)]
pub fn charge(bytes: u32) -> u64 {
    u64::from(bytes).max(LEAST_CHARGE)
}

/// Writes the header, the head, and `rest` bytes of the source. The checksum is of what is written,
/// so the head comes last.
fn put(
    header: &Header,
    head: &[u8],
    rest: u32,
    complete: Option<Partial>,
    source: &mut Cursor<'_>,
    into: &mut Cursor<'_>,
) -> Result<(), Outside> {
    let mut front = into.clone();
    into.skip(HEADER_BYTES as u64 + head.len() as u64)?;
    let mut checksum = None;
    if let Some(Partial { start, offset }) = complete {
        let start = usize::from(start);
        let mut sum = Sum::default();
        sum.add(head.get(start..).ok_or(Outside)?);
        source.copy_summed(into, rest.into(), &mut sum)?;
        checksum = Some((start + usize::from(offset), sum.checksum_not_zero().to_be_bytes()));
    } else {
        source.copy_to(into, rest.into())?;
    }
    front.write(&header.bytes())?;
    let Some((at, checksum)) = checksum else { return front.write(head) };
    let (before, from) = head.split_at_checked(at).ok_or(Outside)?;
    front.write(before)?;
    front.write(&checksum)?;
    front.write(from.get(checksum.len()..).ok_or(Outside)?)
}
