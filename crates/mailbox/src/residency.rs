//! A core that several vCPUs share, as other cores see it: who is resident, who is blocked, and how
//! its core is told to look.
//!
//! Guarantees, for whoever has stored a request in the mailbox of a vCPU before it calls
//! [`Residency::kick`]:
//!
//! 1. **The vCPU is resident, or becomes it:** it sees the request before its guest runs. Both
//!    store, pass a fence, and look at what the other stored: the asker at who is resident, the
//!    core at the requests. One of the two sees the other; an NMI that comes before the core looks
//!    last is taken for nothing.
//! 2. **It is blocked:** its core looks at it before the guest of another runs on. The core first
//!    marks it as blocked, then looks at its requests. The asker first takes the mark away, then
//!    reads who is resident. Both use exchanges on the mark, so one of them comes first.
//!    - If the asker's exchange is first, the core's look finds the request.
//!    - If the core's is first, the asker finds the mark, and reads the vCPU that was resident
//!      at the look, or a later one. It leaves a request for that one, too
//!      ([`request::RESCHEDULE`]). Without it an NMI between that vCPU's look for others and its
//!      entry would be taken for nothing.
//!    - An asker that finds no mark needn't kick: another asker did, or the vCPU is about to run.
//! 3. **The core sleeps in the host:** it says so, forgets the NMIs that came, and looks before it
//!    sleeps. What comes behind that ends the sleep, an NMI as well as the interrupt that wakes
//!    cores.
//!
//! No clock is needed for any of it. [`Residency::watch`] takes the core back from a guest that
//! lets no interrupt in, by a request and an NMI.

use crate::{Alarm, Clock, Mailbox, request};
use schedule::MAX;
use sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// No vCPU is resident.
const NOBODY: usize = usize::MAX;

/// The mark of a slot.
pub(crate) const fn mark(slot: usize) -> u32 {
    if slot < MAX { 1 << slot } else { 0 }
}

/// How a shared core is reached.
pub trait Reach {
    /// The part of it that others may know.
    fn residency(&self) -> &Residency;
    /// The mailboxes of its vCPUs, by slot.
    fn mailboxes(&self) -> &[&Mailbox];
    /// Does this run on the core itself? It comes by a look before its next entry.
    fn is_here(&self) -> bool;
    /// Sends it an NMI.
    fn send_nmi(&self);
    /// Sends it the interrupt that ends its sleep in the host.
    fn send_wake(&self);
}

/// The part of a shared core's state that other cores may know.
#[derive(Debug)]
pub struct Residency {
    /// Slot of the vCPU that is, or is about to be, in its guest.
    resident: AtomicUsize,
    /// Marks, a bit for each slot: the vCPU is blocked, and nobody has kicked its core for it since
    /// the core looked.
    blocked: AtomicU32,
    /// The core sleeps in the host, or is about to.
    asleep: AtomicBool,
    /// When the core has something to do for others than who has it.
    due: AtomicU64,
    /// When core 0 last sent an NMI of its own accord.
    watched: AtomicU64,
    /// When core 0 is to take the core back, while that has no timer of its own.
    alarm: Alarm,
}

impl Residency {
    /// Nobody is resident or blocked, nothing is due.
    pub fn new() -> Self {
        Residency {
            resident: AtomicUsize::new(NOBODY),
            blocked: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            watched: AtomicU64::new(0),
            alarm: Alarm::new(),
        }
    }

    /// Is the vCPU at `slot` in its guest, or about to be?
    #[inline]
    pub fn is_resident(&self, slot: usize) -> bool {
        self.resident.load(Ordering::Acquire) == slot
    }

    /// Something was asked of the vCPU at `slot`: has its core look, unless it will anyway before
    /// it enters the guest. If it is no wake-up, whoever else has the core isn't bothered; if it
    /// is, once until the core has looked, however often is asked.
    pub fn kick(&self, core: &impl Reach, slot: usize, wakeup: bool) {
        if core.is_here() {
            // Who has the core looks by itself, but again only if it knows of something.
            if wakeup {
                self.look_again(core, slot);
            }
            return;
        }
        fence(Ordering::SeqCst);
        let wakes = wakeup && self.take_mark(slot);
        // Behind the mark: whoever became resident before the mark was made is seen.
        let resident = self.resident.load(Ordering::Acquire);
        if resident == slot {
            core.send_nmi();
        } else if wakes {
            self.reschedule(core, resident);
        }
    }

    /// Has the core look again: a request is overdue.
    pub fn resend_kick(&self, core: &impl Reach, slot: usize, wakeup: bool) {
        let resident = self.resident.load(Ordering::Acquire);
        if resident == slot || wakeup {
            self.reschedule(core, resident);
        }
    }

    /// On the core, wherever it is: leaves interrupts in the inbox of the vCPU at `slot`, which
    /// isn't resident. The resident vCPU looks before its guest runs again.
    pub fn post_here(&self, core: &impl Reach, slot: usize, vectors: impl Iterator<Item = u8>) {
        let Some(mailbox) = core.mailboxes().get(slot) else { return };
        vectors.for_each(|vector| mailbox.put(vector));
        self.look_again(core, slot);
    }

