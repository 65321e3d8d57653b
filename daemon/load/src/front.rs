//! A client of one disk, with one ring.

use crate::connection::{Connection, EVENT_INDEX, Told};
use crate::ring::{BLOCK, BYTES, Ring};
use anyhow::Result;
use std::path::Path;

/// VIRTIO_F_INDIRECT_DESC.
const INDIRECT: u64 = 1 << 28;
/// The most bytes of a disk that are asked for.
const SPAN: u64 = 1 << 30;

/// One client of one disk.
pub struct Front {
    pub ring: Ring,
    pub told: Told,
    _connection: Connection,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    pub depth: u16,
    pub write: bool,
    pub event_index: bool,
}

impl Front {
    /// Connects, and starts the ring without a request.
    pub fn new(socket: &Path, asked: Asked, seed: u64) -> Result<Front> {
        let wished = INDIRECT | if asked.event_index { EVENT_INDEX } else { 0 };
        let mut connection = Connection::open(socket, 1, (0, wished), BYTES)?;
        let sectors = u64::from_le_bytes(connection.config()?);
        let blocks = (sectors * 512).min(SPAN) / BLOCK;
        let (memory, event_index) = (connection.memory()?, connection.has_event_index());
        let ring = Ring::new(memory, asked.depth, asked.write, event_index, blocks, seed)?;
        let told = connection.start(0, 0)?;
        Ok(Front { ring, told, _connection: connection })
    }
}
