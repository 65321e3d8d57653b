//! A virtio block device (virtio 1.2, 5.2), for a server that polls its queues.
//!
//! A [`Config`] is what a driver may read of the disk. A [`Server`] serves one queue: it takes
//! chains, checks what they ask for, has a [`Backend`] carry it out on the guest's own memory, and
//! answers. Each call does a bounded amount of work: a large request is done in *pieces* of
//! [`PIECE_DATA`] or [`PIECE_RANGE`] bytes, one a turn, so that a scheduler that counts bytes can
//! serve others in between.
//!
//! Guarantees, whatever the guest does:
//! - No operation leaves the disk or the guest's memory, is of other than whole blocks, writes to a
//!   read-only disk, or is larger than a piece.
//! - Each chain that has room for a status byte is answered, once, when its last operation is over.
//!   A chain without room can't be answered: its queue is [`Broken`]. QEMU stops the device for it,
//!   too ("virtio-blk request inhdr too short").
//! - A flush is asked for after every write whose completion the driver could have seen, and
//!   confirmed after the back end's flush. If FLUSH isn't negotiated, a write is durable when it is
//!   completed.
//! - After [`Server::stop`] no completion touches the guest's memory or a later queue.
//!
//! Not guaranteed: any order among requests in flight, or between a request's pieces, as the
//! standard allows; that data is of one moment if the guest changes it meanwhile; that a back end
//! leaves the guest's memory alone once the server has stopped: for that, the transport waits until
//! [`Server::outstanding`] is 0 before the driver sees the reset done (QEMU drains, too).
//!
//! | file | is |
//! |---|---|
//! | `config` | features and configuration space |
//! | `request` | what a header asks for, and whether it may |
//! | `pieces` | the spans of a piece |
//! | `framing` | what is where in a chain |
//! | `outcome` | what a turn did, and all of them |
//! | `slots` | requests in flight, and whose a completion is |
//! | `taken` | what a chain asks for |
//! | `keeping` | records of requests in flight, for who may be gone on with |
//! | `running` | the queue that is served, with its records |
//! | `server` | the turn: one queue, its requests, its answers |
//! | `backend` | the trait, and the back ends that are memory or nothing |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod backend;
pub mod config;
mod framing;
mod keeping;
mod outcome;
mod pieces;
pub mod request;
mod running;
mod server;
mod slots;
mod taken;
#[cfg(test)]
mod tests;

pub use backend::{Backend, Completion, Failure, Operation, Submitted, Token};
pub use config::{BadConfig, Config, Features, Parameters};
pub use keeping::Keep;
pub use outcome::{Budget, Outcome, Statistics};
pub use running::Broken;
pub use server::Server;

/// Bytes of a sector, the unit of the standard.
pub const SECTOR: u64 = 512;
/// The most bytes of data of a piece.
pub const PIECE_DATA: u32 = 64 << 10;
/// The most bytes that a piece of a discard or write-zeroes request touches: what ELVIS lets a
/// queue have before it switches (512 KiB), so that one piece is one turn.
pub const PIECE_RANGE: u32 = 512 << 10;
/// What a turn that took a request costs at least, in bytes: so that requests without data can't
/// keep a scheduler that counts bytes. To serve one is about as much work as to copy this much.
pub const LEAST_CHARGE: u64 = 2048;
/// What a request costs at least for each of its descriptors, in bytes: to read one, to check where
/// it leads and to copy a few bytes there takes as long as to copy this much in one piece.
pub const DESCRIPTOR_CHARGE: u64 = 512;
/// What it costs to mark a page as changed, in bytes, where that is done for all that a request
/// lets the disk write, whatever it asks for.
pub const MARK_CHARGE: u64 = 32;