    /// On the core: whoever has it, or gets it next, looks at the vCPU at `slot` before its guest
    /// runs.
    fn look_again(&self, core: &impl Reach, slot: usize) {
        self.take_mark(slot);
        if let Some(resident) = core.mailboxes().get(self.resident.load(Ordering::Relaxed)) {
            resident.store(request::RESCHEDULE);
        }
    }

    fn take_mark(&self, slot: usize) -> bool {
        self.blocked.fetch_and(!mark(slot), Ordering::AcqRel) & mark(slot) != 0
    }

    /// Has the core look at all of its vCPUs, whoever is `resident`.
    fn reschedule(&self, core: &impl Reach, resident: usize) {
        if self.asleep.load(Ordering::Acquire) {
            return core.send_wake();
        }
        if let Some(mailbox) = core.mailboxes().get(resident) {
            mailbox.store(request::RESCHEDULE);
        }
        core.send_nmi();
    }

    /// Core 0 takes the core back from a guest when another vCPU is due, and after each `slice` in
    /// any case, since the guest may hold back the interrupt that another one would wake up for.
    /// It does so once in a slice, however often it is called, and returns whether it did. `now`
    /// and `slice` in TSC ticks.
    pub fn watch(&self, core: &impl Reach, now: u64, slice: u64) -> bool {
        let resident = self.resident.load(Ordering::Acquire);
        let since = now.wrapping_sub(self.watched.load(Ordering::Relaxed)) as i64;
        let takes =
            resident != NOBODY && now > self.due.load(Ordering::Relaxed) && since > slice as i64;
        if takes {
            self.watched.store(now, Ordering::Relaxed);
            self.reschedule(core, resident);
        }
        takes
    }

    /// Core 0, at the time of the core's alarm: takes the core back from a guest that has its
    /// timer. Does so again every `again` TSC ticks until the core has come.
    pub fn ring(&self, core: &impl Reach, now: u64, again: u64) {
        if self.alarm.rings(now, again) {
            self.watched.store(now, Ordering::Relaxed);
            let resident = self.resident.load(Ordering::Acquire);
            if resident != NOBODY {
                self.reschedule(core, resident);
            }
        }
    }

    /// When it rings.
    pub fn alarm(&self) -> u64 {
        self.alarm.at()
    }

    /// On the core: as [`Alarm::set`].
    #[inline]
    #[must_use]
    pub fn set_alarm(&self, clock: &Clock, at: u64) -> bool {
        self.alarm.set(clock, at)
    }

    /// On the core: when it has something to do for others than who has it.
    pub fn set_due(&self, at: u64) {
        self.due.store(at, Ordering::Relaxed);
    }

    /// On the core: the vCPU at `slot` is about to use its guest. It looks at its requests
    /// afterwards.
    pub fn set_resident(&self, slot: usize) {
        self.resident.store(slot, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// On the core: no vCPU is in its guest, or about to be.
    pub fn clear_resident(&self) {
        self.resident.store(NOBODY, Ordering::Release);
    }

    /// On the core: has the blocked vCPU at `slot` something to wake up for? If not, whoever asks
    /// for something kicks.
    pub(crate) fn look(&self, slot: usize, mailbox: &Mailbox) -> bool {
        self.blocked.fetch_or(mark(slot), Ordering::AcqRel);
        mailbox.has_wakeup()
    }

    /// On the core: the vCPU at `slot` isn't blocked any more. Whoever asks for more finds it on
    /// its way.
    pub(crate) fn woken(&self, slot: usize) {
        self.blocked.fetch_and(!mark(slot), Ordering::AcqRel);
    }

    /// On the core, after a vCPU became resident: do these marks all stand? Else somebody asked for
    /// something who may have found nobody resident. Who takes one later finds who is: this is an
    /// exchange, too, so that one of the two comes first.
    pub(crate) fn stand(&self, marks: u32) -> bool {
        self.blocked.fetch_or(0, Ordering::AcqRel) & marks == marks
    }

    /// On the core, which nobody wants: sleeps by `sleep` until something arrives, unless `wanted`
    /// finds somebody who has something to do. `forget_nmi`: an NMI that came before doesn't end
    /// the sleep.
    pub fn sleep(
        &self,
        forget_nmi: impl FnOnce(),
        wanted: impl FnOnce() -> bool,
        sleep: impl FnOnce(),
    ) {
        self.asleep.store(true, Ordering::Release);
        forget_nmi();
        if !wanted() {
            sleep();
        }
        self.asleep.store(false, Ordering::Release);
    }
}

/// For what variants do by hand.
#[cfg(test)]
#[cfg(loom)]
impl Residency {
    pub(crate) fn resident(&self) -> usize {
        self.resident.load(Ordering::Acquire)
    }

    /// Takes the mark of this slot away; was it there?
    pub(crate) fn unmark(&self, slot: usize) -> bool {
        self.take_mark(slot)
    }

    pub(crate) fn mark(&self, slot: usize) {
        self.blocked.fetch_or(mark(slot), Ordering::AcqRel);
    }
}

impl Default for Residency {
    fn default() -> Self {
        Residency::new()
    }
}
