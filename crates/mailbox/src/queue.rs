//! A shared core's own part: which of its vCPUs waits for what, and who runs next.
//!
//! Guarantees: a vCPU that is blocked is runnable at the first look after it has a wake-up or its
//! deadline has come. `schedule::Schedule` decides who of the runnable ones has the core.

use crate::residency::Reach;
use crate::{Mailbox, request};
use schedule::{MAX, Schedule};

/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;

/// Why a vCPU yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    /// It would go on.
    Ready,
    /// It blocks until it has a wake-up, or until this time.
    Block(u64),
    /// It sleeps until this time, whatever is asked.
    Sleep(u64),
    /// For good.
    Gone,
}

/// The vCPUs of a shared core, by slot.
#[derive(Debug)]
pub struct Queue {
    schedule: Schedule,
    /// The reason why each yielded.
    waits: [Yield; MAX],
    /// So many slots are taken.
    count: usize,
    /// When the first of those that waited at the last look is due.
    next: u64,
}

impl Queue {
    /// Nobody yet; `slice`: the longest time slice while another waits, in TSC ticks.
    pub const fn new(slice: u64) -> Self {
        Queue { schedule: Schedule::new(slice), waits: [Yield::Gone; MAX], count: 0, next: NEVER }
    }

    /// A vCPU that would run takes the next slot. `weight`: its share of the core, beside the
    /// others'.
    pub fn add(&mut self, weight: u32) {
        if let Some(slot) = self.schedule.add(weight) {
            self.schedule.wake(slot, 0);
            self.waits[slot] = Yield::Ready;
            self.count = slot + 1;
        }
    }

    /// Is a vCPU left that isn't gone?
    pub fn serves(&self) -> bool {
        self.taken().iter().any(|why| *why != Yield::Gone)
    }

    /// The vCPU at `slot` leaves the core to others.
    pub fn leave(&mut self, slot: usize, why: Yield, now: u64) {
        let Some(waits) = self.waits.get_mut(slot) else { return };
        *waits = why;
        match why {
            Yield::Ready => {}
            Yield::Block(_) | Yield::Sleep(_) => self.schedule.block(slot, now),
            Yield::Gone => self.schedule.remove(slot, now),
        }
    }

    /// Looks at all that wait, and chooses who runs; `None`: nobody would.
    pub fn pick(&mut self, core: &impl Reach, now: u64) -> Option<usize> {
        self.wake(core, now);
        self.schedule.pick(now)
    }

    /// Looks at all vCPUs that wait; true if the core is to be given to another. The look answers
    /// the request [`request::RESCHEDULE`] in `resident`, the resident vCPU's mailbox. The caller
    /// looks once at least after the vCPU became resident and before it enters the guest.
    pub fn slice_is_over(&mut self, core: &impl Reach, resident: &Mailbox, now: u64) -> bool {
        // The request is cleared before the look: who comes behind the look asks again.
        if resident.requests() & request::RESCHEDULE != 0 {
            resident.done(request::RESCHEDULE);
        }
        self.wake(core, now);
        self.schedule.should_switch(now)
    }

    /// Has somebody something to do?
    pub fn wanted(&self, core: &impl Reach, now: u64) -> bool {
        let mut waits = self.taken().iter().zip(core.mailboxes()).enumerate();
        waits.any(|(slot, (why, mailbox))| has_wakeup(core, slot, *why, mailbox, now))
    }

    /// After a look: could another run, and when does the core have something to do for others: the
    /// slice ends, or the first of those that wait is due.
    pub fn due(&self) -> (bool, u64) {
        match self.schedule.deadline() {
            Some(slice) => (true, slice.min(self.next)),
            None => (self.schedule.contested(), self.next),
        }
    }

    /// After a look: when the first of those that wait is due.
    pub fn next(&self) -> u64 {
        self.next
    }

    fn taken(&self) -> &[Yield] {
        self.waits.get(..self.count).unwrap_or_default()
    }

    /// Makes those runnable that have something to do.
    fn wake(&mut self, core: &impl Reach, now: u64) {
        self.next = NEVER;
        for (slot, (why, mailbox)) in self.waits.iter_mut().zip(core.mailboxes()).enumerate() {
            let (Yield::Block(at) | Yield::Sleep(at)) = *why else { continue };
            if has_wakeup(core, slot, *why, mailbox, now) {
                *why = Yield::Ready;
                core.residency().woken(slot);
                self.schedule.wake(slot, now);
            } else {
                self.next = self.next.min(at);
            }
        }
    }
}

/// It waits, and what it waits for is there.
fn has_wakeup(core: &impl Reach, slot: usize, why: Yield, mailbox: &Mailbox, now: u64) -> bool {
    match why {
        Yield::Block(at) => core.residency().look(slot, mailbox) || at <= now,
        Yield::Sleep(at) => at <= now,
        Yield::Ready | Yield::Gone => false,
    }
}
