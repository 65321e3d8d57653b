//! The loop of a sidecore: follow orders, take what controllers have completed, serve the queue
//! whose turn it is, tell what was completed and what was held back for long enough.
//!
//! Guarantees: what a turn completes is published and told by its end, in the queue itself and in
//! the receive queues of others that it filled; and while it goes on as soon as that is much
//! ([`Piece::is_much`]).

use crate::cpu::{PerCpu, rdtsc};
use crate::iommu::guest::Answered;
use crate::sidecore::backing::Behind;
use crate::sidecore::balancer::Balancer;
use crate::sidecore::controller::Driven;
use crate::sidecore::counts::CoreCounts;
use crate::sidecore::device::{Device, Kind};
use crate::sidecore::movable::Moves;
use crate::sidecore::places::Places;
use crate::sidecore::port::add;
use crate::sidecore::queue::{Broken, Piece, Queues, Work};
use ::sidecore::{Batch, Look, Next, Piece as Share, Schedule, Turn, Wait};
use alloc::vec::Vec;
use blk::{Budget, DESCRIPTOR_CHARGE};
use core::sync::atomic::Ordering;
use plan::MAX_SERVED;
use routing::calls::Caller;
use virtqueue::SEGMENTS;

/// Completions of a controller that are taken in one pass.
const COMPLETIONS: u32 = 32;
/// What a chain costs that ends its queue, in bytes: as many descriptors as are read of one at
/// most.
const BROKEN_CHARGE: u64 = SEGMENTS as u64 * DESCRIPTOR_CHARGE;

/// The end of a pass, to the emulator's counting plugin: one that found work, or one that didn't.
macro_rules! mark {
    ($kind:literal) => {
        // SAFETY: a NOP, nopl imm32(%rax,%rax,1).
        unsafe {
            core::arch::asm!(
                ".byte 0x0f, 0x1f, 0x84, 0x00",
                concat!(".long ", $kind),
                options(nomem, nostack, preserves_flags)
            )
        }
    };
}

/// A sidecore's work.
pub struct PollingCore {
    pub core: &'static PerCpu,
    pub devices: Places<Device>,
    /// What some of them are cut from.
    pub controllers: Vec<Driven>,
    pub queues: Queues,
    pub schedule: Schedule,
    pub caller: Caller<'static>,
    /// What is known of devices that can move, and of other sidecores.
    pub moves: Moves,
    /// The first sidecore decides, if devices move by load.
    pub balancer: Option<Balancer>,
    /// When some queue's interrupt has been held back for long enough.
    pub deadline: Option<u64>,
    pub counts: &'static CoreCounts,
    /// When the work that the last pass found was begun, if it found any.
    pub began: Option<u64>,
    /// Some device can't go by its order yet.
    pub unfollowed: bool,
    /// For measurements: a turn ends with its queue, or its bytes, whatever else there is.
    pub whole_turns: bool,
}

impl PollingCore {
    /// For ever.
    pub fn run(&mut self) -> ! {
        loop {
            self.pass();
        }
    }

    fn pass(&mut self) {
        let now = self.queues.look_at_clock();
        if let Some(then) = self.began.take() {
            let ticks = now.wrapping_sub(then);
            self.counts.note_work(ticks);
            self.moves.note_work(ticks);
        }
        if let Some(balancer) = &mut self.balancer {
            balancer.look(now, &self.moves);
        }
        self.send_off();
        let mut worked = self.is_due(now);
        self.attend(now);
        for place in 0..self.controllers.len() {
            worked |= self.collect(place, now);
        }
        for switch in 0..self.queues.switches.len() {
            if self.queues.look_out(switch, now) {
                self.deliver(switch, 0);
                self.note_wire(switch);
                worked = true;
            }
        }
        match self.schedule.next(now, &mut self.queues) {
            Turn::Serve(place) => {
                self.turn(place);
                worked = true;
            }
            // With no end to idle polling nobody is sent to sleep.
            Turn::Sleep(_) | Turn::Nothing if worked => {}
            Turn::Sleep(_) | Turn::Nothing => self.idle(),
        }
        self.counts.note_passes(self.schedule.statistics().passes);
        if worked {
            self.began = Some(now);
            mark!("0x45580020");
        } else {
            mark!("0x45580021");
        }
    }

