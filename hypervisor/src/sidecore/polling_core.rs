//! The loop of a sidecore: follow orders, take what controllers have completed, serve the queue whose
//! turn it is, tell what was held back for long enough.

use crate::cpu::{PerCpu, rdtsc};
use crate::sidecore::controller::Driven;
use crate::sidecore::device::Device;
use crate::sidecore::queue::{All, Others, QUEUES, ServedQueue};
use ::sidecore::{Schedule, Turn};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use routing::calls::Caller;

/// Completions of a controller that are taken in one pass.
const COMPLETIONS: u32 = 32;

const _: () = assert!(QUEUES <= u128::BITS as usize);

/// A sidecore's work.
pub struct PollingCore {
    pub core: &'static PerCpu,
    pub devices: Vec<Device>,
    /// What some of them are cut from.
    pub controllers: Vec<Driven>,
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
        for place in 0..self.controllers.len() {
            self.collect(place, now);
        }
        match self.schedule.next(now, &mut All(&mut self.queues)) {
            Turn::Serve(place) => self.serve(place),
            // With no end to idle polling nobody is sent to sleep.
            Turn::Sleep(_) | Turn::Nothing => core::hint::spin_loop(),
        }
    }

    /// Has a controller go on, and answers the requests that it ended.
    fn collect(&mut self, place: usize, now: u64) {
        let Some(driven) = self.controllers.get_mut(place) else { return };
        driven.step(now);
        let mut answered: u128 = 0;
        for _ in 0..COMPLETIONS {
            let Some((disk, completion)) = driven.controller.poll() else { break };
            let device = driven.disks.get(usize::from(disk)).and_then(|at| self.devices.get(*at));
            let Some(device) = device else { continue };
            let place = device.queues.start + usize::from(completion.token.server);
            if let Some(queue) = self.queues.get_mut(place)
                && queue.finish(completion, device.port)
            {
                answered |= 1 << place;
            }
        }
        while answered != 0 {
            let place = answered.trailing_zeros() as usize;
            answered &= answered - 1;
            let Some(queue) = self.queues.get_mut(place) else { continue };
            let Some(device) = self.devices.get_mut(queue.device) else { continue };
            queue.answered(&mut device.context(&mut self.controllers, &mut self.caller), now);
            let deadline = queue.deadline();
            self.note(deadline);
        }
    }

    /// Something is to be told by then.
    fn note(&mut self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return };
        let first = self.deadline.is_none_or(|d| (deadline.wrapping_sub(d) as i64) < 0);
        self.deadline = if first { Some(deadline) } else { self.deadline };
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
        let cx = device.context(&mut self.controllers, &mut self.caller);
        let mut others = Others { before, after };
        let done = queue.turn(cx, place, &mut self.schedule, &mut others);
        if let Err(broken) = done {
            self.schedule.leave(place);
            device.give_up(place, &broken, &mut self.caller);
        }
        let deadline = queue.deadline();
        self.note(deadline);
    }

    fn tell_due(&mut self, now: u64) {
        self.deadline = None;
        for queue in &mut self.queues {
            let Some(device) = self.devices.get_mut(queue.device) else { continue };
            let mut cx = device.context(&mut self.controllers, &mut self.caller);
            queue.tell_due(&mut cx, now);
            if let Some(deadline) = queue.deadline() {
                let first = self.deadline.is_none_or(|d| (deadline.wrapping_sub(d) as i64) < 0);
                self.deadline = if first { Some(deadline) } else { self.deadline };
            }
        }
    }
}
