//! One queue that a sidecore serves: a disk's, whose server it has, or one of a switch's port.
//!
//! Guarantees: a piece of work is bounded (`blk`, `net`), and what it completed is counted. A queue
//! that is broken says so once it is served; its turn comes for that.

use crate::cpu::{rdtsc, tsc_hz};
use crate::iommu::guest::{Answered, GuestIommu};
use crate::sidecore::guest_iommu::{IommuQueue, IommuRegisters};
use crate::sidecore::places::Places;
use crate::sidecore::port::{Port, add};
use crate::sidecore::signal::Signal;
use crate::sidecore::uplink::Uplink;
use ::sidecore::{Delay, Look};
use alloc::boxed::Box;
use alloc::vec::Vec;
use blk::{Completion, Server};
use core::ops::AddAssign;
use net::{PortNumber, Switch};
use thiserror::Error;
use virtqueue::Queue;

/// Requests of a disk's queue that are in flight at a time.
pub const IN_FLIGHT: usize = 128;

/// Chains, and bytes, after which a turn that goes on publishes and tells: to copy so many bytes
/// takes some ten microseconds.
const TOLD_AFTER: u32 = 8;
const TOLD_AFTER_BYTES: u64 = 64 << 10;

/// A queue, running or not.
pub struct ServedQueue {
    /// Its device's place in the core, and its own there.
    pub device: usize,
    pub index: usize,
    pub work: Work,
    pub signal: Signal,
    /// It is polled only from a kick on, until it is empty.
    pub kicks: bool,
    /// The time that its requests take, if the plan says one.
    pub delay: Option<Delay>,
    /// It was given up: nothing is served before the device's next life.
    pub given_up: bool,
}

/// What there is to do in it.
pub enum Work {
    /// Requests of a disk.
    Requests(Box<Server<IN_FLIGHT>>),
    /// Frames or commands at this port of one of the switches, which has the ring.
    Frames(usize, PortNumber),
    /// Requests to a guest's IOMMU.
    Iommu(Box<IommuQueue>),
    /// What the registers of a guest's IOMMU ask for.
    Registers(IommuRegisters),
    /// Nothing: a guest's IOMMU tells no events.
    Events,
}

impl Work {
    /// The guest's IOMMU that it is of.
    pub fn iommu(&self) -> Option<&'static GuestIommu> {
        match self {
            Work::Iommu(queue) => Some(queue.iommu),
            Work::Registers(registers) => Some(registers.iommu),
            Work::Requests(_) | Work::Frames(..) | Work::Events => None,
        }
    }
}

