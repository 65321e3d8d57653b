//! The VT-d unit that all of the guest's bus is behind: its page of registers, and what its tables
//! make of interrupts.
//!
//! Guarantees: the guest writes the page by exits, each of which does all that was asked for by
//! then, up to a bound: what is left is done at the first vCPU's next exit, which is asked for. So a
//! driver that sets the unit up has each answer at its first look; Linux can't wait so early. Where
//! there is a sidecore, the page is *open* from the command on that has DMA translated, until the
//! VM starts again: the guest writes it without an exit, and the sidecore polls it. Interrupts
//! follow the guest's tables before the guest is told that its invalidation of them is over.

use super::PciBus;
use crate::iommu::guest::{Answered, GuestIommu};
use crate::sidecore::port::{Order, Port, add};
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::interrupts::remapping;
use crate::vm::stop::Fault;
use core::ops::Range;
use paging::Access;
use viommu::Change;
use viommu::vtd::{BASE, BYTES};
use virtio_pci::MAX_QUEUES;
use virtqueue::Layout;
use virtual_pc::message::{Message, Refused, Written};

/// Where its registers are.
pub const REGISTERS: Range<u64> = BASE..BASE + BYTES;
/// What one exit does at most, as a schedule charges it: a million words of tables.
const MOST_AT_AN_EXIT: u64 = 64 << 20;
/// It has one queue, whose place the unit knows.
const QUEUE: Layout = Layout { size: 0, descriptors: 0, driver: 0, device: 0 };

/// The unit.
pub struct RemappingUnit {
    iommu: &'static GuestIommu,
    port: &'static Port,
    /// The machine's address of its page.
    page: u64,
    /// A sidecore looks at it while it is open.
    polled: bool,
    open: bool,
    life: u32,
}

impl RemappingUnit {
    /// With its page there, which isn't open, and the port of whoever serves it.
    pub fn new(iommu: &'static GuestIommu, port: &'static Port, page: u64, polled: bool) -> Self {
        RemappingUnit { iommu, port, page, polled, open: false, life: 0 }
    }

    /// Where the machine has its page, and what the guest may ever do there.
    pub fn page(&self) -> (u64, Access) {
        (self.page, access(self.polled))
    }

    /// Opens the page, or closes it.
    #[cold]
    fn set_open(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        open: bool,
    ) -> Result<(), Fault> {
        self.open = open;
        board.unmap_registers(cx, REGISTERS.start, BYTES)?;
        board.map_registers(REGISTERS.start, self.page, BYTES, access(open))
    }

    /// Opens the page if it is time, and has the sidecore look at it.
    fn follow_translation(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        if self.open || !self.polled || !self.iommu.translates() {
            return Ok(());
        }
        self.set_open(board, cx, true)?;
        self.life = self.life.wrapping_add(1).max(1);
        let mut queues = [None; MAX_QUEUES];
        queues.iter_mut().take(1).for_each(|queue| *queue = Some(QUEUE));
        self.port.order(Order { life: self.life, may_access: true, features: 0, queues });
        Ok(())
    }

    /// Nothing is done any more, and no device behind it reaches anything.
    pub fn quiet(&mut self) {
        if self.open {
            self.port.let_go();
            self.port.settle();
        }
        self.iommu.change(Change::Close);
    }

    /// As after power on.
    pub fn restart(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        if self.open {
            self.set_open(board, cx, false)?;
        }
        self.iommu.change(Change::Restart);
        Ok(())
    }

    /// The guest's load of its registers.
    pub fn load(&self, address: u64, size: u8) -> u64 {
        let Some(page) = self.iommu.registers() else { return u64::MAX };
        let at = (address - REGISTERS.start) as usize & !3;
        if size == 8 { page.get64(at) } else { page.get(at).into() }
    }

    /// The message that the function at this place of the bus writes.
    pub fn message(&self, index: usize, written: Written) -> Result<Message, Refused> {
        remapping::of_msi(self.iommu, (index as u16 + 1) << 3, written)
    }
}

/// What the guest may do with the page of registers.
pub fn access(open: bool) -> Access {
    if open { Access::READ | Access::WRITE } else { Access::READ }
}

impl PciBus {
    /// The guest's store to the registers of its unit exited.
    pub(super) fn store_to_unit(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        (address, size, value): (u64, u8, u64),
    ) -> Option<Result<(), Fault>> {
        let unit = self.unit.as_ref().filter(|_| REGISTERS.contains(&address))?;
        unit.port.kick(0);
        unit.iommu.registers()?.write(address - REGISTERS.start, size, value);
        Some(self.follow_unit(board, cx))
    }

    /// Does what is left for vCPUs to do of what the guest asked its unit for.
    pub fn follow_unit(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        let Some(RemappingUnit { iommu, port, open, .. }) = self.unit else { return Ok(()) };
        let mut cost = 0;
        loop {
            if iommu.reroutes() {
                for index in 0..self.functions.len() {
                    let sources = self.function(index).map_or(0, |f| f.sources().len());
                    for source in 0..sources {
                        self.route_source(board, cx, index, source)?;
                    }
                }
                self.note_sources(board, cx)?;
                iommu.rerouted();
            }
            if open || !iommu.is_news() {
                break;
            }
            if cost >= MOST_AT_AN_EXIT {
                iommu.ask();
                break;
            }
            let mut done = Answered::default();
            iommu.run((u32::MAX, MOST_AT_AN_EXIT), &mut done);
            cost += done.cost;
            if let Some(counts) = port.counts(0) {
                add(&counts.completed, done.requests.into());
            }
        }
        let mut unit = self.unit.iter_mut();
        unit.try_for_each(|unit| unit.follow_translation(board, cx))
    }
}
