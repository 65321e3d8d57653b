//! What a driver may ask of a disk (virtio 1.2, 5.2.6), out of bytes that are already copied.
//!
//! Nothing here reads shared memory. A request that comes out is within the disk, whole blocks, and
//! allowed by what was negotiated; else there is the status byte that it is answered with.

use crate::config::{Config, Features};
use crate::{PIECE_DATA, SECTOR};

/// Bytes of `struct virtio_blk_req` before the data.
pub const HEADER_BYTES: usize = 16;
/// Bytes of `struct virtio_blk_discard_write_zeroes`.
pub const RANGE_BYTES: usize = 16;

/// VIRTIO_BLK_T_IN.
pub const TYPE_IN: u32 = 0;
/// VIRTIO_BLK_T_OUT.
pub const TYPE_OUT: u32 = 1;
/// VIRTIO_BLK_T_FLUSH.
pub const TYPE_FLUSH: u32 = 4;
/// VIRTIO_BLK_T_GET_ID.
pub const TYPE_GET_ID: u32 = 8;
/// VIRTIO_BLK_T_DISCARD.
pub const TYPE_DISCARD: u32 = 11;
/// VIRTIO_BLK_T_WRITE_ZEROES.
pub const TYPE_WRITE_ZEROES: u32 = 13;

/// The `unmap` bit of a range's flags.
const UNMAP: u32 = 1;

/// The status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// VIRTIO_BLK_S_OK.
    Ok = 0,
    /// VIRTIO_BLK_S_IOERR: the device or the driver is at fault.
    IoError = 1,
    /// VIRTIO_BLK_S_UNSUPP: the device doesn't do such a thing.
    Unsupported = 2,
}

/// A request's header, read once.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    kind: u32,
    sector: u64,
}

impl Header {
    /// From the bytes of `type`, `reserved` and `sector`.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self { kind: word(0), sector: u64::from(word(8)) | u64::from(word(12)) << 32 }
    }

    /// From the two words that the bytes are.
    #[inline]
    pub fn of_words(first: u64, second: u64) -> Self {
        Self { kind: first as u32, sector: second }
    }

    /// The first sector, if it is a read's.
    #[inline]
    pub fn reads(self) -> Option<u64> {
        (self.kind == TYPE_IN).then_some(self.sector)
    }

    /// The first sector, if it is a write's.
    #[inline]
    pub fn writes(self) -> Option<u64> {
        (self.kind == TYPE_OUT).then_some(self.sector)
    }
}

/// What a range of sectors is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Anything: nobody needs it any more.
    Discard,
    /// Zeroes; with `unmap`, storage behind it may be given up.
    Zeroes {
        /// The driver allows that storage is freed.
        unmap: bool,
    },
}

/// A request that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The writable bytes but the last come from the disk.
    Read {
        /// The first sector.
        sector: u64,
    },
    /// The readable bytes after the header go to the disk.
    Write {
        /// The first sector.
        sector: u64,
    },
    /// What was written is to be durable.
    Flush,
    /// The serial number is asked for.
    Id,
    /// A range of sectors, which [`Rules::range`] reads in the data.
    Range {
        /// Discard, else write zeroes.
        discard: bool,
    },
}

/// What a driver's requests are held against: the disk and what was negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    capacity: u64,
    /// Sectors of a block, less one.
    block_mask: u64,
    read_only: bool,
    /// Most sectors; 0 if not negotiated.
    discard: u32,
    write_zeroes: u32,
    may_unmap: bool,
    /// A write is completed when it is durable: the driver can't flush (5.2.6.2, case 1).
    pub durable: bool,
}

impl Rules {
    /// For a driver that accepted these of the features.
    pub fn new(config: &Config, accepted: Features) -> Self {
        let asked = config.parameters();
        let both = config.features() & accepted;
        let only = |feature, value| if both.contains(feature) { value } else { 0 };
        Self {
            capacity: asked.capacity,
            block_mask: u64::from(asked.block_size) / SECTOR - 1,
            read_only: asked.read_only,
            discard: only(Features::DISCARD, asked.discard),
            write_zeroes: only(Features::WRITE_ZEROES, asked.write_zeroes),
            may_unmap: asked.write_zeroes_may_unmap,
            durable: !both.contains(Features::FLUSH),
        }
    }

    /// Whether these are whole blocks of the disk.
    #[inline]
    fn holds(&self, sector: u64, sectors: u64) -> bool {
        (sector | sectors) & self.block_mask == 0
            && sector <= self.capacity
            && sectors <= self.capacity - sector
    }

    #[inline]
    fn holds_bytes(&self, sector: u64, bytes: u64) -> bool {
        bytes.is_multiple_of(SECTOR) && self.holds(sector, bytes / SECTOR)
    }

    /// Whether these are whole blocks of the disk, some of them, and no more than a piece.
    #[inline]
    pub fn holds_piece(&self, sector: u64, bytes: u32) -> bool {
        bytes != 0 && bytes <= PIECE_DATA && self.holds_bytes(sector, bytes.into())
    }

    /// Whether nothing can be written.
    #[inline]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// What is asked for, with `readable` bytes after the header and `writable` before the status.
    pub fn request(&self, header: Header, readable: u64, writable: u64) -> Result<Request, Status> {
        let Header { kind, sector } = header;
        match kind {
            TYPE_IN if self.holds_bytes(sector, writable) => Ok(Request::Read { sector }),
            TYPE_OUT if !self.read_only && self.holds_bytes(sector, readable) => {
                Ok(Request::Write { sector })
            }
            TYPE_IN | TYPE_OUT => Err(Status::IoError),
            TYPE_FLUSH => Ok(Request::Flush),
            TYPE_GET_ID => Ok(Request::Id),
            TYPE_DISCARD | TYPE_WRITE_ZEROES => {
                let discard = kind == TYPE_DISCARD;
                // A write request to a read-only disk, negotiated or not (5.2.6.2).
                if self.read_only {
                    return Err(Status::IoError);
                }
                let most = if discard { self.discard } else { self.write_zeroes };
                // More than one range is more than `max_*_seg` says; less can't be understood.
                match readable {
                    _ if most == 0 => Err(Status::Unsupported),
                    0..16 => Err(Status::IoError),
                    16 => Ok(Request::Range { discard }),
                    17.. => Err(Status::Unsupported),
                }
            }
            _ => Err(Status::Unsupported),
        }
    }

    /// The range of a discard or write-zeroes request: its first sector, how many, what becomes.
    pub fn range(
        &self,
        discard: bool,
        bytes: &[u8; RANGE_BYTES],
    ) -> Result<(u64, u64, Change), Status> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (sectors, flags) = (word(8), word(12));
        let known = if discard { 0 } else { UNMAP };
        if flags & !known != 0 {
            return Err(Status::Unsupported);
        }
        let most = if discard { self.discard } else { self.write_zeroes };
        if sectors > most || !self.holds(sector, sectors.into()) {
            return Err(Status::IoError);
        }
        let unmap = flags & UNMAP != 0 && self.may_unmap;
        let change = if discard { Change::Discard } else { Change::Zeroes { unmap } };
        Ok((sector, sectors.into(), change))
    }
}
