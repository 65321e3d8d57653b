//! Brings a function back to its first state, by whatever it offers for that.
//!
//! Function-level reset is what the standard has, but it is an option; where it isn't there a
//! device may go on with the rings it had, in memory that has become something else. A reset takes
//! up to a tenth of a second, so it is done in steps, and whoever does it may do something else
//! between them.

use crate::cpu::delay_us;
use crate::pci::{self, Pci, acs};
use iommu::Bdf;

const CAPABILITY_POWER: u8 = 0x01;
const CAPABILITY_EXPRESS: u8 = 0x10;

/// A reset that goes on.
pub struct Reset {
    bdf: Bdf,
    way: Way,
    steps: u8,
}

/// How a function can be reset.
#[derive(Clone, Copy)]
enum Way {
    /// PCIe 6.0, 6.6.2: offset of the control register.
    FunctionLevel(u16),
    /// Devices with a register for it: Intel's 82574, by its BAR 0.
    Register(u64),
    /// From D3hot to D0, where that resets (PCI Power Management 1.2, 5.4.1): offset of the control
    /// and status register.
    Power(u16),
    /// Not at all.
    None,
}

impl Reset {
    /// Finds out how. The memory BARs of the function must have been mapped.
    pub fn new(pci: &Pci, bdf: Bdf) -> Self {
        let way = function_level(pci, bdf)
            .or_else(|| register(pci, bdf))
            .or_else(|| power(pci, bdf))
            .unwrap_or(Way::None);
        Reset { bdf, way, steps: 0 }
    }

    /// Does the next step; gives the microseconds to wait before the one after it, or nothing when
    /// the function is reset, as far as it can be. Its BARs and its interrupt set-up are lost then.
    pub fn step(&mut self, pci: &Pci) -> Option<u64> {
        const FUNCTION_LEVEL_US: u64 = 100_000;
        const REGISTER_US: u64 = 10_000;
        const POWER_US: u64 = 10_000;
        let step = self.steps;
        self.steps = step.saturating_add(1);
        match (self.way, step) {
            (Way::FunctionLevel(control), 0) => {
                const INITIATE: u16 = 1 << 15;
                pci.write16(self.bdf, control, pci.read16(self.bdf, control) | INITIATE);
                Some(FUNCTION_LEVEL_US)
            }
            (Way::Register(bar), 0) => {
                by_register(pci, self.bdf, bar);
                Some(REGISTER_US)
            }
            (Way::Power(control), 0 | 1) => {
                const STATE: u16 = 3;
                let state = if step == 0 { STATE } else { 0 };
                let value = pci.read16(self.bdf, control) & !STATE | state;
                pci.write16(self.bdf, control, value);
                Some(POWER_US)
            }
            _ => {
                acs::enable(pci, self.bdf);
                None
            }
        }
    }

    /// Does all steps and waits: while booting.
    pub fn run(mut self, pci: &Pci) {
        while let Some(us) = self.step(pci) {
            delay_us(us);
        }
    }
}

fn function_level(pci: &Pci, bdf: Bdf) -> Option<Way> {
    const CAPABILITIES: u16 = 4;
    const CONTROL: u16 = 8;
    const CAPABLE: u32 = 1 << 28;
    let express = pci.capability(bdf, CAPABILITY_EXPRESS)?;
    let capable = pci.read32(bdf, express + CAPABILITIES) & CAPABLE != 0;
    capable.then_some(Way::FunctionLevel(express + CONTROL))
}

/// Intel's 82574 (datasheet 3.4, 4.6.1), which has no function-level reset.
fn register(pci: &Pci, bdf: Bdf) -> Option<Way> {
    const IDS: u32 = 0x10D3_8086;
    const BAR0: u16 = 0x10;
    const BAR_FLAGS: u32 = 0xF;
    if pci.read32(bdf, 0) != IDS {
        return None;
    }
    // Of 32 bits and 128 KiB, as the datasheet has it (9.1.10); the guest can't move it.
    let bar = u64::from(pci.read32(bdf, BAR0) & !BAR_FLAGS);
    (bar != 0).then_some(Way::Register(bar))
}

fn by_register(pci: &Pci, bdf: Bdf, bar: u64) {
    const CONTROL: u64 = 0x0000;
    const RESET: u32 = 1 << 26;
    const MASK_CLEAR: u64 = 0x00D8;
    const RECEIVE: u64 = 0x0100;
    const TRANSMIT: u64 = 0x0400;
    pci.write16(bdf, pci::COMMAND, pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE);
    let at = |offset: u64| (bar + offset) as *mut u32;
    // SAFETY: registers of the device, inside its BAR 0, which `Reset::new`'s caller has mapped; it
    // may not access memory meanwhile, as bus mastering is off.
    unsafe {
        at(MASK_CLEAR).write_volatile(u32::MAX);
        at(RECEIVE).write_volatile(0);
        at(TRANSMIT).write_volatile(0);
        at(CONTROL).write_volatile(at(CONTROL).read_volatile() | RESET);
    }
}

fn power(pci: &Pci, bdf: Bdf) -> Option<Way> {
    const CONTROL: u16 = 4;
    const NO_SOFT_RESET: u16 = 1 << 3;
    let power = pci.capability(bdf, CAPABILITY_POWER)?;
    let resets = pci.read16(bdf, power + CONTROL) & NO_SOFT_RESET == 0;
    resets.then_some(Way::Power(power + CONTROL))
}
