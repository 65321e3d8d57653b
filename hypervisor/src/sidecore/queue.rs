//! One queue of a paravirtual function: its turn at the sidecore, and which completions are told to the
//! guest by an interrupt.
//!
//! Guarantees: what is completed is published at once, whatever becomes of its interrupt; a
//! completion that the driver wants to be told of is told by the end of the turn, or, if vIC holds
//! it back, at the coalescer's deadline at the latest.

use crate::cpu::{rdtsc, x2apic};
use crate::sidecore::backing::Backing;
use crate::sidecore::entries;
use crate::sidecore::port::{Counts, Port};
use ::sidecore::{Look, Next, Schedule};
use blk::{Broken, Config, Features, Server};
use coalesce::{Coalescer, Settings, Verdict};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use routing::calls::{Called, Caller, Target};
use window::Window;

/// The most queues of a sidecore.
pub const QUEUES: usize = 128;
/// Requests of a queue that are in flight at a time.
const IN_FLIGHT: usize = 128;
/// Completions after which the guest is told, though the turn goes on.
const TOLD_AFTER: u32 = 8;

/// A queue, running or not.
pub struct ServedQueue {
    /// Its device's place in the core, and its own there.
    pub device: usize,
    index: usize,
    server: Server<IN_FLIGHT>,
    coalescer: Coalescer,
    settings: Settings,
}

/// What a turn needs of the queue's device.
pub struct Context<'a, 'b> {
    pub port: &'a Port,
    pub window: &'a Window,
    pub backing: &'a mut Backing,
    /// The device's entries.
    pub entries: &'a Range<u16>,
    pub caller: &'a mut Caller<'b>,
}

impl ServedQueue {
    /// Of this device, without a ring. `number` tells the queues of the device's back end apart.
    pub fn new(device: usize, index: usize, config: Config, settings: Settings) -> Self {
        ServedQueue {
            device,
            index,
            server: Server::new(config, index as u16),
            coalescer: Coalescer::new(settings, 0),
            settings,
        }
    }

    /// Serves this ring from now on.
    pub fn start(&mut self, mut ring: virtqueue::Queue, accepted: Features, now: u64) {
        ring.suppress_kicks();
        self.server.start(ring, accepted);
        self.coalescer = Coalescer::new(self.settings, now);
    }

    /// Serves none. True: the back end has let go of the guest's memory, too.
    pub fn stop(&mut self) -> bool {
        self.server.stop();
        self.coalescer.settled();
        self.server.outstanding() == 0
    }

    /// Is there a ring?
    pub fn is_running(&mut self) -> bool {
        self.server.queue().is_some()
    }

    /// Serves up to a turn's worth; the error is why the queue is given up.
    pub fn turn(
        &mut self,
        mut cx: Context<'_, '_>,
        place: usize,
        schedule: &mut Schedule,
        others: &mut impl Look,
    ) -> Result<(), Broken> {
        let mut untold = 0;
        let mut tell = false;
        loop {
            let outcome = self.server.serve(cx.window, cx.backing)?;
            let now = rdtsc();
            if outcome.completed > 0 {
                tell |= self.publish(&cx, now);
                untold += outcome.completed;
                count(&cx, self.index, |counts| {
                    add(&counts.requests, outcome.completed.into());
                });
            }
            if outcome.bytes > 0 {
                count(&cx, self.index, |counts| add(&counts.bytes, outcome.bytes));
            }
            // Nothing to do, or no room for it in the back end.
            if outcome.charge == 0 {
                schedule.rest(place);
                break;
            }
            let mut look = WithThis { this: self, place, others: &mut *others };
            let next = schedule.served(place, outcome.charge, outcome.completed, now, &mut look);
            if next == Next::Switch {
                break;
            }
            if tell && untold >= TOLD_AFTER {
                self.call(&mut cx, now);
                (tell, untold) = (false, 0);
            }
        }
        count(&cx, self.index, |counts| {
            // The schedule forgets it when the device starts anew.
            counts.longest_wait.fetch_max(schedule.worst_wait(place), Ordering::Relaxed);
        });
        if tell {
            self.call(&mut cx, rdtsc());
        }
        Ok(())
    }

    /// Tells the guest what was held back, if that is due.
    pub fn tell_due(&mut self, cx: &mut Context<'_, '_>, now: u64) {
        if self.coalescer.due(now) {
            self.call(cx, now);
        }
    }

    /// By when something that is held back is to be told.
    pub fn deadline(&self) -> Option<u64> {
        self.coalescer.deadline()
    }

    /// Shows the driver what was completed. True: it is to be told of it now.
    fn publish(&mut self, cx: &Context<'_, '_>, now: u64) -> bool {
        let taken = self.server.in_flight();
        let Some(ring) = self.server.queue() else { return false };
        ring.publish();
        let waiting = ring.available().unwrap_or(0);
        match self.coalescer.completed(now, u32::from(taken) + u32::from(waiting)) {
            Verdict::Deliver => true,
            Verdict::Withhold => {
                count(cx, self.index, |counts| add(&counts.withheld, 1));
                false
            }
        }
    }

    /// Sends the queue's interrupt, if the driver wants one for what was published.
    fn call(&mut self, cx: &mut Context<'_, '_>, now: u64) {
        let wanted = self.server.queue().is_some_and(|ring| ring.wants_call());
        if !wanted {
            return self.coalescer.settled();
        }
        self.coalescer.delivered(now);
        let vector = cx.port.vector(self.index);
        if let Some(entry) = vector.and_then(|vector| entries::of(cx.entries, vector))
            && cx.caller.call(entry, send) != Called::Dropped
        {
            count(cx, self.index, |counts| add(&counts.calls, 1));
        }
    }

    /// Requests that wait, and the one that is served in part.
    fn waiting(&mut self) -> u16 {
        self.server.waiting()
    }
}

/// Counts something of this queue of the device.
fn count(cx: &Context<'_, '_>, queue: usize, count: impl FnOnce(&Counts)) {
    if let Some(counts) = cx.port.counts(queue) {
        count(counts);
    }
}

/// So many more, in a count that nobody else writes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Writes the ICR.
pub fn send(to: Target) {
    x2apic::send_ipi(to.destination, to.vector);
}

/// All queues but one, which is having its turn and isn't among them.
pub struct Others<'a> {
    pub before: &'a mut [ServedQueue],
    pub after: &'a mut [ServedQueue],
}

impl Look for Others<'_> {
    #[inline]
    fn waiting(&mut self, queue: usize) -> u16 {
        let before = self.before.len();
        match queue.checked_sub(before) {
            None => self.before.get_mut(queue),
            Some(0) => None,
            Some(after) => self.after.get_mut(after - 1),
        }
        .map_or(0, ServedQueue::waiting)
    }
}

struct WithThis<'a, L> {
    this: &'a mut ServedQueue,
    place: usize,
    others: &'a mut L,
}

impl<L: Look> Look for WithThis<'_, L> {
    #[inline]
    fn waiting(&mut self, queue: usize) -> u16 {
        if queue == self.place { self.this.waiting() } else { self.others.waiting(queue) }
    }
}

/// All queues.
pub struct All<'a>(pub &'a mut [ServedQueue]);

impl Look for All<'_> {
    #[inline]
    fn waiting(&mut self, queue: usize) -> u16 {
        self.0.get_mut(queue).map_or(0, ServedQueue::waiting)
    }
}
