//! What the controller says of itself and of its namespace, out of data that it wrote.
//!
//! Nothing here trusts it: what comes out is within what the rest of the driver can do, or there is
//! a reason why not.

use window::Span;

use crate::fault::Unfit;

/// Most bytes of a command if the controller sets no limit.
pub const NO_LIMIT: u32 = 1 << 20;
/// The largest namespace, in bytes, so that no sum of sectors overflows.
const MOST_BYTES: u64 = 1 << 60;

/// What matters of Identify Controller (NVM Express Base Specification 2.0, 5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Most bytes that one command moves (MDTS).
    pub most_bytes: u32,
    /// It has a volatile write cache (VWC).
    pub cache: bool,
    /// It knows Dataset Management, and Write Zeroes (ONCS).
    pub deallocates: bool,
    /// See `deallocates`.
    pub zeroes: bool,
    /// It is of version 2.0 or later, and so knows Identify's CNS 06h.
    pub has_limits: bool,
}

/// The namespace that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub id: u32,
    /// Blocks that it has (NSZE).
    pub blocks: u64,
    /// Bytes of a block, as a power of two: 9 to 12.
    pub block_shift: u32,
    /// Whether nothing can be written (NSATTR, bit 0).
    pub protected: bool,
    /// Blocks that were deallocated by Write Zeroes read as zeroes (DLFEAT).
    pub zeroes_by_deallocating: bool,
}

impl Namespace {
    /// Bytes of a block.
    pub fn block(&self) -> u32 {
        1 << self.block_shift
    }

    /// All its bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }
}

/// Bytes at an offset of the page that Identify filled, each read once.
fn bytes<const N: usize>(page: &Span, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // All offsets below are within the page.
    let _ = page.read(at, &mut bytes);
    bytes
}

/// Out of Identify Controller.
pub fn controller(page: &Span) -> Result<Traits, Unfit> {
    let [mdts] = bytes(page, 77);
    let version = u32::from_le_bytes(bytes(page, 80));
    // CNTRLTYPE: 0 is what older ones have, 1 an I/O controller.
    let [kind] = bytes(page, 111);
    if kind > 1 {
        return Err(Unfit::Kind(kind));
    }
    // SQES and CQES: the low half is what it requires, the high half what it can.
    let sizes: [u8; 2] = bytes(page, 512);
    for (size, needed) in sizes.into_iter().zip([6, 4]) {
        if !(size & 0xF..=size >> 4).contains(&needed) {
            return Err(Unfit::Entries);
        }
    }
    let supported = u16::from_le_bytes(bytes(page, 520));
    let [cache] = bytes(page, 525);
    // A unit is the smallest page, which is 4 KiB here. 0 is no limit.
    let most_bytes = if mdts == 0 || mdts > 8 { NO_LIMIT } else { 4096 << mdts };
    Ok(Traits {
        most_bytes,
        cache: cache & 1 != 0,
        deallocates: supported & 1 << 2 != 0,
        zeroes: supported & 1 << 3 != 0,
        has_limits: version >= 2 << 16,
    })
}

/// The first of the active namespaces.
pub fn first_active(page: &Span) -> Result<u32, Unfit> {
    match u32::from_le_bytes(bytes(page, 0)) {
        0 | u32::MAX => Err(Unfit::NoNamespace),
        id => Ok(id),
    }
}

/// Out of Identify Namespace (NVM Command Set Specification 1.0, 4.1.5.1).
pub fn namespace(page: &Span, id: u32) -> Result<Namespace, Unfit> {
    let blocks = u64::from_le_bytes(bytes(page, 0));
    let [format] = bytes(page, 26);
    let [deallocated] = bytes(page, 33);
    let [attributes] = bytes(page, 99);
    // FLBAS: the format's number is in two parts.
    let format = u64::from(format & 0xF | (format >> 5 & 3) << 4);
    let format = u32::from_le_bytes(bytes(page, 128 + 4 * format));
    let (metadata, block_shift) = (format & 0xFFFF, format >> 16 & 0xFF);
    if metadata != 0 {
        return Err(Unfit::Metadata);
    }
    if !(9..=12).contains(&block_shift) {
        return Err(Unfit::Block(block_shift));
    }
    if blocks == 0 || blocks > MOST_BYTES >> block_shift {
        return Err(Unfit::Size(blocks));
    }
    Ok(Namespace {
        id,
        blocks,
        block_shift,
        protected: attributes & 1 != 0,
        // Bits 2:0: what deallocated blocks read as; bit 3: Write Zeroes may deallocate.
        zeroes_by_deallocating: deallocated & 0xF == 0b1001,
    })
}

/// Most blocks of one Write Zeroes and of one range of Dataset Management (NVM, 4.1.5.4): WZSL and
/// DMRSL.
pub fn limits(page: &Span) -> (u64, u64) {
    let [zeroes] = bytes(page, 1);
    let range = u32::from_le_bytes(bytes(page, 4));
    let bytes = if zeroes == 0 { u64::MAX } else { 4096 << zeroes.min(40) };
    (bytes, if range == 0 { u64::MAX } else { range.into() })
}
