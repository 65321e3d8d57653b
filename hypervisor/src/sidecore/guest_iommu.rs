//! The request queue of a guest's IOMMU, or its registers, as a sidecore serves it, or the VM's own
//! exits where there is none.
//!
//! Guarantees: as `viommu` and `iommu::guest` do. At an exit, all is answered that was in the ring
//! when the driver kicked, and no more than the ring holds twice over: what a driver puts in later
//! it kicks for later. The driver is told by an interrupt, if it wants one.

use crate::iommu::guest::{Answered, GuestIommu};
use crate::sidecore::entries;
use crate::sidecore::port::{Order, Port, add};
use crate::sidecore::signal::send;
use core::ops::Range;
use routing::calls::Caller;
use virtqueue::{Broken, DEFAULT_SIZE, Queue};
use window::Window;

/// A piece of a turn ends behind the request with which it has cost so much.
const PIECE: u64 = 32 << 10;
/// Requests that are answered at one exit.
const MOST_AT_AN_EXIT: u32 = 2 * DEFAULT_SIZE as u32;

/// The queue.
pub struct IommuQueue {
    pub iommu: &'static GuestIommu,
    pub ring: Option<Queue>,
}

impl IommuQueue {
    /// Serves up to so many requests of the guest that has this memory, as a piece of a turn;
    /// `answered` counts them, if the queue turned out to be broken, too. None is published.
    pub fn serve(
        &mut self,
        window: &Window,
        accepted: u64,
        most: u32,
        answered: &mut Answered,
    ) -> Result<(), Broken> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        self.iommu.serve(ring, window, accepted, (most, PIECE), answered)
    }
}

/// The registers of a guest's unit, which it writes without an exit.
pub struct IommuRegisters {
    pub iommu: &'static GuestIommu,
    /// The VM runs.
    pub runs: bool,
}

impl IommuRegisters {
    /// Is there something to do?
    #[inline]
    pub fn is_news(&self) -> bool {
        self.runs && self.iommu.is_news()
    }

    /// Does some of it, as a piece of a turn; `done` counts it.
    pub fn serve(&self, most: u32, done: &mut Answered) {
        if self.is_news() {
            self.iommu.run((most, PIECE), true, done);
            if self.iommu.reroutes() {
                self.iommu.ask();
            }
        }
    }
}

/// An IOMMU that no sidecore serves. The VM's lock is held in each call.
pub struct ByExit {
    queue: IommuQueue,
    window: Window,
    caller: Caller<'static>,
    order: Order,
}

impl ByExit {
    /// Of a guest with this memory, which isn't started.
    pub fn new(iommu: &'static GuestIommu, window: Window, caller: Caller<'static>) -> Self {
        let queue = IommuQueue { iommu, ring: None };
        ByExit { queue, window, caller, order: Order::default() }
    }

    /// Goes by what is ordered.
    #[cold]
    pub fn follow(&mut self, port: &Port, own: &Range<u16>) {
        let Some((order, number)) = port.take() else { return };
        if order.life != self.order.life {
            self.queue.ring = None;
            own.clone().filter_map(entries::get).for_each(|entry| self.caller.forget(entry));
        }
        self.order = order;
        let [requests, ..] = order.queues;
        if let Some(layout) = requests.filter(|_| order.may_access && self.queue.ring.is_none()) {
            match viommu::queue(&self.window, layout) {
                Ok(ring) => self.queue.ring = Some(ring),
                Err(_) => self.give_up(port, own),
            }
        }
        port.follow(number);
    }

    /// The driver kicked.
    #[inline(never)]
    pub fn serve(&mut self, port: &Port, own: &Range<u16>) {
        if !self.order.may_access || port.is_broken(self.order.life) {
            return;
        }
        let mut answered = Answered::default();
        let IommuQueue { iommu, ring: Some(ring) } = &mut self.queue else { return };
        let most = (MOST_AT_AN_EXIT, u64::MAX);
        let served = iommu.serve(ring, &self.window, self.order.features, most, &mut answered);
        ring.publish();
        let entry = port.vector(0).filter(|_| ring.wants_call());
        if let Some(counts) = port.counts(0) {
            add(&counts.completed, answered.requests.into());
        }
        if let Some(entry) = entry.and_then(|vector| entries::of(own, vector)) {
            self.caller.call(entry, send);
        }
        if served.is_err() {
            self.give_up(port, own);
        }
    }

    /// The ring can't be served in this life: the driver sees that, and is told.
    #[cold]
    fn give_up(&mut self, port: &Port, own: &Range<u16>) {
        self.queue.ring = None;
        port.set_broken(self.order.life);
        let vector = port.config_vector();
        if let Some(entry) = vector.and_then(|vector| entries::of(own, vector)) {
            self.caller.call(entry, send);
        }
    }

    /// Sends the calls that waited in entries that were masked.
    #[cold]
    pub fn send_waiting(&mut self, own: &Range<u16>) {
        for entry in own.clone().filter_map(entries::get) {
            self.caller.call_waiting(entry, send);
        }
    }
}
