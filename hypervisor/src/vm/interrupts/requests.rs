//! The receiving side of [`Link`]: what others asked of this vCPU, done out of its guest.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::interrupts;
use crate::vm::Vcpu;
use crate::vm::interrupts::mailbox::request;
use delivery::Found;
use proto::Policy;

impl<C: VirtualCpu> Vcpu<C> {
    /// Does what its asker waits for. Also called while this vCPU itself waits for the PC.
    pub(in crate::vm) fn answer(&mut self) {
        let asked = self.link().requests() & (request::FLUSH | request::UNSHADOW);
        if asked == 0 {
            return;
        }
        if asked & request::FLUSH != 0 {
            self.cpu.flush_translations();
        }
        if asked & request::UNSHADOW != 0 {
            self.leave_shadow();
        }
        self.link().done(asked);
    }

    /// Does all that was asked for. False: the VM ends.
    pub(in crate::vm) fn attend(&mut self) -> bool {
        self.answer();
        let link = self.link();
        if link.requests() & request::STARTUP != 0 {
            link.done(request::STARTUP);
            if self.vm.ending.begun() || !self.start_up() {
                return false;
            }
        }
        if link.requests() & request::CONSOLE != 0 {
            link.done(request::CONSOLE);
            self.look_up();
        }
        // What came before an INIT isn't asked for any more.
        let asked = link.requests();
        if asked & request::INBOX != 0 {
            link.done(request::INBOX);
            self.open_inbox();
        }
        self.take_nmi_request();
        true
    }

    /// One that waits already takes another that is asked for along, as in a processor.
    pub(in crate::vm) fn take_nmi_request(&mut self) {
        let link = self.link();
        if link.requests() & request::NMI != 0 {
            link.done(request::NMI);
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
        for vector in self.link().take_inbox().iter() {
            self.apic.request(vector);
        }
    }

    /// INIT and start-up. False: the VM ended while this vCPU waited.
    fn start_up(&mut self) -> bool {
        if !self.link().change(|s| (s, s.init_pending())) {
            return true;
        }
        // Before others see that it waits: the guest may have sent itself what wakes a core, and the real
        // one, which they send from then on, would be left over for the guest.
        self.quiet_core();
        if self.seat().is_none() {
            interrupts::take().for_each(drop);
        }
        if let Found::StartUp(page) = self.link().change(|s| s.acknowledge()) {
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
            match self.seat() {
                Some((core, place)) => self.doze(core, place),
                None => interrupts::sleep_until_woken(),
            }
            self.link().change(|s| (s.woken(), ()));
            if let Found::StartUp(page) = self.link().change(|s| s.acknowledge()) {
                self.reset(Some(page));
                self.cpu.prepare_core();
                return true;
            }
        }
        self.cpu.prepare_core();
        false
    }

    /// Takes the core from the guest: timer off, nothing pending or in service, interrupts of the
    /// host's possible.
    pub(in crate::vm) fn quiet_core(&mut self) {
        if self.shadow.page.is_some() {
            // Of the guest's memory nothing is used any more before the tables are whole again.
            let _ = self.with_pc(|pc, here| pc.leave(here));
        }
        if self.seat().is_some() {
            // The core goes on with others. What is pending is theirs, or for `reset` to forget.
            self.timer.reset();
            self.change_mode(delivery::Mode::Injection);
            self.take_pending();
            crate::cpu::control::set_xcr0(1);
            return;
        }
        x2apic::timer_lvt(interrupts::TIMER, x2apic::TimerMode::OneShot, true);
        x2apic::timer_start(0);
        // As after reset: by 2.
        x2apic::timer_divide_shift(1);
        self.cpu.release_core();
    }

    /// As after INIT and a start-up at `page`, or as the plan has it start.
    pub(in crate::vm) fn reset(&mut self, page: Option<u8>) {
        use crate::cpu::vendor::Start;
        let start = page.map_or(self.start, |page| Start::StartUp { page });
        self.cpu.reset(start);
        self.cpu.flush_translations();
        self.apic = delivery::LocalApic::new(self.id as u32);
        self.mode = delivery::Mode::Injection;
        self.offered = None;
        self.nmi_waits = false;
        self.timer_requested = None;
        self.timer.reset();
        // What was sent before is gone with the APIC's state.
        self.link().done(request::INBOX | request::NMI);
        self.link().take_inbox();
        if self.seat().is_none() {
            interrupts::take().for_each(drop);
        }
    }

    /// The console has input.
    pub(in crate::vm) fn look_up(&mut self) {
        if self.id == 0 {
            let vm = self.vm;
            self.with_pc(|pc, _| pc.feed_console(vm));
        }
    }

    /// Whether the guest has this core's local APIC to itself.
    pub(in crate::vm) fn owns_apic(&self) -> bool {
        self.vm.policy == Policy::Direct
    }
}
