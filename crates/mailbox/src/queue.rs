//! A shared core's own part: which of its vCPUs waits for what, and who runs next.
//!
//! Guarantees: a vCPU that is blocked is runnable at the first look after it has a wake-up or its
//! deadline has come. `schedule::Schedule` decides who of the runnable ones has the core.
//!
//! [`Queue::slice_is_over`] is asked at every exit. Its answer stands until the slice ends or one
//! that waits is due, and is given again without a look: whoever has something for a blocked vCPU
//! finds the mark that the look has made, and asks the resident one to look again
//! ([`request::RESCHEDULE`]); the core itself asks, too (`Residency::kick`).

use crate::residency::{Reach, mark};
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
    /// The reason why each yielded, and a bit for each that waits.
    waits: [Yield; MAX],
    waiting: u32,
    /// So many slots are taken, and so many of these aren't gone.
    count: usize,
    left: usize,
    /// When the first of those that waited at the last look is due.
    next: u64,
    /// What [`Queue::due`] gives: of the last look.
    due: (bool, u64),
    /// Until when "no" of the last look stands if nobody asks for another; 0: it doesn't.
    stands: u64,
    /// The marks that the last look left of those that wait.
    marks: u32,
}

impl Queue {
    /// Nobody yet; `slice`: the longest time slice while another waits, in TSC ticks.
    pub const fn new(slice: u64) -> Self {
        Queue {
            schedule: Schedule::new(slice),
            waits: [Yield::Gone; MAX],
            waiting: 0,
            count: 0,
            left: 0,
            next: NEVER,
            due: (false, NEVER),
            stands: 0,
            marks: 0,
        }
    }

    /// A vCPU that would run takes the next slot. `weight`: its share of the core, beside the
    /// others'.
    pub fn add(&mut self, weight: u32) {
        if let Some(slot) = self.schedule.add(weight) {
            self.schedule.wake(slot, 0);
            self.waits[slot] = Yield::Ready;
            self.count = slot + 1;
            self.left += 1;
        }
    }

    /// Is a vCPU left that isn't gone?
    #[inline]
    pub fn serves(&self) -> bool {
        self.left != 0
    }

    /// The vCPU at `slot` leaves the core to others.
    #[inline]
    pub fn leave(&mut self, slot: usize, why: Yield, now: u64) {
        let Some(waits) = self.waits.get_mut(slot) else { return };
        let before = core::mem::replace(waits, why);
        self.stands = 0;
        match why {
            Yield::Ready => self.waiting &= !mark(slot),
            Yield::Block(_) | Yield::Sleep(_) => {
                self.waiting |= mark(slot);
                self.schedule.block(slot, now);
            }
            Yield::Gone => {
                self.waiting &= !mark(slot);
                self.schedule.remove(slot, now);
                self.left -= usize::from(before != Yield::Gone);
            }
        }
    }

    /// Looks at all that wait, and chooses who runs; `None`: nobody would. Where the look before
    /// the vCPU left ([`Queue::slice_is_over`]) has chosen, its marks are those that must stand
    /// when the next one becomes resident.
    #[inline(always)]
    pub fn pick(&mut self, core: &impl Reach, now: u64) -> Option<usize> {
        if !self.schedule.has_chosen() {
            self.wake(core, now);
        }
        let next = self.schedule.pick(now);
        self.seen();
        next
    }

    /// On the core: the vCPU at `slot` was asked for something that it wakes up for. If it is
    /// blocked it is runnable from here on, and the next [`Queue::slice_is_over`] considers it.
    #[inline]
    pub fn wake_here(&mut self, core: &impl Reach, slot: usize, now: impl FnOnce() -> u64) {
        if let Some(Yield::Block(_)) = self.waits.get(slot) {
            self.stands = 0;
            self.make_ready(core, slot, now());
        }
    }

    #[inline]
    fn make_ready(&mut self, core: &impl Reach, slot: usize, now: u64) {
        if let Some(why) = self.waits.get_mut(slot) {
            *why = Yield::Ready;
        }
        self.waiting &= !mark(slot);
        core.residency().woken(slot);
        self.schedule.wake(slot, now);
    }

    /// A vCPU has just become resident. Whoever asked for something while nobody was has told
    /// nobody: then what was seen before doesn't stand.
    #[inline]
    pub fn resident(&mut self, core: &impl Reach) {
        if !core.residency().stand(self.marks) {
            self.stands = 0;
        }
    }

    /// True if the core is to be given to another. Looks at all vCPUs that wait, unless the last
    /// look's answer stands. The look answers the request [`request::RESCHEDULE`] in `resident`,
    /// the resident vCPU's mailbox. The caller asks once at least after the vCPU became resident
    /// ([`Queue::resident`]) and before it enters the guest.
    #[inline]
    pub fn slice_is_over(&mut self, core: &impl Reach, resident: &Mailbox, now: u64) -> bool {
        let asked = resident.requests() & request::RESCHEDULE != 0;
        if now < self.stands && !asked {
            return false;
        }
        // The request is cleared before the look: who comes behind the look asks again.
        if asked {
            resident.done(request::RESCHEDULE);
        }
        self.look(core, now)
    }

    #[inline(never)]
    fn look(&mut self, core: &impl Reach, now: u64) -> bool {
        self.wake(core, now);
        let over = self.schedule.should_switch(now);
        self.seen();
        if over {
            self.stands = 0;
        }
        over
    }

    /// Keeps what the look that was just taken tells.
    #[inline]
    fn seen(&mut self) {
        self.due = match self.schedule.deadline() {
            Some(slice) => (true, slice.min(self.next)),
            None => (self.schedule.contested(), self.next),
        };
        self.stands = self.schedule.stays_until().min(self.next);
    }

    /// Has somebody something to do?
    pub fn wanted(&self, core: &impl Reach, now: u64) -> bool {
        let mut waits = self.taken().iter().zip(core.mailboxes()).enumerate();
        waits.any(|(slot, (why, mailbox))| has_wakeup(core, slot, *why, mailbox, now))
    }

    /// By the last look of [`Queue::slice_is_over`]: could another run, and when does the core have
    /// something to do for others: the slice ends, or the first of those that wait is due.
    #[inline]
    pub fn due(&self) -> (bool, u64) {
        self.due
    }

    /// Until when [`Queue::slice_is_over`] needn't be asked again, if nobody asks for a look.
    #[inline]
    pub fn stands(&self) -> u64 {
        self.stands
    }

    /// After a look: when the first of those that wait is due.
    pub fn next(&self) -> u64 {
        self.next
    }

    fn taken(&self) -> &[Yield] {
        self.waits.get(..self.count).unwrap_or_default()
    }

    /// Makes those runnable that have something to do.
    #[inline]
    fn wake(&mut self, core: &impl Reach, now: u64) {
        (self.next, self.marks) = (NEVER, 0);
        if self.waiting != 0 {
            self.wake_some(core, now);
        }
    }

    #[inline(never)]
    fn wake_some(&mut self, core: &impl Reach, now: u64) {
        let (mailboxes, mut left) = (core.mailboxes(), self.waiting);
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let (Some(why), Some(mailbox)) = (self.waits.get(slot), mailboxes.get(slot)) else {
                continue;
            };
            let why = *why;
            let (Yield::Block(at) | Yield::Sleep(at)) = why else { continue };
            if has_wakeup(core, slot, why, mailbox, now) {
                self.make_ready(core, slot, now);
            } else {
                self.next = self.next.min(at);
                if let Yield::Block(_) = why {
                    self.marks |= mark(slot);
                }
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
