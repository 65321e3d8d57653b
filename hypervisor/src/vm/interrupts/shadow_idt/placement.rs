//! The shadow IDTs of a VM, put in the place of the guest's own pages and taken away again
//! (`docs/design.md`, "Where the shadow IDT lives").
//!
//! Guarantees: while one is in place it is a copy of the guest's page as it is, with the host's
//! vectors hidden, stores to the page and fetches from it exit on every vCPU, and LIDT exits on
//! those that take their interrupts through it. vCPUs whose IDTs lie in one page share its
//! shadow. What it doesn't see is a guest that maps another page where its IDTR points.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;

use delivery::Mode;
use paging::walk;

impl<C: VirtualCpu> Vcpu<C> {
    /// Puts a shadow in the place of the guest's IDT page, if the IDT allows it.
    pub(in crate::vm) fn place_shadow(&mut self) {
        let (base, limit) = self.cpu.idtr();
        let hidden = self.vm.guest.hidden();
        if delivery::suitable(self.cpu.long_mode(), base, limit, &hidden).is_err() {
            return;
        }
        let paging = self.cpu.paging();
        let Ok(gpa) = walk::translate(&self.physical(), &paging, base, walk::Access::default())
        else {
            return;
        };
        let (page, table) = (gpa & !0xFFF, (gpa & 0xFFF) as usize);
        if let Some(hidden) = self.with_pc(|pc, cx| pc.board_mut().place_shadow(cx, page, table)) {
            self.shadow.set(page, hidden);
            self.cpu.watch_idt(true);
        }
    }

    /// Did the delivery of this vector fail on another vCPU's shadow, in a page that this one's IDT
    /// is in, too? That shadow may be gone by now; the guest's own gate tells.
    pub(in crate::vm) fn missed_in_shadow(&self, vector: u8) -> bool {
        if self.vm.guest.remotes.len() == 1 || !self.vm.guest.hidden().contains(vector) {
            return false;
        }
        let (base, limit) = self.cpu.idtr();
        let offset = u64::from(vector) * delivery::GATE_BYTES as u64;
        if !self.cpu.long_mode() || offset + delivery::GATE_BYTES as u64 > u64::from(limit) + 1 {
            return false;
        }
        let (paging, mut page) = (self.cpu.paging(), [0; delivery::PAGE_BYTES]);
        walk::translate(
            &self.physical(),
            &paging,
            base.wrapping_add(offset),
            walk::Access::default(),
        )
        .is_ok_and(|gpa| {
            self.vm.guest.memory.read_page(gpa, &mut page)
                && delivery::gate_present(&page, (gpa & 0xFFF) as usize, 0)
        })
    }

    /// Before the guest's memory is used no more: its tables are whole again.
    pub(in crate::vm) fn give_up_shadow(&mut self) {
        if self.shadow.placed() {
            let _ = self.with_pc(|pc, cx| pc.board_mut().leave_shadow(cx));
        }
    }

    /// The shadow is gone, or about to be. The next entry is in injection mode; a shadow returns
    /// when that is left.
    pub(in crate::vm) fn leave_eli(&mut self) {
        if self.shadow.clear() {
            self.cpu.watch_idt(false);
        }
        if self.mode.current() == Mode::Eli {
            self.change_mode(Mode::Injection);
        }
    }
}
