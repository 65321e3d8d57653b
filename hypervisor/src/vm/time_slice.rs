//! A vCPU that shares its core: how it gives way and comes back, what its HLT means, its timer.
//!
//! Guarantees: when it gives way, every interrupt that the local APIC holds for it, pending or in
//! service, is in its virtual one, and its devices' interrupts come by aliases; nothing that is its
//! own is on the core for the next. Its timer expires in time or, if it hasn't the core then, when
//! it has it again at the latest.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc, x2apic};
use crate::interrupts;
use crate::iommu::fault_interrupt;
use crate::sched::shared::{NEVER, Seat, SharedCore, Yield};
use crate::vm::Vcpu;
use crate::vm::interrupts::mailbox::request;
use core::sync::atomic::Ordering;
use delivery::{Arrived, FIRST_RESERVED, Mode, VectorSet, class};
use ledger::Reason;

const HLT: [u8; 1] = [0xF4];
/// How often a vCPU that waits for another one's step looks, by second.
const LOOKS_PER_SECOND: u64 = 2000;

/// The vectors that on a shared core are never a guest's own: the limit of its IDT keeps them from
/// it.
pub fn reserved() -> VectorSet {
    let mut all = VectorSet::EMPTY;
    (FIRST_RESERVED..=u8::MAX).for_each(|v| all.insert(v));
    all
}

impl<C: VirtualCpu> Vcpu<C> {
    /// The core and the place on it, if it is shared.
    pub(super) fn seat(&self) -> Option<(&'static SharedCore, usize)> {
        self.link().seat.as_ref().map(|seat| (seat.core, seat.place))
    }

    /// Before an entry, on a shared core: the timer, and whether it is another's turn. True if it
    /// was meanwhile.
    pub(super) fn mind_turn(&mut self, core: &SharedCore, place: usize) -> bool {
        self.take_reserved();
        let over = core.turn_is_over(rdtsc());
        if over {
            self.give_way(core, place, Yield::Ready);
        }
        let now = rdtsc();
        self.expire(now);
        self.cpu.watch_halt(core.contested());
        core.arm(now, self.timer.deadline().unwrap_or(NEVER));
        over
    }

    /// Gives the guest the interrupt of its timer, if that is due.
    fn expire(&mut self, now: u64) {
        if self.timer.expired(now)
            && let Some(vector) = self.apic.timer_vector()
        {
            self.give_timer(vector);
        }
    }

    pub(super) fn give_way(&mut self, core: &SharedCore, place: usize, why: Yield) {
        self.leave_core(core, place);
        core.give_way(place, why);
        self.return_to_core(core, place);
    }

    /// Nothing of it is on the core any more.
    fn leave_core(&mut self, core: &SharedCore, place: usize) {
        if self.mode != Mode::Injection {
            self.change_mode(Mode::Injection);
        }
        core.send_away(place, || {
            // The next one may be presented some cycles after the completion of the one before.
            for _ in 0..=u8::MAX {
                self.take_pending();
                if x2apic::request_bitmap().iter().all(|word| *word == 0) {
                    break;
                }
            }
        });
        if self.apic.deliverable().is_some()
            && let Some(seat) = &self.link().seat
        {
            seat.left_waiting();
        }
        self.cpu.leave_core();
        core.clear_current();
        cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    }

    /// It has the core again, or for the first time.
    pub(super) fn return_to_core(&mut self, core: &SharedCore, place: usize) {
        core.set_current(place);
        cpu::this().vm.store(self.vm.index, Ordering::Relaxed);
        core.bring_home(place);
        self.cpu.return_to_core();
        self.ledger.turns = self.ledger.turns.wrapping_add(1);
        if let Some(ticks) = self.link().seat.as_ref().and_then(Seat::waited) {
            self.ledger.waited(ticks);
        }
    }

    /// In injection mode: what is pending in the local APIC goes to whom it is for.
    pub(super) fn take_pending(&mut self) -> Reason {
        self.cpu.take_interrupts();
        self.receive_taken()
    }

