//! What interrupt entries of every vendor have in common: who may have one, what it may say, and
//! the message that says the same where nothing remaps interrupts.

use crate::{Delivery, Error, InterruptRoute, Message};
use alloc::{vec, vec::Vec};

/// The lowest vector a local APIC takes (SDM 3A 11.5.2).
const FIRST_VECTOR: u8 = 16;
/// The most messages one MSI capability has.
const MAX_BLOCK: u16 = 32;

/// Whether an entry may say this.
pub fn check(route: InterruptRoute) -> Result<(), Error> {
    match route.delivery {
        Delivery::Fixed(vector) if vector < FIRST_VECTOR => Err(Error::Vector { vector }),
        _ => Ok(()),
    }
}

/// The message that raises an interrupt where nothing remaps it (SDM 3A 11.11): to one processor,
/// by its APIC id. None if that has more than 8 bits, or is the one that means all.
pub fn compatibility_message(destination: u32, delivery: Delivery) -> Option<Message> {
    let destination = u8::try_from(destination).ok().filter(|id| *id != u8::MAX)?;
    let data = match delivery {
        Delivery::Fixed(vector) => u32::from(vector),
        Delivery::Nmi => 4 << 8,
    };
    Some(Message { address: 0xFEE0_0000 | u64::from(destination) << 12, data })
}

/// Which entries of a table are allocated: a bit for each.
pub struct Allocated(Vec<u64>);

impl Allocated {
    /// None yet of `count`, a multiple of 64.
    pub fn new(count: u32) -> Self {
        Allocated(vec![0; count as usize / 64])
    }

    /// Allocates `count` entries in a row, beginning at a multiple of their number.
    pub fn allocate(&mut self, count: u16) -> Result<u16, Error> {
        if !count.is_power_of_two() || count > MAX_BLOCK {
            return Err(Error::BlockSize { count });
        }
        // A block never crosses a word, for both are powers of two and the block is the smaller.
        let mask = (1u64 << count) - 1;
        for (n, word) in self.0.iter_mut().enumerate() {
            for bit in (0..64).step_by(count.into()) {
                if *word >> bit & mask == 0 {
                    *word |= mask << bit;
                    return Ok((n * 64 + bit) as u16);
                }
            }
        }
        Err(Error::TableFull { count })
    }

    pub fn release(&mut self, index: u16) {
        if let Some(word) = self.0.get_mut(usize::from(index / 64)) {
            *word &= !(1 << (index % 64));
        }
    }

    pub fn check(&self, index: u16) -> Result<(), Error> {
        match self.0.get(usize::from(index / 64)) {
            Some(word) if word >> (index % 64) & 1 != 0 => Ok(()),
            _ => Err(Error::NotAllocated { index }),
        }
    }
}
