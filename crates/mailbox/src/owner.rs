//! The vCPU's own core: what was asked is done out of the guest, and looked for before each entry.
//!
//! Guarantees: for the inbox, an NMI and a start-up, the core clears the request before it reads
//! the data, since more can come; for the others, whose askers wait, it clears it after the work.

use crate::{Mailbox, request, vectors_of};
use delivery::Found;
use sync::AtomicU32;

/// A vCPU, as it does what is asked of it.
pub trait Owner {
    /// [`request::FLUSH`]: drops its cached translations.
    fn flush_translations(&mut self);
    /// [`request::LEAVE_ELI`]: leaves ELI mode.
    fn leave_eli(&mut self);
    /// [`request::CONSOLE`]: takes the input.
    fn take_input(&mut self);
    /// [`request::SOURCES`]: looks over the local interrupt sources of its core.
    fn look_over_sources(&mut self);
    /// [`request::INBOX`]: this interrupt becomes pending.
    fn interrupt(&mut self, vector: u8);
    /// As [`Owner::interrupt`], for each of the vectors 64 × `index` on that has a bit in `bits`.
    fn interrupts(&mut self, index: u32, bits: u64) {
        vectors_of(index, bits).for_each(|vector| self.interrupt(vector));
    }
    /// [`request::NMI`]: an NMI becomes pending. One that is pending already takes it along, as in
    /// a processor.
    fn nmi(&mut self);
    /// INIT has come. True: it is held back, and the vCPU looks again by [`Mailbox::again`] once it
    /// isn't any more.
    fn holds_init(&mut self) -> bool {
        false
    }
    /// Does its VM end? Stored by whoever ends it before the vCPU is told.
    fn vm_ends(&self) -> bool;
    /// Takes the core from the guest.
    fn quiet_core(&mut self);
    /// Forgets interrupts that arrived on its core, but for what was posted to its guests.
    fn forget_arrived(&mut self);
    /// Sleeps until its core is woken; it may wake up for other reasons.
    fn sleep(&mut self);
    /// As after INIT and a start-up at `page`, with the core ready for the guest.
    fn start(&mut self, page: u8);
    /// Makes the core ready for the guest as it is.
    fn prepare_core(&mut self);
}

/// What came of attending to what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// The VM ends.
    Ends,
    /// It may have been descheduled meanwhile, or have woken another of its core.
    Anew,
    /// Interrupts became pending, and nothing else happened.
    Pending,
}

/// A vCPU on its way into its guest.
pub trait Entrant {
    /// On a shared core: yields if the time slice is over.
    fn maybe_preempt(&mut self);
    /// Does all that is asked for, by [`Mailbox::attend`].
    fn attend(&mut self) -> Attended;
    /// Whatever else is to be done before an entry.
    fn prepare(&mut self);
    /// Enters the guest and comes back when it was left, unless `requests` isn't zero: then it is
    /// false. This is looked at behind the point from which on an NMI ends the entry.
    fn enter(&mut self, requests: &AtomicU32) -> bool;
}

impl Mailbox {
    /// Runs the guest once, with all done that was asked for. False: the VM ends.
    #[inline(always)]
    pub fn run_guest(&self, vcpu: &mut impl Entrant) -> bool {
        loop {
            vcpu.maybe_preempt();
            if self.requests() != 0 {
                match vcpu.attend() {
                    Attended::Ends => return false,
                    // The timer may be set for another.
                    Attended::Anew => continue,
                    Attended::Pending => {}
                }
            }
            vcpu.prepare();
            if vcpu.enter(&self.requests) {
                return true;
            }
        }
    }

    /// Does what its asker waits for. Also called while this vCPU itself waits for another.
    pub fn answer(&self, vcpu: &mut impl Owner) {
        let asked = self.requests() & (request::FLUSH | request::LEAVE_ELI);
        if asked == 0 {
            return;
        }
        if asked & request::FLUSH != 0 {
            vcpu.flush_translations();
        }
        if asked & request::LEAVE_ELI != 0 {
            vcpu.leave_eli();
        }
        self.done(asked);
    }

    /// Does all that was asked for.
    #[inline]
    pub fn attend(&self, vcpu: &mut impl Owner) -> Attended {
        if self.requests() & !request::INBOX == 0 {
            self.open_inbox(vcpu);
            return Attended::Pending;
        }
        self.attend_to_all(vcpu)
    }

    #[inline(never)]
    fn attend_to_all(&self, vcpu: &mut impl Owner) -> Attended {
        self.answer(vcpu);
        let rare = self.requests() & (request::STARTUP | request::CONSOLE | request::SOURCES);
        if rare != 0 && !self.attend_to_rare(vcpu, rare) {
            return Attended::Ends;
        }
        // An INIT, which is done by now, has cleared what came before it.
        self.open_inbox(vcpu);
        self.take_nmi(vcpu);
        Attended::Anew
    }

    #[cold]
    fn attend_to_rare(&self, vcpu: &mut impl Owner, asked: u32) -> bool {
        self.done(asked);
        if asked & request::STARTUP != 0 && (vcpu.vm_ends() || !self.start_up(vcpu)) {
            return false;
        }
        if asked & request::CONSOLE != 0 {
            vcpu.take_input();
        }
        if asked & request::SOURCES != 0 {
            vcpu.look_over_sources();
        }
        true
    }

    /// Makes pending the interrupts that others left for it.
    #[inline]
    pub fn open_inbox(&self, vcpu: &mut impl Owner) {
        let asked = self.requests() & request::INBOX;
        if asked != 0 {
            self.done(asked);
            self.take_inbox(asked, |index, bits| vcpu.interrupts(index, bits));
        }
    }

    /// The NMI that others asked for becomes pending.
    #[inline]
    pub fn take_nmi(&self, vcpu: &mut impl Owner) {
        if self.requests() & request::NMI != 0 {
            self.done(request::NMI);
            vcpu.nmi();
        }
    }

    /// INIT and start-up. False: the VM ended while this vCPU waited.
    fn start_up(&self, vcpu: &mut impl Owner) -> bool {
        if !self.change(|s| (s, s.init_pending())) || vcpu.holds_init() {
            return true;
        }
        // Before others see that it waits: the guest may have sent itself what wakes a core, and
        // the real one, which they send from then on, would be left over for the guest.
        vcpu.quiet_core();
        vcpu.forget_arrived();
        match self.change(|s| s.acknowledge()) {
            Found::StartUp(page) => {
                vcpu.start(page);
                true
            }
            _ => self.wait(vcpu),
        }
    }

    /// The vCPU, out of its guest: an INIT that it held back is looked at before the next entry.
    pub fn again(&self) {
        self.store(request::STARTUP);
    }

    /// Sleeps until a start-up comes. False: the VM ended instead.
    pub fn wait(&self, vcpu: &mut impl Owner) -> bool {
        vcpu.quiet_core();
        let mut input = 0;
        // An end that found this vCPU running hasn't woken it.
        while !vcpu.vm_ends() {
            vcpu.sleep();
            // It hears of nothing else, and what isn't done would end each sleep. Input waits for
            // it.
            let asked = self.requests() & request::WAKEUPS;
            if asked != 0 {
                self.done(asked);
                input |= asked & request::CONSOLE;
            }
            self.change(|s| (s.woken(), ()));
            if let Found::StartUp(page) = self.change(|s| s.acknowledge()) {
                vcpu.start(page);
                if input != 0 {
                    self.store(input);
                }
                return true;
            }
        }
        vcpu.prepare_core();
        false
    }
}
