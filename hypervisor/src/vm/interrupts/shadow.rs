//! The shadow IDTs of a VM, put in the place of the guest's own pages and taken away again
//! (`docs/design.md`, "Where the shadow IDT lives").
//!
//! Guarantees: while one is in place it is a copy of the guest's page as it is, with the host's
//! vectors hidden, stores to the page and fetches from it exit on every vCPU, and LIDT exits on
//! those that take their interrupts through it. vCPUs whose IDTs lie in one page share its
//! shadow. What it doesn't see is a guest that maps another page where its IDTR points.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::interrupts::mailbox::request;
use crate::vm::pc::{Here, Pc};
use crate::vm::stop::Fault;
use alloc::vec::Vec;
use delivery::{Mode, VectorSet};
use paging::walk;

/// A vCPU's part: whether it takes its interrupts through a shadow.
#[derive(Default)]
pub struct Shadow {
    /// Guest-physical page of its IDT, while the page's shadow is in place for it.
    pub page: Option<u64>,
    /// What is hidden in it.
    pub hidden: VectorSet,
    /// It was just removed: let the guest do what it was removed for first.
    pub hold: bool,
}

/// One page with its shadow in place.
struct Placed {
    page: u64,
    frame: u64,
    /// Offset of the table in the page, and what is hidden in it.
    table: usize,
    hidden: VectorSet,
    /// The vCPUs that take their interrupts through it, one bit each; never none.
    users: u64,
}

/// The shadows of a VM.
pub struct Shadows {
    placed: Vec<Placed>,
    /// Frames to place, enough for one shadow for each vCPU.
    free: Vec<u64>,
}

impl Shadows {
    /// None in place; `frames`: one for each vCPU.
    pub fn new(frames: Vec<u64>) -> Self {
        Shadows { placed: Vec::with_capacity(frames.len()), free: frames }
    }

    /// The frames that may stand in the place of guests' pages.
    pub fn frames(&self) -> impl Iterator<Item = u64> {
        self.free.iter().copied().chain(self.placed.iter().map(|p| p.frame))
    }

    /// What is hidden anywhere.
    pub fn hidden(&self) -> VectorSet {
        self.placed.iter().fold(VectorSet::EMPTY, |all, p| all.union(&p.hidden))
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Puts a shadow in the place of the guest's IDT page, if the IDT allows it.
    pub(in crate::vm) fn place_shadow(&mut self) {
        let (base, limit) = self.cpu.idtr();
        let hidden = self.vm.hidden();
        if delivery::suitable(self.cpu.long_mode(), base, limit, &hidden).is_err() {
            return;
        }
        let paging = self.cpu.paging();
        let Ok(gpa) = walk::translate(&self.vm.memory, &paging, base, walk::Access::default())
        else {
            return;
        };
        let (page, table) = (gpa & !0xFFF, (gpa & 0xFFF) as usize);
        if let Some(hidden) = self.with_pc(|pc, here| pc.place(here, page, table)) {
            self.shadow.page = Some(page);
            self.shadow.hidden = hidden;
            self.cpu.watch_idt(true);
        }
    }

    /// Did the delivery of this vector fail on another vCPU's shadow, in a page that this one's IDT
    /// is in, too? That shadow may be gone by now; the guest's own gate tells.
    pub(in crate::vm) fn missed_in_shadow(&self, vector: u8) -> bool {
        if self.vm.links.len() == 1 || !self.vm.hidden().contains(vector) {
            return false;
        }
        let (base, limit) = self.cpu.idtr();
        let offset = u64::from(vector) * delivery::GATE_BYTES as u64;
        if !self.cpu.long_mode() || offset + delivery::GATE_BYTES as u64 > u64::from(limit) + 1 {
            return false;
        }
        let (paging, mut page) = (self.cpu.paging(), [0; delivery::PAGE_BYTES]);
        walk::translate(
            &self.vm.memory,
            &paging,
            base.wrapping_add(offset),
            walk::Access::default(),
        )
        .is_ok_and(|gpa| {
            self.vm.memory.read_page(gpa, &mut page)
                && delivery::gate_present(&page, (gpa & 0xFFF) as usize, 0)
        })
    }

    /// The shadow is gone, or about to be. The next entry is in injection mode; a shadow returns
    /// when that is left.
    pub(in crate::vm) fn leave_shadow(&mut self) {
        if self.shadow.page.take().is_some() {
            self.shadow.hidden = VectorSet::EMPTY;
            self.cpu.watch_idt(false);
        }
        if self.mode == Mode::Direct {
            self.change_mode(Mode::Injection);
        }
        self.shadow.hold = true;
    }
}

impl crate::vm::Vm {
    /// What has to be hidden from this VM, whichever of its vCPUs it is that takes interrupts.
    pub fn hidden(&self) -> VectorSet {
        self.links.iter().fold(VectorSet::EMPTY, |all, l| all.union(&l.hidden()))
    }
}

impl Pc {
    /// Has the vCPU here take its interrupts through the shadow of `page`; gives what is hidden.
    pub fn place(&mut self, here: &mut Here, page: u64, table: usize) -> Option<VectorSet> {
        let hidden = here.vm.hidden();
        let me = 1 << here.me;
        if let Some(p) = self.shadows.placed.iter_mut().find(|p| p.page == page) {
            // Two tables in one page, or vectors hidden since: not for this vCPU, not now.
            if p.table != table || p.hidden != hidden {
                return None;
            }
            p.users |= me;
            return Some(hidden);
        }
        let own = here.vm.memory.resolve(page, 4096)?;
        let frame = self.shadows.free.pop()?;
        // Closed to the others' stores before it is copied: none may find a gate in the shadow that
        // it has changed.
        let several = here.vm.links.len() > 1;
        let closed = several && self.tables.substitute(page, own, || here.flush_all()).is_ok();
        let built = closed == several
            && copy(here, page, table, &hidden, frame)
            && self.tables.substitute(page, frame, || here.flush_all()).is_ok();
        if !built {
            if closed {
                // The page has an entry of its own by now: opening it takes no frame and can't fail.
                let _ = self.tables.restore(&here.vm.memory, page, || here.flush_all());
            }
            self.shadows.free.push(frame);
            return None;
        }
        self.shadows.placed.push(Placed { page, frame, table, hidden, users: me });
        Some(hidden)
    }

