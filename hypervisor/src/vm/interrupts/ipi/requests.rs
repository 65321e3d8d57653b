//! The receiving side of the mailbox: what others asked of this vCPU, done out of its guest.
//!
//! `mailbox::Owner` decides the order; loom tests it.

use crate::cpu::Posting;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::interrupts::injection::delivery_mode::DeliveryMode;
use crate::vm::interrupts::waits::Waits;
use delivery::Mode;
use mailbox::Owner;

impl<C: VirtualCpu> Owner for Vcpu<C> {
    fn flush_translations(&mut self) {
        self.cpu.flush_translations();
    }

    fn leave_eli(&mut self) {
        Vcpu::leave_eli(self);
    }

    fn take_input(&mut self) {
        if self.id == 0 {
            self.device_input();
        }
    }

    fn look_over_sources(&mut self) {
        Vcpu::look_over_sources(self);
    }

    fn interrupt(&mut self, vector: u8) {
        match self.mode.current() {
            Mode::Passthrough => self.interrupt_self(vector),
            _ => self.apic.request(vector),
        }
    }

    #[inline]
    fn interrupts(&mut self, index: u32, bits: u64) {
        match self.mode.current() {
            Mode::Passthrough => (0..64)
                .rev()
                .filter(|bit| bits >> bit & 1 != 0)
                .for_each(|bit| self.interrupt_self((64 * index + bit) as u8)),
            _ => self.apic.request_word(index, bits),
        }
    }

    fn nmi(&mut self) {
        self.waits.set(Waits::NMI, true);
    }

    fn holds_init(&mut self) -> bool {
        let holds = self.cpu.holds_init();
        self.waits.set(Waits::INIT, holds);
        holds
    }

    fn vm_ends(&self) -> bool {
        self.vm.ending.begun()
    }

    fn quiet_core(&mut self) {
        Vcpu::quiet_core(self);
    }

    fn forget_arrived(&mut self) {
        Vcpu::forget_arrived(self);
    }

    fn sleep(&mut self) {
        self.block_until_woken();
    }

    fn start(&mut self, page: u8) {
        self.reset(Some(page));
        self.cpu.prepare_core();
    }

    fn prepare_core(&mut self) {
        self.cpu.prepare_core();
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Does what its asker waits for. Also called while this vCPU itself waits for the PC.
    pub(in crate::vm) fn answer(&mut self) {
        self.remote.mailbox.answer(self);
    }

    /// Right before an entry: what waits comes, if the guest can take it.
    #[cold]
    pub(in crate::vm) fn take_waiting(&mut self) {
        if self.waits.has(Waits::INIT) && self.init_comes() {
            return;
        }
        if !self.waits.has(Waits::NMI) || !self.cpu.nmi_possible() {
            return;
        }
        if self.cpu.injects() {
            // Another event goes first.
            self.cpu.leave_at_once();
        } else {
            self.waits.set(Waits::NMI, false);
            self.cpu.inject_nmi();
        }
    }

    /// Is an INIT that waits held back no more? Then it comes instead of the next entry.
    pub(in crate::vm) fn init_comes(&mut self) -> bool {
        let comes = !self.holds_init();
        if comes {
            self.remote.mailbox.again();
        }
        comes
    }

    /// As after INIT and a start-up at `page`, or as the plan has it start.
    pub(in crate::vm) fn reset(&mut self, page: Option<u8>) {
        use crate::cpu::vendor::Start;
        let start = page.map_or(self.start, |page| Start::StartUp { page });
        self.cpu.reset(start);
        self.cpu.flush_translations();
        self.forget_arrived();
        self.reset_apic(page.is_some());
        self.mode = DeliveryMode::new();
        self.waits = Waits::default();
        self.timer.reset();
        self.remote.mailbox.forget_interrupts();
        self.remote.posting.and_then(Posting::take);
    }
}
