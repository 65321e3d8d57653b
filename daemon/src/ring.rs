//! One ring: what is done with it, its kicks and calls, what it counts.

use crate::arrivals::{Arrivals, Begun};
use crate::clock::HERTZ;
use crate::counts::Counts;
use crate::device::{Kind, Port};
use crate::event::{Told, signal};
use crate::later::Draining;
use crate::pace::Pace;
use blk::Server;
use coalesce::Coalescer;
use net::Switch;
use rustix::fd::OwnedFd;
use virtqueue::{DEFAULT_SIZE, Edge, Queue, Records};
use window::Window;

/// Requests of a disk's ring that are in flight at a time.
pub const IN_FLIGHT: usize = 256;

/// A ring, running or not.
pub struct Ring {
    /// Its device, its number there, and its connection: places.
    pub device: usize,
    pub index: u16,
    pub connection: usize,
    /// The guest's memory, while it runs.
    pub window: Option<Window>,
    pub work: Work,
    pub kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    pub coalescer: Coalescer,
    pub running: bool,
    /// Records of what is in flight, for its next start.
    pub records: Option<Records<DEFAULT_SIZE>>,
    /// Requests that ended and aren't published.
    pub ended: u32,
    /// How its last call went, and how long they take.
    pub told: Told,
    pace: Pace,
    /// Since when its back end is waited for.
    pub draining: Option<Draining>,
    /// It would run, and is held back for a moment: [`crate::settle`].
    pub is_settled: bool,
    /// It was stopped while its back end was at work.
    pub is_hung: bool,
    /// Wake-ups in a row by which nothing was found to do.
    pub vain: u32,
    /// When it is to be polled again without a kick.
    pub again_at: Option<u64>,
    pub counts: Counts,
    /// What the driver accepted of the device's features when it last started.
    pub features: u64,
    /// When what waits came; and since when what is in its turn has been there.
    pub arrivals: Arrivals,
    pub since: u64,
    /// The same of requests that a back end has, by their place in the server.
    pub begun: Begun,
}

/// What there is to do in it.
pub enum Work {
    /// Requests of a disk.
    Requests(Box<Server<IN_FLIGHT, DEFAULT_SIZE, Option<Records<DEFAULT_SIZE>>>>),
    /// Frames or commands at the port of a switch, which has the ring.
    Frames(Port),
}

impl Ring {
    /// That doesn't run. `place` is its own among all rings.
    pub fn new(device: usize, kind: &Kind, index: u16, connection: usize, place: usize) -> Ring {
        let work = match kind {
            Kind::Disk(disk) => Work::Requests(Box::new(Server::new(disk.config, place as u16))),
            Kind::Port(port) => Work::Frames(*port),
        };
        Ring {
            device,
            index,
            connection,
            window: None,
            work,
            kick: None,
            call: None,
            coalescer: Coalescer::new(coalesce::Settings::paper(HERTZ), 0),
            running: false,
            records: None,
            ended: 0,
            draining: None,
            told: Told::Well,
            pace: Pace::default(),
            is_settled: false,
            is_hung: false,
            vain: 0,
            again_at: None,
            counts: Counts::default(),
            features: 0,
            arrivals: Arrivals::default(),
            since: 0,
            begun: Begun::new(IN_FLIGHT),
        }
    }

    /// The virtqueue, while it runs.
    #[inline]
    pub fn queue<'a>(&'a mut self, switches: &'a mut [Switch]) -> Option<&'a mut Queue> {
        match &mut self.work {
            Work::Requests(server) => server.queue(),
            Work::Frames(port) => switches.get_mut(port.switch)?.queue(port.number, self.index),
        }
    }

    /// What it counted, with what its server did.
    pub fn counted(&self) -> Counts {
        let errors = match &self.work {
            Work::Requests(server) => server.statistics().failed,
            Work::Frames(_) => 0,
        };
        Counts { errors, ..self.counts }
    }

    /// Chains that wait, by one load.
    #[inline(always)]
    pub fn waiting(&self, switches: &[Switch], now: u64) -> u16 {
        match &self.work {
            Work::Requests(server) => server.waiting(),
            Work::Frames(port) => self.frames(*port, switches, now),
        }
    }

