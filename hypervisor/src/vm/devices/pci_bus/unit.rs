//! The unit that all of the guest's bus is behind, VT-d's or AMD-Vi's: its pages of registers, and
//! what its tables make of interrupts.
//!
//! Guarantees: the guest writes the pages by exits, each of which does all that was asked for by
//! then, up to a bound: what is left is done at the first vCPU's next exit, which is asked for. So
//! a driver that sets the unit up has each answer at its first look; Linux can't wait so early.
//! Where there is a sidecore, the pages are *open* from the command on that has DMA translated, until
//! the VM starts again: the guest writes them without an exit, and the sidecore polls them. Interrupts
//! follow the guest's tables before the guest is told that its invalidation of them is over.

use crate::iommu::guest::GuestIommu;
use crate::sidecore::port::{Order, Port};
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::interrupts::remapping::{self, Sent};
use crate::vm::stop::Fault;
use core::ops::Range;
use paging::Access;
use viommu::Change;
use viommu::unit::BASE;
use virtio_pci::MAX_QUEUES;
use virtqueue::Layout;
use virtual_pc::message::{Refused, Written};

/// It has one queue, whose place the unit knows.
const QUEUE: Layout = Layout { size: 0, descriptors: 0, driver: 0, device: 0 };

/// The unit.
pub struct RemappingUnit {
    pub(super) iommu: &'static GuestIommu,
    pub(super) port: &'static Port,
    /// The machine's address of its pages, and their bytes.
    pages: (u64, u64),
    /// A sidecore looks at them while they are open.
    polled: bool,
    pub(super) open: bool,
    life: u32,
}

impl RemappingUnit {
    /// With its pages there and so many bytes of them, which aren't open, and the port of whoever
    /// serves it.
    pub fn new(
        iommu: &'static GuestIommu,
        port: &'static Port,
        pages: (u64, u64),
        polled: bool,
    ) -> Self {
        RemappingUnit { iommu, port, pages, polled, open: false, life: 0 }
    }

    /// Where the guest has its registers.
    pub fn registers(&self) -> Range<u64> {
        BASE..BASE + self.pages.1
    }

    /// Where the machine has its pages and their bytes, and what the guest may ever do there.
    pub fn pages(&self) -> (u64, u64, Access) {
        (self.pages.0, self.pages.1, access(self.polled))
    }

    /// Opens the pages, or closes them.
    #[cold]
    fn set_open(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        open: bool,
    ) -> Result<(), Fault> {
        self.open = open;
        let (at, bytes) = self.pages;
        board.unmap_registers(cx, BASE, bytes)?;
        board.map_registers(BASE, at, bytes, access(open))
    }

    /// Opens the pages if it is time, and has the sidecore look at it.
    pub(super) fn follow_translation(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
    ) -> Result<(), Fault> {
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
        let at = (address - BASE) as usize & !3;
        if size == 8 { page.get64(at) } else { page.get(at).into() }
    }

    /// The message that the function at this place of the bus writes.
    pub fn message(&self, index: usize, written: Written) -> Result<Sent, Refused> {
        remapping::of_msi(self.iommu, (index as u16 + 1) << 3, written)
    }
}

/// What the guest may do with the pages of registers.
pub fn access(open: bool) -> Access {
    if open { Access::READ | Access::WRITE } else { Access::READ }
}