/// Why a queue can't be served any more.
#[derive(Debug, Error)]
pub enum Broken {
    #[error(transparent)]
    Requests(#[from] blk::Broken),
    #[error(transparent)]
    Frames(#[from] net::Broken),
    #[error(transparent)]
    Iommu(#[from] virtqueue::Broken),
}

/// What a piece of work came to.
#[derive(Clone, Copy, Default)]
pub struct Piece {
    /// Requests that were begun, answered or not; or frames. Sums don't have it.
    pub asked: u32,
    /// Chains of this queue that were completed.
    pub completed: u32,
    /// Bytes to count for it.
    pub bytes: u64,
    /// Frames that nobody got.
    pub dropped: u32,
    /// What the piece cost, in bytes. 0: there was nothing to do, or no room for it in the back
    /// end.
    pub charge: u64,
    /// It saw the end of its ring. Sums have the last one's.
    pub emptied: bool,
}

impl Piece {
    /// Of a guest's IOMMU. What came back is nothing that the VM's limit knows.
    pub fn answered(done: &Answered, port: &Port, index: usize) -> Self {
        if let Some(counts) = port.counts(index).filter(|_| done.came_back > 0) {
            add(&counts.bytes, done.came_back);
        }
        let (asked, charge) = (done.requests, done.cost);
        Piece { asked, completed: asked, charge, ..Piece::default() }
    }

    /// Is it to be published, and told, though the turn goes on?
    #[inline]
    pub fn is_much(&self) -> bool {
        self.completed >= TOLD_AFTER || self.bytes >= TOLD_AFTER_BYTES
    }
}

impl AddAssign for Piece {
    #[inline]
    fn add_assign(&mut self, piece: Piece) {
        self.completed += piece.completed;
        self.bytes += piece.bytes;
        self.dropped += piece.dropped;
        self.charge += piece.charge;
        self.emptied = piece.emptied;
    }
}

/// A switch with all its ports.
pub struct CoreSwitch {
    pub switch: Switch,
    /// By ports: the device's place in the core; none has the uplink's.
    pub devices: Vec<Option<usize>>,
    /// Its way out, if it has one.
    pub uplink: Option<Uplink>,
}

impl CoreSwitch {
    /// Sends what is for the wire.
    #[inline]
    pub fn send_out(&mut self) {
        if let Some(uplink) = &mut self.uplink {
            uplink.send(&mut self.switch);
        }
    }
}

/// All queues of a core, and its switches.
pub struct Queues {
    pub all: Places<ServedQueue>,
    /// Each by the same number on all sidecores; those that are served here.
    pub switches: Places<CoreSwitch>,
    clock: Clock,
    /// When it was last looked, in the switches' nanoseconds.
    now: u64,
    /// The last piece of a turn saw the end of its ring.
    pub emptied: bool,
}

impl ServedQueue {
    /// The ring, if there is one.
    pub fn ring<'a>(&'a mut self, switches: &'a mut Places<CoreSwitch>) -> Option<&'a mut Queue> {
        self.work.ring(self.index, switches)
    }

    /// Is there something that it can be served by?
    pub fn is_set_up(&mut self, switches: &mut Places<CoreSwitch>) -> bool {
        match &self.work {
            Work::Registers(registers) => registers.runs,
            _ => self.ring(switches).is_some(),
        }
    }

    /// Whether turns serve it: a receive queue is filled in those of whoever sends.
    pub fn has_turns(&self, switches: &Places<CoreSwitch>) -> bool {
        match self.work {
            Work::Requests(_) | Work::Iommu(_) | Work::Registers(_) => true,
            Work::Events => false,
            Work::Frames(switch, port) => {
                let has_turns = |on: &CoreSwitch| on.switch.has_turns(port, self.index as u16);
                switches.get(switch).is_some_and(has_turns)
            }
        }
    }
}

impl Work {
    /// The ring of the queue that has this work and place in its device.
    #[inline(always)]
    pub fn ring<'a>(
        &'a mut self,
        index: usize,
        switches: &'a mut Places<CoreSwitch>,
    ) -> Option<&'a mut Queue> {
        match self {
            Work::Requests(server) => server.queue(),
            Work::Iommu(queue) => queue.ring.as_mut(),
            Work::Events | Work::Registers(_) => None,
            Work::Frames(switch, port) => {
                switches.get_mut(*switch)?.switch.queue(*port, index as u16)
            }
        }
    }
}

impl Queues {
    /// None yet.
    pub fn new() -> Self {
        let (all, switches) = (Places::new(), Places::new());
        Queues { all, switches, clock: Clock::new(tsc_hz()), now: 0, emptied: false }
    }

    /// Reads the time.
    #[inline]
    pub fn look_at_clock(&mut self) -> u64 {
        let now = rdtsc();
        self.now = self.clock.nanoseconds(now);
        now
    }

    /// The queue at this place, and what it may need to be served: the switches, and the time.
    #[inline]
    pub fn at(&mut self, place: usize) -> Option<(&mut ServedQueue, &mut Places<CoreSwitch>, u64)> {
        Some((self.all.get_mut(place)?, &mut self.switches, self.now))
    }

    /// Has the frames that arrived at a switch's uplink go to their receivers. True: there were
    /// some.
    #[inline]
    pub fn look_out(&mut self, switch: usize, ticks: u64) -> bool {
        let Some(CoreSwitch { switch, uplink: Some(uplink), .. }) = self.switches.get_mut(switch)
        else {
            return false;
        };
        uplink.look(switch, ticks, self.now)
    }

