//! What is where in a request's chain: its header, its status byte, and what the used ring says of
//! its length.
//!
//! Guarantees: each byte of a header is read once; a used length never counts what wasn't written.

use virtqueue::Chain;
use window::Span;

use crate::backend::Failure;
use crate::request::{HEADER_BYTES, Header, Status};

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
#[inline]
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
