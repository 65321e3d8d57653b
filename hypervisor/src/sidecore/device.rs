//! A device as its sidecore has it: follows what is ordered, makes its queues and gives them up.

use crate::cpu::rdtsc;
use crate::log_limit::OnceASecond;
use crate::sidecore::backing::Backing;
use crate::sidecore::entries;
use crate::sidecore::port::{Order, Port};
use crate::sidecore::queue::{Context, ServedQueue, send};
use ::sidecore::Schedule;
use blk::Features;
use core::fmt::Display;
use core::ops::Range;
use routing::calls::Caller;
use virtqueue::{Layout, Queue, State};
use window::Window;

/// A device.
pub struct Device {
    pub port: &'static Port,
    /// Its VM: the name, and the place among those of the schedule.
    pub name: &'static str,
    pub vm: usize,
    /// The VM's memory.
    pub window: Window,
    pub backing: Backing,
    /// Its entries.
    pub entries: Range<u16>,
    /// Its queues' places in the core.
    pub queues: Range<usize>,
    /// The order that it goes by.
    pub order: Order,
    pub told: OnceASecond,
}

impl Device {
    /// What a turn of one of its queues needs.
    pub fn context<'a, 'b>(&'a mut self, caller: &'a mut Caller<'b>) -> Context<'a, 'b> {
        Context {
            port: self.port,
            window: &self.window,
            backing: &mut self.backing,
            entries: &self.entries,
            caller,
        }
    }

    /// Goes by what is ordered, if that is new. False: it can't yet, and is to be asked again.
    pub fn follow(
        &mut self,
        queues: &mut [ServedQueue],
        schedule: &mut Schedule,
        caller: &mut Caller<'_>,
    ) -> bool {
        let Some((order, number)) = self.port.take() else { return !self.port.is_busy() };
        let now = rdtsc();
        let first = self.queues.start;
        let mut own = queues.get_mut(self.queues.clone()).unwrap_or_default().iter_mut();
        if order.life != self.order.life {
            let mut free = true;
            for (place, queue) in (first..).zip(own.by_ref()) {
                schedule.leave(place);
                free &= queue.stop();
            }
            if !free {
                return false;
            }
            own = queues.get_mut(self.queues.clone()).unwrap_or_default().iter_mut();
        }
        self.order = order;
        for ((place, queue), layout) in (first..).zip(own).zip(order.queues) {
            if let Some(layout) = layout.filter(|_| !queue.is_running()) {
                match self.ring(layout) {
                    Ok(ring) => {
                        let accepted = Features::from_bits_truncate(order.features);
                        queue.start(ring, accepted, now);
                    }
                    Err(error) => self.give_up(place, &error, caller),
                }
            }
            if !(order.may_access && queue.is_running()) {
                schedule.leave(place);
            } else if schedule.join(place, self.vm) {
                schedule.poll(place, now);
            }
        }
        self.port.follow(number);
        true
    }

    fn ring(&self, layout: Layout) -> Result<Queue, virtqueue::LayoutError> {
        let accepted = Features::from_bits_truncate(self.order.features);
        let features = virtqueue::Features {
            indirect: accepted.contains(Features::INDIRECT_DESC),
            event_index: accepted.contains(Features::EVENT_IDX),
            packed: accepted.contains(Features::RING_PACKED),
        };
        Queue::new(&self.window, layout, features, State::at_reset(features))
    }

    /// A queue can't be served: the driver is told so, and the log.
    pub fn give_up(&mut self, place: usize, why: &dyn Display, caller: &mut Caller<'_>) {
        self.port.set_broken(self.order.life);
        if self.told.claim(rdtsc()) {
            let (name, queue) = (self.name, place.saturating_sub(self.queues.start));
            log::warn!("VM {name:?}: queue {queue} of its disk is given up: {why}");
        }
        let vector = self.port.config_vector();
        if let Some(entry) = vector.and_then(|vector| entries::of(&self.entries, vector)) {
            caller.call(entry, send);
        }
    }

    /// Sends the calls that waited in entries that were masked.
    pub fn send_waiting(&self, caller: &mut Caller<'_>) {
        for entry in self.entries.clone().filter_map(entries::get) {
            caller.call_waiting(entry, send);
        }
    }
}
