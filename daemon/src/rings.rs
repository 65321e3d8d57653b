//! All rings of all connections, served by one schedule: turns, calls, sleep.
//!
//! Guarantees: a ring is given up to its kicks only after they were asked for anew and the ring was
//! looked at again, so no kick is lost; what vIC withholds is told before that. A ring that can't
//! be served any more leaves the schedule, and its connection is named by [`Rings::take_wrong`]. A
//! driver that kicks without work is listened to a hundred times a second at most.

use crate::arrivals::Arrivals;
use crate::clock::{Clock, HERTZ};
use crate::config::Limits;
use crate::counts::Time;
use crate::device::{Device, Kind};
use crate::ring::{Ring, Work};
use crate::storage::Controllers;
use crate::uplink::Uplink;
use anyhow::{Context as _, Error, Result};
use coalesce::Coalescer;
use net::{MAX_PORTS, PortNumber, Switch};
use sidecore::{Look, Schedule, Settings};
use slab::Slab;
use virtqueue::{Edge, Queue, State};
use window::Window;

/// Elements of a ring.
pub const MAX_RING: u16 = 256;
/// A ring without requests is polled for this long at most, 200 µs, and for less where they don't
/// come so soon. Waking up costs some 10.
const IDLE: u64 = HERTZ / 5_000;
/// So many wake-ups in a row without work are one too many: for a hundredth of a second the ring's
/// kicks aren't listened to.
pub const VAIN: u32 = 32;
const DEAF: u64 = HERTZ / 100;

/// What turns need: the rings, and what is behind them.
pub struct Served {
    pub all: Slab<Ring>,
    pub devices: Slab<Device>,
    pub switches: Vec<Switch>,
    /// Those switches' ways out.
    pub uplinks: Slab<Uplink>,
    /// By switches and their ports: the places of their rings that run, by their numbers.
    ports: Vec<Vec<Option<usize>>>,
    /// Disks that have something under way.
    pub(super) asked: Vec<usize>,
    /// Rings in which something ended that isn't published.
    pub(super) ended: Vec<usize>,
    /// The last piece saw the end of its ring.
    pub(super) emptied: bool,
    /// By places of rings: where a turn saw that nothing more waits. Most looks need no more.
    pub(super) edges: Vec<Option<Edge>>,
    /// When it was last looked.
    pub(super) now: u64,
}

impl Served {
    /// The port of a connection has no memory any more, if none of its rings runs. What its driver
    /// has set holds until it is reset.
    fn quit(&mut self, connection: usize, is_reset: bool) {
        let mut own = self.all.iter().map(|(_, ring)| ring);
        let own: Vec<&Ring> = own.by_ref().filter(|ring| ring.connection == connection).collect();
        let port = own.iter().find_map(|ring| match ring.work {
            Work::Frames(port) => Some(port),
            Work::Requests(_) => None,
        });
        let is_used = own.iter().any(|ring| ring.running || ring.is_settled);
        if let Some(port) = port.filter(|_| !is_used)
            && let Some(switch) = self.switches.get_mut(port.switch)
        {
            match is_reset {
                true => switch.stop(port.number),
                false => switch.pause(port.number),
            }
        }
    }
}

/// The rings, and whose turn it is.
pub struct Rings {
    pub served: Served,
    /// What disks are on that are controllers' of this program.
    pub controllers: Controllers,
    pub(super) schedule: Schedule,
    pub(super) clock: Clock,
    /// When a call that vIC holds back is due; when a ring is to be polled again by itself.
    pub(super) deadline: Option<u64>,
    pub(super) again: Option<u64>,
    /// Connections that are to end, and why.
    pub(super) wrong: Vec<(usize, Error)>,
    /// A piece was begun of a ring that is to stop.
    pub(super) has_begun: bool,
    /// Disks that ended at last what was given up.
    pub(super) recovered: Vec<usize>,
    pub time: Time,
    /// What the host does with packets of UDP that are to be cut. It can't be asked later.
    pub cuts_udp: bool,
    /// When the pass before was, and whether it found something; since the clock was looked at.
    pub(super) before: Option<(u64, bool)>,
    /// Requests, and bytes, since then.
    pub(super) unseen: (u32, u64),
}

impl Look for Served {
    #[inline(always)]
    fn waiting(&mut self, place: usize) -> u16 {
        match self.edges.get(place) {
            Some(Some(edge)) => edge.waiting(),
            _ => self.look_into(place),
        }
    }

    fn backlog(&mut self, place: usize, waiting: u16, before: u16) -> u16 {
        let ring = self.all.get(place);
        ring.map_or(waiting, |ring| ring.backlog(&self.switches, waiting, before))
    }

    /// The piece that was served has found out, or the ring is known to have more. What the turn
    /// before has noted of its end is from then.
    #[inline]
    fn has_more(&mut self, place: usize) -> bool {
        !self.emptied && (self.is_offered(place) || self.look_into(place) > 0)
    }
}

/// A port's place among those of all switches.
fn place_of(switch: usize, port: PortNumber) -> usize {
    switch * MAX_PORTS + usize::from(port.0)
}

