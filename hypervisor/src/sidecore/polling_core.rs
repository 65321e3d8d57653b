//! The loop of a sidecore: follow orders, serve the queue whose turn it is, tell what was completed
//! and what was held back for long enough.
//!
//! Guarantees: what a turn completes is published and told by its end, in the queue itself and in
//! the receive queues of others that it filled; after [`TOLD_AFTER`] chains, if it goes on.

use crate::cpu::{PerCpu, rdtsc};
use crate::sidecore::device::{Device, Kind};
use crate::sidecore::port::add;
use crate::sidecore::queue::{Broken, Piece, Queues, Work};
use ::sidecore::{Next, Schedule, Turn};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use routing::calls::Caller;

/// Chains after which guests are told, though the turn goes on.
const TOLD_AFTER: u32 = 8;

/// A sidecore's work.
pub struct PollingCore {
    pub core: &'static PerCpu,
    pub devices: Vec<Device>,
    pub queues: Queues,
    pub schedule: Schedule,
    pub caller: Caller<'static>,
    /// Some device of its has an order.
    pub news: &'static AtomicBool,
    /// When some queue's interrupt has been held back for long enough.
    pub deadline: Option<u64>,
}

impl PollingCore {
    /// For ever.
    pub fn run(&mut self) -> ! {
        loop {
            self.pass();
        }
    }

    fn pass(&mut self) {
        if self.news.load(Ordering::Relaxed) {
            self.follow_orders();
        }
        if self.caller.asked() {
            self.devices.iter().for_each(|device| device.send_waiting(&mut self.caller));
        }
        let now = self.queues.look_at_clock();
        if self.deadline.is_some_and(|deadline| now.wrapping_sub(deadline) as i64 >= 0) {
            self.tell_due(now);
        }
        match self.schedule.next(now, &mut self.queues) {
            Turn::Serve(place) => self.turn(place),
            // With no end to idle polling nobody is sent to sleep.
            Turn::Sleep(_) | Turn::Nothing => core::hint::spin_loop(),
        }
    }

    fn follow_orders(&mut self) {
        // Before the looks: an order that comes between is seen at the next pass.
        self.news.swap(false, Ordering::AcqRel);
        for device in &mut self.devices {
            if !device.follow(&mut self.queues, &mut self.schedule, &mut self.caller) {
                self.news.store(true, Ordering::Release);
            }
        }
    }

    /// Serves a queue up to a turn's worth.
    fn turn(&mut self, place: usize) {
        let (mut untold, mut tell) = (0, false);
        loop {
            let piece = match self.piece(place) {
                Ok(piece) => piece,
                Err(broken) => {
                    self.schedule.leave(place);
                    let device = self.queues.all.get(place).map(|queue| queue.device);
                    if let Some(device) = device.and_then(|device| self.devices.get_mut(device)) {
                        device.give_up(place, &broken, &mut self.caller);
                    }
                    break;
                }
            };
            let now = self.queues.look_at_clock();
            tell |= self.publish(place, piece, now);
            untold += piece.completed;
            if piece.charge == 0 {
                self.schedule.rest(place);
                break;
            }
            let Piece { charge, completed, .. } = piece;
            let next = self.schedule.served(place, charge, completed, now, &mut self.queues);
            if next == Next::Switch {
                break;
            }
            if untold >= TOLD_AFTER {
                self.tell(place, tell);
                (tell, untold) = (false, 0);
            }
        }
        self.tell(place, tell);
        let queue = self.queues.all.get(place);
        let counts = queue.and_then(|queue| {
            self.devices.get(queue.device).and_then(|device| device.port.counts(queue.index))
        });
        if let Some(counts) = counts {
            counts.longest_wait.store(self.schedule.worst_wait(place), Ordering::Relaxed);
        }
    }

    /// Does a piece of a queue's work. What is completed isn't published.
    #[inline]
    fn piece(&mut self, place: usize) -> Result<Piece, Broken> {
        let Some((queue, switches, now)) = self.queues.at(place) else {
            return Ok(Piece::default());
        };
        match &mut queue.work {
            Work::Requests(server) => {
                let Some(device) = self.devices.get_mut(queue.device) else {
                    return Ok(Piece::default());
                };
                let Kind::Disk(backing) = &mut device.kind else { return Ok(Piece::default()) };
                let done = server.serve(&device.window, backing)?;
                let blk::Outcome { completed, bytes, charge, .. } = done;
                Ok(Piece { completed, bytes, dropped: 0, charge })
            }
            Work::Frames(switch, port) => {
                let Some(on) = switches.get_mut(*switch) else { return Ok(Piece::default()) };
                let done = on.switch.serve(*port, queue.index as u16, now)?;
                let net::Outcome { completed, sent: bytes, dropped, charge, .. } = done;
                Ok(Piece { completed, bytes, dropped, charge })
            }
        }
    }

    /// Counts a piece, and shows the driver what it completed. True: it is to be told of it now.
    #[inline]
    fn publish(&mut self, place: usize, piece: Piece, now: u64) -> bool {
        let in_flight = if piece.completed > 0 { self.queues.in_flight(place) } else { 0 };
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
    fn tell(&mut self, place: usize, own: bool) {
        let switch = match self.queues.all.get(place).map(|queue| &queue.work) {
            Some(Work::Frames(switch, _)) => Some(*switch),
            _ => None,
        };
        if let Some(switch) = switch {
            self.deliver(switch, place);
        }
        if own {
            self.call(place);
        }
        self.keep_deadline(place);
    }

    /// Publishes the frames that the turn of queue `from` put into receive queues of a switch.
    fn deliver(&mut self, switch: usize, from: usize) {
        let waiting = self.queues.in_flight(from);
        let now = rdtsc();
        loop {
            let Queues { all, switches, .. } = &mut self.queues;
            let Some(on) = switches.get_mut(switch) else { return };
            let Some(touched) = on.switch.touched() else { return };
            let device = on.devices.get(usize::from(touched.port.0)).copied();
            let Some(device) = device.and_then(|device| self.devices.get_mut(device)) else {
                continue;
            };
            let index = usize::from(touched.queue);
            let place = device.queues.start + index;
            if let Some(broken) = touched.broken {
                device.give_up(place, &broken, &mut self.caller);
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
    fn call(&mut self, place: usize) {
        let Queues { all, switches, .. } = &mut self.queues;
        let Some(queue) = all.get_mut(place) else { return };
        let Some(device) = self.devices.get(queue.device) else { return };
        let ring = queue.work.ring(queue.index, switches);
        queue.signal.call(ring, queue.index, &mut device.line(&mut self.caller));
    }

    /// What the queue holds back is told by then.
    fn keep_deadline(&mut self, place: usize) {
        let queue = self.queues.all.get(place);
        let Some(deadline) = queue.and_then(|queue| queue.signal.deadline()) else { return };
        let is_first = self.deadline.is_none_or(|d| (deadline.wrapping_sub(d) as i64) < 0);
        self.deadline = if is_first { Some(deadline) } else { self.deadline };
    }

    fn tell_due(&mut self, now: u64) {
        self.deadline = None;
        for place in 0..self.queues.all.len() {
            let queue = self.queues.all.get_mut(place);
            if queue.is_some_and(|queue| queue.signal.is_due(now)) {
                self.call(place);
            }
            self.keep_deadline(place);
        }
    }
}
