//! The BIOS data area and its extension, as firmware leaves them for kernels that look there.
//!
//! Guarantees that the words by which kernels place their trampolines agree with the memory map:
//! the extension starts where conventional memory ends. No BIOS service stands behind it: what a
//! BIOS would count or change while it runs (ticks, keys, disks) is zero.

use crate::uart;

/// Where the data area is.
pub const AT: u64 = 0x400;
/// Where the extension is, and conventional memory ends: 1 KiB below 640 KiB.
pub const EXTENSION_AT: u64 = 0x9_FC00;
/// Its first byte: its own size in KiB.
pub const EXTENSION: [u8; 1] = [1];

/// Bytes of the data area.
const SIZE: usize = 0x100;
/// I/O port of the first serial port.
const COM1: usize = 0x00;
/// Real-mode segment of the extension.
const EXTENSION_SEGMENT: usize = 0x0E;
/// The equipment that is installed.
const EQUIPMENT: usize = 0x10;
/// KiB of conventional memory.
const CONVENTIONAL: usize = 0x13;

/// Equipment: a floating-point unit, and one serial port in bits 11:9. No video.
const INSTALLED: u16 = 1 << 1 | 1 << 9;

/// The bytes at [`AT`].
pub const fn area() -> [u8; SIZE] {
    let mut area = [0; SIZE];
    let words = [
        (COM1, uart::BASE),
        (EXTENSION_SEGMENT, (EXTENSION_AT >> 4) as u16),
        (EQUIPMENT, INSTALLED),
        (CONVENTIONAL, (EXTENSION_AT >> 10) as u16),
    ];
    let mut i = 0;
    while i < words.len() {
        let (at, value) = words[i];
        [area[at], area[at + 1]] = value.to_le_bytes();
        i += 1;
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(at: u64) -> u16 {
        let offset = (at - AT) as usize;
        u16::from_le_bytes([area()[offset], area()[offset + 1]])
    }

    #[test]
    fn the_words_that_kernels_read_are_those_of_a_pc() {
        assert_eq!(word(0x400), 0x3F8);
        assert_eq!(word(0x40E), 0x9FC0, "the extension's segment");
        assert_eq!(word(0x410) >> 9 & 7, 1, "one serial port");
        assert_eq!(word(0x410) >> 4 & 3, 0, "no video");
        assert_eq!(word(0x410) >> 1 & 1, 1, "a floating-point unit");
        assert_eq!(word(0x413), 639, "KiB");
        let named = [0x400, 0x401, 0x40E, 0x40F, 0x410, 0x411, 0x413, 0x414];
        let mut others = (AT..AT + 0x100).filter(|at| !named.contains(at));
        assert!(others.all(|at| area()[(at - AT) as usize] == 0));
    }

    #[test]
    fn the_extension_fills_what_is_left_of_640_kib() {
        assert_eq!(EXTENSION_AT + u64::from(EXTENSION[0]) * 1024, 640 << 10);
        assert_eq!(u64::from(word(0x40E)) << 4, EXTENSION_AT);
        assert_eq!(u64::from(word(0x413)) << 10, EXTENSION_AT);
    }
}
