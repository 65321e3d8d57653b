//! Descriptors (2.7.5, 2.8.13), as they are read: each once, in two words.
//!
//! Guarantees: what is checked is what was read. A table is followed for no more descriptors than
//! [`SEGMENTS`].
use crate::{Broken, Chain, SEGMENTS};
use window::{Outside, Span, Window};

/// VIRTQ_DESC_F_NEXT: the chain goes on.
pub const NEXT: u16 = 1 << 0;
/// VIRTQ_DESC_F_WRITE: the device may write the buffer, else it may read it.
pub const WRITE: u16 = 1 << 1;
/// VIRTQ_DESC_F_INDIRECT: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 1 << 2;
/// Bytes of a descriptor, of either kind.
pub const BYTES: u64 = 16;

/// A descriptor of a split ring, or of a table for one.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    /// Reads the one with this index.
    #[inline]
    pub fn read(table: &Span, index: u16) -> Result<Descriptor, Outside> {
        let [address, rest] = table.load_u64_pair(u64::from(index) * BYTES)?;
        Ok(Descriptor::of(address, rest))
    }

    #[inline]
    fn of(address: u64, rest: u64) -> Descriptor {
        Descriptor {
            address,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        }
    }
}

/// A descriptor of a packed ring, or of a table for one.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    pub address: u64,
    pub len: u32,
    pub id: u16,
    pub flags: u16,
}

impl Packed {
    /// Where its word with the flags is in the ring.
    #[inline]
    pub fn flags_at(index: u16) -> u64 {
        u64::from(index) * BYTES + 8
    }

    /// The word of length, buffer ID and flags as it is in the ring.
    #[inline]
    pub fn word(len: u32, id: u16, flags: u16) -> u64 {
        u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
    }

    /// The flags in that word.
    #[inline]
    pub fn flags_of(word: u64) -> u16 {
        (word >> 48) as u16
    }

    /// The one with this index, whose other word has been read.
    #[inline]
    pub fn read(ring: &Span, index: u16, word: u64) -> Result<Packed, Outside> {
        Ok(Packed::of(ring.load_u64(u64::from(index) * BYTES)?, word))
    }

    #[inline]
    fn of(address: u64, word: u64) -> Packed {
        let (len, id) = (word as u32, (word >> 32) as u16);
        Packed { address, len, id, flags: Packed::flags_of(word) }
    }
}

/// Follows the indirect table of a split ring (2.7.5.3): a chain of its own, from its first
/// descriptor on. It may be longer than the queue: Linux makes such ones for a small queue.
pub fn split_table(
    window: &Window,
    address: u64,
    len: u32,
    chain: &mut Chain,
) -> Result<(), Broken> {
    let entries = entries(len)?;
    let mut index = 0;
    for _ in 0..SEGMENTS {
        let words = read(window, address, len, index)?;
        let descriptor = Descriptor::of(words.0, words.1);
        if descriptor.flags & INDIRECT != 0 {
            return Err(Broken::Indirect);
        }
        chain.push(window, descriptor.address, descriptor.len, descriptor.flags & WRITE != 0)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(());
        }
        index = descriptor.next.into();
        if index >= entries {
            return Err(Broken::Index(descriptor.next));
        }
    }
    Err(Broken::TooLong)
}

/// Takes all of the indirect table of a packed ring (2.8.7): WRITE is the only flag that counts.
pub fn packed_table(
    window: &Window,
    address: u64,
    len: u32,
    chain: &mut Chain,
) -> Result<(), Broken> {
    let entries = entries(len)?;
    if entries > SEGMENTS as u32 {
        return Err(Broken::TooLong);
    }
    for index in 0..entries {
        let words = read(window, address, len, index)?;
        let descriptor = Packed::of(words.0, words.1);
        chain.push(window, descriptor.address, descriptor.len, descriptor.flags & WRITE != 0)?;
    }
    Ok(())
}

/// How many descriptors a table of this many bytes has: at least one.
fn entries(len: u32) -> Result<u32, Broken> {
    if len == 0 || !len.is_multiple_of(BYTES as u32) {
        return Err(Broken::TableLength(len));
    }
    Ok(len / BYTES as u32)
}

/// The two words of a descriptor of a table, which may lie anywhere, aligned or not.
#[inline]
fn read(window: &Window, address: u64, len: u32, index: u32) -> Result<(u64, u64), Broken> {
    let outside = Broken::Outside { address, len };
    let at = address.checked_add(u64::from(index) * BYTES).ok_or(outside)?;
    let mut words = [[0; 8]; 2];
    window.read(at, words.as_flattened_mut()).map_err(|_| outside)?;
    Ok((u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])))
}
