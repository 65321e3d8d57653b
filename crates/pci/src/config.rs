//! Configuration space of the machine's functions, as the logic here uses it.
//!
//! Guarantees that no list in it, however it was made, is followed without end. Whether a function
//! is there isn't told: reads of one that isn't give ones.

use crate::Bdf;

/// COMMAND register (PCI 3.0, 6.2.2).
pub const COMMAND: u16 = 0x04;
/// In it: memory BARs, or a bridge's windows, answer.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// The PCI Express capability (PCIe 6.0, 7.5.3).
pub const CAPABILITY_EXPRESS: u8 = 0x10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const CAPABILITIES: u16 = 0x34;

/// Access to configuration space. Offsets are below 4096.
pub trait Config {
    /// Reads the register that holds this offset; all ones where there is none.
    fn read32(&self, function: Bdf, offset: u16) -> u32;
    /// Writes 16 bits at an even offset.
    fn write16(&self, function: Bdf, offset: u16, value: u16);

    /// Reads 16 bits at an even offset.
    fn read16(&self, function: Bdf, offset: u16) -> u16 {
        (self.read32(function, offset) >> (8 * (offset & 2))) as u16
    }

    /// Reads a byte.
    fn read8(&self, function: Bdf, offset: u16) -> u8 {
        (self.read32(function, offset) >> (8 * (offset & 3))) as u8
    }

    /// Offset of a capability in configuration space (PCI 3.0, 6.7).
    fn capability(&self, function: Bdf, id: u8) -> Option<u16> {
        if self.read16(function, COMMAND + 2) & STATUS_CAPABILITIES == 0 {
            return None;
        }
        let mut at = self.read8(function, CAPABILITIES) & !3;
        // 48 capabilities fill the space: a longer list is a loop.
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            let header = self.read16(function, at as u16);
            if header as u8 == id {
                return Some(at as u16);
            }
            at = (header >> 8) as u8 & !3;
        }
        None
    }
}
