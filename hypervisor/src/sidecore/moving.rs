//! Devices that go from one sidecore to another, and sidecores that sleep without any.
//!
//! A disk that is no controller's can move, with all its queues: they go by the orders of one port.
//! Each sidecore has a place for each that can. The owner hands it over between two turns: what was
//! completed is told by then, or held back by the queue's own coalescer, which goes along. What the
//! VM owes goes along, too. The rules of the hand-over are in `sidecore::handover`.
//!
//! Guarantees: a device is one sidecore's, or on its way to one that takes it at its next look at
//! what is new; what the vCPUs' side says meanwhile is seen by that one. Nothing is allocated, and
//! nobody waits. A sidecore with a device never sleeps; one without takes no time.

use crate::cpu::{rdtsc, tsc_hz};
use crate::sidecore::balancer::Balancer;
use crate::sidecore::movable::{Berth, Movable, Parcel, Rule};
use crate::sidecore::polling_core::PollingCore;
use alloc::vec::Vec;
use log::info;

/// Boot only: room on every sidecore for a device that can move, with so many queues. On its own
/// one it comes next.
pub fn make_room(cores: &mut [PollingCore], own: usize, queues: usize) {
    for (index, core) in cores.iter_mut().enumerate() {
        let (device, first) = (core.devices.len(), core.queues.all.len());
        core.moves.berths.push(Berth { device, queues: first..first + queues });
        if index != own {
            core.devices.push(None);
            (0..queues).for_each(|_| core.queues.all.push(None));
        }
    }
}

/// Boot only: these are all that can move.
pub fn finish(cores: &mut [PollingCore], rule: Rule, movables: Vec<Movable>) {
    let movables: &'static [Movable] = movables.leak();
    let of_core = |core: &PollingCore| {
        let stays = core.devices.iter().any(|device| device.movable.is_none());
        (core.counts, stays || !core.controllers.is_empty())
    };
    let by_load = matches!(rule, Rule::ByLoad(_));
    let balancer =
        by_load.then(|| Balancer::new(tsc_hz(), cores.iter().map(of_core), movables.len()));
    cores.iter_mut().for_each(|core| core.moves.all = movables);
    if let Some(first) = cores.first_mut() {
        first.balancer = balancer;
    }
}

impl PollingCore {
    /// A turn of the queue at this place is over.
    #[inline]
    pub(super) fn note_turn(&mut self, place: usize) {
        let device = self.queues.all.get(place).and_then(|queue| self.devices.get(queue.device));
        if let Some(number) = device.and_then(|device| device.movable) {
            self.moves.note_turn(number, self.schedule.last_wait(place));
        }
    }

    /// Between two turns: what is to go goes.
    #[inline]
    pub(super) fn send_off(&mut self) {
        if self.moves.leaving {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        self.moves.leaving = false;
        for (movable, berth) in self.moves.all.iter().zip(&self.moves.berths) {
            let goal = movable.goal();
            let (place, own) = (berth.device, self.moves.own);
            let Some(vm) = self.devices.get(place).map(|device| device.vm) else { continue };
            let Some(listener) = self.moves.listeners.get(goal).filter(|_| goal != own) else {
                continue;
            };
            let handed = movable.slot.hand(goal, |parcel| {
                parcel.debt = self.schedule.debt(vm);
                self.devices.exchange(place, &mut parcel.device);
                for (at, queue) in berth.queues.clone().zip(&mut parcel.queues) {
                    self.schedule.leave(at);
                    self.queues.all.exchange(at, queue);
                }
            });
            match handed {
                true => listener.ring(),
                // It came by this slot just now.
                false => self.moves.leaving = true,
            }
        }
    }

    /// Takes what is for this sidecore, after its bell was answered, and before it follows orders.
    pub(super) fn take_in(&mut self) {
        let own = self.moves.own;
        for (number, movable) in self.moves.all.iter().enumerate() {
            if movable.slot.is_for(own) {
                movable.slot.receive(own, |parcel| self.move_in(number, parcel));
            }
            // Who decides rings the owner, too.
            let is_here = self.moves.berths.get(number).map(|berth| berth.device);
            let is_here = is_here.is_some_and(|place| self.devices.get(place).is_some());
            self.moves.leaving |= is_here && movable.goal() != own;
        }
    }

    #[inline(never)]
    fn move_in(&mut self, number: usize, parcel: &mut Parcel) {
        let Some(berth) = self.moves.berths.get(number) else { return };
        let (place, queues) = (berth.device, berth.queues.clone());
        let Some(device) = &mut parcel.device else { return };
        device.queues = queues.clone();
        device.port.count_move();
        // From here on its news are told here; what came before is looked at after this.
        device.port.home().arrive(self.moves.own);
        self.schedule.owe(device.vm, parcel.debt);
        for (at, content) in queues.clone().zip(&mut parcel.queues) {
            content.iter_mut().for_each(|queue| queue.device = place);
            self.queues.all.exchange(at, content);
        }
        device.join(&mut self.queues, &mut self.schedule);
        device.send_waiting(&mut self.caller);
        if matches!(self.moves.rule, Rule::ByLoad(_)) && device.told_move.claim(rdtsc()) {
            info!("{device} is served by core {} from now on", self.moves.listener().core());
        }
        self.devices.exchange(place, &mut parcel.device);
        for at in queues {
            if self.queues.all.get(at).is_some_and(|queue| queue.kicks) {
                self.sleep(at);
            }
        }
    }

    /// Nothing was found to do. Without a device the sidecore sleeps until it is rung, but for the
    /// one that decides who moves.
    #[inline]
    pub(super) fn idle(&mut self) {
        let sleeps = self.devices.are_empty() && self.balancer.is_none();
        if sleeps && !matches!(self.moves.rule, Rule::Never) {
            self.halt();
        } else {
            core::hint::spin_loop();
        }
    }

    #[cold]
    fn halt(&mut self) {
        if !self.controllers.is_empty() {
            return core::hint::spin_loop();
        }
        self.moves.listener().sleep(|begins| self.counts.note_sleep(begins));
    }
}
