//! A table in memory, or a part of one: every field read is checked against its length.

use crate::{Error, Physical};
use core::cell::Cell;

/// Length of the header all tables but the RSDP share (ACPI 5.2.6).
pub const HEADER: u32 = 36;
/// The longest table accepted. Firmware's largest, a DSDT, stays far below; it bounds the work.
pub const MAX_LENGTH: u32 = 1 << 20;

/// Reading ended: why, the [`Source`] knows. An [`Error`] passed through each reading instead would
/// be most of the parser's code.
#[derive(Clone, Copy, Debug)]
pub struct Stop(());

/// What is read.
pub type Read<T> = Result<T, Stop>;

/// The memory that tables are in, and what was wrong with them.
pub struct Source<'a> {
    mem: &'a dyn Physical,
    wrong: Cell<Option<Error>>,
}

impl<'a> Source<'a> {
    pub fn new(mem: &'a dyn Physical) -> Self {
        Source { mem, wrong: Cell::new(None) }
    }

    /// The memory alone.
    pub fn memory(&self) -> &'a dyn Physical {
        self.mem
    }

    /// The end of reading, for this reason.
    #[inline(never)]
    pub fn stop(&self, why: Error) -> Stop {
        self.wrong.set(Some(why));
        Stop(())
    }

    /// What came of reading, with the reason if it ended.
    pub fn outcome<T>(&self, read: Read<T>) -> Result<T, Error> {
        // Only `stop` makes a `Stop`.
        read.map_err(|Stop(())| self.wrong.take().unwrap_or(Error::NoRsdp))
    }

    /// Reads the bytes at `offset` of the table at `address`.
    pub fn read(
        &self,
        table: &'static str,
        address: u64,
        offset: u64,
        bytes: &mut [u8],
    ) -> Read<()> {
        let length = bytes.len() as u32;
        let place = address.checked_add(offset);
        // A read that would run over the end of the address space isn't passed on.
        let inside = place.filter(|place| place.checked_add(u64::from(length)).is_some());
        if inside.is_some_and(|place| self.mem.read(place, bytes)) {
            return Ok(());
        }
        let address = place.unwrap_or(address);
        Err(self.stop(Error::Unreadable { table, address, length }))
    }

    /// The sum of `length` bytes at `address`, modulo 256.
    pub fn sum(&self, table: &'static str, address: u64, length: u32) -> Read<u8> {
        let mut sum = 0u8;
        let mut done = 0;
        let mut chunk = [0; 256];
        while done < length {
            let now = (length - done).min(chunk.len() as u32);
            let bytes = &mut chunk[..now as usize];
            self.read(table, address, u64::from(done), bytes)?;
            sum = bytes.iter().fold(sum, |sum, byte| sum.wrapping_add(*byte));
            done += now;
        }
        Ok(sum)
    }
}

/// A table whose length and checksum were found good, or a structure inside of it.
pub struct Table<'a> {
    source: &'a Source<'a>,
    name: &'static str,
    /// Of the whole table.
    address: u64,
    /// Of this structure in the table.
    offset: u32,
    length: u32,
}

impl<'a> Table<'a> {
    /// Opens the table at `address`: signature, length and checksum must be right.
    #[inline(never)]
    pub fn open(
        source: &'a Source<'a>,
        name: &'static str,
        signature: [u8; 4],
        address: u64,
    ) -> Read<Self> {
        let header = Table { source, name, address, offset: 0, length: HEADER };
        let found = header.array::<4>(0)?;
        if found != signature {
            return Err(source.stop(Error::Signature { table: name, address, found }));
        }
        let length = header.u32(4)?;
        if !(HEADER..=MAX_LENGTH).contains(&length) {
            let (found, least, most) = (length, HEADER, MAX_LENGTH);
            return Err(source.stop(Error::Length { table: name, address, found, least, most }));
        }
        let sum = source.sum(name, address, length)?;
        if sum != 0 {
            return Err(source.stop(Error::Checksum { table: name, address, length, sum }));
        }
        Ok(Table { length, ..header })
    }

    /// The structure of `length` bytes at `offset`, which must lie inside and be no shorter than
    /// `least` (not 0, so that walking always advances).
    #[inline(never)]
    pub fn part(&self, offset: u32, length: u32, least: u32) -> Read<Self> {
        let place = self.offset.saturating_add(offset);
        let left = self.length.saturating_sub(offset);
        if length < least || length > left {
            let (length, needed) = if length < least { (length, least) } else { (left, length) };
            let (table, offset) = (self.name, place);
            return Err(self.stop(Error::Short { table, offset, length, needed }));
        }
        let Table { source, name, address, .. } = *self;
        Ok(Table { source, name, address, offset: place, length })
    }

    /// The end of reading, for this reason.
    pub fn stop(&self, why: Error) -> Stop {
        self.source.stop(why)
    }

    /// Where the whole table is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of this table or structure.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Offset of this structure in its table.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// The byte at `at`.
    #[inline(never)]
    pub fn u8(&self, at: u32) -> Read<u8> {
        self.array(at).map(u8::from_le_bytes)
    }

    /// The 16 bits at `at`.
    #[inline(never)]
    pub fn u16(&self, at: u32) -> Read<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    /// The 32 bits at `at`.
    #[inline(never)]
    pub fn u32(&self, at: u32) -> Read<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The 64 bits at `at`.
    #[inline(never)]
    pub fn u64(&self, at: u32) -> Read<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&self, at: u32) -> Read<[u8; N]> {
        let needed = at.saturating_add(N as u32);
        if needed > self.length {
            let (table, offset, length) = (self.name, self.offset, self.length);
            return Err(self.stop(Error::Short { table, offset, length, needed }));
        }
        let place = u64::from(self.offset) + u64::from(at);
        let mut bytes = [0; N];
        self.source.read(self.name, self.address, place, &mut bytes)?;
        Ok(bytes)
    }
}
