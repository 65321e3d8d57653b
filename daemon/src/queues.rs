//! Rings that are served: turns of the schedule, calls, sleep.
//!
//! Guarantees: a ring is given up to its kicks only after they were asked for anew and the ring was
//! looked at again, so no kick is lost; what vIC withholds is told before that. Requests end in the
//! order in which they were taken (`disk`).

use crate::disk::Store;
use crate::socket::signal;
use anyhow::{Context as _, Result};
use blk::{Config, Features, Server};
use coalesce::Coalescer;
use rustix::fd::OwnedFd;
use sidecore::{Look, Next, Piece, Schedule, Settings, Turn};
use std::time::Instant;
use virtqueue::{Queue, State};
use window::Window;

/// Elements of a ring, and requests of one in flight.
pub const MAX_RING: u16 = 256;
const IN_FLIGHT: usize = 256;
/// The clock's ticks are nanoseconds.
const HERTZ: u64 = 1_000_000_000;
/// A ring without requests is polled for this long, 200 µs. Waking up costs some 10.
const IDLE: u64 = HERTZ / 5_000;
/// Requests after which a turn that goes on publishes and tells.
const TOLD_AFTER: u32 = 8;
/// Passes between two looks at the socket.
const PASSES: u32 = 256;

/// One ring, running or not.
pub struct Served {
    server: Box<Server<IN_FLIGHT>>,
    pub kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    coalescer: Coalescer,
    running: bool,
}

/// All rings of a connection.
pub struct Queues {
    all: Rings,
    schedule: Schedule,
    began: Instant,
}

struct Rings(Vec<Served>);

impl Look for Rings {
    #[inline]
    fn waiting(&mut self, place: usize) -> u16 {
        self.0.get(place).map_or(0, |ring| ring.server.waiting())
    }
}

