//! How a vCPU has its core: for good, or in time slices that it yields to others.
//!
//! All that a vCPU does differently on a shared core is decided here, but for its timer
//! (`interrupts/timer`) and for whose an interrupt is (`interrupts/injection/receive`).
//!
//! Guarantees: when it yields, every interrupt that the local APIC holds for it, pending or in
//! service, is in its virtual one, and its devices' interrupts come by aliases; nothing that is its
//! own is on the core for the next. A message that was on its way to the local APIC reaches it in
//! the next one's time: that one is in injection mode until the grace period is over, and hands it
//! over.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc, x2apic};
use crate::interrupts;
use crate::sched::host_core::Slot;
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::Site;
use crate::vm::interrupts::iommu_units::Units;
use crate::vm::interrupts::waits::Waits;
use core::sync::atomic::Ordering;
use delivery::{FIRST_RESERVED, Mode, VectorSet, class};
use ledger::Reason;
use mailbox::{NEVER, Yield, request};

const HLT: [u8; 1] = [0xF4];
/// How often a vCPU that waits for another one's step looks, by second.
const LOOKS_PER_SECOND: u64 = 2000;

impl<C: VirtualCpu> Vcpu<C> {
    /// Its slot in its core's run queue; `None`: it has the core to itself.
    #[inline]
    pub(in crate::vm) fn slot(&self) -> Option<&'static Slot> {
        self.slot.slot()
    }

    /// Before an entry, of who shares its core: sets the timer, and yields if the time slice is
    /// over. True if another had the core meanwhile.
    #[inline]
    pub(in crate::vm) fn preempt_if_due(&mut self, slot: &'static Slot) -> bool {
        self.take_reserved();
        let (queue, mut over) = (&slot.core.queue, false);
        let (contested, calm) = loop {
            let now = rdtsc();
            self.expire_timer(now);
            let (deadline, lent) = (self.timer.deadline(), self.timer.is_lent());
            let leave_at = |at| self.cpu.leave_at(at);
            if let Some(armed) = queue.arm(&self.remote.mailbox, now, (deadline, lent), leave_at) {
                break armed;
            }
            self.yield_core(slot, Yield::Ready);
            // Again when it is back: nobody has looked for others since it is resident.
            over = true;
        };
        if !self.slot.owns_vectors() {
            self.claim_vectors(slot);
        }
        self.cpu.watch_halt(contested);
        self.slot.set_calm(calm);
        over
    }

    /// The core has something to do for others, by the CPU's own clock.
    pub(in crate::vm) fn time_is_up(&self) -> Reason {
        match self.slot() {
            Some(slot) if self.slice_is_over(slot) => Reason::SliceEnd,
            _ => Reason::OtherVcpu,
        }
    }

    /// Is the core to be given to another?
    fn slice_is_over(&self, slot: &Slot) -> bool {
        slot.core.queue.slice_is_over(&self.remote.mailbox, rdtsc())
    }

    /// Gives the core to others; back when it is chosen again.
    #[inline(never)]
    pub(in crate::vm) fn yield_core(&mut self, slot: &'static Slot, why: Yield) {
        self.leave_core(slot);
        slot.core.queue.yield_core(slot.index, why);
        self.return_to_core(slot);
    }

    /// Nothing of it is on the core any more.
    fn leave_core(&mut self, slot: &'static Slot) {
        self.take_timer(true);
        if self.mode.current() != Mode::Injection {
            self.change_mode(Mode::Injection);
        }
        if self.slot.owns_vectors() {
            self.give_vectors_up(slot);
        } else if x2apic::requested(FIRST_RESERVED / 32) != 0 {
            // All that is for it comes by an alias.
            self.drain_core();
        }
        if self.apic.is_pending_any() && self.apic.deliverable().is_some() {
            slot.core.queue.interrupt_waits(slot.index);
        }
        self.cpu.leave_core();
        slot.core.queue.clear_resident();
        cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    }

    /// Its devices' interrupts come by aliases from here on.
    #[inline(never)]
    fn give_vectors_up(&mut self, slot: &'static Slot) {
        slot.core.routes.retarget_to_aliases(&Units, slot.index);
        self.slot.set_owns_vectors(false);
        self.drain_core();
    }

    /// Hands each interrupt that the local APIC holds to the vCPU that it is for.
    #[inline(never)]
    fn drain_core(&mut self) {
        // The next one may be presented some cycles after the completion of the one before.
        for _ in 0..=u8::MAX {
            if !x2apic::is_any_requested() {
                break;
            }
            self.take_pending();
        }
    }

    /// It has the core again, or for the first time.
    pub(in crate::vm) fn return_to_core(&mut self, slot: &'static Slot) {
        slot.core.queue.set_resident(slot.index);
        self.slot.set_calm(0);
        cpu::this().vm.store(self.vm.guest.index, Ordering::Relaxed);
        self.claim_vectors(slot);
        self.cpu.return_to_core();
        self.ledger.slices = self.ledger.slices.wrapping_add(1);
        if let Some(ticks) = slot.core.queue.take_wait(slot.index) {
            self.ledger.waited(ticks);
        }
    }

    /// Has its devices' interrupts come by its own vectors, if nobody else's can any more. Until
    /// then it stays in injection mode. Of a VM without a routed source nothing comes: it leaves
    /// the vectors to whom they are.
    #[inline]
    fn claim_vectors(&mut self, slot: &'static Slot) {
        if self.vm.guest.routed() {
            self.retarget_to_guest(slot);
        }
    }

    #[inline(never)]
    fn retarget_to_guest(&mut self, slot: &'static Slot) {
        let drain = || self.drain_core();
        let owns = slot.core.routes.retarget_to_guest(&Units, slot.index, drain);
        self.slot.set_owns_vectors(owns);
    }

    /// In injection mode: hands each interrupt that is pending in the local APIC to its vCPU.
    pub(in crate::vm) fn take_pending(&mut self) -> Reason {
        self.cpu.take_interrupts();
        self.receive_noted()
    }

    /// Takes the interrupts of class F, which are the host's and other vCPUs', though a guest that
    /// takes its interrupts itself holds all of them back. The guest's own stay where they are.
    #[inline]
    fn take_reserved(&mut self) {
        if self.mode.current() == Mode::Eli
            && x2apic::requested(FIRST_RESERVED / 32) >> (FIRST_RESERVED & 31) != 0
        {
            let priority = x2apic::tpr();
            x2apic::set_tpr(FIRST_RESERVED - 1);
            self.take_pending();
            x2apic::set_tpr(priority);
        }
    }

    /// HLT: a shared core goes to others until there is something for the guest.
    pub(in crate::vm) fn halt(&mut self) {
        self.skip_often(Site::Halt, &HLT);
        let Some(slot) = self.slot() else { return };
        loop {
            // This also takes the interrupts that the local APIC holds for the guest.
            self.leave_core(slot);
            let awake = self.has_wakeup();
            if !awake {
                slot.core.queue.yield_core(slot.index, Yield::Block(self.timer.deadline()));
            }
            self.return_to_core(slot);
            if awake || self.has_wakeup() {
                return;
            }
        }
    }

    /// Is there something for the guest to wake up for?
    #[inline]
    fn has_wakeup(&mut self) -> bool {
        if self.timer.deadline() != NEVER {
            self.expire_timer(rdtsc());
        }
        // Most often there is nothing before the core is left, and something after it.
        let asked = self.remote.mailbox.requests() != 0;
        if !asked && !self.apic.is_pending_any() && !self.waits.any() {
            return self.cpu.injects();
        }
        self.has_wakeup_of_these()
    }

    #[inline(never)]
    fn has_wakeup_of_these(&mut self) -> bool {
        let mailbox = &self.remote.mailbox;
        if mailbox.requests() != 0 {
            mailbox.open_inbox(self);
            mailbox.take_nmi(self);
        }
        let asked = mailbox.requests() & (request::STARTUP | request::CONSOLE) != 0
            || self.waits.has(Waits::NMI) && self.cpu.nmi_possible();
        let class_of_guest = || class(self.cpu.task_priority());
        let interrupt = self.apic.deliverable().is_some_and(|v| class(v) > class_of_guest());
        asked || interrupt && self.cpu.interrupts_enabled() || self.cpu.injects()
    }

    /// While it waits for a start-up: until somebody asks for something, or wakes the core.
    #[cold]
    #[inline(never)]
    pub(in crate::vm) fn block_until_woken(&mut self) {
        match self.slot() {
            Some(slot) => self.yield_core(slot, Yield::Block(NEVER)),
            None => interrupts::sleep_until_woken(|vector| self.receive_posted(vector)),
        }
    }

    /// While it waits for another vCPU, holding no lock: lets those that share its core run.
    pub(in crate::vm) fn yield_while_waiting(&mut self) {
        match self.slot() {
            Some(slot) => {
                let look = rdtsc().wrapping_add(cpu::tsc_hz() / LOOKS_PER_SECOND);
                self.yield_core(slot, Yield::Sleep(look));
            }
            None => core::hint::spin_loop(),
        }
    }

    /// Waits so many microseconds, holding no lock. Others' requests are answered meanwhile.
    pub(in crate::vm) fn sleep(&mut self, us: u64) {
        let until = rdtsc().wrapping_add(cpu::tsc_hz() / 1_000_000 * us);
        match self.slot() {
            Some(slot) => self.yield_core(slot, Yield::Sleep(until)),
            None => {
                while (rdtsc().wrapping_sub(until) as i64) < 0 {
                    self.answer();
                    core::hint::spin_loop();
                }
            }
        }
    }

    /// In the middle of long work for its VM, holding no lock: lets others have their time slices.
    pub(in crate::vm) fn yield_if_due(&mut self) {
        if let Some(slot) = self.slot() {
            self.take_pending();
            if self.slice_is_over(slot) {
                self.yield_core(slot, Yield::Ready);
            }
        }
    }

    /// While another vCPU has the lock that this one waits for: lets those that share this core
    /// have their time slices.
    pub(in crate::vm) fn yield_to_lock_holder(&mut self) {
        if let Some(slot) = self.slot()
            && slot.core.queue.is_resident(slot.index)
            && self.slice_is_over(slot)
        {
            self.yield_core(slot, Yield::Ready);
        }
    }

    /// For good, at the end of its life on a shared core.
    pub(in crate::vm) fn leave_for_good(&mut self, slot: &'static Slot) -> ! {
        loop {
            self.yield_core(slot, Yield::Gone);
        }
    }

    /// Is what the host needs of the core out of the reach of a guest that takes its interrupts
    /// itself? On a core of its own a shadow IDT does it, which is placed here if that is
    /// `worthwhile`; on a shared one the limit of its IDT. `hold`: not yet.
    pub(in crate::vm) fn hide_host_vectors(&mut self, worthwhile: bool, hold: bool) -> bool {
        match self.slot() {
            Some(_) => self.slot.owns_vectors() && self.cpu.long_mode() && !hold,
            None => {
                if worthwhile && !hold && !self.shadow.placed() {
                    self.place_shadow();
                }
                self.shadow.placed()
            }
        }
    }

    /// Vectors whose gates aren't the guest's own now.
    pub(in crate::vm) fn hidden_gates(&self) -> VectorSet {
        match self.slot() {
            // The mode hides them: in injection mode every gate is the guest's.
            Some(_) if self.mode.current() == Mode::Injection => VectorSet::EMPTY,
            Some(_) => self.remote.routes.host_vectors(),
            None => self.shadow.hidden(),
        }
    }

    /// Forgets what arrived on a core of its own, but for what devices post to its guests.
    #[cold]
    #[inline(never)]
    pub(in crate::vm) fn forget_arrived(&mut self) {
        if self.slot().is_none() {
            interrupts::take().for_each(|vector| self.receive_posted(vector));
        }
    }

    /// Takes the core from the guest: timer off, nothing pending or in service, interrupts of the
    /// host's possible. On a shared core others go on: pending interrupts are handed over to them,
    /// and `reset` forgets the guest's.
    pub(in crate::vm) fn quiet_core(&mut self) {
        self.give_up_shadow();
        match self.slot() {
            Some(_) => {
                self.take_timer(false);
                self.timer.reset();
                self.change_mode(Mode::Injection);
                self.take_pending();
            }
            None => {
                x2apic::timer_lvt(interrupts::TIMER, x2apic::TimerMode::OneShot, true);
                x2apic::timer_start(0);
                // As after reset: by 2.
                x2apic::timer_divide_shift(1);
                self.cpu.release_core();
            }
        }
    }
}
