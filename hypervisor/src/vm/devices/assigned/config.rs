//! Configuration space of the guest's PCI bus, and what follows a write to it.

use super::PciBus;
use crate::pci::{self, Config};
use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{DeviceFinding, Fault, Stop};
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::pci::{ADDRESS, Actions, DATA, MEM32_WINDOW, MEM64_WINDOW, PORTS};

/// The first BAR register (PCI 3.0, 6.1).
const BAR0: u16 = 0x10;

impl Device for PciBus {
    fn claims(&self) -> Vec<Claim> {
        let windows = [MEM32_WINDOW, MEM64_WINDOW];
        let windows = windows.map(|window| Claim::Memory(window, Reason::MsixTable));
        PORTS
            .map(|ports| Claim::Ports(ports, Reason::PciConfig))
            .into_iter()
            .chain(windows)
            .collect()
    }

    fn read_port(&mut self, _: &mut Board, _: &mut ExitContext, port: u16, size: u8) -> u32 {
        match port {
            ADDRESS => self.config.read_address(),
            _ => self.config.read_data((port - DATA) as u8, size),
        }
    }

    fn write_port(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        port: u16,
        size: u8,
        value: u32,
    ) -> Result<(), Stop> {
        if port == ADDRESS {
            self.config.write_address(value);
            return Ok(());
        }
        match self.config.write_data((port - DATA) as u8, size, value) {
            // The rest follows when the reset is through.
            Some((index, actions)) if actions.contains(Actions::RESET) => {
                cx.reset_then(index, actions);
                Ok(())
            }
            Some((index, actions)) => self.follow(board, cx, index, actions).map_err(Stop::Fault),
            None => Ok(()),
        }
    }

    fn load(&mut self, _: &mut Board, _: &mut ExitContext, address: u64, size: u8) -> Option<u64> {
        self.bar_load(address, size)
    }

    fn store(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        address: u64,
        size: u8,
        value: u64,
    ) -> Option<Result<(), Stop>> {
        Some(self.bar_store(board, cx, address, size, value)?.map_err(Stop::Fault))
    }
}

impl PciBus {
    /// Do the physical BARs, their sizes and the command registers of all functions hold what the
    /// host wrote or measured? Those of a function that is being reset, or didn't come back, aren't
    /// looked at.
    pub fn audit(&self) -> Result<(), DeviceFinding> {
        for (index, d) in self.devices.iter().enumerate().filter(|(_, d)| d.is_itself()) {
            for (at, kept) in (BAR0..).step_by(4).zip(d.registers) {
                let found = self.pci.read32(d.bdf, at);
                if found != kept {
                    return Err(DeviceFinding::Bar { device: d.bdf, at, found, kept });
                }
            }
            if let Err(what) = d.sizes.check(&self.pci, d.bdf) {
                return Err(DeviceFinding::Size { device: d.bdf, what });
            }
            let found = self.pci.read16(d.bdf, pci::COMMAND);
            let master = self.config.function(index).is_some_and(|f| f.bus_master());
            let refused = match master {
                true => pci::COMMAND_IO,
                false => pci::COMMAND_IO | pci::COMMAND_BUS_MASTER,
            };
            if found & refused != 0 || found & pci::COMMAND_INTX_DISABLE == 0 {
                return Err(DeviceFinding::Command { device: d.bdf, found });
            }
        }
        Ok(())
    }

    /// Does the guest use a function, as it seems by its bus mastering, with neither MSI nor MSI-X
    /// on?
    pub fn sends_no_message(&self, index: usize) -> bool {
        self.config.function(index).is_some_and(|f| {
            let msi = f.msi().is_some_and(|msi| msi.enabled);
            f.bus_master() && !f.msix_control().enabled && !msi
        })
    }

    /// What follows a configuration write, a reset apart.
    pub fn follow(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        index: usize,
        actions: Actions,
    ) -> Result<(), Fault> {
        if actions.intersects(Actions::DECODE | Actions::BARS_MOVED) {
            self.place_bars(board, cx)?;
        }
        if actions.intersects(Actions::BUS_MASTER | Actions::RESET) {
            self.apply_command(index);
        }
        if actions
            .intersects(Actions::MSIX_CONTROL | Actions::MSI | Actions::RESET | Actions::BUS_MASTER)
        {
            let sources = self.devices.get(index).map_or(0, |d| d.sources.len());
            for source in 0..sources {
                self.route_source(board, cx, index, source)?;
            }
            self.note_sources(board, cx)?;
            self.apply_msi_control(index);
        }
        Ok(())
    }

    fn apply_command(&self, index: usize) {
        let (Some(d), Some(f)) = (self.devices.get(index), self.config.function(index)) else {
            return;
        };
        if !d.is_itself() {
            return;
        }
        let master = if f.bus_master() { pci::COMMAND_BUS_MASTER } else { 0 };
        let command = pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE | master;
        self.pci.write16(d.bdf, pci::COMMAND, command);
    }

    /// MSI-X enable and function mask as the guest has them; MSI follows its source.
    fn apply_msi_control(&self, index: usize) {
        let (Some(d), Some(f)) = (self.devices.get(index), self.config.function(index)) else {
            return;
        };
        if let Some(m) = d.msix.as_ref().filter(|_| d.is_itself()) {
            let c = f.msix_control();
            let value = u16::from(c.enabled) << 15 | u16::from(c.masked) << 14;
            self.pci.write16(d.bdf, m.capability + 2, value);
        }
    }
}