    /// The vCPU here takes its interrupts through no shadow any more: its IDT changes.
    pub fn leave(&mut self, here: &mut Here) -> Result<(), Fault> {
        here.unshadow = true;
        let me = 1 << here.me;
        let Some(i) = self.shadows.placed.iter().position(|p| p.users & me != 0) else {
            return Ok(());
        };
        match self.shadows.placed.get_mut(i) {
            Some(p) if p.users != me => {
                p.users &= !me;
                Ok(())
            }
            _ => self.drop_placed(here, i),
        }
    }

    /// Gives the guest its page back, if it has a shadow.
    pub fn drop_at(&mut self, here: &mut Here, page: u64) -> Result<(), Fault> {
        match self.shadows.placed.iter().position(|p| p.page == page) {
            Some(i) => self.drop_placed(here, i),
            None => Ok(()),
        }
    }

    /// Gives the guest all its pages back.
    pub fn drop_all(&mut self, here: &mut Here) -> Result<(), Fault> {
        here.unshadow = true;
        while let Some(last) = self.shadows.placed.len().checked_sub(1) {
            self.drop_placed(here, last)?;
        }
        Ok(())
    }

    /// Nobody takes interrupts through it any more when its page becomes the guest's again.
    fn drop_placed(&mut self, here: &mut Here, index: usize) -> Result<(), Fault> {
        let p = self.shadows.placed.swap_remove(index);
        if p.users >> here.me & 1 != 0 {
            here.unshadow = true;
        }
        here.vm.settle(here.me, p.users, request::UNSHADOW);
        let restored = self.tables.restore(&here.vm.memory, p.page, || here.flush_all());
        restored.map_err(Fault::Tables)?;
        self.shadows.free.push(p.frame);
        Ok(())
    }
}

/// Fills `frame` with the guest's page and hides vectors in it; false if it isn't memory.
fn copy(here: &Here, page: u64, table: usize, hidden: &VectorSet, frame: u64) -> bool {
    let mut guest = [0; 4096];
    if !here.vm.memory.read_page(page, &mut guest) {
        return false;
    }
    let mut shadow = [0; 4096];
    delivery::build(&guest, table, hidden, &mut shadow);
    // SAFETY: a page of this VM's shadows, identity-mapped; the caller holds the VM's lock, so that
    // no other core writes it, and processors that read gates in it meanwhile find what was there.
    unsafe { core::ptr::copy_nonoverlapping(shadow.as_ptr(), frame as *mut u8, 4096) };
    true
}
