//! I/O ports: which of them a device has, for accesses of which sizes.
//!
//! Each device's module lists its own. Guarantees that no access belongs to two of them. Byte-wide
//! devices have byte accesses only; a wider access to them is nobody's, not split.

use core::ops::RangeInclusive;

/// Sizes of accesses: bits 0, 1 and 2 for 1, 2 and 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes(u8);

impl Sizes {
    /// Bytes only.
    pub const BYTE: Sizes = Sizes(1);
    /// Words of 32 bits only.
    pub const DWORD: Sizes = Sizes(4);
    /// 1, 2 or 4 bytes.
    pub const ALL: Sizes = Sizes(7);

    const fn contains(self, size: u8) -> bool {
        size.is_power_of_two() && self.0 & size != 0
    }
}

/// Which accesses something answers: a guest that repeats one of the others waits in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Reads and writes.
    All,
    /// Writes alone.
    Writes,
    /// None: reads give a value of their own all the same.
    None,
}

impl Answers {
    /// Is a read answered, or a write?
    pub const fn to(self, read: bool) -> bool {
        match self {
            Self::All => true,
            Self::Writes => !read,
            Self::None => false,
        }
    }
}

/// Ports of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Accesses that begin there,
    pub ports: RangeInclusive<u16>,
    /// and are of these sizes.
    pub sizes: Sizes,
    /// Which of them are answered.
    pub answers: Answers,
}

impl Ports {
    /// Ports for accesses of these sizes, all of them answered.
    pub const fn new(ports: RangeInclusive<u16>, sizes: Sizes) -> Self {
        Ports { ports, sizes, answers: Answers::All }
    }

    /// Is an access of `size` bytes at `port` the device's?
    pub fn contain(&self, port: u16, size: u8) -> bool {
        self.ports.contains(&port) && self.sizes.contains(size)
    }
}

/// The value of a read of `size` bytes where nobody answers: all ones.
pub const fn unclaimed(size: u8) -> u32 {
    match size {
        1 => 0xFF,
        2 => 0xFFFF,
        _ => 0xFFFF_FFFF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pci, power, rtc, uart};

    /// The ports of each device.
    fn devices() -> [(&'static str, Vec<Ports>); 4] {
        [
            ("uart", vec![uart::PORTS]),
            ("rtc", vec![rtc::PORTS]),
            ("pci", pci::PORTS.to_vec()),
            ("power", power::ports().collect()),
        ]
    }

    #[test]
    fn each_port_is_where_a_pc_has_it() {
        let named = |port: u16, size: u8| match (port, size) {
            (0x3F8..=0x3FF, 1) => vec!["uart"],
            (0x70 | 0x71, 1) => vec!["rtc"],
            // Linux writes 1 to 0xCFB before it looks for mechanism 1.
            (0xCF8, 4) | (0xCFC..=0xCFF, 1 | 2 | 4) => vec!["pci"],
            (0x40..=0x42 | 0x64 | 0x600 | 0x601 | 0x604 | 0xCF9, 1) => vec!["power"],
            (0xF4, 1 | 2 | 4) => vec!["power"],
            _ => vec![],
        };
        let devices = devices();
        for port in 0..=u16::MAX {
            for size in 0..=8 {
                let of =
                    |ports: &Vec<Ports>| ports.iter().filter(|p| p.contain(port, size)).count();
                let found = devices.iter().flat_map(|(name, ports)| vec![*name; of(ports)]);
                assert_eq!(found.collect::<Vec<_>>(), named(port, size), "{port:#x} {size}");
            }
        }
    }

    #[test]
    fn what_is_not_there_does_not_answer() {
        let devices = devices();
        for (port, size, read, write) in [
            (0x3F8, 1, true, true),
            (0x3F8, 4, false, false),
            (0x20, 1, false, false),
            (0x40, 1, false, false),
            (0x60, 1, false, false),
            (0x64, 1, false, true),
            (0x604, 1, true, true),
            (0xCF8, 4, true, true),
            (0xFFFF, 1, false, false),
        ] {
            let mut all = devices.iter().flat_map(|(_, ports)| ports);
            let found = all.find(|p| p.contain(port, size)).map(|p| p.answers);
            let answers = |read| found.is_some_and(|answers| answers.to(read));
            assert_eq!((answers(true), answers(false)), (read, write), "{port:#x}");
        }
    }

    #[test]
    fn nobody_reads_as_ones_of_the_size() {
        assert_eq!([unclaimed(1), unclaimed(2), unclaimed(4)], [0xFF, 0xFFFF, 0xFFFF_FFFF]);
    }
}
