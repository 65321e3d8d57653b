//! A guest at a server.

use super::said::Rate;
use crate::bench::io::{peer::Peer, start::Back};

/// Which all servers of disks have, and which keeps what is verified.
pub const BACK: Back = Back::Ram;
/// fio's depths.
pub const DEPTHS: [u32; 2] = [1, 32];

/// All runs of a server.
pub struct Cell {
    pub peer: Peer,
    /// In each, a rate for each depth.
    pub runs: Vec<Vec<Rate>>,
}
