//! A device as its sidecore has it: follows what is ordered, makes its queues and gives them up.

use crate::cpu::rdtsc;
use crate::log_limit::OnceASecond;
use crate::sidecore::backing::Backing;
use crate::sidecore::entries;
use crate::sidecore::places::Places;
use crate::sidecore::port::{Order, Port};
use crate::sidecore::queue::{CoreSwitch, Queues, ServedQueue, Work};
use crate::sidecore::signal::{Line, send};
use ::sidecore::{Delay, Schedule};
use core::fmt::{self, Display};
use core::ops::Range;
use net::PortNumber;
use proto::ServedDevice;
use routing::calls::Caller;
use thiserror::Error;
use virtqueue::{Layout, Queue, State};
use window::Window;

/// A device.
pub struct Device {
    pub port: &'static Port,
    /// Its VM: the name, and the place among those of the schedule.
    pub name: &'static str,
    pub vm: usize,
    pub which: ServedDevice,
    /// The VM's memory.
    pub window: Window,
    pub kind: Kind,
    /// Its entries.
    pub entries: Range<u16>,
    /// Its queues' places in the core.
    pub queues: Range<usize>,
    /// The order that it goes by.
    pub order: Order,
    pub told: OnceASecond,
    pub told_move: OnceASecond,
    /// Its number among those that can move.
    pub movable: Option<usize>,
}

/// What a device is, besides its queues.
pub enum Kind {
    /// A disk, and what is behind it.
    Disk(Backing),
    /// A network interface.
    Interface(Interface),
    /// The guest's own IOMMU.
    Iommu,
}

impl Kind {
    /// The switch that it is at.
    pub fn switch(&self) -> Option<usize> {
        match self {
            Kind::Disk(_) | Kind::Iommu => None,
            Kind::Interface(interface) => Some(interface.switch),
        }
    }
}

/// A port of one of the switches.
pub struct Interface {
    pub switch: usize,
    pub number: PortNumber,
    pub config: net::Config,
    /// The switch knows that a driver runs it.
    pub started: bool,
}

