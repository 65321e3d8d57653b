//! The switch: who gets which frame, and the turn of a queue.
//!
//! An address is looked for among the ports' own first, then among those that were learned. What
//! one guest could do to another is decided here: [`Switch::serve`] drops a frame that comes from
//! an address which isn't its port's, is of another VLAN, or for nobody.
use crate::burst::BURST;
use crate::config::{CONFIG_BYTES, Config, Features, QueueKind};
use crate::error::{BadPort, Broken, NoSuchQueue};
use crate::frame::{Fault, Frame};
use crate::port::{MAX_PAIRS, Plan, Port, Sources, Statistics};
use crate::queues::Queues;
use crate::receive::Counts;
use crate::table::Table;
use crate::{DESCRIPTOR_CHARGE, LEAST_CHARGE, MOST_COPIES, Mac};
mod commands;

use alloc::boxed::Box;
use virtqueue::{Chain, DEFAULT_SIZE, Queue};
use window::Window;

/// The most ports of a switch.
pub const MAX_PORTS: usize = 64;

/// A port, as [`Switch::add`] numbered it, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortNumber(pub u8);

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of frames that were put into receive buffers, of all receivers.
    pub bytes: u64,
    /// Bytes to charge the queue with: [`LEAST_CHARGE`] at least for each frame that arrived, for
    /// each port that one was for, and if there was anything to do.
    pub charge: u64,
    /// Chains that were completed in this queue: frames that were taken, or a command.
    pub completed: u32,
    /// Bytes of the frames that were taken.
    pub sent: u64,
    /// Those that were dropped: nobody was to have them, whatever there was room for.
    pub dropped: u32,
    /// Another turn may find work. Else the ring was empty, or [`Self::full`] says why not.
    pub more: bool,
    /// Frames wait, and the port has sent its share: not before [`Switch::ready_at`].
    pub full: bool,
}

/// A receive queue that something was done with: it is to be published, or is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The port.
    pub port: PortNumber,
    /// The queue's index.
    pub queue: u16,
    /// What came of frames for it in the meantime.
    pub counts: Counts,
    /// Why the queue can't be used any more.
    pub broken: Option<Broken>,
}

/// A switch whose queues have at most `RING` elements. Times are nanoseconds of a clock that never
/// goes back.
#[derive(Debug)]
pub struct Switch<const RING: usize = DEFAULT_SIZE> {
    pub(crate) ports: Box<[Option<Port>]>,
    /// By ports.
    pub(crate) queues: Box<[Queues<RING>]>,
    table: Table,
    /// By ports: whether any of its receive queues was touched.
    pub(crate) touched: u64,
    /// The frame or command that is served.
    pub(crate) sent: Box<Chain>,
    /// What is known of the frame.
    pub(crate) frame: Box<Frame>,
    /// What receive buffers are taken into.
    pub(crate) scratch: Box<Chain>,
}

impl<const RING: usize> Switch<RING> {
    /// A switch with room for so many ports, [`MAX_PORTS`] at most. What it learns holds for
    /// `ageing` nanoseconds.
    pub fn new(ports: usize, ageing: u64) -> Self {
        let ports = ports.min(MAX_PORTS);
        Switch {
            ports: (0..ports).map(|_| None).collect(),
            queues: (0..ports).map(|_| Queues::new(0)).collect(),
            table: Table::new(ageing),
            touched: 0,
            sent: Box::new(Chain::new()),
            frame: Box::new(Frame::new()),
            scratch: Box::new(Chain::new()),
        }
    }

    /// A port for this device, with all that its queues will need. No driver runs it yet; its link
    /// is up.
    ///
    /// # Errors
    ///
    /// [`BadPort`] if there can't be such a port.
    pub fn add(&mut self, config: Config, plan: Plan) -> Result<PortNumber, BadPort> {
        let asked = config.parameters();
        if asked.pairs > MAX_PAIRS {
            return Err(BadPort::Pairs);
        }
        if !plan.vlan.is_valid() {
            return Err(BadPort::Vlan);
        }
        if self.ports.iter().flatten().any(|port| port.owns(asked.mac)) {
            return Err(BadPort::Address(asked.mac));
        }
        let mut free = self.ports.iter_mut().enumerate();
        let (number, place) = free.find(|(_, port)| port.is_none()).ok_or(BadPort::Full)?;
        *place = Some(Port::new(config, plan));
        if let Some(queues) = self.queues.get_mut(number) {
            *queues = Queues::new(asked.pairs);
        }
        Ok(PortNumber(number as u8))
    }

