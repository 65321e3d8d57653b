//! The ways to end the machine.

use crate::{acpi, console, cpu};

const DEBUG_EXIT: u16 = 0xF4;
/// Ends Bochs when it has read its word.
const BOCHS_SHUTDOWN: u16 = 0x8900;
/// Debug-exit value: every check held.
pub const PASSED: u32 = 0x20;
/// Debug-exit value: at least one didn't.
pub const FAILED: u32 = 0x21;

/// Ends the machine through the debug-exit port, or Bochs', which has no number.
pub fn debug_exit(value: u32) -> ! {
    cpu::outl(DEBUG_EXIT, value);
    console::drain();
    b"Shutdown".iter().for_each(|byte| cpu::outb(BOCHS_SHUTDOWN, *byte));
    cpu::halt_forever()
}

/// Powers the machine off as its FADT says (ACPI 6.5, 4.8.3).
pub fn off(fadt: &acpi::Fadt) -> ! {
    match fadt.sleep {
        acpi::Sleep::Reduced { control } => cpu::outb(control, 5 << 2 | 0x20),
        // SLP_EN with the SLP_TYP that this machine's \_S5 gives, 0.
        acpi::Sleep::Pm1 { control } => cpu::outw(control, 1 << 13),
    }
    cpu::halt_forever()
}
