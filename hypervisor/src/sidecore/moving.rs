//! Devices that go from one sidecore to another, and sidecores that sleep without any.
//!
//! A disk that is no controller's can move, with all its queues: they go by the orders of one port.
//! So can a switch, with the interfaces at all of its ports and its way out. Each sidecore has a
//! place for each that can. The owner hands it over between two turns: what was completed is told
//! by then, or held back by the queue's own coalescer, which goes along. What the VM owes goes
//! along, too. The rules of the hand-over are in `sidecore::handover`.
//!
//! Guarantees: a device is one sidecore's, or on its way to one that takes it at its next look at
//! what is new; what the vCPUs' side says meanwhile is seen by that one. Nothing is allocated, and
//! nobody waits. A sidecore with a device never sleeps; one without takes no time.

use crate::cpu::{rdtsc, tsc_hz};
use crate::sidecore::balancer::Balancer;
use crate::sidecore::device::Device;
use crate::sidecore::movable::{Berth, Movable, Parcel, Rule};
use crate::sidecore::places::Places;
use crate::sidecore::polling_core::PollingCore;
use alloc::vec::Vec;
use log::info;

/// Boot only: room on every sidecore for a device that can move, with so many queues. On its own
/// one it comes next. It goes by this number, which may be new, with this switch.
pub fn make_room(
    cores: &mut [PollingCore],
    own: usize,
    number: usize,
    switch: Option<usize>,
    queues: usize,
) {
    for (index, core) in cores.iter_mut().enumerate() {
        let (device, first) = (core.devices.len(), core.queues.all.len());
        if core.moves.berths.len() == number {
            core.moves.berths.push(Berth { devices: Vec::new(), switch });
        }
        if let Some(berth) = core.moves.berths.get_mut(number) {
            berth.devices.push((device, first..first + queues));
        }
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

/// Is what goes by this berth served here?
fn is_here(berth: &Berth, devices: &Places<Device>) -> bool {
    berth.devices.first().is_some_and(|(place, _)| devices.get(*place).is_some())
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

    /// Frames came in for this switch: the pass was for it, if it has no turn.
    #[inline]
    pub(super) fn note_wire(&mut self, switch: usize) {
        let mut devices = self.devices.iter();
        let own = devices.find(|device| device.kind.switch() == Some(switch));
        if let Some(number) = own.and_then(|device| device.movable) {
            self.moves.note_wire(number);
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
            let (goal, own) = (movable.goal(), self.moves.own);
            if !is_here(berth, &self.devices) {
                continue;
            }
            let Some(listener) = self.moves.listeners.get(goal).filter(|_| goal != own) else {
                continue;
            };
            let handed = movable.slot.hand(goal, |parcel| {
                for ((place, queues), passenger) in berth.devices.iter().zip(&mut parcel.devices) {
                    let vm = self.devices.get(*place).map_or(usize::MAX, |device| device.vm);
                    passenger.debt = self.schedule.debt(vm);
                    self.devices.exchange(*place, &mut passenger.device);
                    for (at, queue) in queues.clone().zip(&mut passenger.queues) {
                        self.schedule.leave(at);
                        self.queues.all.exchange(at, queue);
                    }
                }
                if let Some(switch) = berth.switch {
                    self.queues.switches.exchange(switch, &mut parcel.switch);
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
            let berth = self.moves.berths.get(number);
            let is_here = berth.is_some_and(|berth| is_here(berth, &self.devices));
            self.moves.leaving |= is_here && movable.goal() != own;
        }
    }

    #[inline(never)]
    fn move_in(&mut self, number: usize, parcel: &mut Parcel) {
        let Some(berth) = self.moves.berths.get(number) else { return };
        // From here on news of all of them are told here; what came before is looked at after this.
        for device in parcel.devices.iter().filter_map(|passenger| passenger.device.as_ref()) {
            device.port.count_move();
            device.port.home().arrive(self.moves.own);
        }
        if let Some(switch) = berth.switch {
            self.queues.switches.exchange(switch, &mut parcel.switch);
        }
        for ((place, queues), passenger) in berth.devices.iter().zip(&mut parcel.devices) {
            let (place, queues) = (*place, queues.clone());
            let Some(device) = &mut passenger.device else { continue };
            device.queues = queues.clone();
            self.schedule.owe(device.vm, passenger.debt);
            for (at, content) in queues.clone().zip(&mut passenger.queues) {
                content.iter_mut().for_each(|queue| queue.device = place);
                self.queues.all.exchange(at, content);
            }
            device.come_to(place, &mut self.queues);
            device.join(&mut self.queues, &mut self.schedule);
            device.send_waiting(&mut self.caller);
            if matches!(self.moves.rule, Rule::ByLoad(_)) && device.told_move.claim(rdtsc()) {
                info!("{device} is served by core {} from now on", self.moves.listener().core());
            }
            self.devices.exchange(place, &mut passenger.device);
        }
        let came = self.moves.berths.get(number).map_or(0, |berth| berth.devices.len());
        for at in 0..came {
            let berth = self.moves.berths.get(number).and_then(|berth| berth.devices.get(at));
            for place in berth.map_or(0..0, |(_, queues)| queues.clone()) {
                if self.queues.all.get(place).is_some_and(|queue| queue.kicks) {
                    self.sleep(place);
                }
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