impl Served {
    /// Does a disk's ring have more, as far as that is known without a look?
    #[inline]
    fn is_offered(&self, place: usize) -> bool {
        let work = self.all.get(place).map(|ring| &ring.work);
        matches!(work, Some(Work::Requests(server)) if server.has_offered())
    }

    /// What waits in a ring of which the edge doesn't say it.
    #[inline(never)]
    fn look_into(&self, place: usize) -> u16 {
        self.all.get(place).map_or(0, |ring| ring.waiting(&self.switches, self.now))
    }

    /// This ring starts or stops.
    fn note_edge(&mut self, place: usize) {
        if let Some(known) = self.edges.get_mut(place) {
            *known = self.all.get(place).filter(|ring| ring.running).and_then(Ring::edge);
        }
    }

    /// The ring of this number at a switch's port, if it runs.
    pub fn at_port(&self, switch: usize, port: PortNumber, index: u16) -> Option<usize> {
        let places = self.ports.get(place_of(switch, port))?;
        let place = places.get(usize::from(index)).copied().flatten()?;
        self.all.get(place).filter(|ring| ring.running).map(|_| place)
    }
}

impl Rings {
    pub fn new(clock: Clock) -> Rings {
        let settings = Settings { idle: IDLE, adapts: true, ..Settings::usual(HERTZ) };
        let (all, devices, switches) = (Slab::new(), Slab::new(), Vec::new());
        Rings {
            served: Served {
                all,
                devices,
                switches,
                uplinks: Slab::new(),
                ports: Vec::new(),
                asked: Vec::new(),
                ended: Vec::new(),
                emptied: false,
                edges: Vec::new(),
                now: 0,
            },
            controllers: Controllers::default(),
            schedule: Schedule::new(settings, 0, 0),
            clock,
            deadline: None,
            again: None,
            wrong: Vec::new(),
            has_begun: false,
            recovered: Vec::new(),
            time: Time::default(),
            cuts_udp: daemon_os::cuts_udp(),
            before: None,
            unseen: (0, 0),
        }
    }

    pub fn look_at_clock(&mut self) -> u64 {
        self.unseen = (0, 0);
        self.served.now = self.clock.now();
        self.served.now
    }

    /// A device more: its place.
    pub fn add_device(&mut self, device: Device) -> usize {
        let limits = device.limits;
        let place = self.served.devices.insert(device);
        self.schedule.grow(0, place + 1);
        self.limit(place, limits);
        place
    }

    /// Changes what a device may have, from now on.
    pub fn set_limits(&mut self, place: usize, limits: Limits) {
        if let Some(device) = self.served.devices.get_mut(place)
            && device.limits != limits
        {
            device.limits = limits;
            self.limit(place, limits);
        }
    }

    fn limit(&mut self, place: usize, limits: Limits) {
        self.schedule.set_share(place, limits.share());
        if let Some(burst) = limits.burst {
            self.schedule.set_burst(place, burst);
        }
    }

    /// A device less, whose rings are gone.
    pub fn remove_device(&mut self, place: usize) -> Option<Device> {
        let device = self.served.devices.try_remove(place)?;
        // Limits of one that is gone would keep all others from the shorter ways.
        self.schedule.set_share(place, Limits::default().share());
        if let Kind::Port(port) = &device.kind
            && let Some(switch) = self.served.switches.get_mut(port.switch)
        {
            switch.remove(port.number);
        }
        Some(device)
    }

    /// A ring more, of this device and connection: its place.
    pub fn add(&mut self, device: usize, index: u16, connection: usize) -> Result<usize> {
        let found = self.served.devices.get(device).context("the device is gone")?;
        let place = self.served.all.vacant_key();
        anyhow::ensure!(place <= usize::from(u16::MAX), "there are too many rings");
        let ring = Ring::new(device, &found.kind, index, connection, place);
        self.served.all.insert(ring);
        let edges = &mut self.served.edges;
        edges.resize(edges.len().max(place + 1), None);
        self.schedule.grow(place + 1, 0);
        Ok(place)
    }

    /// A ring less, which was stopped.
    pub fn remove(&mut self, place: usize) {
        self.schedule.leave(place);
        if let Some(ring) = self.served.all.try_remove(place)
            && let Some(device) = self.served.devices.get_mut(ring.device)
        {
            device.gone.add(&ring.counted());
        }
    }

    pub fn get(&mut self, place: usize) -> Result<&mut Ring> {
        self.served.all.get_mut(place).context("there is no such ring")
    }

    /// Connections that did what none may, each with what it was.
    pub fn take_wrong(&mut self) -> Vec<(usize, Error)> {
        std::mem::take(&mut self.wrong)
    }

    /// The connection of this place has ended.
    pub fn forget_wrong(&mut self, connection: usize) {
        self.wrong.retain(|(place, _)| *place != connection);
    }

