//! An assigned device as a function of the guest's bus.

use super::AssignedDevice;
use crate::iommu;
use crate::pci::msi;
use crate::pci::reset::Reset;
use crate::pci::{self, Config};
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::devices::pci_bus::placement::Placement;
use crate::vm::devices::pci_bus::source::Sources;
use crate::vm::devices::registers::{device_load, device_store};
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::{DeviceFinding, Incident};
use ::iommu::Bdf;
use virtual_pc::message::Written;
use virtual_pc::msix::Region;
use virtual_pc::pci::{Function as Shown, Msi};

/// The first BAR register (PCI 3.0, 6.1).
const BAR0: u16 = 0x10;

impl PciFunction for AssignedDevice {
    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn placement_mut(&mut self) -> &mut Placement {
        &mut self.placement
    }

    fn sources(&self) -> &Sources {
        &self.sources
    }

    fn sources_mut(&mut self) -> &mut Sources {
        &mut self.sources
    }

    fn load(&mut self, _: &mut ExitContext, bar: usize, offset: u64, size: u8) -> u64 {
        if let Some(m) = &self.msix
            && let Region::Table(at) = m.layout.region(bar as u8, offset, size)
        {
            return m.table.read(at, size);
        }
        match self.register(bar, offset, size) {
            Some(at) => device_load(at, size),
            None => u64::MAX,
        }
    }

    fn store(
        &mut self,
        _: &mut ExitContext,
        bar: usize,
        offset: u64,
        size: u8,
        value: u64,
    ) -> Option<usize> {
        if let Some(m) = &mut self.msix {
            match m.layout.region(bar as u8, offset, size) {
                Region::Table(at) => return m.table.write(at, size, value),
                Region::PendingBits => return None,
                Region::Device => {}
            }
        }
        if let Some(at) = self.register(bar, offset, size) {
            device_store(at, size, value);
        }
        None
    }

    fn written(&self, shown: &Shown, source: usize) -> Option<Written> {
        let control = shown.msix_control();
        // A masked MSI keeps its route, so that what happens meanwhile waits in its pending bit.
        match &self.msix {
            Some(m) if control.enabled => m.table.written(source, control),
            _ if source == 0 => Msi { masked: false, ..shown.msi()? }.written(),
            _ => None,
        }
    }

    fn hold(&mut self, source: usize) {
        if self.is_itself() && !iommu::remaps() {
            // It would go on to send its old message, which leads nowhere before long.
            self.hold_back(source);
        }
    }

    fn program(&mut self, shown: &Shown, source: usize, open: bool) -> Result<(), Incident> {
        let entry = self.sources.routed_entry(source).filter(|_| open);
        let message = entry.and_then(|entry| iommu::message(self.bdf, entry));
        if self.is_itself() {
            let enabled = shown.msix_control().enabled;
            if let Some(m) = &self.msix {
                msi::write_entry(m.at + 16 * source as u64, message.filter(|_| enabled));
            }
            if source == 0 {
                let masked = shown.msi().is_some_and(|m| m.masked);
                let message = message.filter(|_| !enabled);
                msi::program(&self.pci, self.bdf, self.msi, message, masked);
            }
        }
        match (entry, message) {
            (Some(_), None) => Err(Incident::Route(self.bdf)),
            _ => Ok(()),
        }
    }

    fn apply_command(&mut self, shown: &Shown) {
        if self.is_itself() {
            let master = if shown.bus_master() { pci::COMMAND_BUS_MASTER } else { 0 };
            let command = pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE | master;
            self.pci.write16(self.bdf, pci::COMMAND, command);
        }
    }

    /// MSI-X enable and function mask as the guest has them; MSI follows its source.
    fn apply_msix_control(&mut self, shown: &Shown) {
        if let Some(m) = self.msix.as_ref().filter(|_| self.is_itself()) {
            let c = shown.msix_control();
            let value = u16::from(c.enabled) << 15 | u16::from(c.masked) << 14;
            self.pci.write16(self.bdf, m.capability + 2, value);
        }
    }

    fn begin_reset(&mut self) -> Option<Reset> {
        self.resets += 1;
        self.restart();
        Some(self.method.begin())
    }

    fn end_reset(&mut self) {
        self.resets -= 1;
        // While another goes on it isn't to be touched.
        if self.resets == 0 {
            self.after_reset();
        }
    }

    fn restart(&mut self) {
        if let Some(m) = &mut self.msix {
            m.table.reset();
        }
    }

    fn quiet(&mut self) {
        self.quiesce();
    }

    fn stop(&mut self, owner: &Guest) {
        self.quiesce();
        self.sources.close(owner);
        let _ = iommu::detach(self.bdf);
    }

    /// Do the physical BARs, their sizes and the command register hold what the host wrote or
    /// measured? Those of a function that is being reset, or didn't come back, aren't looked at.
    fn audit(&self, shown: &Shown) -> Result<(), DeviceFinding> {
        if !self.is_itself() {
            return Ok(());
        }
        let device = self.bdf;
        for (at, kept) in (BAR0..).step_by(4).zip(self.registers) {
            let found = self.pci.read32(device, at);
            if found != kept {
                return Err(DeviceFinding::Bar { device, at, found, kept });
            }
        }
        if let Err(what) = self.sizes.check(&self.pci, device) {
            return Err(DeviceFinding::Size { device, what });
        }
        let found = self.pci.read16(device, pci::COMMAND);
        let refused = match shown.bus_master() {
            true => pci::COMMAND_IO,
            false => pci::COMMAND_IO | pci::COMMAND_BUS_MASTER,
        };
        if found & refused != 0 || found & pci::COMMAND_INTX_DISABLE == 0 {
            return Err(DeviceFinding::Command { device, found });
        }
        Ok(())
    }
}

impl AssignedDevice {
    /// The machine's address of registers of the device, aligned to `size`; `None`: there are none.
    fn register(&self, bar: usize, offset: u64, size: u8) -> Option<u64> {
        let (at, bytes) = self.bars.get(bar).copied().flatten()?;
        let end = offset.checked_add(size.into())?;
        (offset.is_multiple_of(size.into()) && end <= bytes).then_some(at + offset)
    }
}
