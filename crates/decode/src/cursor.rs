//! Reads an instruction's bytes in order and never past the fifteenth.

use crate::Error;

/// APM volume 3, 1.1: the longest instruction.
const MAX_LENGTH: usize = 15;

pub struct Cursor<'a> {
    bytes: &'a [u8],
    position: u8,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes read so far, at most 15.
    pub fn position(&self) -> u8 {
        self.position
    }

    /// The next byte, which stays the next.
    pub fn peek(&self) -> Result<u8, Error> {
        Self { bytes: self.bytes, position: self.position }.u8()
    }

    pub fn u8(&mut self) -> Result<u8, Error> {
        let position = usize::from(self.position);
        if position >= MAX_LENGTH {
            return Err(Error::TooLong);
        }
        let byte = *self.bytes.get(position).ok_or(Error::Truncated(self.bytes.len()))?;
        self.position += 1;
        Ok(byte)
    }

    /// A little-endian number of `size` bytes (1, 2, 4 or 8).
    pub fn unsigned(&mut self, size: u8) -> Result<u64, Error> {
        let mut value = 0;
        for index in 0..u32::from(size.min(8)) {
            value |= u64::from(self.u8()?) << (8 * index);
        }
        Ok(value)
    }

    /// The same, sign-extended to 64 bits.
    pub fn signed(&mut self, size: u8) -> Result<u64, Error> {
        Ok(sign_extend(self.unsigned(size)?, size))
    }
}

/// The low `size` bytes of `value`.
pub fn truncate(value: u64, size: u8) -> u64 {
    value & mask(size)
}

/// The low `size` bytes of `value`, with their sign repeated above them.
pub fn sign_extend(value: u64, size: u8) -> u64 {
    if value & sign(size) == 0 { truncate(value, size) } else { value | !mask(size) }
}

/// The sign bit of a number of `size` bytes.
pub fn sign(size: u8) -> u64 {
    mask(size) ^ (mask(size) >> 1)
}

fn mask(size: u8) -> u64 {
    match size {
        1 => 0xFF,
        2 => 0xFFFF,
        4 => 0xFFFF_FFFF,
        _ => u64::MAX,
    }
}
