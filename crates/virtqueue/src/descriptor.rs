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
    let table = Table::new(window, address, len)?;
    let mut index = 0;
    for _ in 0..SEGMENTS {
        let [address, rest] = table.read(index)?;
        let descriptor = Descriptor::of(address, rest);
        if descriptor.flags & INDIRECT != 0 {
            return Err(Broken::Indirect);
        }
        chain.push(window, descriptor.address, descriptor.len, descriptor.flags & WRITE != 0)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(());
        }
        index = descriptor.next.into();
        if index >= table.entries {
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
    let table = Table::new(window, address, len)?;
    if table.entries > SEGMENTS as u32 {
        return Err(Broken::TooLong);
    }
    for index in 0..table.entries {
        let [address, word] = table.read(index)?;
        let descriptor = Packed::of(address, word);
        chain.push(window, descriptor.address, descriptor.len, descriptor.flags & WRITE != 0)?;
    }
    Ok(())
}

/// An indirect table. It may lie anywhere in memory, aligned or not.
struct Table<'a> {
    window: &'a Window,
    /// All of it, if one region holds it.
    span: Option<Span>,
    address: u64,
    len: u32,
    /// At least one.
    entries: u32,
}

impl<'a> Table<'a> {
    #[inline]
    fn new(window: &'a Window, address: u64, len: u32) -> Result<Table<'a>, Broken> {
        if len == 0 || !len.is_multiple_of(BYTES as u32) {
            return Err(Broken::TableLength(len));
        }
        let span = window.span(address, len.into());
        Ok(Table { window, span, address, len, entries: len / BYTES as u32 })
    }

    /// The two words of a descriptor, each read once.
    #[inline]
    fn read(&self, index: u32) -> Result<[u64; 2], Broken> {
        let at = u64::from(index) * BYTES;
        match self.span.map(|span| span.load_u64_pair(at)) {
            Some(Ok(words)) => Ok(words),
            _ => self.read_bytes(at),
        }
    }

    /// The same of one that isn't aligned, or whose table goes over the border of regions.
    #[cold]
    #[inline(never)]
    fn read_bytes(&self, at: u64) -> Result<[u64; 2], Broken> {
        let outside = Broken::Outside { address: self.address, len: self.len };
        let mut words = [[0; 8]; 2];
        let at = self.address.checked_add(at).ok_or(outside)?;
        self.window.read(at, words.as_flattened_mut()).map_err(|_| outside)?;
        Ok(words.map(u64::from_le_bytes))
    }
}
