//! Turns of the rings, what they complete, and who is told; when a ring sleeps.

use crate::clock::HERTZ;
use crate::device::{Kind, Port};
use crate::event::has_waited;
use crate::later::TURNS;
use crate::ring::Work;
use crate::rings::{Rings, Served, keep};
use crate::storage::Timed;
use anyhow::{Error, Result};
use blk::Budget;
use daemon_os::Mapping;
use net::{ANNOUNCE_BYTES, Mac, Switch};
use sidecore::{Batch, Next, Piece, Turn};
use window::ALIGNMENT;

/// Chains, and bytes, after which a turn that goes on publishes and tells.
const TOLD_AFTER: u32 = 8;
const TOLD_AFTER_BYTES: u64 = 64 << 10;
/// Requests, and bytes, after which the clock is looked at, of however many turns.
const REQUESTS: u32 = 4;
const UNSEEN: u64 = 8 << 10;
/// Passes between two looks at the sockets.
const PASSES: u32 = 256;
/// A ring whose kicks go nowhere is looked at so often.
const WITHOUT_KICK: u64 = HERTZ / 20_000;
/// What a ring costs that is found broken, in bytes.
const BROKEN_CHARGE: u64 = 32 << 10;
/// A pass that finds nothing takes less than a microsecond: the system had the core for others in
/// one of 200.
const PREEMPTED: u64 = HERTZ / 5_000;

/// What a piece of work came to.
#[derive(Clone, Copy, Default)]
struct Done {
    /// Requests that were begun, answered or not; or frames.
    asked: u32,
    completed: u32,
    bytes: u64,
    dropped: u32,
    charge: u64,
    /// A back end ended them: how long they took is noted.
    later: bool,
    /// The back end had no room for more.
    is_full: bool,
    /// The ring was seen to be empty.
    emptied: bool,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.asked += other.asked;
        self.completed += other.completed;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        self.charge += other.charge;
    }
}

impl Rings {
    /// Serves what there is, for so long that the sockets can wait.
    pub fn serve(&mut self) {
        let (mut turns, mut looked, mut idle) = (0, None, None::<u64>);
        self.look_at_clock();
        for _ in 0..PASSES {
            let now = self.served.now;
            // Front ends' messages and back ends are waited for elsewhere.
            if idle.take().is_some_and(|then| now.saturating_sub(then) > PREEMPTED) {
                self.schedule.preempted(now);
            }
            let mut was_due = false;
            if looked != Some(now) {
                looked = Some(now);
                was_due = self.begin_at(now);
            }
            let turn = self.schedule.next(now, &mut self.served);
            let found = matches!(turn, Turn::Serve(_));
            match self.before {
                None | Some((_, false)) => self.before = Some((now, found)),
                Some((_, true)) if found => {}
                // Work ends here: what follows is polling.
                Some((_, true)) => {
                    let now = self.look_at_clock();
                    self.note_time(now);
                    self.before = Some((now, false));
                }
            }
            let now = self.served.now;
            match turn {
                Turn::Serve(place) => {
                    // It looks at the clock itself when that is due.
                    self.turn(place);
                    turns += 1;
                    if turns % TURNS == 0 && !self.served.asked.is_empty() {
                        self.collect();
                    }
                    if has_waited() || daemon_os::has_any_shrunk() {
                        break;
                    }
                    continue;
                }
                Turn::Sleep(place) => self.sleep(place, now),
                Turn::Nothing => {
                    let is_asked = !self.served.asked.is_empty();
                    let goes_on = is_asked && (self.collect() > 0 || self.look_after() == Some(0));
                    if !goes_on && self.schedule.look_again_at(now).is_none_or(|at| at > now) {
                        break;
                    }
                    idle = (!is_asked && !was_due).then_some(now);
                }
            }
            self.look_at_clock();
        }
    }

    /// Another time than the last pass': what is due by then. Was there something?
    fn begin_at(&mut self, now: u64) -> bool {
        self.note_time(now);
        let [tells, polls] = [self.deadline, self.again].map(|at| at.is_some_and(|at| now >= at));
        if tells {
            self.tell_due(now);
        }
        if polls {
            self.poll_again(now);
        }
        tells || polls
    }

    /// When there is something to do without a kick or a message.
    pub fn next_at(&mut self) -> (u64, Option<u64>) {
        let now = self.look_at_clock();
        let polled = self.schedule.look_again_at(now);
        let asked = self.look_after().map(|after| now + after);
        (now, [polled, self.deadline, self.again, asked].into_iter().flatten().min())
    }

    /// The thread slept from `then` on.
    pub fn slept(&mut self, then: u64) {
        let now = self.look_at_clock();
        self.note_time(then);
        self.time.asleep += now.saturating_sub(then);
        self.time.sleeps += 1;
        self.before = None;
    }

    fn note_time(&mut self, now: u64) {
        if let Some((then, found)) = self.before.take() {
            let took = now.saturating_sub(then);
            *(if found { &mut self.time.busy } else { &mut self.time.polling }) += took;
        }
    }

