//! What is where in a request's chain: its header, its status byte, and what the used ring says of
//! its length.
//!
//! Guarantees: each byte of a header is read once; a used length never counts what wasn't written.

use core::slice::from_ref;
use virtqueue::{Chain, Framed, Head};
use window::Span;

use crate::backend::{Failure, Operation};
use crate::request::{HEADER_BYTES, Header, Rules, Status};

/// What a request is answered with, and the bytes that were written besides.
#[inline]
pub fn answer(result: Result<(), Failure>, reads: u32) -> (Status, u32) {
    match result {
        Ok(()) => (Status::Ok, reads),
        Err(Failure::Io) => (Status::IoError, 0),
        Err(Failure::Unsupported) => (Status::Unsupported, 0),
    }
}

/// The used length (virtio 1.2, 2.7.8.2): no more than what was written from the chain's first
/// writable byte on. The status byte counts if all in front of it, `room`, was written.
#[inline]
pub fn used(written: u32, room: u32) -> u32 {
    if written == room { written.saturating_add(1) } else { written }
}

/// The last writable byte of a chain.
#[inline]
pub fn status_byte(chain: &Chain) -> Option<Span> {
    let last = chain.writable().last()?;
    last.sub(last.len().checked_sub(1)?, 1)
}

/// The header of a chain, each byte read once.
#[inline(always)]
pub fn header(chain: &Chain) -> Option<Header> {
    // As nearly all drivers lay it out: in one buffer, aligned.
    if let Some(span) = chain.readable().first()
        && span.len() >= HEADER_BYTES as u64
        && let (Ok(first), Ok(second)) = (span.load_u64(0), span.load_u64(8))
    {
        return Some(Header::of_words(first, second));
    }
    let mut bytes = [0; HEADER_BYTES];
    chain.read(0, &mut bytes).ok().map(|()| Header::parse(&bytes))
}

/// The same of one of three buffers, if it is aligned.
#[inline(always)]
pub fn header_of_framed(framed: &Framed) -> Option<Header> {
    match (framed.header.load_u64(0), framed.header.load_u64(8)) {
        (Ok(first), Ok(second)) => Some(Header::of_words(first, second)),
        _ => None,
    }
}

/// A read or a write whose data is one piece and needs no cut: as nearly all drivers lay out nearly
/// all requests.
pub struct Simple<'a> {
    /// Of its chain.
    pub head: Head,
    /// What to ask the back end for.
    pub operation: Operation<'a>,
    /// Bytes that it moves.
    pub bytes: u32,
    /// Of them, those that are written to the guest.
    pub reads: u32,
    /// The status byte.
    pub status: Span,
    /// Writable bytes in front of that.
    pub room: u32,
}

/// The request of this chain and header, if it is a simple one that may be carried out.
#[inline(always)]
pub fn simple<'a>(chain: &'a Chain, header: Header, rules: &Rules) -> Option<Simple<'a>> {
    let (readable, writable) = (chain.readable(), chain.writable());
    let (head, room) = (chain.head(), chain.writable_len().wrapping_sub(1));
    if let Some(sector) = header.reads() {
        let [into @ .., status] = writable else { return None };
        let fits = status.len() == 1 && rules.holds_piece(sector, room);
        let operation = Operation::Read { sector, into };
        let (bytes, reads, status) = (room, room, *status);
        return fits.then_some(Simple { head, operation, bytes, reads, status, room });
    }
    let sector = header.writes().filter(|_| !rules.read_only())?;
    let [first, from @ ..] = readable else { return None };
    let bytes = chain.readable_len().wrapping_sub(HEADER_BYTES as u32);
    let fits = first.len() == HEADER_BYTES as u64 && rules.holds_piece(sector, bytes);
    let operation = Operation::Write { sector, from, durable: rules.durable };
    let status = status_byte(chain).filter(|_| fits)?;
    Some(Simple { head, operation, bytes, reads: 0, status, room })
}

/// The same of one of three buffers.
#[inline(always)]
pub fn simple_of_framed<'a>(
    framed: &'a Framed,
    header: Header,
    rules: &Rules,
) -> Option<Simple<'a>> {
    let Framed { head, data, trailer: status, writable, .. } = framed;
    let (head, status, data_of_one) = (*head, *status, from_ref(data));
    // The three are less than 2^32 bytes.
    let bytes = data.len() as u32;
    if let Some(sector) = header.reads() {
        let operation = Operation::Read { sector, into: data_of_one };
        let fits = *writable && rules.holds_piece(sector, bytes);
        return fits.then_some(Simple {
            head,
            operation,
            bytes,
            reads: bytes,
            status,
            room: bytes,
        });
    }
    let sector = header.writes().filter(|_| !rules.read_only())?;
    let operation = Operation::Write { sector, from: data_of_one, durable: rules.durable };
    let fits = !*writable && rules.holds_piece(sector, bytes);
    fits.then_some(Simple { head, operation, bytes, reads: 0, status, room: 0 })
}
