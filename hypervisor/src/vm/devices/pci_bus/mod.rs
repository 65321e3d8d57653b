//! The guest's PCI bus: configuration space as the guest sees it (`config`), BARs where it has them
//! (`bars`), interrupts where it sends them (`routes`), and the functions, which are of two kinds
//! (`functions`): assigned ones, and those that the host makes.
//!
//! Guarantees: a BAR is mapped where `virtual_pc::pci` lets it be, and nowhere else; an entry of
//! the guest's becomes an interrupt to the guest's own core with the vector that `delivery` allots,
//! from this function only. All of it may be behind an IOMMU with registers (`unit`). What a function is to do
//! for that is `interface`.

mod bars;
mod behind;
mod config;
pub mod functions;
pub mod interface;
pub mod placement;
mod routes;
pub mod source;
pub mod unit;

use crate::pci::Pci;
use crate::pci::reset::Reset;
use crate::vm::board::Board;
use crate::vm::devices::assigned::AssignedDevice;
use crate::vm::devices::pci_bus::functions::BusFunction;
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::Fault;
use alloc::boxed::Box;
use alloc::vec::Vec;
use paging::Access;
use unit::RemappingUnit;
use virtual_pc::pci::Bus;

/// The guest's PCI bus.
pub struct PciBus {
    /// Some KiB each: not to be moved over stacks.
    config: Box<Bus>,
    /// As the VM starts.
    first: Box<Bus>,
    functions: Vec<BusFunction>,
    pci: Pci,
    unit: Option<RemappingUnit>,
}

impl PciBus {
    /// With these functions, which are on `config` in the same order, behind this unit.
    pub fn new(
        config: Box<Bus>,
        functions: Vec<BusFunction>,
        pci: Pci,
        unit: Option<RemappingUnit>,
    ) -> Self {
        PciBus { first: config.clone(), config, functions, pci, unit }
    }

    /// Where the machine has the registers of the unit and their bytes, and what the guest may do
    /// there.
    pub fn unit_pages(&self) -> Option<(u64, u64, Access)> {
        self.unit.as_ref().map(RemappingUnit::pages)
    }

    /// The configuration space of the machine.
    #[cfg(feature = "plant")]
    pub fn physical(&self) -> &Pci {
        &self.pci
    }

    /// The functions, by index.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &dyn PciFunction> {
        self.functions.iter().map(BusFunction::get)
    }

    /// One of them.
    pub fn function(&self, index: usize) -> Option<&dyn PciFunction> {
        self.functions.get(index).map(BusFunction::get)
    }

    /// Those that are the machine's, each with its index.
    pub fn assigned(&self) -> impl Iterator<Item = (usize, &AssignedDevice)> {
        let functions = self.functions.iter().enumerate();
        functions.filter_map(|(index, function)| Some((index, function.assigned()?)))
    }

    fn all(&mut self) -> impl Iterator<Item = &mut dyn PciFunction> {
        self.functions.iter_mut().map(BusFunction::get_mut)
    }

    /// Begins the reset of a function; nothing if there is no such function, or it is reset.
    pub fn begin_reset(&mut self, index: usize) -> Option<Reset> {
        self.functions.get_mut(index)?.get_mut().begin_reset()
    }

    /// The function is reset.
    pub fn end_reset(&mut self, index: usize) {
        if let Some(function) = self.functions.get_mut(index) {
            function.get_mut().end_reset();
        }
    }

    /// Goes on with a reset; gives how many microseconds to wait then, or `None` when it is
    /// through.
    pub fn step_reset(&self, reset: &mut Reset) -> Option<u64> {
        reset.step(&self.pci)
    }

    /// Silences every function until the guest sets it up again.
    pub fn quiet_devices(&mut self) {
        self.unit.iter_mut().for_each(RemappingUnit::quiet);
        self.all().for_each(PciFunction::quiet);
    }

    /// As after power on; the functions are reset.
    pub fn restart(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        self.config.clone_from(&self.first);
        self.unit.iter_mut().try_for_each(|unit| unit.restart(board, cx))?;
        for function in self.all() {
            function.sources_mut().unbind(cx.guest);
            function.restart();
        }
        self.place_bars(board, cx)?;
        self.note_sources(board, cx)
    }

    /// Silences every function for good.
    pub fn stop_devices(&mut self, guest: &Guest) {
        self.unit.iter_mut().for_each(RemappingUnit::quiet);
        self.all().for_each(|function| function.stop(guest));
    }
}
