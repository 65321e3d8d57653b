//! What a disk is: its features and its configuration space (virtio 1.2, 5.2.3 and 5.2.4).
//!
//! A [`Config`] is checked when it is made, so that what a driver reads there is true of every
//! request later. A driver can't write anything into it: CONFIG_WCE isn't offered. A driver that
//! wants its writes durable at completion declines FLUSH (5.2.6.2). That needs no field that
//! changes while requests run, and no message from the core that traps the write to the one that
//! serves. SIZE_MAX and GEOMETRY aren't offered, either: nothing here has such a limit or shape.

use bitflags::bitflags;
use thiserror::Error;
use virtqueue::SEGMENTS;

use crate::{PIECE_DATA, SECTOR};

bitflags! {
    /// Feature bits that concern a disk, as in the feature words of the transport.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// VIRTIO_BLK_F_SEG_MAX: `seg_max` holds.
        const SEG_MAX = 1 << 2;
        /// VIRTIO_BLK_F_RO: every write fails.
        const RO = 1 << 5;
        /// VIRTIO_BLK_F_BLK_SIZE: `blk_size` holds.
        const BLK_SIZE = 1 << 6;
        /// VIRTIO_BLK_F_FLUSH: completed writes may be volatile until a flush.
        const FLUSH = 1 << 9;
        /// VIRTIO_BLK_F_TOPOLOGY: `topology` holds.
        const TOPOLOGY = 1 << 10;
        /// VIRTIO_BLK_F_MQ: `num_queues` holds.
        const MQ = 1 << 12;
        /// VIRTIO_BLK_F_DISCARD.
        const DISCARD = 1 << 13;
        /// VIRTIO_BLK_F_WRITE_ZEROES.
        const WRITE_ZEROES = 1 << 14;
        /// VIRTIO_F_INDIRECT_DESC (6).
        const INDIRECT_DESC = 1 << 28;
        /// VIRTIO_F_EVENT_IDX (6).
        const EVENT_IDX = 1 << 29;
        /// VIRTIO_F_VERSION_1 (6).
        const VERSION_1 = 1 << 32;
        /// VIRTIO_F_RING_PACKED (6).
        const RING_PACKED = 1 << 34;
    }
}

/// Bytes of the configuration space, up to the last field of a feature that can be offered.
pub const CONFIG_BYTES: usize = 60;
/// Bytes of a serial number (VIRTIO_BLK_ID_BYTES).
pub const SERIAL_BYTES: usize = 20;
/// The most data segments of a request: a chain has two more spans, and two are spare for buffers
/// that go on in the next region of the window.
pub const MAX_SEGMENTS: u32 = SEGMENTS as u32 - 4;
/// The most a capacity can be: all of it is counted in bytes by 64 bits.
const MAX_CAPACITY: u64 = u64::MAX / SECTOR;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// In sectors of 512 bytes, a whole number of blocks.
    pub capacity: u64,
    /// Bytes that are read and written as one, a power of two from 512 to [`PIECE_DATA`]. Requests
    /// that aren't whole blocks fail: the standard's unit is the sector, but a back end with larger
    /// blocks can't write a part of one (QEMU refuses the same).
    pub block_size: u32,
    /// Blocks of a physical block, as a power of two (`physical_block_exp`).
    pub physical_block_exponent: u8,
    /// What is best written at least, in blocks, or 0 (`min_io_size`).
    pub minimum_io: u16,
    /// What is best written at most, in blocks, or 0 (`opt_io_size`).
    pub optimal_io: u32,
    /// Data segments of a request (`seg_max`), from 1 to [`MAX_SEGMENTS`]. For drivers without
    /// indirect descriptors no more than the size of a queue less 2.
    pub segments: u32,
    /// Request queues, 1 at least. MQ is offered if there are more.
    pub queues: u16,
    /// Nothing may be written.
    pub read_only: bool,
    /// Most sectors of a discard, whole blocks; 0: discard isn't offered.
    pub discard: u32,
    /// Most sectors of a write-zeroes request, whole blocks; 0: it isn't offered.
    pub write_zeroes: u32,
    /// Whether a write-zeroes request may free what is behind the sectors.
    pub write_zeroes_may_unmap: bool,
    /// Whether packed rings are offered: on two cores they are slower than split ones.
    pub packed: bool,
    /// The serial number, padded with zeroes.
    pub serial: [u8; SERIAL_BYTES],
}

