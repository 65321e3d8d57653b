//! The loop of a sidecore: follow orders, serve the queue whose turn it is, tell what was held back
//! for long enough.

use crate::cpu::{PerCpu, rdtsc};
use crate::sidecore::device::Device;
use crate::sidecore::queue::{All, Others, ServedQueue};
use ::sidecore::{Schedule, Turn};
use alloc::vec::Vec;
use blk::DESCRIPTOR_CHARGE;
use core::sync::atomic::{AtomicBool, Ordering};
use routing::calls::Caller;
use virtqueue::SEGMENTS;

/// What a chain costs that ends its queue, in bytes: as many descriptors as are read of one at most.
const BROKEN_CHARGE: u64 = SEGMENTS as u64 * DESCRIPTOR_CHARGE;

/// A sidecore's work.
pub struct PollingCore {
    pub core: &'static PerCpu,
    pub devices: Vec<Device>,
    pub queues: Vec<ServedQueue>,
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
        let now = rdtsc();
        if self.deadline.is_some_and(|deadline| now.wrapping_sub(deadline) as i64 >= 0) {
            self.tell_due(now);
        }
        match self.schedule.next(now, &mut All(&mut self.queues)) {
            Turn::Serve(place) => self.serve(place),
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

    fn serve(&mut self, place: usize) {
        let Some((before, rest)) = self.queues.split_at_mut_checked(place) else { return };
        let Some((queue, after)) = rest.split_first_mut() else { return };
        let Some(device) = self.devices.get_mut(queue.device) else { return };
        let cx = device.context(&mut self.caller);
        let mut others = Others { before, after };
        let done = queue.turn(cx, place, &mut self.schedule, &mut others);
        if let Err(broken) = done {
            // A guest may have that as often as it starts its device: it isn't free.
            self.schedule.served(place, BROKEN_CHARGE, 1, rdtsc(), &mut others);
            self.schedule.leave(place);
            device.give_up(place, &broken, &mut self.caller);
        }
        let earlier =
            |one: u64, other: u64| if (one.wrapping_sub(other) as i64) < 0 { one } else { other };
        if let Some(deadline) = queue.deadline() {
            self.deadline = Some(self.deadline.map_or(deadline, |first| earlier(first, deadline)));
        }
    }

    fn tell_due(&mut self, now: u64) {
        self.deadline = None;
        for queue in &mut self.queues {
            let Some(device) = self.devices.get_mut(queue.device) else { continue };
            queue.tell_due(&mut device.context(&mut self.caller), now);
            if let Some(deadline) = queue.deadline() {
                let first = self.deadline.is_none_or(|d| (deadline.wrapping_sub(d) as i64) < 0);
                self.deadline = if first { Some(deadline) } else { self.deadline };
            }
        }
    }
}