    /// Serves a ring up to a turn's worth, and a piece at least.
    fn turn(&mut self, place: usize) {
        let waited = self.schedule.last_wait(place);
        if let Some(ring) = self.served.all.get_mut(place) {
            ring.counts.waits.note(waited);
            ring.since = ring.arrivals.since(self.served.now.saturating_sub(waited));
        }
        let mut unpublished = Done::default();
        let mut taken = 0;
        let mut emptied;
        loop {
            let mut piece = Done::default();
            let served = self.served.piece(place, self.schedule.batch(), &mut piece);
            self.unseen.0 += piece.asked.max(1);
            self.unseen.1 += piece.bytes;
            // Small ones take less time than to ask for it.
            if self.unseen.0 >= REQUESTS || self.unseen.1 > UNSEEN {
                self.look_at_clock();
            }
            let now = self.served.now;
            unpublished += piece;
            if let Err(error) = served {
                self.publish(place, std::mem::take(&mut unpublished), now);
                return self.give_up(place, piece, error, now);
            }
            taken += piece.asked;
            emptied = piece.emptied;
            if piece.charge == 0 {
                self.schedule.rest(place);
                if piece.is_full {
                    self.await_room(place);
                }
                break;
            }
            let Done { charge: cost, bytes, asked: requests, .. } = piece;
            let piece = Piece { cost, bytes, requests };
            self.served.emptied = emptied;
            if self.schedule.served(place, piece, now, &mut self.served) == Next::Switch {
                break;
            }
            if unpublished.completed >= TOLD_AFTER || unpublished.bytes >= TOLD_AFTER_BYTES {
                self.publish(place, std::mem::take(&mut unpublished), now);
            }
        }
        let (now, held) = (self.served.now, self.schedule.take_held(place));
        let Served { all, switches, edges, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place) else { return };
        // The kick wasn't in vain, whenever the back end ends what it was for.
        if taken > 0 {
            ring.vain = 0;
        }
        if let Some(known) = edges.get_mut(place) {
            *known = if emptied { ring.edge() } else { None };
        }
        if held != 0 {
            ring.counts.held += held;
            ring.counts.limited += 1;
        }
        let left = if emptied { 0 } else { ring.waiting(switches, now) };
        ring.arrivals.turned(taken, left, now);
        self.publish_with(place, unpublished, left, now);
    }

    /// Shows and tells what was completed in a ring, and in those that it filled.
    fn publish(&mut self, place: usize, done: Done, now: u64) {
        let Served { all, switches, .. } = &mut self.served;
        let left = all.get(place).map_or(0, |ring| ring.waiting(switches, now));
        self.publish_with(place, done, left, now);
    }

    /// The same; so many chains are left in the ring.
    fn publish_with(&mut self, place: usize, done: Done, left: u16, now: u64) {
        let Served { all, switches, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place) else { return };
        ring.counts.bytes += done.bytes;
        ring.counts.dropped += u64::from(done.dropped);
        let in_flight = u32::from(left) + ring.taken();
        if done.completed > 0 {
            if !done.later {
                let took = now.saturating_sub(ring.since);
                ring.counts.latencies.note_all(took, done.completed);
            }
            ring.vain = 0;
            // Told of at once, nothing is held back.
            if !ring.publish(switches, done.completed, in_flight, now) {
                keep(&mut self.deadline, ring.coalescer.deadline());
            }
        }
        if let Work::Frames(port) = ring.work {
            self.fill(port.switch, in_flight, now);
        }
    }

    /// Frames came at an uplink: they go to their receivers. False: it leads nowhere any more.
    pub fn look_out(&mut self, place: usize) -> bool {
        let now = self.look_at_clock();
        let Served { switches, uplinks, .. } = &mut self.served;
        let Some(uplink) = uplinks.get_mut(place) else { return true };
        let Some(switch) = switches.get_mut(uplink.switch) else { return true };
        let is_there = uplink.look(switch, now);
        let switch = uplink.switch;
        self.fill(switch, 0, now);
        is_there
    }

    /// Tells the network that this station is at this port now.
    pub fn announce(&mut self, port: Port, mac: Mac) -> Result<()> {
        let now = self.look_at_clock();
        let memory = Mapping::anonymous(ANNOUNCE_BYTES.next_multiple_of(ALIGNMENT))?;
        let Served { switches, uplinks, .. } = &mut self.served;
        if let (Some(switch), Some(span)) = (switches.get_mut(port.switch), memory.span()) {
            switch.announce(port.number, mac, span, now);
            let own = uplinks.iter_mut().find(|(_, own)| own.switch == port.switch);
            own.into_iter().for_each(|(_, uplink)| uplink.send(switch));
        }
        self.fill(port.switch, 0, now);
        Ok(())
    }

    /// Shows and tells what a back end ended later.
    pub(super) fn publish_ended(&mut self, place: usize, completed: u32, now: u64) {
        self.publish(place, Done { completed, later: true, ..Done::default() }, now);
    }