    /// What the queue of this index is for, while a driver runs the device.
    pub fn kind(&self, number: PortNumber, index: u16) -> Option<QueueKind> {
        self.port(number)?.kind(index)
    }

    pub(crate) fn port(&self, number: PortNumber) -> Option<&Port> {
        self.ports.get(usize::from(number.0))?.as_ref()
    }

    pub(crate) fn port_mut(&mut self, number: PortNumber) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number.0))?.as_mut()
    }

    /// A driver runs the device from now on: its memory, and what [`Config::accept`] found good.
    /// It has no queues yet.
    pub fn start(&mut self, number: PortNumber, window: Window, accepted: Features) {
        self.stop(number);
        if let Some(port) = self.port_mut(number) {
            port.start(window, accepted);
        }
    }

    /// The driver has set up the queue of this index.
    ///
    /// # Errors
    ///
    /// [`NoSuchQueue`], also if the device isn't started.
    pub fn attach(
        &mut self,
        number: PortNumber,
        index: u16,
        queue: Queue<RING>,
    ) -> Result<(), NoSuchQueue> {
        let kind = self.port(number).and_then(|port| port.kind(index)).ok_or(NoSuchQueue)?;
        let queues = self.queues_mut(number).ok_or(NoSuchQueue)?;
        queues.attach(index, kind, queue).ok_or(NoSuchQueue)?;
        self.port_mut(number).into_iter().for_each(|port| port.attach(kind, true));
        Ok(())
    }

    /// For a reset of the device: its queues and all that its driver has set are gone, what was
    /// learned at its port, too. Its memory isn't used any more.
    pub fn stop(&mut self, number: PortNumber) {
        if let Some(port) = self.port_mut(number) {
            port.stop();
            self.table.forget(number.0);
        }
        self.queues_mut(number).into_iter().for_each(Queues::clear);
    }

    /// Sets the link's state. The caller tells the driver that the configuration changed. While it
    /// is down, frames neither come nor go.
    pub fn set_link(&mut self, number: PortNumber, up: bool) {
        if let Some(port) = self.port_mut(number) {
            port.link_up = up;
        }
    }

    /// The configuration space of the device as it is now.
    pub fn config_bytes(&self, number: PortNumber) -> [u8; CONFIG_BYTES] {
        let bytes = |port: &Port| port.config.config_bytes(port.mac, port.link_up);
        self.port(number).map_or([0; CONFIG_BYTES], bytes)
    }

    /// What the port counted so far.
    pub fn statistics(&self, number: PortNumber) -> Statistics {
        self.port(number).map_or(Statistics::default(), |port| port.statistics)
    }

    /// When the port may send again, if a turn was [`Outcome::full`].
    pub fn ready_at(&self, number: PortNumber) -> u64 {
        self.port(number).map_or(0, |port| port.rate.ready_at())
    }

    /// A queue that is attached: to publish, to ask whether the driver wants a call, for kicks.
    pub fn queue(&mut self, number: PortNumber, index: u16) -> Option<&mut Queue<RING>> {
        self.queues_mut(number)?.queue(index)
    }

    /// The next receive queue that turns have done something with since this was last asked. None
    /// is named twice. Receive queues have no turns of their own: ask until there is none.
    pub fn touched(&mut self) -> Option<Touched> {
        while self.touched != 0 {
            let number = PortNumber(self.touched.trailing_zeros() as u8);
            let port = self.ports.get_mut(usize::from(number.0)).and_then(Option::as_mut);
            let Some(port) = port.filter(|port| port.touched != 0) else {
                self.touched &= self.touched - 1;
                continue;
            };
            let pair = port.touched.trailing_zeros() as usize;
            port.touched &= port.touched - 1;
            let queues = self.queues.get_mut(usize::from(number.0));
            let Some(receive) = queues.and_then(|queues| queues.receive.get_mut(pair)) else {
                continue;
            };
            let (broken, counts) = (receive.broken, core::mem::take(&mut receive.counts));
            return Some(Touched { port: number, queue: 2 * pair as u16, counts, broken });
        }
        None
    }

    /// What waits for a turn in the queue of this index, by one load of its ring: chains, or none
    /// while the port has sent its share. A ring that is broken shows 1, as its turn finds that
    /// out. Receive queues have no turns.
    #[inline]
    pub fn waiting(&self, number: PortNumber, index: u16, now: u64) -> u16 {
        self.served(number, index, now).map_or(0, |queue| queue.available().unwrap_or(1))
    }

    /// How much waits there, of which `waiting` says the number as above: as [`Queue::backlog`],
    /// with `before` what this said last.
    pub fn backlog(&self, number: PortNumber, index: u16, waiting: u16, before: u16) -> u16 {
        let queue = self.served(number, index, u64::MAX);
        queue.map_or(waiting, |queue| queue.backlog(waiting, before))
    }

    /// The queue of this index, if it may have a turn now.
    #[inline]
    fn served(&self, number: PortNumber, index: u16, now: u64) -> Option<&Queue<RING>> {
        let queues = self.queues.get(usize::from(number.0))?;
        let (queue, is_control) = queues.with_turns(index)?;
        (is_control || self.port(number)?.rate.ready_at() <= now).then_some(queue)
    }

    /// A turn of the queue of this index: a transmit queue's next frame goes to its receivers, a
    /// control queue's next command is carried out. A receive queue has nothing to do.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on until the device is started anew.
    pub fn serve(&mut self, number: PortNumber, index: u16, now: u64) -> Result<Outcome, Broken> {
        self.serve_some(number, index, now, 1)
    }

    /// The same of up to [`BURST`] frames, of no more than [`crate::BURST_CHARGE`] and the last
    /// one's.
    ///
    /// # Errors
    ///
    /// As for [`Self::serve`]; frames before what is broken are a turn of their own.
    pub fn serve_burst(
        &mut self,
        number: PortNumber,
        index: u16,
        now: u64,
    ) -> Result<Outcome, Broken> {
        self.serve_some(number, index, now, BURST)
    }

    /// The same of up to `most` frames, if those are fewer.
    ///
    /// # Errors
    ///
    /// As for [`Self::serve_burst`].
    pub fn serve_some(
        &mut self,
        number: PortNumber,
        index: u16,
        now: u64,
        most: u32,
    ) -> Result<Outcome, Broken> {
        let Some(port) = self.port(number) else { return Ok(Outcome::default()) };
        let most = most.clamp(1, BURST);
        match port.kind(index) {
            Some(QueueKind::Transmit(pair)) if port.discards(pair) => {
                self.discard(number, pair, most)
            }
            Some(QueueKind::Transmit(pair)) => self.transmit(number, pair, now, most),
            Some(QueueKind::Control) => self.control(number),
            Some(QueueKind::Receive(_)) | None => Ok(Outcome::default()),
        }
    }

    /// Copies the frame to whom it is for; or counts why not, and says false.
    pub(crate) fn forward(&mut self, from: PortNumber, now: u64, outcome: &mut Outcome) -> bool {
        self.frame.port = from.0;
        let Frame { tag, .. } = *self.frame;
        let (source, destination) = (self.frame.source(), self.frame.destination());
        let is_long_tcp = self.frame.is_long_tcp();
        let Some(port) = self.port_mut(from) else { return false };
        if !port.link_up {
            port.statistics.down += 1;
            return false;
        }
        let Some(vlan) = port.plan.vlan.ingress(tag) else {
            port.fault(Fault::Tag);
            return false;
        };
        // TCP knows no groups (RFC 1122, 4.2.3.10).
        if is_long_tcp && destination.is_group() {
            port.fault(Fault::Header);
            return false;
        }
        if source != port.mac || port.uplink.is_some() {
            let learns = port.plan.sources == Sources::Any;
            let may = learns && source.is_station() && self.owner(source, from).is_none();
            if !may {
                let port = self.port_mut(from);
                port.into_iter().for_each(|port| port.statistics.spoofed += 1);
                return false;
            }
            self.table.learn(source, vlan, from.0, now);
        }
        let mut receivers = self.receivers(from, destination, vlan, now);
        let copies = u64::from(receivers.count_ones());
        let (wire, cost) = match copies {
            0 | 1 => (0, 0),
            _ => (copies * self.frame.wire_len(), copies * self.frame.cost()),
        };
        let Some(port) = self.port_mut(from) else { return false };
        match copies {
            0 => {
                port.statistics.unknown += 1;
                return false;
            }
            1 => port.last = receivers.trailing_zeros() as u8,
            _ if port.flood.ready_at() > now || cost > MOST_COPIES => {
                port.statistics.flooded += 1;
                return false;
            }
            _ => port.flood.take(wire, now),
        }
        let Switch { ports, queues, sent, frame, scratch, touched, .. } = self;
        while receivers != 0 {
            let number = receivers.trailing_zeros() as usize;
            receivers &= receivers - 1;
            let (Some(Some(port)), Some(queues)) = (ports.get_mut(number), queues.get_mut(number))
            else {
                continue;
            };
            let (bytes, charge) = port.receive(queues, frame, sent, vlan, scratch);
            outcome.bytes += bytes;
            // Who doesn't take it is asked, too: its filter has a table, its ring no buffers.
            outcome.charge += charge.max(LEAST_CHARGE);
            *touched |= 1 << number;
        }
        true
    }

    /// The port, other than this one, that has the address for its own.
    fn owner(&self, mac: Mac, except: PortNumber) -> Option<usize> {
        let others = self.ports.iter().enumerate().filter(|(at, _)| *at != usize::from(except.0));
        let mut ports = others.filter_map(|(at, port)| Some((at, port.as_ref()?)));
        ports.find(|(_, port)| port.owns(mac)).map(|(at, _)| at)
    }

    /// The ports that are in a VLAN and wanted, but for one: a bit for each.
    fn others<F>(&self, except: PortNumber, vlan: u16, wanted: F) -> u64
    where
        F: Fn(&Port) -> bool,
    {
        let within = |port: &Port| port.plan.vlan.egress(vlan).is_some();
        let ports = self.ports.iter().enumerate();
        ports
            .filter_map(|(at, port)| Some((at, port.as_ref()?)))
            .filter(|(at, port)| *at != usize::from(except.0) && within(port) && wanted(port))
            .fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// For whom the frame is that comes from this port: a bit for each. None is its sender.
    fn receivers(&self, from: PortNumber, to: Mac, vlan: u16, now: u64) -> u64 {
        if to.is_reserved() {
            return 0;
        }
        if to.is_group() {
            return self.others(from, vlan, |_| true);
        }
        // No two ports have the same.
        let at = |number: usize| Some((number, self.ports.get(number)?.as_ref()?));
        match (0..self.ports.len()).filter_map(at).find(|(_, port)| port.mac == to) {
            Some((number, _)) if number == usize::from(from.0) => return 0,
            Some((number, port)) if port.plan.vlan.egress(vlan).is_some() => return 1 << number,
            _ => {}
        }
        let any = self.others(from, vlan, |port| port.plan.sources == Sources::Any);
        match self.table.find(to, vlan, now) {
            // Learned at the sender's own port: it is there, and nobody else needs it.
            Some(port) => any & 1 << port,
            None => any,
        }
    }
}

/// What it costs at least to take such a chain, in bytes.
pub(crate) fn price(chain: &Chain) -> u64 {
    LEAST_CHARGE.max(chain.descriptors() * DESCRIPTOR_CHARGE)
}
