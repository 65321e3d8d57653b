//! PCI configuration through mechanism 1 (PCI Local Bus 3.0, 3.2.2.3.2).

use crate::cpu::{inl, outl};

const ADDRESS: u16 = 0xCF8;
const DATA: u16 = 0xCFC;
/// Command register.
pub const COMMAND: u8 = 0x04;
/// Memory space and bus master enable.
pub const MEMORY_AND_MASTER: u32 = 0x6;
/// First base address register.
pub const BAR0: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
/// Capability id of MSI.
pub const MSI: u8 = 0x05;
/// Capability id of MSI-X.
pub const MSIX: u8 = 0x11;

/// Capability id of what vendors define.
pub const VENDOR: u8 = 0x09;
/// A place for BARs in the window that guests and QEMU's q35 have for 32-bit ones.
const LOW: u32 = 0xDC00_0000;

/// A function of bus 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Device number.
    pub device: u8,
    /// Function number.
    pub function: u8,
}

impl Function {
    /// All functions that could be on bus 0.
    pub fn all() -> impl Iterator<Item = Function> {
        (0..32).flat_map(|device| (0..8).map(move |function| Function { device, function }))
    }

    fn select(self, register: u8) {
        let function = u32::from(self.device) << 11 | u32::from(self.function) << 8;
        outl(ADDRESS, 1 << 31 | function | u32::from(register & 0xFC));
    }

    /// Four bytes of its configuration space.
    pub fn read(self, register: u8) -> u32 {
        self.select(register);
        inl(DATA)
    }

    /// Writes four bytes of its configuration space.
    pub fn write(self, register: u8, value: u32) {
        self.select(register);
        outl(DATA, value);
    }

    /// Whether something answers.
    pub fn present(self) -> bool {
        self.read(0) != 0xFFFF_FFFF
    }

    /// The register at which a capability begins.
    pub fn capability(self, id: u8) -> Option<u8> {
        self.capabilities(id).next()
    }

    /// The registers at which capabilities of this id begin.
    pub fn capabilities(self, id: u8) -> impl Iterator<Item = u8> {
        let mut at = self.read(CAPABILITIES) as u8 & 0xFC;
        // A list longer than the space holds would be a loop.
        let list = (0..48).map_while(move |_| {
            let here = (at >= 0x40).then_some(at)?;
            let header = self.read(here);
            at = (header >> 8) as u8 & 0xFC;
            Some((here, header as u8))
        });
        list.filter(move |(_, found)| *found == id).map(|(at, _)| at)
    }

    /// Where a memory BAR is, below 4 GiB: one that firmware put higher is moved, as this kernel's
    /// identity map ends there.
    pub fn low_bar(self, index: u8) -> u64 {
        const IS_64_BIT: u32 = 0x4;
        let register = BAR0 + 4 * index;
        let low = self.read(register);
        if low & IS_64_BIT != 0 && self.read(register + 4) != 0 {
            let command = self.read(COMMAND);
            self.write(COMMAND, 0);
            self.write(register + 4, 0);
            self.write(register, LOW + (u32::from(index) << 20));
            self.write(COMMAND, command);
        }
        u64::from(self.read(register) & !0xF)
    }
}
