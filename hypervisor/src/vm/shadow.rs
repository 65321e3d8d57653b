//! The shadow IDT of a VM, put in the place of the guest's own page and taken away again
//! (`docs/design.md`, "Where the shadow IDT lives").
//!
//! Guarantees: while it is in place it is a copy of the guest's page of that moment with the
//! host's vectors hidden, and LIDT, stores to the page and fetches from it exit. What it
//! doesn't see is a guest that maps another page where its IDTR points.

use super::Vm;
use super::vcpu::Fault;
use crate::cpu::vendor::VirtualCpu;
use delivery::{Mode, VectorSet};
use paging::walk;

/// Where the shadow IDT stands.
pub struct Shadow {
    /// The frame that takes the place of the guest's page.
    pub frame: u64,
    /// Guest-physical page that is substituted, if any.
    pub page: Option<u64>,
    /// What is hidden in it.
    pub hidden: VectorSet,
    /// It was just removed: let the guest do what it was removed for first.
    pub hold: bool,
}

impl<C: VirtualCpu> Vm<C> {
    /// Puts the shadow in the place of the guest's IDT page, if the IDT allows it.
    pub(super) fn place_shadow(&mut self) {
        let (base, limit) = self.cpu.idtr();
        let hidden = self.routes.hidden();
        if delivery::suitable(self.cpu.long_mode(), base, limit, &hidden).is_err() {
            return;
        }
        let paging = self.cpu.paging();
        let Ok(gpa) = walk::translate(&self.memory, &paging, base, walk::Access::default()) else {
            return;
        };
        let page = gpa & !0xFFF;
        let mut guest = [0; 4096];
        if !self.memory.read_page(page, &mut guest) {
            return;
        }
        // SAFETY: the frame is a page of this VM's shadow alone, not in any table while
        // `shadow.page` is `None`, and its core is here and not in the guest.
        let frame = unsafe { &mut *(self.shadow.frame as *mut [u8; 4096]) };
        delivery::build(&guest, (base & 0xFFF) as usize, &hidden, frame);
        let cpu = &mut self.cpu;
        if self.memory.substitute(page, self.shadow.frame, || cpu.flush_translations()).is_ok() {
            self.shadow.page = Some(page);
            self.shadow.hidden = hidden;
            self.cpu.watch_idt(true);
        }
    }

    /// Gives the guest its IDT page back: the IDT may change, or its own gate is needed.
    /// The next entry is in injection mode; the shadow returns when that is left.
    pub(super) fn remove_shadow(&mut self) -> Result<(), Fault> {
        if let Some(page) = self.shadow.page.take() {
            let cpu = &mut self.cpu;
            self.memory.restore(page, || cpu.flush_translations()).map_err(Fault::Tables)?;
            self.shadow.hidden = VectorSet::EMPTY;
            self.cpu.watch_idt(false);
        }
        if self.mode == Mode::Direct {
            self.change_mode(Mode::Injection);
        }
        self.shadow.hold = true;
        Ok(())
    }
}