/// Why a queue isn't made.
#[derive(Debug, Error)]
enum Refused {
    #[error(transparent)]
    Layout(#[from] virtqueue::LayoutError),
    #[error(transparent)]
    Features(#[from] net::BadFeatures),
    #[error(transparent)]
    Queue(#[from] net::NoSuchQueue),
}

impl Device {
    /// What its interrupts go by.
    pub fn line<'a, 'b>(&'a self, caller: &'a mut Caller<'b>) -> Line<'a, 'b> {
        Line { port: self.port, entries: &self.entries, caller }
    }

    /// Goes by what is ordered, if that is new. False: it can't yet, and is to be asked again.
    pub fn follow(
        &mut self,
        queues: &mut Queues,
        schedule: &mut Schedule,
        caller: &mut Caller<'_>,
    ) -> bool {
        let Some((order, number)) = self.port.take() else { return !self.port.is_busy() };
        if order.life != self.order.life {
            if !self.stop(queues, schedule) {
                return false;
            }
            self.entries.clone().filter_map(entries::get).for_each(|entry| caller.forget(entry));
        }
        if !order.may_access {
            // Nothing is begun any more. What a controller was asked for ends by itself.
            self.queues.clone().for_each(|place| schedule.leave(place));
        }
        self.order = order;
        for (place, layout) in self.queues.clone().zip(order.queues) {
            let Queues { all, switches, .. } = &mut *queues;
            let Some(queue) = all.get_mut(place) else { continue };
            // A ring is looked at when the device may access memory, and not before.
            if let Some(layout) = layout.filter(|_| order.may_access && !queue.given_up)
                && !queue.is_set_up(switches)
                && let Err(error) = self.begin(queue, switches, layout)
            {
                queue.given_up = true;
                self.give_up(place, &error, caller);
            }
        }
        self.join(queues, schedule);
        if let Kind::Interface(Interface { switch, number, .. }) = self.kind
            && let Some(on) = queues.switches.get_mut(switch)
        {
            // Nothing is put into its memory, either.
            on.switch.set_link(number, order.may_access);
        }
        self.port.follow(number);
        true
    }

    /// It is at this place of the sidecore from now on: its switch knows that.
    pub fn come_to(&self, place: usize, queues: &mut Queues) {
        if let Kind::Interface(Interface { switch, number, .. }) = self.kind
            && let Some(on) = queues.switches.get_mut(switch)
            && let Some(at) = on.devices.get_mut(usize::from(number.0))
        {
            *at = Some(place);
        }
    }

    /// Has its queues have turns that can be served; no others.
    pub fn join(&self, queues: &mut Queues, schedule: &mut Schedule) {
        let Queues { all, switches, .. } = queues;
        for place in self.queues.clone() {
            let Some(queue) = all.get_mut(place) else { continue };
            let may = self.order.may_access && !queue.given_up;
            let runs = may && queue.is_set_up(switches);
            if !(runs && queue.has_turns(switches)) {
                schedule.leave(place);
            } else {
                schedule.poll(place, self.vm, rdtsc());
                queue.ring(switches).into_iter().for_each(Queue::suppress_kicks);
            }
        }
    }

    /// The places of its queues that were kicked since this was last asked.
    pub fn kicked(&self) -> impl Iterator<Item = usize> + use<> {
        let kicked = self.port.take_kicks();
        self.queues
            .clone()
            .enumerate()
            .filter(move |(bit, _)| kicked >> bit & 1 == 1)
            .map(|(_, p)| p)
    }

    /// Lets go of all queues. False: the back end hasn't let go of the guest's memory yet.
    fn stop(&mut self, queues: &mut Queues, schedule: &mut Schedule) -> bool {
        let mut free = true;
        for place in self.queues.clone() {
            schedule.leave(place);
            let Some(queue) = queues.all.get_mut(place) else { continue };
            queue.signal.stop();
            queue.given_up = false;
            if let Work::Requests(server) = &mut queue.work {
                server.stop();
                free &= server.outstanding() == 0;
            }
            match &mut queue.work {
                Work::Iommu(queue) => queue.ring = None,
                Work::Registers(registers) => registers.runs = false,
                _ => {}
            }
        }
        if let Kind::Interface(Interface { switch, number, started, .. }) = &mut self.kind
            && let Some(on) = queues.switches.get_mut(*switch)
        {
            on.switch.stop(*number);
            *started = false;
        }
        free
    }

    /// Makes a queue of the device's, with the ring that the driver laid out.
    fn begin(
        &mut self,
        queue: &mut ServedQueue,
        switches: &mut Places<CoreSwitch>,
        layout: Layout,
    ) -> Result<(), Refused> {
        if let Work::Registers(registers) = &mut queue.work {
            registers.runs = true;
            return Ok(());
        }
        let features = features(self.order.features);
        let mut ring = Queue::new(&self.window, layout, features, State::at_reset(features))?;
        ring.suppress_kicks();
        queue.signal.start(rdtsc());
        queue.delay.iter_mut().for_each(Delay::reset);
        match (&mut queue.work, &mut self.kind) {
            (Work::Requests(server), _) => {
                server.start(ring, blk::Features::from_bits_truncate(self.order.features));
            }
            (Work::Frames(switch, number), Kind::Interface(interface)) => {
                let on = &mut switches.get_mut(*switch).ok_or(net::NoSuchQueue)?.switch;
                if !interface.started {
                    let accepted = interface.config.accept(self.order.features)?;
                    on.start(*number, self.window, accepted);
                    interface.started = true;
                }
                on.attach(*number, queue.index as u16, ring)?;
            }
            (Work::Iommu(queue), _) => queue.ring = Some(ring),
            // What the driver puts in stays there; or there is no ring.
            (Work::Events | Work::Registers(_), _) => {}
            (Work::Frames(..), Kind::Disk(_) | Kind::Iommu) => return Err(net::NoSuchQueue.into()),
        }
        Ok(())
    }

    /// A queue can't be served: the driver is told so, and the log. Once in a life is enough: it
    /// must reset the device.
    pub fn give_up(&mut self, place: usize, why: &dyn Display, caller: &mut Caller<'_>) {
        if self.port.is_broken(self.order.life) {
            return;
        }
        self.port.set_broken(self.order.life);
        if self.told.claim(rdtsc()) {
            let queue = place.saturating_sub(self.queues.start);
            log::warn!("{self}: queue {queue} is given up: {why}");
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

impl Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VM {:?}, its {}", self.name, self.which)
    }
}

/// What was accepted of the features of rings (virtio 1.2, 6), which are the same for all devices.
fn features(accepted: u64) -> virtqueue::Features {
    let accepted = blk::Features::from_bits_truncate(accepted);
    virtqueue::Features {
        indirect: accepted.contains(blk::Features::INDIRECT_DESC),
        event_index: accepted.contains(blk::Features::EVENT_IDX),
        packed: accepted.contains(blk::Features::RING_PACKED),
    }
}
