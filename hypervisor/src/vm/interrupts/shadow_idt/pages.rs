//! The pages of a VM that have a shadow in their place: the frames, and which vCPUs use which.
//!
//! Guarantees: a page with a shadow is closed to every vCPU's stores before it is copied; when it
//! becomes the guest's again, no vCPU takes interrupts through the shadow any more.

use crate::vm::exit_context::ExitContext;
use crate::vm::memory::Tables;
use crate::vm::stop::Fault;
use alloc::vec::Vec;
use delivery::VectorSet;
use mailbox::request;

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

    /// The vectors that some shadow hides.
    pub fn hidden(&self) -> VectorSet {
        self.placed.iter().fold(VectorSet::EMPTY, |all, p| all.union(&p.hidden))
    }
}

impl Shadows {
    /// Has the vCPU here take its interrupts through the shadow of `page`; gives the hidden
    /// vectors.
    pub fn place(
        &mut self,
        tables: &mut Tables,
        cx: &mut ExitContext,
        page: u64,
        table: usize,
    ) -> Option<VectorSet> {
        let hidden = cx.guest.hidden();
        let me = 1 << cx.me;
        if let Some(p) = self.placed.iter_mut().find(|p| p.page == page) {
            // Two tables in one page, or vectors hidden since: not for this vCPU, not now.
            if p.table != table || p.hidden != hidden {
                return None;
            }
            p.users |= me;
            return Some(hidden);
        }
        let own = cx.guest.memory.resolve(page, 4096)?;
        let frame = self.free.pop()?;
        // Closed to the others' stores before it is copied: none may find a gate in the shadow that
        // it has changed.
        let several = cx.guest.remotes.len() > 1;
        let closed = several && tables.substitute(page, own, || cx.flush_all()).is_ok();
        let built = closed == several
            && copy(cx, page, table, &hidden, frame)
            && tables.substitute(page, frame, || cx.flush_all()).is_ok();
        if !built {
            if closed {
                // The page has an entry of its own by now: opening it takes no frame and can't
                // fail.
                let _ = tables.restore(&cx.guest.memory, page, || cx.flush_all());
            }
            self.free.push(frame);
            return None;
        }
        self.placed.push(Placed { page, frame, table, hidden, users: me });
        Some(hidden)
    }

    /// The vCPU here takes its interrupts through no shadow any more: its IDT changes.
    pub fn leave(&mut self, tables: &mut Tables, cx: &mut ExitContext) -> Result<(), Fault> {
        cx.leave_eli();
        let me = 1 << cx.me;
        let Some(i) = self.placed.iter().position(|p| p.users & me != 0) else {
            return Ok(());
        };
        match self.placed.get_mut(i) {
            Some(p) if p.users != me => {
                p.users &= !me;
                Ok(())
            }
            _ => self.drop_placed(tables, cx, i),
        }
    }

    /// Gives the guest its page back, if it has a shadow.
    pub fn drop_at(
        &mut self,
        tables: &mut Tables,
        cx: &mut ExitContext,
        page: u64,
    ) -> Result<(), Fault> {
        match self.placed.iter().position(|p| p.page == page) {
            Some(i) => self.drop_placed(tables, cx, i),
            None => Ok(()),
        }
    }

    /// Gives the guest all its pages back.
    pub fn drop_all(&mut self, tables: &mut Tables, cx: &mut ExitContext) -> Result<(), Fault> {
        cx.leave_eli();
        while let Some(last) = self.placed.len().checked_sub(1) {
            self.drop_placed(tables, cx, last)?;
        }
        Ok(())
    }

    /// Nobody takes interrupts through it any more when its page becomes the guest's again.
    fn drop_placed(
        &mut self,
        tables: &mut Tables,
        cx: &mut ExitContext,
        index: usize,
    ) -> Result<(), Fault> {
        let p = self.placed.swap_remove(index);
        if p.users >> cx.me & 1 != 0 {
            cx.leave_eli();
        }
        cx.guest.ask_and_wait(cx.me, p.users, request::LEAVE_ELI);
        let restored = tables.restore(&cx.guest.memory, p.page, || cx.flush_all());
        restored.map_err(Fault::Tables)?;
        self.free.push(p.frame);
        Ok(())
    }
}

/// Fills `frame` with the guest's page and hides vectors in it; false if it isn't memory.
fn copy(cx: &ExitContext, page: u64, table: usize, hidden: &VectorSet, frame: u64) -> bool {
    let mut guest = [0; 4096];
    if !cx.guest.memory.read_page(page, &mut guest) {
        return false;
    }
    let mut shadow = [0; 4096];
    delivery::build(&guest, table, hidden, &mut shadow);
    // SAFETY: a page of this VM's shadows, identity-mapped; the caller holds the VM's lock, so that
    // no other core writes it, and processors that read gates in it meanwhile find what was there.
    unsafe { core::ptr::copy_nonoverlapping(shadow.as_ptr(), frame as *mut u8, 4096) };
    true
}
