//! The part of a VM's PC that its vCPUs share: the emulated devices, the assigned ones, and the
//! tables that say what is where in guest-physical memory.
//!
//! Guarantees: one vCPU at a time is in here, and while another waits to come in it answers what
//! the one inside asks of it, so that the one inside may wait for the others' translations to be
//! flushed. No other VM ever waits for this lock, nor does core 0, which takes it if it is free to
//! look at one entry (`audit`).

use crate::vm::board::Board;
use crate::vm::devices::bus::{Device, Emulated};
use crate::vm::devices::bus_map::BusMap;
use crate::vm::devices::pci_bus::PciBus;
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::Fault;
use paging::Mapping;
use virtual_pc::pci::Actions;

/// The shared parts of the PC.
pub struct Pc {
    board: Board,
    pci: PciBus,
    emulated: Emulated,
}

impl Pc {
    /// Puts the PC together; gives what is where on its bus, too.
    pub fn new(board: Board, pci: PciBus, emulated: Emulated) -> (Self, BusMap) {
        let pc = Pc { board, pci, emulated };
        let emulated = pc.emulated.iter().map(|device| device.claims());
        let map = BusMap::new([pc.pci.claims()].into_iter().chain(emulated));
        (pc, map)
    }

    /// The board, to be looked at.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The board.
    pub fn board_mut(&mut self) -> &mut Board {
        &mut self.board
    }

    /// The PCI bus, to be looked at.
    pub fn pci(&self) -> &PciBus {
        &self.pci
    }

    /// The PCI bus.
    pub fn pci_mut(&mut self) -> &mut PciBus {
        &mut self.pci
    }

    /// What the guest has at an address of a function's BARs, if it has that without an exit.
    pub fn registers_at(&self, gpa: u64) -> Option<Mapping> {
        self.pci.has_bar_at(gpa).then(|| self.board.tables().lookup(gpa))?
    }

    /// What follows a configuration write to the function `index`, a reset apart.
    pub fn follow(
        &mut self,
        cx: &mut ExitContext,
        index: usize,
        actions: Actions,
    ) -> Result<(), Fault> {
        self.pci.follow(&mut self.board, cx, index, actions)
    }

    /// The device at a place of the [`BusMap`], and the board.
    pub fn device(&mut self, place: usize) -> Option<(&mut dyn Device, &mut Board)> {
        let device: &mut dyn Device = match place.checked_sub(1) {
            None => &mut self.pci,
            Some(place) => &mut **self.emulated.get_mut(place)?,
        };
        Some((device, &mut self.board))
    }

    /// Input for the guest has arrived, or its own IOMMU is to be followed.
    pub fn input(&mut self, cx: &mut ExitContext) -> Result<(), Fault> {
        self.emulated.iter_mut().for_each(|device| device.input(&mut self.board, cx));
        self.pci.follow_unit(&mut self.board, cx)
    }

    /// Interrupts came to this vCPU by this vector, which are posted to guests of the VM's.
    pub fn post(&mut self, cx: &mut ExitContext, vcpu: usize, vector: u8) -> Result<(), Fault> {
        self.pci.post(&mut self.board, cx, vcpu, vector)
    }

    /// As after power on; assigned devices are reset.
    pub fn restart(&mut self, cx: &mut ExitContext) -> Result<(), Fault> {
        self.board.restart();
        self.emulated.iter_mut().for_each(|device| device.restart());
        self.pci.restart(&mut self.board, cx)
    }
}
