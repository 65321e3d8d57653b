//! The schedule: whose turn it is, and whether it goes on. The rules and what they guarantee stand
//! at the crate's root.

mod joining;
mod round;
mod scan;
mod stuck;

use crate::patience::Yielding;
use crate::queue::{Queue, State};
use crate::settings::Settings;
use crate::share::{SET_BACK, Share, Virtual, Vm};
use crate::turn::{
    BYTES_PER_LOOK, Batch, LEAST_COST, LOOKS, Look, Next, Piece, Statistics, Turn, Wait, elapsed,
};
use alloc::boxed::Box;
use round::{Round, Waiting};
use scan::Found;

/// The order of turns: by the VM's virtual time, in the upper half, then by the queue's last turn.
/// One number, so that to compare two of them is no branch.
type Key = u128;

#[inline]
const fn key_of(time: Virtual, turn: u64) -> Key {
    (time as Key) << u64::BITS | turn as Key
}

#[inline]
const fn time_of(key: Key) -> Virtual {
    (key >> u64::BITS) as Virtual
}

/// The turn that goes on.
#[derive(Clone, Copy, Debug)]
struct Running {
    queue: usize,
    vm: usize,
    /// The key by which it was chosen: the two halves. The clock stands still during a turn, so its
    /// VM's virtual time is this much at least.
    time: Virtual,
    turn: u64,
    /// The cost of its pieces so far, and how much of that was charged to its VM.
    bytes: u64,
    charged: u64,
}

/// The queues of one polling core, by their places from 0 on, and their VMs by theirs.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) settings: Settings,
    pub(crate) queues: Box<[Queue]>,
    pub(crate) vms: Box<[Vm]>,
    /// One of them has limits.
    is_limited: bool,
    /// The least virtual time of those that waited, at its highest.
    clock: Virtual,
    running: Option<Running>,
    /// The turns to come, as the last scan found them.
    pub(crate) round: Round,
    /// Behind the queue that had the last turn.
    from: usize,
    /// No queue that is polled is to sleep before this.
    sleeps_at: u64,
    yielding: Yielding,
    /// The last turn was a kicked queue's.
    was_work: bool,
    /// Grows when something was served, and by passes in which nobody could be.
    worked: u64,
    /// The same when the turn under way began.
    begun: u64,
    /// The place that was looked at last within a turn.
    looked: usize,
    statistics: Statistics,
    /// The cost of all pieces.
    cost: u64,
}

impl Schedule {
    /// No queues yet, but places for so many, and for so many VMs, of weight 100 without limits.
    /// Nothing is allocated after this.
    pub fn new(settings: Settings, queues: usize, vms: usize) -> Self {
        let vm = Vm::new(Share::DEFAULT, &settings);
        Schedule {
            settings,
            queues: (0..queues).map(|_| Queue::ABSENT).collect(),
            vms: (0..vms).map(|_| vm).collect(),
            is_limited: false,
            clock: 0,
            running: None,
            round: Round::EMPTY,
            from: 0,
            sleeps_at: 0,
            yielding: Yielding::default(),
            was_work: false,
            worked: 1,
            begun: 0,
            looked: 0,
            statistics: Statistics { passes: 0, found: 0 },
            cost: 0,
        }
    }

    /// What to do next. A turn that went on until now is over.
    #[inline(always)]
    pub fn next(&mut self, now: u64, look: &mut impl Look) -> Turn {
        // Mostly the turn before is over, and the last scan found another one.
        if self.running.is_none()
            && let Some(next) = self.next_of_order()
        {
            self.statistics.passes = self.statistics.passes.wrapping_add(1);
            return self.begin(next.queue, next.key, now);
        }
        self.next_otherwise(now, look)
    }

    #[inline(never)]
    fn next_otherwise(&mut self, now: u64, look: &mut impl Look) -> Turn {
        if self.running.is_some() {
            self.settle();
            self.running = None;
            // Nobody knows what it left.
            self.round.end();
        }
        self.statistics.passes = self.statistics.passes.wrapping_add(1);
        if self.round.is_left()
            && let Some(Waiting { key, queue, .. }) = self.next_of_round(now)
        {
            return self.begin(queue, key, now);
        }
        self.next_by_scan(now, look)
    }