impl Default for Parameters {
    /// An empty disk of 512-byte blocks with one queue, that can be written and nothing more.
    fn default() -> Self {
        Self {
            capacity: 0,
            block_size: SECTOR as u32,
            physical_block_exponent: 0,
            minimum_io: 0,
            optimal_io: 0,
            segments: MAX_SEGMENTS,
            queues: 1,
            read_only: false,
            discard: 0,
            write_zeroes: 0,
            write_zeroes_may_unmap: false,
            packed: false,
            serial: [0; SERIAL_BYTES],
        }
    }
}

/// Why there can't be such a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// The block size isn't a power of two, or too small or too large.
    #[error("its block size isn't a power of two from {SECTOR} to {PIECE_DATA}")]
    BlockSize,
    /// The capacity isn't a whole number of blocks, or its bytes don't fit 64 bits.
    #[error("its capacity isn't a whole number of blocks below 2^64 bytes")]
    Capacity,
    /// The limit of discard or write-zeroes isn't a whole number of blocks.
    #[error("its largest discard or write-zeroes isn't a whole number of blocks")]
    Limit,
    /// It has no queue.
    #[error("it has no queue")]
    Queues,
    /// The number of data segments isn't from 1 to [`MAX_SEGMENTS`].
    #[error("its number of data segments isn't from 1 to {MAX_SEGMENTS}")]
    Segments,
}

/// A disk that can be.
#[derive(Clone, Copy, Debug)]
pub struct Config(Parameters);

impl Config {
    /// Checks what is asked for.
    pub fn new(asked: Parameters) -> Result<Self, BadConfig> {
        let block = asked.block_size;
        if !block.is_power_of_two() || u64::from(block) < SECTOR || block > PIECE_DATA {
            return Err(BadConfig::BlockSize);
        }
        let sectors = block / SECTOR as u32;
        if asked.capacity > MAX_CAPACITY || !asked.capacity.is_multiple_of(sectors.into()) {
            return Err(BadConfig::Capacity);
        }
        if !asked.discard.is_multiple_of(sectors) || !asked.write_zeroes.is_multiple_of(sectors) {
            return Err(BadConfig::Limit);
        }
        if asked.queues == 0 {
            return Err(BadConfig::Queues);
        }
        if !(1..=MAX_SEGMENTS).contains(&asked.segments) {
            return Err(BadConfig::Segments);
        }
        Ok(Self(asked))
    }

    /// What was asked for.
    pub fn parameters(&self) -> &Parameters {
        &self.0
    }

    /// The features to offer. A read-only disk offers nothing that writes.
    pub fn features(&self) -> Features {
        let asked = &self.0;
        let mut offered = Features::SEG_MAX
            | Features::BLK_SIZE
            | Features::FLUSH
            | Features::TOPOLOGY
            | Features::INDIRECT_DESC
            | Features::EVENT_IDX
            | Features::VERSION_1;
        offered.set(Features::RO, asked.read_only);
        offered.set(Features::MQ, asked.queues > 1);
        offered.set(Features::DISCARD, asked.discard > 0 && !asked.read_only);
        offered.set(Features::WRITE_ZEROES, asked.write_zeroes > 0 && !asked.read_only);
        offered.set(Features::RING_PACKED, asked.packed);
        offered
    }

    /// The configuration space. Fields of features that aren't offered are 0.
    pub fn config_bytes(&self) -> [u8; CONFIG_BYTES] {
        let asked = &self.0;
        let offered = self.features();
        let only = |feature, value: u32| if offered.contains(feature) { value } else { 0 };
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &asked.capacity.to_le_bytes());
        put(12, &asked.segments.to_le_bytes());
        put(20, &asked.block_size.to_le_bytes());
        put(24, &[asked.physical_block_exponent]);
        put(26, &asked.minimum_io.to_le_bytes());
        put(28, &asked.optimal_io.to_le_bytes());
        put(34, &(only(Features::MQ, asked.queues.into()) as u16).to_le_bytes());
        put(36, &only(Features::DISCARD, asked.discard).to_le_bytes());
        put(40, &only(Features::DISCARD, 1).to_le_bytes());
        let physical = (asked.block_size / SECTOR as u32) << asked.physical_block_exponent.min(16);
        put(44, &only(Features::DISCARD, physical).to_le_bytes());
        put(48, &only(Features::WRITE_ZEROES, asked.write_zeroes).to_le_bytes());
        put(52, &only(Features::WRITE_ZEROES, 1).to_le_bytes());
        put(56, &[only(Features::WRITE_ZEROES, asked.write_zeroes_may_unmap.into()) as u8]);
        bytes
    }

    /// Reads the configuration space at any offset. What is beyond its end reads as 0.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let bytes = self.config_bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(CONFIG_BYTES);
        let there = &bytes[start..];
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        into[count..].fill(0);
    }
}