    /// Publishes the frames that were put into receive queues of a switch; so many more wait where
    /// they came from.
    fn fill(&mut self, switch: usize, in_flight: u32, now: u64) {
        loop {
            let switches = &mut self.served.switches;
            let Some(touched) = switches.get_mut(switch).and_then(Switch::touched) else { return };
            let found = self.served.at_port(switch, touched.port, touched.queue);
            let Served { all, switches, .. } = &mut self.served;
            let Some((place, ring)) = found.and_then(|at| Some((at, all.get_mut(at)?))) else {
                continue;
            };
            let net::Counts { frames, bytes, dropped } = touched.counts;
            ring.counts.bytes += bytes;
            ring.counts.dropped += u64::from(dropped);
            if frames > 0 {
                ring.publish(switches, frames, in_flight, now);
                keep(&mut self.deadline, ring.coalescer.deadline());
            }
            if let Some(broken) = touched.broken {
                self.give_up(place, Done::default(), broken.into(), now);
            }
        }
    }

    /// The ring can't be served any more after this, and its connection is to end.
    fn give_up(&mut self, place: usize, done: Done, error: Error, now: u64) {
        let Done { charge, bytes, asked, .. } = done;
        let piece = Piece { cost: charge + BROKEN_CHARGE, bytes, requests: asked + 1 };
        self.schedule.served(place, piece, now, &mut self.served);
        self.schedule.leave(place);
        if let Some(ring) = self.served.all.get(place) {
            let error = error.context(format!("ring {} is broken", ring.index));
            self.wrong.push((ring.connection, error));
        }
    }

    /// The ring had nothing for long.
    fn sleep(&mut self, place: usize, now: u64) {
        let Served { all, switches, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place) else { return };
        if ring.coalescer.deadline().is_some() {
            ring.deliver(switches, now);
        }
        let waits = ring.set_kicks(switches, true) > 0;
        let at_rate = match ring.work {
            Work::Frames(port) if waits => Some(switches[port.switch].ready_at(port.number)),
            _ => None,
        };
        let without = ring.kick.is_none().then_some(now + WITHOUT_KICK);
        if let Some(at) = at_rate.filter(|at| *at > now).or(without) {
            ring.again_at = Some(at);
            keep(&mut self.again, Some(at));
        } else if waits {
            ring.set_kicks(switches, false);
            return;
        }
        if !self.schedule.sleep(place, now, &mut self.served) {
            let Served { all, switches, .. } = &mut self.served;
            all[place].set_kicks(switches, false);
        }
    }

    /// Polls rings whose time has come, whoever kicks.
    fn poll_again(&mut self, now: u64) {
        self.again = None;
        let Served { all, switches, .. } = &mut self.served;
        for (place, ring) in all.iter_mut().filter(|(_, ring)| ring.running) {
            match ring.again_at {
                Some(at) if at <= now => {
                    ring.again_at = None;
                    ring.vain = ring.vain.min(crate::rings::VAIN);
                    ring.set_kicks(switches, false);
                    self.schedule.poll(place, ring.device, now);
                }
                at => keep(&mut self.again, at),
            }
        }
    }

    /// Tells what was held back for long enough.
    fn tell_due(&mut self, now: u64) {
        self.deadline = None;
        let Served { all, switches, .. } = &mut self.served;
        for (_, ring) in all.iter_mut().filter(|(_, ring)| ring.running) {
            if ring.coalescer.due(now) {
                ring.deliver(switches, now);
            }
            keep(&mut self.deadline, ring.coalescer.deadline());
        }
    }
}

impl Served {
    /// Does a piece of a ring's work, of so much at most. What is completed isn't published. All
    /// that was done is in `done`, if the ring turned out to be broken, too.
    fn piece(&mut self, place: usize, batch: Batch, done: &mut Done) -> Result<()> {
        let Served { all, devices, switches, uplinks, asked: heard, now, .. } = self;
        let Some(ring) = all.get_mut(place) else { return Ok(()) };
        match &mut ring.work {
            Work::Requests(server) => {
                let Some(device) = devices.get_mut(ring.device) else { return Ok(()) };
                let (Kind::Disk(disk), Some(window)) = (&mut device.kind, &ring.window) else {
                    return Ok(());
                };
                let (begun, since) = (&mut ring.begun, ring.since);
                let mut store = Timed { store: &mut disk.store, begun, since };
                let budget = Budget { requests: batch.requests, charge: batch.cost };
                let (outcome, served) = server.serve_some(window, &mut store, budget);
                let blk::Outcome { asked, completed, bytes, charge, more, full: is_full } = outcome;
                let emptied = !more && !is_full;
                *done =
                    Done { asked, completed, bytes, charge, is_full, emptied, ..Done::default() };
                disk.hear(ring.device, heard);
                Ok(served?)
            }
            Work::Frames(port) => {
                let Some(switch) = switches.get_mut(port.switch) else { return Ok(()) };
                let outcome = switch.serve_some(port.number, ring.index, *now, batch.requests)?;
                let own = uplinks.iter_mut().find(|(_, own)| own.switch == port.switch);
                own.into_iter().for_each(|(_, uplink)| uplink.send(switch));
                let net::Outcome { completed, sent: bytes, dropped, charge, more, full, .. } =
                    outcome;
                let (asked, emptied) = (completed, !more && !full);
                *done =
                    Done { asked, completed, bytes, dropped, charge, emptied, ..Done::default() };
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