    /// The same, by looks at all queues.
    #[inline]
    fn next_by_scan(&mut self, now: u64, look: &mut impl Look) -> Turn {
        if self.clock > 2 * SET_BACK {
            self.clock -= SET_BACK;
            self.vms.iter_mut().for_each(Vm::set_back);
        }
        let Found { first, kicked, delayed } = self.scan(now, look);
        let Some(Waiting { key, queue: first, .. }) = first else {
            self.was_work = false;
            // Nobody else waits: those that rest come next.
            self.worked = self.worked.wrapping_add(1);
            return self.find_idle(now).map_or(Turn::Nothing, Turn::Sleep);
        };
        self.clock = self.clock.max(time_of(key));
        if kicked.is_some() || delayed {
            // Every other turn is out of order; so is the turn of one as soon as it may be served.
            self.round.end();
        }
        let kicked = kicked.filter(|_| !self.was_work);
        self.was_work = kicked.is_some();
        match kicked {
            Some((_, place)) => self.begin(place, self.key(place), now),
            None => self.begin(first, key, now),
        }
    }

    /// What may be served as the next piece of the queue whose turn it is: one request if its VM
    /// has limits, so that it exceeds them by no more.
    #[inline]
    pub fn batch(&self) -> Batch {
        match &self.running {
            Some(running) if !self.is_limited || !self.vms[running.vm].is_limited() => {
                Batch::after(running.bytes, self.settings.max_bytes)
            }
            _ => Batch::ONE,
        }
    }

    /// A piece of the queue whose turn it is was served.
    #[inline(always)]
    pub fn served(&mut self, queue: usize, piece: Piece, now: u64, look: &mut impl Look) -> Next {
        let requests = u64::from(piece.requests.max(1));
        let piece = Piece { cost: piece.cost.max(LEAST_COST * requests), ..piece };
        let running = self.running.as_mut().filter(|running| running.queue == queue);
        let Some(running) = running else {
            let Piece { cost, bytes, requests } = piece;
            self.served_besides(queue, cost, bytes, requests, now);
            return Next::Switch;
        };
        // Its VM is charged once for all pieces.
        let bytes = running.bytes.saturating_add(piece.cost);
        if self.is_limited || look.has_more(queue) {
            running.bytes = bytes;
            let Piece { cost, bytes, requests } = piece;
            return self.served_on(cost, bytes, requests, now, look);
        }
        let Running { vm, time, charged, .. } = *running;
        self.charge(vm, time, bytes - charged);
        self.over(queue, vm);
        Next::Switch
    }

    /// The same where the turn may go on, or a VM has limits.
    #[inline(never)]
    fn served_on(
        &mut self,
        cost: u64,
        moved: u64,
        requests: u32,
        now: u64,
        look: &mut impl Look,
    ) -> Next {
        let Some(Running { queue, vm: place, bytes, .. }) = self.running else {
            return Next::Switch;
        };
        let vm = &mut self.vms[place];
        let is_open = !vm.is_limited() || vm.count(requests, moved, now);
        let Settings { min_bytes, max_bytes, .. } = self.settings;
        // It is polled: a queue that isn't any more has no turn.
        if !is_open {
            let opens = vm.opens_at();
            let place = &mut self.queues[queue];
            (place.waits, place.busy) = (None, now);
            place.held = place.held.saturating_add(elapsed(now, opens));
        } else if !self.is_limited || look.has_more(queue) {
            self.queues[queue].busy = now;
            let looks = LOOKS * u64::from(requests.max(1)) + cost / BYTES_PER_LOOK;
            let goes_on = bytes < min_bytes
                || (bytes <= max_bytes && !self.is_another_stuck(queue, looks, now, look));
            if goes_on {
                return Next::Continue;
            }
            self.settle();
            self.round.end();
            let begins = self.wait_begins();
            let place = &mut self.queues[queue];
            (place.waits, place.since) = (Some(begins), now);
            self.running = None;
            return Next::Switch;
        }
        self.settle();
        self.over(queue, place);
        Next::Switch
    }

    /// The turn of this queue of that VM is over and settled, and left nothing that may be served.
    #[inline(always)]
    fn over(&mut self, queue: usize, vm: usize) {
        self.running = None;
        // It has its place behind those that wait, unless its VM is far behind.
        if self.vms[vm].time() < time_of(self.round.first_of_others()) {
            self.came_before(queue);
        }
    }

    /// Something was served that cost so much, of a VM whose virtual time was `floor` at least.
    #[inline(always)]
    fn charge(&mut self, vm: usize, floor: Virtual, cost: u64) {
        self.worked = self.worked.wrapping_add(1);
        self.cost = self.cost.saturating_add(cost);
        self.vms[vm].charge(floor, cost);
    }

    /// This queue had its turn, and may come before those that a round knows besides its own.
    #[inline(never)]
    fn came_before(&mut self, queue: usize) {
        if self.round.is_left() {
            let vm = self.queues[queue].vm;
            self.round.pass_over(Waiting { key: self.key(queue), vm, queue });
        }
    }

