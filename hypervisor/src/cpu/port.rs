//! Port I/O of the host's own devices. Which port a number is stays the caller's business; the
//! ports used here (UART, 8259, PM timer, debug exit, watchdog, PCI configuration) can't harm
//! memory: what a device may do by its configuration is confined elsewhere.

use core::arch::asm;

/// IN, 8 bits.
pub fn read8(port: u16) -> u8 {
    let value;
    // SAFETY: IN touches no memory; devices behind host ports don't either when read.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// IN, 16 bits.
pub fn read16(port: u16) -> u16 {
    let value;
    // SAFETY: as read8.
    unsafe {
        asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// IN, 32 bits.
pub fn read32(port: u16) -> u32 {
    let value;
    // SAFETY: as read8.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags))
    };
    value
}

/// OUT, 8 bits.
pub fn write8(port: u16, value: u8) {
    // SAFETY: OUT touches no memory of ours; callers name ports of devices that don't master
    // memory.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags))
    };
}

/// OUT, 16 bits.
pub fn write16(port: u16, value: u16) {
    // SAFETY: as write8.
    unsafe {
        asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags))
    };
}

/// OUT, 32 bits.
pub fn write32(port: u16, value: u32) {
    // SAFETY: as write8.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags))
    };
}