impl Queues {
    pub fn new(config: Config) -> Queues {
        let count = config.parameters().queues;
        let coalescer = || Coalescer::new(coalesce::Settings::paper(HERTZ), 0);
        let ring = |number| Served {
            server: Box::new(Server::new(config, number)),
            kick: None,
            call: None,
            coalescer: coalescer(),
            running: false,
        };
        let all = Rings((0..count).map(ring).collect());
        let settings = Settings { idle: IDLE, ..Settings::usual(HERTZ) };
        let schedule = Schedule::new(settings, usize::from(count), 1);
        Queues { all, schedule, began: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The ring at this place.
    pub fn get(&mut self, place: u16) -> Result<&mut Served> {
        self.all.0.get_mut(usize::from(place)).context("there is no such ring")
    }

    /// Rings whose kicks are waited for, with their places.
    pub fn asleep(&self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        let all = self.all.0.iter().enumerate();
        let asleep = all.filter(|(at, ring)| ring.running && !self.schedule.is_polled(*at));
        asleep.filter_map(|(at, ring)| Some((at, ring.kick.as_ref()?)))
    }

    /// Is any ring polled?
    pub fn is_busy(&self) -> bool {
        (0..self.all.0.len()).any(|at| self.schedule.is_polled(at))
    }

    /// Serves this ring from now on, by polling at first.
    pub fn start(&mut self, place: u16, mut queue: Queue, accepted: Features) -> Result<()> {
        let now = self.now();
        let ring = self.get(place)?;
        queue.suppress_kicks();
        ring.server.start(queue, accepted);
        ring.coalescer = Coalescer::new(coalesce::Settings::paper(HERTZ), now);
        ring.running = true;
        // What an earlier life of this daemon published may not have been told.
        ring.tell();
        self.schedule.poll(usize::from(place), 0, now);
        Ok(())
    }

    /// Serves this ring no more: its state, if it was served. The request that has pieces left is
    /// finished before.
    pub fn stop(&mut self, place: u16, window: &Window, store: &mut Store) -> Option<State> {
        let ring = self.all.0.get_mut(usize::from(place)).filter(|ring| ring.running)?;
        while ring.server.in_flight() > 0 {
            if ring.server.serve(window, store).is_err() {
                break;
            }
        }
        ring.running = false;
        self.schedule.leave(usize::from(place));
        let mut queue = ring.server.stop()?;
        queue.publish();
        ring.tell();
        Some(queue.state())
    }

    /// The front end kicked this ring.
    pub fn kicked(&mut self, place: usize) {
        let now = self.now();
        let ring = self.all.0.get_mut(place);
        if let Some(ring) = ring.filter(|_| self.schedule.kicked(place, now)) {
            ring.server.queue().into_iter().for_each(Queue::suppress_kicks);
        }
    }

    /// Serves what there is, for so long that the socket can wait.
    pub fn serve(&mut self, window: &Window, store: &mut Store) -> Result<()> {
        for _ in 0..PASSES {
            let now = self.now();
            match self.schedule.next(now, &mut self.all) {
                Turn::Serve(place) => self.turn(place, window, store)?,
                Turn::Sleep(place) => self.sleep(place, now),
                Turn::Nothing => {
                    for ring in &mut self.all.0 {
                        ring.deliver_if(now, |coalescer| coalescer.due(now));
                    }
                    if !self.is_busy() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, place: usize, window: &Window, store: &mut Store) -> Result<()> {
        let mut unpublished = 0;
        loop {
            let now = self.now();
            let Some(ring) = self.all.0.get_mut(place) else { return Ok(()) };
            let served = ring.server.serve(window, store);
            let done = served.with_context(|| format!("ring {place} is broken"))?;
            unpublished += done.completed;
            if done.charge == 0 {
                self.schedule.rest(place);
                break;
            }
            let piece = Piece { cost: done.charge, bytes: done.bytes, requests: done.asked };
            let next = self.schedule.served(place, piece, now, &mut self.all);
            if next == Next::Switch {
                break;
            }
            if unpublished >= TOLD_AFTER {
                self.publish(place, std::mem::take(&mut unpublished), now);
            }
        }
        let now = self.now();
        self.publish(place, unpublished, now);
        Ok(())
    }

    fn publish(&mut self, place: usize, completed: u32, now: u64) {
        let Some(ring) = self.all.0.get_mut(place).filter(|_| completed > 0) else { return };
        let waiting = u32::from(ring.server.waiting()) + u32::from(ring.server.in_flight());
        let Some(queue) = ring.server.queue() else { return };
        queue.publish();
        if ring.coalescer.completed_together(completed, now, waiting).0 {
            ring.deliver(now);
        }
    }

    /// The ring had nothing for long.
    fn sleep(&mut self, place: usize, now: u64) {
        let Some(ring) = self.all.0.get_mut(place) else { return };
        ring.deliver_if(now, |coalescer| coalescer.deadline().is_some());
        // A ring that is broken shows that it waits.
        ring.server.queue().into_iter().for_each(|queue| {
            let _ = queue.enable_kicks();
        });
        if self.schedule.sleep(place, now, &mut self.all) {
            return;
        }
        if let Some(queue) = self.all.0.get_mut(place).and_then(|ring| ring.server.queue()) {
            queue.suppress_kicks();
        }
    }
}

impl Served {
    /// Calls go here from now on. A ring that runs already tells at once: the driver looks again.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        if self.running {
            self.tell();
        }
    }

    pub fn is_running(&self) -> bool {
        self.running
    }

    fn tell(&self) {
        self.call.iter().for_each(signal);
    }

    fn deliver_if(&mut self, now: u64, due: impl Fn(&Coalescer) -> bool) {
        if self.running && due(&self.coalescer) {
            self.deliver(now);
        }
    }

    fn deliver(&mut self, now: u64) {
        if self.server.queue().is_some_and(Queue::wants_call) {
            self.tell();
            self.coalescer.delivered(now);
        } else {
            self.coalescer.settled();
        }
    }
}
