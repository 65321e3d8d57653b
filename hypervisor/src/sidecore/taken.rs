//! A device that a sidecore drives: its registers, memory for its driver, and a domain.
//!
//! Guarantees: it reaches that memory and nothing else until its domain is given more, and sends no
//! interrupt. It masters the bus only after [`Taken::enable`].

use crate::iommu::domain::HostDomain;
use crate::memory::{PAGE, allocate, map_mmio};
use crate::pci::{
    COMMAND, COMMAND_BUS_MASTER, COMMAND_INTX_DISABLE, COMMAND_MEMORY, Config, Pci, msi,
};
use ::iommu::Bdf;
use alloc::string::String;
use core::sync::atomic::{Ordering, fence};

/// What it may do while its driver isn't ready.
const QUIET: u16 = COMMAND_MEMORY | COMMAND_INTX_DISABLE;

/// The registers in BAR 0.
#[derive(Clone, Copy)]
pub struct Registers(u64);

impl nvme::Registers for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        // SAFETY: the driver's offsets are aligned and before the end of the registers that it
        // says it uses, which its maker found to be in BAR 0 and mapped.
        unsafe { core::ptr::read_volatile((self.0 + u64::from(offset)) as *const u32) }
    }

    fn read64(&mut self, offset: u32) -> u64 {
        // SAFETY: as in `read32`.
        unsafe { core::ptr::read_volatile((self.0 + u64::from(offset)) as *const u64) }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        // SAFETY: as in `read32`; whatever the write makes the controller do, its domain bounds
        // what memory it does it to.
        unsafe { core::ptr::write_volatile((self.0 + u64::from(offset)) as *mut u32, value) }
    }

    fn write64(&mut self, offset: u32, value: u64) {
        // SAFETY: as in `write32`.
        unsafe { core::ptr::write_volatile((self.0 + u64::from(offset)) as *mut u64, value) }
    }
}

impl igb::Registers for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        nvme::Registers::read32(self, offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        // Descriptors are stored by plain stores, which the compiler may else move behind it.
        fence(Ordering::Release);
        nvme::Registers::write32(self, offset, value);
    }
}

/// A device, taken.
pub struct Taken {
    pub registers: Registers,
    /// Bytes of registers.
    pub size: u64,
    /// The driver's memory.
    pub memory: u64,
    pub domain: HostDomain,
}

impl Taken {
    /// Takes this one, with so many bytes of memory. `domain`: a number that no other domain has.
    /// Boot only; the error is the end of a sentence.
    pub fn new(pci: &Pci, device: Bdf, domain: u16, bytes: u64) -> Result<Self, String> {
        let bar = pci.bars(device).into_iter().find(|bar| bar.index == 0 && !bar.kind.is_io());
        let bar = bar.filter(|bar| bar.address != 0 && bar.size >= 2 * PAGE);
        let bar = bar.ok_or("its registers have no address")?;
        map_mmio(bar.address, bar.size);
        for capability in [msi::CAPABILITY_MSI, msi::CAPABILITY_MSIX] {
            if let Some(at) = pci.capability(device, capability) {
                // All of MSI's control word, and MSI-X's enable bit among what else is read-only.
                pci.write16(device, at + 2, 0);
            }
        }
        let bytes = bytes.next_multiple_of(PAGE);
        let memory = allocate(bytes, PAGE).ok_or("no memory is left for its queues")?;
        let mut own = HostDomain::new(device, domain)?;
        own.map(memory, bytes)?;
        own.attach()?;
        pci.write16(device, COMMAND, QUIET);
        Ok(Taken { registers: Registers(bar.address), size: bar.size, memory, domain: own })
    }

    /// Lets it access memory.
    pub fn enable(pci: &Pci, device: Bdf) {
        pci.write16(device, COMMAND, QUIET | COMMAND_BUS_MASTER);
    }
}