    /// Was a piece begun of a ring that is to stop, which the next one follows at once?
    pub fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.has_begun)
    }

    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Serves this ring from now on, by polling at first. `accepted`: the device's features.
    pub fn start(
        &mut self,
        place: usize,
        queue: Queue,
        window: Window,
        accepted: u64,
    ) -> Result<()> {
        let now = self.look_at_clock();
        let Served { all, devices, switches, ports, .. } = &mut self.served;
        let ring = all.get_mut(place).context("there is no such ring")?;
        match &mut ring.work {
            Work::Requests(server) => {
                let accepted = blk::Features::from_bits_truncate(accepted);
                server.start_with(queue, accepted, ring.records.take());
            }
            Work::Frames(port) => {
                let switch = switches.get_mut(port.switch).context("the switch is gone")?;
                // Only a port that runs knows what its queues are for.
                if switch.kind(port.number, 0).is_none() {
                    let accepted = port.config.accept_behind_front_end(accepted)?;
                    switch.resume(port.number, window, accepted);
                }
                let attached = switch.attach(port.number, ring.index, queue);
                if let Err(error) = attached {
                    let connection = ring.connection;
                    self.served.quit(connection, false);
                    return Err(error.into());
                }
                let at = place_of(port.switch, port.number);
                ports.resize_with(ports.len().max(at + 1), Vec::new);
                let places = &mut ports[at];
                let index = usize::from(ring.index);
                places.resize(places.len().max(index + 1), None);
                places[index] = Some(place);
            }
        }
        ring.set_kicks(switches, false);
        ring.window = Some(window);
        let device = devices.get(ring.device).context("there is no such device")?;
        ring.coalescer = Coalescer::new(device.coalescing(), now);
        (ring.running, ring.vain, ring.again_at) = (true, 0, None);
        ring.features = accepted;
        ring.arrivals = Arrivals::default();
        // What an earlier life of this daemon published may not have been told.
        ring.tell();
        let (work, device) = (ring.has_turns(switches), ring.device);
        self.served.note_edge(place);
        if work {
            self.schedule.poll(place, device, now);
        }
        Ok(())
    }

    /// Serves this ring no more: its state, if it was served. What was taken is answered before. If
    /// its back end doesn't end that, [`Ring::is_hung`] is true from now on.
    pub fn stop(&mut self, place: usize) -> Option<State> {
        self.schedule.leave(place);
        let ring = self.served.all.get_mut(place).filter(|ring| ring.running)?;
        ring.running = false;
        self.served.note_edge(place);
        if !self.drain(place) {
            self.abandon(place);
        }
        let Served { all, switches, .. } = &mut self.served;
        let ring = all.get_mut(place)?;
        (ring.window, ring.draining) = (None, None);
        let mut queue = match &mut ring.work {
            Work::Requests(server) => {
                server.publish();
                server.stop()?
            }
            Work::Frames(port) => switches.get_mut(port.switch)?.detach(port.number, ring.index)?,
        };
        queue.publish();
        ring.tell();
        let mut state = queue.state();
        if let Work::Frames(_) = ring.work {
            // Buffers for frames to come, which were in flight, are taken again.
            state = State { available: state.used, ..State::at_reset(Default::default()) };
            state.used = state.available;
            let connection = ring.connection;
            self.served.quit(connection, false);
        }
        Some(state)
    }

    /// The device of a connection is reset, or the connection ends. Its rings have stopped: nothing
    /// refers to its memory, and nothing that its driver has set is left.
    pub fn reset(&mut self, connection: usize) {
        self.served.quit(connection, true);
    }

    /// What this ring of a network is to send is taken and goes nowhere; or goes out again.
    pub fn set_discards(&mut self, place: usize, on: bool) {
        let Served { all, switches, .. } = &mut self.served;
        if let Some(Ring { work: Work::Frames(port), index, .. }) = all.get(place)
            && let Some(switch) = switches.get_mut(port.switch)
        {
            switch.set_discards(port.number, *index, on);
        }
    }

    /// This ring is looked at without a kick, if it runs.
    pub fn poll_now(&mut self, place: usize) {
        let now = self.look_at_clock();
        let Served { all, switches, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place).filter(|ring| ring.running) else { return };
        if ring.has_turns(switches) {
            ring.set_kicks(switches, false);
            self.schedule.poll(place, ring.device, now);
        }
    }

    /// The front end kicked this ring.
    pub fn kicked(&mut self, place: usize) {
        let now = self.look_at_clock();
        let Served { all, switches, .. } = &mut self.served;
        let Some(ring) = all.get_mut(place).filter(|ring| ring.running) else { return };
        if ring.vain > VAIN {
            if ring.again_at.is_none() {
                ring.counts.throttled += 1;
                ring.again_at = Some(now + DEAF);
                self.again = Some(self.again.map_or(now + DEAF, |at| at.min(now + DEAF)));
            }
            return;
        }
        if self.schedule.kicked(place, now) {
            ring.counts.kicks += 1;
            ring.vain += 1;
            ring.set_kicks(switches, false);
        }
    }
}

/// The earlier one of two times.
pub fn keep(at: &mut Option<u64>, other: Option<u64>) {
    *at = [*at, other].into_iter().flatten().min();
}
