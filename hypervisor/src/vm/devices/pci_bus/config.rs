//! Configuration space of the guest's PCI bus, and what follows a write to it.

use super::PciBus;
use super::interface::PciFunction;
use crate::vm::board::Board;
use crate::vm::devices::bus::{Claim, Device};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{DeviceFinding, Fault, Stop};
use alloc::vec::Vec;
use ledger::Reason;
use virtual_pc::pci::{
    ADDRESS, Actions, ConfigAccess, DATA, ECAM, Function, MEM32_WINDOW, MEM64_WINDOW, PORTS,
};
use virtual_pc::ports::unclaimed;

impl Device for PciBus {
    fn claims(&self) -> Vec<Claim> {
        let windows = [MEM32_WINDOW, MEM64_WINDOW];
        let windows = windows.map(|window| Claim::Memory(window, Reason::MsixTable));
        let ports = PORTS.map(|ports| Claim::Ports(ports, Reason::PciConfig));
        // What is used most is found first.
        let unit = self.unit.iter();
        let unit = unit.map(|unit| Claim::Memory(unit.registers(), Reason::GuestIommu));
        ports
            .into_iter()
            .chain(unit)
            .chain(windows)
            .chain([Claim::Memory(ECAM, Reason::PciConfig)])
            .collect()
    }

    fn read_port(&mut self, _: &mut Board, cx: &mut ExitContext, port: u16, size: u8) -> u32 {
        if port == ADDRESS {
            return self.config.read_address();
        }
        let access = self.config.by_port((port - DATA) as u8, size);
        access.map_or(unclaimed(size), |access| self.read_config(cx, access))
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
        match self.config.by_port((port - DATA) as u8, size) {
            Some(access) => self.write_config(board, cx, access, value).map_err(Stop::Fault),
            None => Ok(()),
        }
    }

    fn load(&mut self, _: &mut Board, cx: &mut ExitContext, address: u64, size: u8) -> Option<u64> {
        if let Some(unit) = self.unit.as_ref().filter(|unit| unit.registers().contains(&address)) {
            return Some(unit.load(address, size));
        }
        if ECAM.contains(&address) {
            let access = self.config.by_memory(address - ECAM.start, size);
            return Some(access.map_or(u64::MAX, |access| self.read_config(cx, access).into()));
        }
        self.bar_load(cx, address, size)
    }

    fn store(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        address: u64,
        size: u8,
        value: u64,
    ) -> Option<Result<(), Stop>> {
        let done = if let Some(done) = self.store_to_unit(board, cx, (address, size, value)) {
            done
        } else if ECAM.contains(&address) {
            let access = self.config.by_memory(address - ECAM.start, size);
            access.map_or(Ok(()), |access| self.write_config(board, cx, access, value as u32))
        } else {
            self.bar_store(board, cx, address, size, value)?
        };
        Some(done.map_err(Stop::Fault))
    }
}

impl PciBus {
    fn read_config(&mut self, cx: &mut ExitContext, access: ConfigAccess) -> u32 {
        if let Some((index, w)) = self.config.window(access)
            && let Some(function) = self.functions.get_mut(index)
        {
            let value = function.get_mut().load(cx, w.bar.into(), w.offset.into(), w.size);
            return value as u32 & unclaimed(w.size);
        }
        self.config.read(access)
    }

    #[inline(never)]
    fn write_config(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        access: ConfigAccess,
        value: u32,
    ) -> Result<(), Fault> {
        if let Some((index, w)) = self.config.window(access) {
            let (at, value) = ((index, w.bar.into(), w.offset.into()), value & unclaimed(w.size));
            return self.store_in(board, cx, at, w.size, value.into());
        }
        match self.config.write(access, value) {
            // The rest follows when the reset is through.
            Some((index, actions)) if actions.contains(Actions::RESET) => {
                cx.reset_then(index, actions);
                Ok(())
            }
            Some((index, actions)) => self.follow(board, cx, index, actions),
            None => Ok(()),
        }
    }

    /// Do all functions hold what the host keeps in them?
    pub fn audit(&self) -> Result<(), DeviceFinding> {
        let mut functions = self.functions().zip(self.config.functions());
        functions.try_for_each(|(function, shown)| function.audit(shown))
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
            self.of(index, |function, shown| function.apply_command(shown));
        }
        if actions
            .intersects(Actions::MSIX_CONTROL | Actions::MSI | Actions::RESET | Actions::BUS_MASTER)
        {
            let sources = self.function(index).map_or(0, |function| function.sources().len());
            for source in 0..sources {
                self.route_source(board, cx, index, source)?;
            }
            self.note_sources(board, cx)?;
            self.of(index, |function, shown| function.apply_msix_control(shown));
        }
        Ok(())
    }

    fn of(&mut self, index: usize, apply: impl FnOnce(&mut dyn PciFunction, &Function)) {
        if let (Some(function), Some(shown)) =
            (self.functions.get_mut(index), self.config.function(index))
        {
            apply(function.get_mut(), shown);
        }
    }
}
