//! Functions whose registers show their own configuration space.
//!
//! By such a mirror in a BAR who has the BAR writes configuration space: a guest could move the
//! BARs over what is another's, and no table of the host's would say so. Guarantees nothing about
//! functions that aren't listed: that they have no mirror is known of none.

/// Classes of network and display controllers (PCI Code and ID Assignment 1.15, 1.3 and 1.4).
const NETWORK: u32 = 0x02;
const DISPLAY: u32 = 0x03;
const AMD: u16 = 0x1002;
const NVIDIA: u16 = 0x10DE;
const REALTEK: u16 = 0x10EC;
/// Realtek's RTL8139, from before PCI Express: its registers are documented, and none is such.
const RTL8139: u16 = 0x8139;

/// Is it known that this function's BARs lead to its configuration space? `class` is of 24 bits.
/// Most of Realtek's network controllers, from 100 Mbit/s to 10 Gbit/s, have a pair of registers
/// for it; those that haven't can't be told from them, but one.
pub fn mirrors_configuration(vendor: u16, device: u16, class: u32) -> bool {
    match vendor {
        AMD | NVIDIA => class >> 16 == DISPLAY,
        REALTEK => class >> 16 == NETWORK && device != RTL8139,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphics_with_a_mirror_are_told_from_the_makers_other_functions() {
        assert!(mirrors_configuration(NVIDIA, 0x1B80, 0x03_0000));
        assert!(mirrors_configuration(AMD, 0x67DF, 0x03_8000));
        assert!(!mirrors_configuration(NVIDIA, 0x10F0, 0x04_0300), "its sound");
        for device in [0x8136, 0x8161, 0x8168, 0x8125, 0x8127] {
            assert!(mirrors_configuration(REALTEK, device, 0x02_0000));
        }
        assert!(!mirrors_configuration(REALTEK, 0x8139, 0x02_0000));
        assert!(!mirrors_configuration(REALTEK, 0x5229, 0xFF_0000), "its card readers");
        assert!(!mirrors_configuration(0x8086, 0x8168, 0x02_0000));
    }
}