    #[inline(never)]
    fn frames(&self, port: Port, switches: &[Switch], now: u64) -> u16 {
        let switch = switches.get(port.switch);
        switch.map_or(0, |switch| switch.waiting(port.number, self.index, now))
    }

    /// Where a disk's ring ends, if nothing waits as long as it ends there.
    #[inline]
    pub fn edge(&self) -> Option<Edge> {
        match &self.work {
            Work::Requests(server) => server.edge(),
            Work::Frames(_) => None,
        }
    }

    /// How much waits, of which `waiting` do and `before` did when this was last asked: as
    /// [`Queue::backlog`] says.
    pub fn backlog(&self, switches: &[Switch], waiting: u16, before: u16) -> u16 {
        match &self.work {
            Work::Requests(server) => server.backlog(waiting, before),
            Work::Frames(port) => match switches.get(port.switch) {
                Some(switch) => switch.backlog(port.number, self.index, waiting, before),
                None => waiting,
            },
        }
    }

    /// Chains that were taken and aren't completed.
    #[inline]
    pub fn taken(&self) -> u32 {
        match &self.work {
            Work::Requests(server) => server.in_flight().into(),
            Work::Frames(_) => 0,
        }
    }

    /// Whether turns serve it: a receive queue is filled in those of whoever sends.
    pub fn has_turns(&self, switches: &[Switch]) -> bool {
        match self.work {
            Work::Requests(_) => true,
            Work::Frames(port) => switches
                .get(port.switch)
                .is_some_and(|switch| switch.has_turns(port.number, self.index)),
        }
    }

    /// Has the driver kick at the next chain, or not at all. Chains that are there after that; a
    /// ring that is broken shows that it waits, and its turn finds that out.
    pub fn set_kicks(&mut self, switches: &mut [Switch], on: bool) -> u16 {
        match self.queue(switches) {
            Some(queue) if on => queue.enable_kicks().unwrap_or(1),
            Some(queue) => {
                queue.suppress_kicks();
                0
            }
            None => 0,
        }
    }

    /// Where calls go.
    pub fn call(&self) -> Option<&OwnedFd> {
        self.call.as_ref()
    }

    /// Calls go here from now on. A ring that runs already tells at once: the driver looks again.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        (self.call, self.pace) = (call, Pace::default());
        if self.running {
            self.tell();
        }
    }

    /// Calls the driver, whatever it wants.
    pub fn tell(&mut self) {
        if let Some(call) = &self.call {
            self.counts.calls += 1;
            self.told = signal(call, &mut self.pace);
            if self.told != Told::Well {
                self.call = None;
            }
        }
    }

    /// Shows the driver what was completed: so many chains. It is told of them if vIC has it so and
    /// the driver wants that. False: vIC holds that back.
    #[inline]
    pub fn publish(
        &mut self,
        switches: &mut [Switch],
        completed: u32,
        in_flight: u32,
        now: u64,
    ) -> bool {
        self.counts.completed += u64::from(completed);
        self.counts.left =
            self.counts.left.saturating_add(u64::from(completed) * u64::from(in_flight));
        let (tell, withheld) = self.coalescer.completed_together(completed, now, in_flight);
        self.counts.withheld += u64::from(withheld);
        let is_wanted = match &mut self.work {
            Work::Requests(server) => server.publish_and_ask(tell),
            Work::Frames(port) => {
                let switch = switches.get_mut(port.switch);
                let queue = switch.and_then(|switch| switch.queue(port.number, self.index));
                queue.is_some_and(|queue| queue.publish_and_ask(tell))
            }
        };
        if tell {
            self.told_of(is_wanted, now);
        }
        tell
    }

    #[inline(always)]
    fn told_of(&mut self, is_wanted: bool, now: u64) {
        if is_wanted {
            self.tell();
            self.coalescer.delivered(now);
        } else {
            self.coalescer.settled();
        }
    }

    /// Calls the driver, if it wants that for what was published.
    #[inline]
    pub fn deliver(&mut self, switches: &mut [Switch], now: u64) {
        let is_wanted = self.queue(switches).is_some_and(Queue::wants_call);
        self.told_of(is_wanted, now);
    }
}
