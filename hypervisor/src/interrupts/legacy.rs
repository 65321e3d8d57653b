//! The interrupt controllers of the PC, silenced.

use crate::{cpu::port, memory};

/// Command and data ports of the two 8259s.
const PICS: [(u16, u16); 2] = [(0x20, 0x21), (0xA0, 0xA1)];
/// Where their vectors go: the host's own class, though all are masked.
const PIC_VECTORS: [u8; 2] = [0xE0, 0xE8];

/// Masks both 8259s; a spurious interrupt of theirs can't be taken for an exception.
pub fn mask_pics() {
    for (i, (command, data)) in PICS.into_iter().enumerate() {
        port::write8(command, 0x11); // ICW1: edge, cascade, ICW4 follows
        port::write8(data, PIC_VECTORS[i]);
        port::write8(data, if i == 0 { 1 << 2 } else { 2 }); // ICW3: the second is on line 2
        port::write8(data, 0x01); // ICW4: 8086 mode
    }
    for (_, data) in PICS {
        port::write8(data, 0xFF);
    }
}

/// Masks every pin of an IOAPIC (82093AA datasheet 3.1, 3.2).
pub fn mask_ioapic(base: u32) {
    const VERSION: u32 = 1;
    const REDIRECTION: u32 = 0x10;
    const MASKED: u32 = 1 << 16;
    memory::map_mmio(u64::from(base), memory::PAGE);
    let select = base as usize as *mut u32;
    let window = (base as usize + 0x10) as *mut u32;
    // SAFETY: ACPI says that an IOAPIC is there, it was just mapped, and nobody else uses it yet.
    unsafe {
        select.write_volatile(VERSION);
        let last = window.read_volatile() >> 16 & 0xFF;
        for pin in 0..=last {
            select.write_volatile(REDIRECTION + 2 * pin);
            window.write_volatile(MASKED);
        }
    }
}
