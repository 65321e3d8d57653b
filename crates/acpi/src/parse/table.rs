//! A table in memory, or a part of one: every field read is checked against its length.

use crate::{Error, Physical};

/// Length of the header all tables but the RSDP share (ACPI 5.2.6).
pub const HEADER: u32 = 36;
/// The longest table accepted. Firmware's largest, a DSDT, stays far below; it bounds the work.
pub const MAX_LENGTH: u32 = 1 << 20;

/// A table whose length and checksum were found good, or a structure inside of it.
pub struct Table<'a, M> {
    mem: &'a M,
    name: &'static str,
    /// Of the whole table.
    address: u64,
    /// Of this structure in the table.
    offset: u32,
    length: u32,
}

impl<'a, M: Physical> Table<'a, M> {
    /// Opens the table at `address`: signature, length and checksum must be right.
    pub fn open(
        mem: &'a M,
        name: &'static str,
        signature: [u8; 4],
        address: u64,
    ) -> Result<Self, Error> {
        let header = Table { mem, name, address, offset: 0, length: HEADER };
        let found = header.array::<4>(0)?;
        if found != signature {
            return Err(Error::Signature { table: name, address, found });
        }
        let length = header.u32(4)?;
        if !(HEADER..=MAX_LENGTH).contains(&length) {
            let (found, least, most) = (length, HEADER, MAX_LENGTH);
            return Err(Error::Length { table: name, address, found, least, most });
        }
        let sum = sum(mem, name, address, length)?;
        if sum != 0 {
            return Err(Error::Checksum { table: name, address, length, sum });
        }
        Ok(Table { length, ..header })
    }

    /// The structure of `length` bytes at `offset`, which must lie inside and be no shorter than
    /// `least` (not 0, so that walking always advances).
    pub fn part(&self, offset: u32, length: u32, least: u32) -> Result<Self, Error> {
        let (table, place) = (self.name, self.offset.saturating_add(offset));
        if length < least {
            return Err(Error::Short { table, offset: place, length, needed: least });
        }
        let left = self.length.saturating_sub(offset);
        if length > left {
            return Err(Error::Short { table, offset: place, length: left, needed: length });
        }
        Ok(Table { mem: self.mem, name: table, address: self.address, offset: place, length })
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
    pub fn u8(&self, at: u32) -> Result<u8, Error> {
        self.array(at).map(u8::from_le_bytes)
    }

    /// The 16 bits at `at`.
    pub fn u16(&self, at: u32) -> Result<u16, Error> {
        self.array(at).map(u16::from_le_bytes)
    }

    /// The 32 bits at `at`.
    pub fn u32(&self, at: u32) -> Result<u32, Error> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The 64 bits at `at`.
    pub fn u64(&self, at: u32) -> Result<u64, Error> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&self, at: u32) -> Result<[u8; N], Error> {
        let needed = at.saturating_add(N as u32);
        if needed > self.length {
            let (table, offset, length) = (self.name, self.offset, self.length);
            return Err(Error::Short { table, offset, length, needed });
        }
        let place = u64::from(self.offset) + u64::from(at);
        let mut bytes = [0; N];
        read(self.mem, self.name, self.address, place, &mut bytes)?;
        Ok(bytes)
    }
}

/// The sum of `length` bytes at `address`, modulo 256.
pub fn sum(
    mem: &impl Physical,
    table: &'static str,
    address: u64,
    length: u32,
) -> Result<u8, Error> {
    let mut sum = 0u8;
    let mut done = 0;
    let mut chunk = [0; 256];
    while done < length {
        let now = (length - done).min(chunk.len() as u32);
        let bytes = &mut chunk[..now as usize];
        read(mem, table, address, u64::from(done), bytes)?;
        sum = bytes.iter().fold(sum, |sum, byte| sum.wrapping_add(*byte));
        done += now;
    }
    Ok(sum)
}

/// Reads the bytes at `offset` of the table at `address`.
pub fn read(
    mem: &impl Physical,
    table: &'static str,
    address: u64,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let length = bytes.len() as u32;
    match address.checked_add(offset) {
        // A read that would run over the end of the address space isn't passed on.
        Some(place) if place.checked_add(u64::from(length)).is_some() && mem.read(place, bytes) => {
            Ok(())
        }
        place => {
            let address = place.unwrap_or(address);
            Err(Error::Unreadable { table, address, length })
        }
    }
}
