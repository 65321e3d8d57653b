//! The receiving side of the mailbox: what others asked of this vCPU, done out of its guest.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::interrupts::delivery_mode::DeliveryMode;

use delivery::{Found, Mode};
use mailbox::request;

impl<C: VirtualCpu> Vcpu<C> {
    /// Does what its asker waits for. Also called while this vCPU itself waits for the PC.
    pub(in crate::vm) fn answer(&mut self) {
        let asked = self.remote.mailbox.requests() & (request::FLUSH | request::UNSHADOW);
        if asked == 0 {
            return;
        }
        if asked & request::FLUSH != 0 {
            self.cpu.flush_translations();
        }
        if asked & request::UNSHADOW != 0 {
            self.leave_shadow();
        }
        self.remote.mailbox.done(asked);
    }

    /// Does all that was asked for. False: the VM ends.
    pub(in crate::vm) fn attend(&mut self) -> bool {
        self.answer();
        let mailbox = &self.remote.mailbox;
        const RARE: u32 = request::STARTUP | request::CONSOLE | request::SOURCES;
        let rare = mailbox.requests() & RARE;
        if rare != 0 && !self.attend_to_rare(rare) {
            return false;
        }
        // What came before an INIT isn't asked for any more.
        let asked = mailbox.requests();
        if asked & request::INBOX != 0 {
            mailbox.done(request::INBOX);
            self.open_inbox();
        }
        self.take_nmi_request();
        true
    }

    #[cold]
    fn attend_to_rare(&mut self, asked: u32) -> bool {
        let mailbox = &self.remote.mailbox;
        mailbox.done(asked);
        if asked & request::STARTUP != 0 && (self.vm.ending.begun() || !self.start_up()) {
            return false;
        }
        if asked & request::CONSOLE != 0 {
            self.look_up();
        }
        if asked & request::SOURCES != 0 {
            self.look_over_sources();
        }
        true
    }

    /// One that waits already takes another that is asked for along, as in a processor.
    pub(in crate::vm) fn take_nmi_request(&mut self) {
        let mailbox = &self.remote.mailbox;
        if mailbox.requests() & request::NMI != 0 {
            mailbox.done(request::NMI);
            self.nmi_waits = true;
        }
    }

    /// Right before an entry: raises the NMI that waits, if the guest can take it.
    #[cold]
    pub(in crate::vm) fn raise_waiting_nmi(&mut self) {
        if !self.cpu.nmi_possible() {
            return;
        }
        if self.cpu.raising() {
            // Another event goes first.
            self.cpu.leave_at_once();
        } else {
            self.nmi_waits = false;
            self.cpu.raise_nmi();
        }
    }

    /// What others left for it becomes pending.
    pub(in crate::vm) fn open_inbox(&mut self) {
        for vector in self.remote.mailbox.take_inbox().iter() {
            match self.mode.current() {
                Mode::Dedicated => self.interrupt_self(vector),
                _ => self.apic.request(vector),
            }
        }
    }

    /// INIT and start-up. False: the VM ended while this vCPU waited.
    fn start_up(&mut self) -> bool {
        if !self.remote.mailbox.change(|s| (s, s.init_pending())) {
            return true;
        }
        // Before others see that it waits: the guest may have sent itself what wakes a core, and
        // the real one, which they send from then on, would be left over for the guest.
        self.quiet_core();
        self.forget_arrived();
        if let Found::StartUp(page) = self.remote.mailbox.change(|s| s.acknowledge()) {
            self.reset(Some(page));
            self.cpu.prepare_core();
            return true;
        }
        self.wait()
    }

    /// Sleeps until a start-up comes. False: the VM ended instead.
    pub(in crate::vm) fn wait(&mut self) -> bool {
        self.quiet_core();
        // An end that found this vCPU running hasn't woken it.
        while !self.vm.ending.begun() {
            self.block_until_woken();
            self.remote.mailbox.change(|s| (s.woken(), ()));
            if let Found::StartUp(page) = self.remote.mailbox.change(|s| s.acknowledge()) {
                self.reset(Some(page));
                self.cpu.prepare_core();
                return true;
            }
        }
        self.cpu.prepare_core();
        false
    }

    /// As after INIT and a start-up at `page`, or as the plan has it start.
    pub(in crate::vm) fn reset(&mut self, page: Option<u8>) {
        use crate::cpu::vendor::Start;
        let start = page.map_or(self.start, |page| Start::StartUp { page });
        self.cpu.reset(start);
        self.cpu.flush_translations();
        self.reset_apic(page.is_some());
        self.mode = DeliveryMode::new();
        self.nmi_waits = false;
        self.timer.reset();
        // What was sent before is gone with the APIC's state.
        self.remote.mailbox.done(request::INBOX | request::NMI);
        self.remote.mailbox.take_inbox();
        self.forget_arrived();
    }

    /// The console has input.
    pub(in crate::vm) fn look_up(&mut self) {
        if self.id == 0 {
            self.device_input();
        }
    }
}