    /// An operation of a disk's queue ended that its back end had accepted. True: a request is
    /// answered, and isn't published.
    pub fn finish(&mut self, place: usize, completion: Completion) -> bool {
        match self.all.get_mut(place).map(|queue| &mut queue.work) {
            Some(Work::Requests(server)) => server.finish(completion),
            _ => false,
        }
    }

    /// Has the driver of a queue tell of new chains, or not. Gives how many are there after that; a
    /// ring that is broken shows that it waits, and its turn finds that out.
    pub fn set_kicks(&mut self, place: usize, on: bool) -> u16 {
        let Some((queue, switches, _)) = self.at(place) else { return 0 };
        match queue.ring(switches) {
            Some(ring) if on => ring.enable_kicks().unwrap_or(1),
            Some(ring) => {
                ring.suppress_kicks();
                0
            }
            None => 0,
        }
    }

    /// Chains that were taken and aren't completed, and those that wait, if its ring wasn't just
    /// `emptied`: vIC's commands in flight.
    #[inline]
    pub fn in_flight(&mut self, place: usize, emptied: bool) -> u32 {
        match self.all.get(place).map(|queue| &queue.work) {
            Some(Work::Requests(server)) => {
                let waiting = if emptied { 0 } else { server.waiting() };
                u32::from(waiting) + u32::from(server.in_flight())
            }
            _ if emptied => 0,
            _ => self.waiting(place).into(),
        }
    }
}

impl Look for Queues {
    #[inline]
    fn waiting(&mut self, place: usize) -> u16 {
        let Some(queue) = self.all.get_mut(place) else { return 0 };
        match &queue.work {
            Work::Requests(server) => match &mut queue.delay {
                None => server.waiting(),
                Some(delay) => delay.ready(server.waiting(), rdtsc()),
            },
            // One that is broken shows that it waits, and its turn finds that out.
            Work::Iommu(queue) => {
                queue.ring.as_ref().map_or(0, |ring| ring.available().unwrap_or(1))
            }
            Work::Registers(registers) => registers.is_news().into(),
            Work::Events => 0,
            Work::Frames(switch, port) => self
                .switches
                .get(*switch)
                .map_or(0, |on| on.switch.waiting(*port, queue.index as u16, self.now)),
        }
    }

    fn backlog(&mut self, place: usize, waiting: u16, before: u16) -> u16 {
        let Some(queue) = self.all.get(place) else { return waiting };
        match &queue.work {
            // What is held back for a while is counted by its delay.
            Work::Requests(server) if queue.delay.is_none() => server.backlog(waiting, before),
            Work::Iommu(queue) => match &queue.ring {
                Some(ring) => ring.backlog(waiting, before),
                None => waiting,
            },
            Work::Frames(switch, port) => match self.switches.get(*switch) {
                Some(on) => on.switch.backlog(*port, queue.index as u16, waiting, before),
                None => waiting,
            },
            Work::Requests(_) | Work::Registers(_) | Work::Events => waiting,
        }
    }

    /// The piece that was served has found out, or the ring is known to have more.
    #[inline(always)]
    fn has_more(&mut self, place: usize) -> bool {
        !self.emptied && self.looks_for_more(place)
    }
}

impl Queues {
    #[inline(never)]
    fn looks_for_more(&mut self, place: usize) -> bool {
        let known = self.all.get(place).is_some_and(|queue| match &queue.work {
            Work::Requests(server) => queue.delay.is_none() && server.has_offered(),
            Work::Frames(..) | Work::Iommu(_) | Work::Registers(_) | Work::Events => false,
        });
        known || self.waiting(place) > 0
    }
}

/// TSC ticks to nanoseconds.
struct Clock {
    /// Nanoseconds of a tick, times 2^32.
    factor: u64,
}

impl Clock {
    fn new(ticks_per_second: u64) -> Self {
        Clock { factor: ((1_000_000_000_u128 << 32) / u128::from(ticks_per_second.max(1))) as u64 }
    }

    #[inline]
    fn nanoseconds(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.factor)) >> 32) as u64
    }
}
