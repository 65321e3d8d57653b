//! Guests that keep rings full, a core that serves them, and a protocol of what it did.

use crate::{Look, Next, Piece as Served, Schedule, Settings, Share, Turn};
use std::collections::VecDeque;

pub const SECOND: u64 = 2_500_000_000;
/// The most bytes of a piece.
pub const PIECE: u64 = 64 << 10;

/// A guest with so many requests of one size in flight, each followed by another after a while.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    pub depth: u32,
    pub size: u64,
    /// Ticks.
    pub think: u64,
}

#[derive(Debug)]
struct Ring {
    guest: Guest,
    /// What is left of each request.
    waiting: VecDeque<u64>,
    /// When the next ones come.
    coming: VecDeque<u64>,
    /// Pieces and bytes of others since the first one waits.
    others: Option<(u64, u64)>,
}

pub struct Piece {
    pub queue: usize,
    pub bytes: u64,
    pub finished: bool,
    pub end: u64,
}

pub struct World {
    rings: Vec<Ring>,
    pub now: u64,
    pub looked: Vec<usize>,
    pub log: Vec<Piece>,
    pub bytes: Vec<u64>,
    pub finished: Vec<u64>,
    /// The most pieces of others that a queue waited for, and the most bytes.
    pub longest_pieces: Vec<u64>,
    pub longest_bytes: Vec<u64>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let World { now, bytes, finished, longest_pieces, longest_bytes, .. } = self;
        let (depths, sizes): (Vec<_>, Vec<_>) =
            self.rings.iter().map(|ring| (ring.guest.depth, ring.guest.size)).unzip();
        write!(f, "at {now}: {bytes:?} bytes, {finished:?} requests of {sizes:?} at {depths:?}, ")?;
        write!(f, "waited for {longest_pieces:?} pieces, {longest_bytes:?} bytes")
    }
}

impl Look for World {
    fn waiting(&mut self, queue: usize) -> u16 {
        self.looked.push(queue);
        self.rings[queue].waiting.len() as u16
    }
}

/// A piece whose cost are its bytes.
pub const fn piece(bytes: u64, requests: u32) -> Served {
    Served { cost: bytes, bytes, requests }
}

/// What a piece takes: a fixed part, and 4 KiB in 600 ticks.
pub const fn ticks(bytes: u64) -> u64 {
    120 + bytes * 600 / 4096
}

impl World {
    pub fn new(queues: usize, guest: impl Fn(usize) -> Guest) -> Self {
        let ring = |place| {
            let guest: Guest = guest(place);
            let waiting = (0..guest.depth).map(|_| guest.size).collect();
            Ring { guest, waiting, coming: VecDeque::new(), others: Some((0, 0)) }
        };
        World {
            rings: (0..queues).map(ring).collect(),
            now: 0,
            looked: vec![],
            log: vec![],
            bytes: vec![0; queues],
            finished: vec![0; queues],
            longest_pieces: vec![0; queues],
            longest_bytes: vec![0; queues],
        }
    }

    /// A VM for each queue.
    pub fn start(&self, settings: Settings, share: impl Fn(usize) -> Share) -> Schedule {
        self.start_with(settings, |queue| queue, share)
    }

    pub fn start_with(
        &self,
        settings: Settings,
        vm: impl Fn(usize) -> usize,
        share: impl Fn(usize) -> Share,
    ) -> Schedule {
        let mut schedule = Schedule::new(settings, self.rings.len(), self.rings.len());
        for queue in 0..self.rings.len() {
            schedule.set_share(vm(queue), share(vm(queue)));
            assert!(schedule.join(queue, vm(queue)) && schedule.kicked(queue, self.now));
        }
        schedule
    }

    pub fn run(&mut self, schedule: &mut Schedule, ticks: u64) {
        let end = self.now + ticks;
        while self.now < end {
            let expected = by_scan(schedule, self.now, self);
            self.looked.clear();
            let turn = schedule.next(self.now, self);
            assert_eq!(turn, expected, "another scan finds another one");
            match turn {
                Turn::Serve(queue) => while self.piece(schedule, queue) == Next::Continue {},
                Turn::Sleep(queue) => assert!(schedule.sleep(queue, self.now, self)),
                Turn::Nothing => self.pass(100),
            }
        }
    }

    /// A piece: some requests, or a part of one.
    fn piece(&mut self, schedule: &mut Schedule, queue: usize) -> Next {
        let batch = schedule.batch();
        let mut served = piece(0, 0);
        while !self.rings[queue].waiting.is_empty()
            && served.requests < batch.requests
            && served.cost < batch.cost
        {
            let (bytes, finished) = self.request(queue);
            served.requests += u32::from(finished);
            (served.cost, served.bytes) = (served.cost + bytes, served.bytes + bytes);
        }
        let finished = served.requests > 0;
        self.log.push(Piece { queue, bytes: served.bytes, finished, end: self.now });
        schedule.served(queue, served, self.now, self)
    }

    /// A request, or a part of one: its bytes, and whether that was all.
    fn request(&mut self, queue: usize) -> (u64, bool) {
        let ring = &mut self.rings[queue];
        let (pieces, bytes) = ring.others.take().unwrap_or_default();
        let longest = &mut self.longest_pieces[queue];
        *longest = pieces.max(*longest);
        let longest = &mut self.longest_bytes[queue];
        *longest = bytes.max(*longest);

        let rest = ring.waiting.front_mut().expect("a queue that is served has something");
        let bytes = PIECE.min(*rest);
        *rest -= bytes;
        let finished = *rest == 0;
        for (place, other) in self.rings.iter_mut().enumerate() {
            if let Some((pieces, sum)) = other.others.as_mut()
                && place != queue
            {
                (*pieces, *sum) = (*pieces + 1, *sum + bytes);
            }
        }
        self.pass(ticks(bytes));
        let ring = &mut self.rings[queue];
        if finished {
            ring.waiting.pop_front();
            ring.coming.push_back(self.now.saturating_add(ring.guest.think));
            self.finished[queue] += 1;
        }
        self.pass(0);
        let ring = &mut self.rings[queue];
        ring.others = (!ring.waiting.is_empty()).then_some((0, 0));
        self.bytes[queue] += bytes;
        (bytes, finished)
    }

    fn pass(&mut self, ticks: u64) {
        self.now += ticks;
        for ring in &mut self.rings {
            while ring.coming.front().is_some_and(|time| *time <= self.now) {
                ring.coming.pop_front();
                ring.waiting.push_back(ring.guest.size);
                ring.others = ring.others.or(Some((0, 0)));
            }
        }
    }
}

/// What comes next by another scan.
pub fn by_scan(schedule: &Schedule, now: u64, look: &mut impl Look) -> Turn {
    let mut schedule = schedule.clone();
    schedule.round.end();
    schedule.next(now, look)
}

/// The least and the most bytes by weight.
pub fn share_bounds(world: &World, weights: &[u32]) -> (f64, f64) {
    let shares = world.bytes.iter().zip(weights).map(|(bytes, w)| *bytes as f64 / f64::from(*w));
    shares.fold((f64::MAX, 0.0), |(least, most), share| (share.min(least), share.max(most)))
}