    /// Follows orders, sends what waited in entries, tells what was held back for long enough.
    fn attend(&mut self, now: u64) {
        if self.unfollowed || self.moves.listener().is_rung() {
            self.follow_orders();
        }
        if self.caller.asked() {
            self.devices.iter().for_each(|device| device.send_waiting(&mut self.caller));
        }
        if self.is_due(now) {
            self.tell_due(now);
        }
    }

    /// Has a controller go on, and answers the requests that it ended. True: there were some.
    fn collect(&mut self, place: usize, now: u64) -> bool {
        let Some(driven) = self.controllers.get_mut(place) else { return false };
        driven.step(now);
        let mut answered = [0_u8; MAX_SERVED];
        let mut some = false;
        for _ in 0..COMPLETIONS {
            let Some((disk, completion)) = driven.controller.poll() else { break };
            let device = driven.disks.get(usize::from(disk)).and_then(|at| self.devices.get(*at));
            let Some(device) = device else { continue };
            let place = device.queues.start + usize::from(completion.token.server);
            if self.queues.finish(place, completion)
                && let Some(count) = answered.get_mut(place)
            {
                *count += 1;
                some = true;
            }
        }
        if !some {
            return false;
        }
        for (place, count) in answered.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let done = Piece { completed: count.into(), ..Piece::default() };
            let tell = self.publish(place, done, now);
            self.tell(place, tell);
        }
        true
    }

    fn follow_orders(&mut self) {
        // Before the looks: an order that comes between is seen at the next pass.
        self.moves.listener().answer();
        self.take_in();
        self.unfollowed = false;
        for device in self.devices.iter_mut() {
            if !device.follow(&mut self.queues, &mut self.schedule, &mut self.caller) {
                self.unfollowed = true;
            }
            for place in device.kicked() {
                if self.schedule.kicked(place, rdtsc()) {
                    self.queues.set_kicks(place, false);
                }
            }
        }
        // A device that may access memory again tells what it held back.
        (0..self.queues.all.len()).for_each(|place| self.keep_deadline(place));
    }

    /// Is there something that doesn't wait for the end of a turn?
    fn is_wanted(&self, now: u64) -> bool {
        self.moves.listener().is_rung() || self.caller.is_asked() || self.is_due(now)
    }

    /// Serves a queue up to a turn's worth, and a piece at least.
    fn turn(&mut self, place: usize) {
        let mut unpublished = Piece::default();
        let mut now;
        loop {
            let mut piece = Piece::default();
            let served = self.piece(place, self.schedule.batch(), &mut piece);
            now = self.queues.look_at_clock();
            self.queues.emptied = piece.emptied;
            unpublished += piece;
            if let Err(broken) = served {
                let tell = self.publish(place, core::mem::take(&mut unpublished), now);
                self.give_up(place, piece, &broken);
                self.tell(place, tell);
                break;
            }
            if piece.charge == 0 {
                self.schedule.rest(place);
                break;
            }
            let Piece { charge: cost, bytes, asked: requests, .. } = piece;
            let share = Share { cost, bytes, requests };
            let next = self.schedule.served(place, share, now, &mut self.queues);
            if next == Next::Switch {
                break;
            }
            let wanted = !self.whole_turns && self.is_wanted(now);
            if wanted || unpublished.is_much() {
                let tell = self.publish(place, core::mem::take(&mut unpublished), now);
                self.tell(place, tell);
            }
            // The turn goes on after that: a guest that gives orders all the time would else have
            // more turns, and shorter ones, than it has bytes.
            if wanted {
                self.attend(now);
                // By an order it may stand still from here on. It would be served for nothing, too.
                if !self.schedule.is_polled(place) {
                    break;
                }
            }
        }
        let tell = self.publish(place, unpublished, now);
        // Before the call: the guest may ask for more as soon as it is told.
        if self.queues.all.get(place).is_some_and(|queue| queue.kicks) {
            self.sleep(place);
        }
        self.tell(place, tell);
        self.note_turn(place);
        let queue = self.queues.all.get(place);
        let counts = queue.and_then(|queue| {
            self.devices.get(queue.device).and_then(|device| device.port.counts(queue.index))
        });
        if let Some(counts) = counts {
            let held = self.schedule.take_held(place);
            if held > 0 {
                add(&counts.held, held);
            }
            // The schedule forgets a queue that begins anew; the count doesn't.
            let Wait { passes, cost } = self.schedule.worst_wait(place);
            for (count, now) in [(&counts.longest_wait, passes), (&counts.longest_wait_bytes, cost)]
            {
                count.store(count.load(Ordering::Relaxed).max(now), Ordering::Relaxed);
            }
        }
    }

    /// Does a piece of a queue's work. What is completed isn't published; all that was done is in
    /// `piece`, if the queue turned out to be broken, too.
    #[inline]
    fn piece(&mut self, place: usize, batch: Batch, piece: &mut Piece) -> Result<(), Broken> {
        let Some((queue, switches, now)) = self.queues.at(place) else { return Ok(()) };
        match &mut queue.work {
            Work::Requests(server) => {
                let Some(device) = self.devices.get_mut(queue.device) else { return Ok(()) };
                let Kind::Disk(backing) = &mut device.kind else { return Ok(()) };
                let mut behind = Behind { backing, controllers: &mut self.controllers };
                // Each of those that are delayed has its own time.
                let requests = if queue.delay.is_some() { 1 } else { batch.requests };
                let budget = Budget { requests, charge: batch.cost };
                let (done, served) = server.serve_some(&device.window, &mut behind, budget);
                let blk::Outcome { asked, completed, bytes, charge, more, full } = done;
                if completed > 0
                    && let Some(delay) = &mut queue.delay
                {
                    delay.served();
                }
                let emptied = !more && !full;
                *piece = Piece { asked, completed, bytes, charge, emptied, dropped: 0 };
                Ok(served?)
            }
            Work::Iommu(served) => {
                let Some(device) = self.devices.get(queue.device) else { return Ok(()) };
                let (accepted, mut answered) = (device.order.features, Answered::default());
                let done = served.serve(&device.window, accepted, batch.requests, &mut answered);
                *piece = Piece::answered(&answered, device.port, queue.index);
                Ok(done?)
            }
            Work::Registers(registers) => {
                let Some(device) = self.devices.get(queue.device) else { return Ok(()) };
                let mut done = Answered::default();
                registers.serve(batch.requests, &mut done);
                *piece = Piece::answered(&done, device.port, queue.index);
                Ok(())
            }
            Work::Events => Ok(()),
            Work::Frames(switch, port) => {
                let Some(on) = switches.get_mut(*switch) else { return Ok(()) };
                let done = on.switch.serve_some(*port, queue.index as u16, now, batch.requests)?;
                on.send_out();
                let net::Outcome { completed, sent: bytes, dropped, charge, more, full, .. } = done;
                let (asked, emptied) = (completed, !more && !full);
                *piece = Piece { asked, completed, bytes, dropped, charge, emptied };
                Ok(())
            }
        }
    }

    /// A queue can't be served any more in this life of its device, after this piece.
    #[cold]
    fn give_up(&mut self, place: usize, piece: Piece, why: &Broken) {
        // A guest may have that as often as it starts its device: it isn't free.
        let Piece { charge, bytes, asked, .. } = piece;
        let share = Share { cost: charge + BROKEN_CHARGE, bytes, requests: asked + 1 };
        self.schedule.served(place, share, rdtsc(), &mut self.queues);
        self.schedule.leave(place);
        let Some(queue) = self.queues.all.get_mut(place) else { return };
        queue.given_up = true;
        if let Some(device) = self.devices.get_mut(queue.device) {
            device.give_up(place, why, &mut self.caller);
        }
    }

    /// A queue isn't polled any more until it is kicked, if it is empty. One that isn't polled has
    /// no ring, or it may not be looked at.
    pub(super) fn sleep(&mut self, place: usize) {
        if self.schedule.is_polled(place)
            && self.queues.waiting(place) == 0
            && (self.queues.set_kicks(place, true) > 0
                || !self.schedule.sleep(place, rdtsc(), &mut self.queues))
        {
            self.queues.set_kicks(place, false);
        }
    }

    /// Counts a piece, and shows the driver what it completed. True: it is to be told of it now.
    #[inline(always)]
    fn publish(&mut self, place: usize, piece: Piece, now: u64) -> bool {
        let in_flight = match piece.completed {
            0 => 0,
            _ => self.queues.in_flight(place, piece.emptied),
        };
        let Queues { all, switches, .. } = &mut self.queues;
        let Some(queue) = all.get_mut(place) else { return false };
        let device = self.devices.get(queue.device);
        let Some(counts) = device.and_then(|device| device.port.counts(queue.index)) else {
            return false;
        };
        if piece.bytes > 0 {
            add(&counts.bytes, piece.bytes);
        }
        if piece.dropped > 0 {
            add(&counts.dropped, piece.dropped.into());
        }
        if piece.completed == 0 {
            return false;
        }
        add(&counts.completed, piece.completed.into());
        if let Some(ring) = queue.work.ring(queue.index, switches) {
            ring.publish();
        }
        queue.signal.completed(piece.completed, now, in_flight, counts)
    }

    /// Tells of what was completed in a queue, if that is to be, and in those that it filled.
    #[inline(always)]
    fn tell(&mut self, place: usize, own: bool) {
        let switch = match self.queues.all.get(place).map(|queue| &queue.work) {
            Some(Work::Frames(switch, _)) => Some(*switch),
            _ => None,
        };
        if let Some(switch) = switch {
            let waiting = self.queues.in_flight(place, false);
            self.deliver(switch, waiting);
        }
        if own {
            self.call(place);
        }
        self.keep_deadline(place);
    }

    /// Publishes the frames that were put into receive queues of a switch; so many more wait where
    /// they came from.
    fn deliver(&mut self, switch: usize, waiting: u32) {
        let now = rdtsc();
        loop {
            let Queues { all, switches, .. } = &mut self.queues;
            let Some(on) = switches.get_mut(switch) else { return };
            let Some(touched) = on.switch.touched() else { return };
            let device = on.devices.get(usize::from(touched.port.0)).copied().flatten();
            let Some(device) = device.and_then(|device| self.devices.get_mut(device)) else {
                continue;
            };
            let index = usize::from(touched.queue);
            let place = device.queues.start + index;
            if let Some(broken) = touched.broken {
                device.give_up(place, &broken, &mut self.caller);
                all.get_mut(place).into_iter().for_each(|queue| queue.given_up = true);
            }
            let net::Counts { frames, bytes, dropped } = touched.counts;
            let (Some(queue), Some(counts)) = (all.get_mut(place), device.port.counts(index))
            else {
                continue;
            };
            if dropped > 0 {
                add(&counts.dropped, dropped.into());
            }
            if frames == 0 {
                continue;
            }
            add(&counts.completed, frames.into());
            add(&counts.bytes, bytes);
            let mut ring = on.switch.queue(touched.port, touched.queue);
            if let Some(ring) = &mut ring {
                ring.publish();
            }
            if queue.signal.completed(frames, now, waiting, counts) {
                queue.signal.call(ring, index, &mut device.line(&mut self.caller));
            }
            self.keep_deadline(place);
        }
    }

    /// Sends a queue's interrupt, if the driver wants it.
    pub(super) fn call(&mut self, place: usize) {
        let Queues { all, switches, .. } = &mut self.queues;
        let Some(queue) = all.get_mut(place) else { return };
        let Some(device) = self.devices.get(queue.device) else { return };
        // To ask what the driver wants is to read its memory.
        if !device.order.may_access {
            return;
        }
        let ring = queue.work.ring(queue.index, switches);
        queue.signal.call(ring, queue.index, &mut device.line(&mut self.caller));
    }
}
