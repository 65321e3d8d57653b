//! Brings a function back to its first state, by whatever it offers for that.
//!
//! Function-level reset is what the standard has, but it is an option; where it isn't there a device may go on
//! with the rings it had, in memory that has become something else.

use crate::cpu::delay_us;
use crate::pci::{self, Pci};
use iommu::Bdf;

const CAPABILITY_POWER: u8 = 0x01;
const CAPABILITY_EXPRESS: u8 = 0x10;

/// Resets the function; false if it offers nothing for it. The BARs and the interrupt set-up of
/// the function are lost. Its memory BARs must have been mapped.
pub fn function(pci: &Pci, bdf: Bdf) -> bool {
    by_function_level(pci, bdf) || by_register(pci, bdf) || by_power(pci, bdf)
}

/// PCIe 6.0, 6.6.2.
fn by_function_level(pci: &Pci, bdf: Bdf) -> bool {
    const CAPABILITIES: u16 = 4;
    const CONTROL: u16 = 8;
    const CAPABLE: u32 = 1 << 28;
    const INITIATE: u16 = 1 << 15;
    const WAIT_US: u64 = 100_000;
    let Some(express) = pci.capability(bdf, CAPABILITY_EXPRESS) else { return false };
    if pci.read32(bdf, express + CAPABILITIES) & CAPABLE == 0 {
        return false;
    }
    let control = pci.read16(bdf, express + CONTROL);
    pci.write16(bdf, express + CONTROL, control | INITIATE);
    delay_us(WAIT_US);
    true
}

/// Devices with a register for it: Intel's 82574 (datasheet 3.4, 4.6.1), which has no function-level reset.
fn by_register(pci: &Pci, bdf: Bdf) -> bool {
    const IDS: u32 = 0x10D3_8086;
    const BAR0: u16 = 0x10;
    const BAR_FLAGS: u32 = 0xF;
    const CONTROL: u64 = 0x0000;
    const RESET: u32 = 1 << 26;
    const MASK_CLEAR: u64 = 0x00D8;
    const RECEIVE: u64 = 0x0100;
    const TRANSMIT: u64 = 0x0400;
    const WAIT_US: u64 = 10_000;
    if pci.read32(bdf, 0) != IDS {
        return false;
    }
    // Of 32 bits and 128 KiB, as the datasheet has it (9.1.10); the guest can't move it.
    let bar = u64::from(pci.read32(bdf, BAR0) & !BAR_FLAGS);
    if bar == 0 {
        return false;
    }
    pci.write16(bdf, pci::COMMAND, pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE);
    let at = |offset: u64| (bar + offset) as *mut u32;
    // SAFETY: registers of the device, inside its BAR 0, which the caller has mapped; it may
    // not access memory meanwhile, as bus mastering is off.
    unsafe {
        at(MASK_CLEAR).write_volatile(u32::MAX);
        at(RECEIVE).write_volatile(0);
        at(TRANSMIT).write_volatile(0);
        at(CONTROL).write_volatile(at(CONTROL).read_volatile() | RESET);
    }
    delay_us(WAIT_US);
    true
}

/// From D3hot to D0, where that resets (PCI Power Management 1.2, 5.4.1).
fn by_power(pci: &Pci, bdf: Bdf) -> bool {
    const CONTROL: u16 = 4;
    const NO_SOFT_RESET: u16 = 1 << 3;
    const STATE: u16 = 3;
    const WAIT_US: u64 = 10_000;
    let Some(power) = pci.capability(bdf, CAPABILITY_POWER) else { return false };
    let control = pci.read16(bdf, power + CONTROL);
    if control & NO_SOFT_RESET != 0 {
        return false;
    }
    pci.write16(bdf, power + CONTROL, control | STATE);
    delay_us(WAIT_US);
    pci.write16(bdf, power + CONTROL, control & !STATE);
    delay_us(WAIT_US);
    true
}