    /// A guest that takes its interrupts itself may hold all of them back: what is for others is
    /// taken; what is the guest's stays where it is.
    fn take_reserved(&mut self) {
        if self.mode == Mode::Direct
            && x2apic::requested(FIRST_RESERVED / 32) >> (FIRST_RESERVED & 31) != 0
        {
            let priority = x2apic::tpr();
            x2apic::set_tpr(FIRST_RESERVED - 1);
            self.take_pending();
            x2apic::set_tpr(priority);
        }
    }

    /// HLT: the core goes to others until there is something for the guest.
    pub(super) fn halt(&mut self) {
        self.skip(&HLT);
        let Some((core, place)) = self.seat() else { return };
        loop {
            // What the local APIC holds for the guest counts, too.
            self.leave_core(core, place);
            let stirs = self.stirs();
            if !stirs {
                let until = self.timer.deadline().unwrap_or(NEVER);
                core.give_way(place, Yield::Until(until));
            }
            self.return_to_core(core, place);
            if stirs || self.stirs() {
                return;
            }
        }
    }

    /// Is there something for the guest to wake up for?
    fn stirs(&mut self) -> bool {
        self.expire(rdtsc());
        let link = self.link();
        if link.requests() & request::INBOX != 0 {
            link.done(request::INBOX);
            self.open_inbox();
        }
        self.take_nmi_request();
        let asked = self.link().requests() & (request::STARTUP | request::CONSOLE) != 0
            || self.nmi_waits && self.cpu.nmi_possible();
        let priority = class(self.cpu.task_priority());
        let interrupt = self.apic.deliverable().is_some_and(|v| class(v) > priority);
        asked || interrupt && self.cpu.interrupts_enabled() || self.cpu.raising()
    }

    /// Waits for a start-up, on a shared core: until somebody asks for something.
    pub(super) fn doze(&mut self, core: &SharedCore, place: usize) {
        self.give_way(core, place, Yield::Until(NEVER));
        // It hears of nothing else.
        self.link().done(request::STIRRING);
    }

    /// While it waits for another vCPU, holding no lock: lets those that share its core run.
    pub(super) fn relax(&mut self) {
        match self.seat() {
            Some((core, place)) => {
                let look = rdtsc().wrapping_add(cpu::tsc_hz() / LOOKS_PER_SECOND);
                self.give_way(core, place, Yield::Sleep(look));
            }
            None => core::hint::spin_loop(),
        }
    }

    /// Waits, holding no lock. Others' requests are answered meanwhile.
    pub(super) fn linger(&mut self, us: u64) {
        let until = rdtsc().wrapping_add(cpu::tsc_hz() / 1_000_000 * us);
        match self.seat() {
            Some((core, place)) => self.give_way(core, place, Yield::Sleep(until)),
            None => {
                while (rdtsc().wrapping_sub(until) as i64) < 0 {
                    self.answer();
                    core::hint::spin_loop();
                }
            }
        }
    }

    /// In the middle of long work for its VM, holding no lock: lets others have their turn.
    pub(super) fn pause(&mut self) {
        if let Some((core, place)) = self.seat() {
            self.take_pending();
            if core.turn_is_over(rdtsc()) {
                self.give_way(core, place, Yield::Ready);
            }
        }
    }

    /// A physical interrupt, completed in the local APIC, on a shared core.
    pub(super) fn receive_shared(&mut self, core: &SharedCore, place: usize, vector: u8) -> Reason {
        match core.arrived(vector) {
            Arrived::Host if vector == interrupts::TIMER => {
                core.fired();
                let now = rdtsc();
                if self.timer.deadline().is_some_and(|at| at <= now) {
                    self.expire(now);
                    Reason::TimerInterrupt
                } else if core.turn_is_over(now) {
                    Reason::Turn
                } else {
                    Reason::OtherVcpu
                }
            }
            Arrived::Host => {
                if vector == interrupts::FAULTS {
                    fault_interrupt::arrived();
                }
                Reason::HostInterrupt
            }
            Arrived::Of { place: owner, vectors } if owner == place => {
                vectors.iter().for_each(|v| self.apic.request(v));
                vectors.highest().map_or(Reason::HostInterrupt, |v| self.reason_of(v))
            }
            Arrived::Of { place: owner, vectors } => {
                core.hand_on(owner, &vectors);
                Reason::OtherVcpu
            }
            Arrived::Nobody => {
                core.note_stray();
                Reason::HostInterrupt
            }
        }
    }
}