    /// A piece of a queue was served whose turn it isn't.
    #[cold]
    fn served_besides(&mut self, queue: usize, cost: u64, moved: u64, requests: u32, now: u64) {
        self.settle();
        if self.queues.get(queue).is_none_or(|place| place.state == State::Absent) {
            return;
        }
        let (floor, place) = (time_of(self.key(queue)), self.queues[queue].vm);
        self.charge(place, floor, cost);
        let vm = &mut self.vms[place];
        if vm.is_limited() {
            vm.count(requests, moved, now);
        }
    }

    /// Charges what the turn had since this was last done. Before anything that looks at the time
    /// of its VM, or at the cost of all pieces.
    #[inline]
    fn settle(&mut self) {
        if let Some(Running { vm, time, bytes, charged, .. }) = &mut self.running {
            let cost = bytes.saturating_sub(*charged);
            if cost != 0 {
                *charged = *bytes;
                let (vm, time) = (*vm, *time);
                self.charge(vm, time, cost);
            }
        }
    }

    /// The queue whose turn it is can't be served now: its back end is full, or there was nothing
    /// after all. The turn is over, and others come first: until something was served of one of
    /// them its VM has no other turn, by whatever queue. Nobody is charged for such a turn, so the
    /// VM would have the next one again, by another queue that can't be served, and so on.
    pub fn rest(&mut self, queue: usize) {
        self.end(queue);
        if let Some(place) = self.queues.get_mut(queue).filter(|place| place.state != State::Absent)
        {
            place.waits = None;
            self.vms[place.vm].rests = self.worked;
        }
    }

    /// Passes so far.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The longest that this queue waited for its turn, from when it was seen waiting and its VM
    /// wasn't at a limit; each of the two at its most.
    pub fn worst_wait(&self, queue: usize) -> Wait {
        self.queues.get(queue).map_or(Wait::default(), |place| place.worst_wait)
    }

    /// Ticks that this queue waited before its last turn, from when it was first seen waiting on.
    pub fn last_wait(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |place| place.last_wait)
    }

    /// For how long, in ticks, this queue's VM was at one of its limits by what the queue was
    /// served since this was last asked, or since it joined: that it may not be served, whoever
    /// asks. The end of it may be to come.
    #[inline]
    pub fn take_held(&mut self, queue: usize) -> u64 {
        self.queues.get_mut(queue).map_or(0, |place| core::mem::take(&mut place.held))
    }

    /// Are others to come before the VM of this queue?
    fn rests(&self, place: usize) -> bool {
        self.vms[self.queues[place].vm].rests == self.worked
    }

    /// The same for the length of the turn under way: what it has served meanwhile is no reason to
    /// end it for who rests.
    fn rests_meanwhile(&self, place: usize) -> bool {
        self.vms[self.queues[place].vm].rests == self.begun || self.rests(place)
    }

    /// From here on something waits.
    const fn wait_begins(&self) -> Wait {
        Wait { passes: self.statistics.passes, cost: self.cost }
    }

    #[inline]
    fn may_be_served(&mut self, place: usize, now: u64) -> bool {
        let queue = &mut self.queues[place];
        if queue.state != State::Polled {
            return false;
        }
        let is_open = self.vms[queue.vm].is_open(now);
        if !is_open {
            queue.is_held(now);
        }
        is_open
    }

    fn key(&self, place: usize) -> Key {
        let queue = &self.queues[place];
        key_of(self.vms[queue.vm].key(self.clock), queue.turn)
    }

    /// The turn of this queue, which has this key.
    #[inline(always)]
    fn begin(&mut self, place: usize, key: Key, now: u64) -> Turn {
        let ends = self.wait_begins();
        let found = self.statistics.found.wrapping_add(1);
        let queue = &mut self.queues[place];
        let (time, turn) = (time_of(key), queue.turn);
        self.running =
            Some(Running { queue: place, vm: queue.vm, time, turn, bytes: 0, charged: 0 });
        (self.from, self.statistics.found, self.begun) = (place + 1, found, self.worked);
        queue.last_wait = 0;
        if let Some(since) = queue.waits.take() {
            queue.last_wait = elapsed(queue.since, now);
            let Wait { passes, cost } = &mut queue.worst_wait;
            // Neither goes back.
            *passes = (*passes).max(ends.passes.wrapping_sub(since.passes));
            *cost = (*cost).max(ends.cost.wrapping_sub(since.cost));
        }
        (queue.turn, queue.kicked, queue.busy) = (found, None, now);
        // Nothing is seen of it yet.
        queue.backlog.0 = 0;
        Turn::Serve(place)
    }

    fn end(&mut self, queue: usize) {
        self.settle();
        self.round.end();
        self.running = self.running.filter(|running| running.queue != queue);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "tests/mod.rs"]
mod tests;
