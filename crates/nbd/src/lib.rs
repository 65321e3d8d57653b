//! The client's side of the network block device protocol (NBD's `doc/proto.md`): the fixed
//! newstyle handshake, requests, simple and structured replies, and URIs (`doc/uri.md`).
//!
//! Nothing here does I/O: who has the socket gives bytes as they come, in pieces of any size, and
//! sends the bytes that are handed out.
//!
//! Guarantees, whatever the server sends: nothing panics, what is kept is bounded, and no data is
//! handed out that wasn't asked for or lies outside of what was.
//!
//! Not here: TLS itself (the handshake says when it begins), and all options but STARTTLS, GO and
//! STRUCTURED_REPLY.
//!
//! | file | is |
//! |---|---|
//! | `uri` | where a server is, and which export |
//! | `handshake` | up to the export's size and flags |
//! | `request` | requests, as bytes |
//! | `reply` | replies, as they come |
//! | `error` | what ends a connection |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod error;
mod handshake;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod uri;

pub use error::Error;
pub use handshake::{Export, ExportFlags, Handshake, Progress};
pub use reply::{Asked, Event, Replies};
pub use request::{Command, REQUEST_BYTES, Request};
pub use uri::{BadUri, Place, Uri};

/// Big-endian numbers at the start of bytes, if they are all there.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes, at).map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_be_bytes)
}
