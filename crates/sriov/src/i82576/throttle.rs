//! Functions' interrupts held back by the controller's own throttle (7.3.4, EITR), as the host sets
//! it.
//!
//! A guest's driver sets the same registers for its own function, and the host can't keep it from
//! that without an exit for each interrupt: they are in the page with those that the driver masks
//! and unmasks by. So the host's interval is the least from one look to the next: what a guest
//! wrote holds if it is longer, and for an epoch at most if it is shorter.
//!
//! Guarantees: the host holds no interrupt back for longer than [`Settings::longest`], nor than the
//! [`LONGEST_US`] that the part can. A look accesses a bounded number of registers.

use super::{FUNCTIONS, Registers, registers as r};
use arrayvec::ArrayVec;
use coalesce::Settings;
use coalesce::throttle::{Throttle, Traffic};

/// Vectors of a function.
pub const VECTORS: usize = 3;
/// The longest interval, in microseconds.
pub const LONGEST_US: u64 = (r::EITR_INTERVAL >> r::EITR_US) as u64;
/// Bytes of a descriptor.
const DESCRIPTOR: u32 = 16;

/// What was done for a function so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Epochs, and those after which interrupts were held back.
    pub epochs: u64,
    /// See `epochs`.
    pub held: u64,
    /// The longest interval, in microseconds.
    pub longest_us: u64,
    /// Intervals that the guest set, as far as the host saw them.
    pub by_guest: u64,
}

/// The throttles of a controller's functions.
#[derive(Debug, Default)]
pub(super) struct Throttles(ArrayVec<Held, FUNCTIONS>);

/// A function's.
#[derive(Debug)]
struct Held {
    throttle: Throttle,
    ticks_per_second: u64,
    /// The counters of frames, as they were.
    received: u32,
    sent: u32,
    vectors: [Vector; VECTORS],
    counts: Counts,
}

/// An interval's bits as they were written last, by the host and by the guest.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    written: u32,
    by_guest: u32,
}

impl Throttles {
    /// For so many functions, from now on.
    pub fn new(functions: usize, settings: Settings, now: u64) -> Self {
        let held = || Held {
            throttle: Throttle::new(settings, now),
            ticks_per_second: settings.ticks_per_second,
            received: 0,
            sent: 0,
            vectors: Default::default(),
            counts: Counts::default(),
        };
        Throttles((0..functions.min(FUNCTIONS)).map(|_| held()).collect())
    }

    /// Looks at the functions whose epochs are over, and sets their intervals.
    pub fn look(&mut self, registers: &mut impl Registers, now: u64) {
        for (pool, held) in (0..).zip(&mut self.0) {
            if held.throttle.is_over(now) {
                let traffic = held.traffic(registers, pool);
                held.set(registers, pool, traffic, now);
            }
        }
    }

    /// What was done for the function of this pool.
    pub fn counts(&self, pool: usize) -> Option<Counts> {
        self.0.get(pool).map(|held| held.counts)
    }
}

impl Held {
    /// What the function did since the last look.
    fn traffic(&mut self, registers: &mut impl Registers, pool: u32) -> Traffic {
        let received = registers.read(r::vf_received(pool));
        let sent = registers.read(r::vf_sent(pool));
        let traffic = Traffic {
            received: received.wrapping_sub(self.received),
            sent: sent.wrapping_sub(self.sent),
            // A pool has two queues.
            queued: [pool, pool + FUNCTIONS as u32]
                .map(|queue| queued(registers, queue))
                .iter()
                .sum(),
        };
        (self.received, self.sent) = (received, sent);
        traffic
    }

    fn set(&mut self, registers: &mut impl Registers, pool: u32, traffic: Traffic, now: u64) {
        let interval = self.throttle.epoch(now, traffic);
        let us = u128::from(interval) * 1_000_000 / u128::from(self.ticks_per_second.max(1));
        let us = u64::try_from(us).unwrap_or(u64::MAX).min(LONGEST_US);
        let bits = (us as u32) << r::EITR_US;
        for (index, vector) in (0..).zip(&mut self.vectors) {
            let register = r::vf_eitr(pool, index);
            let now = registers.read(register);
            let set = now & r::EITR_INTERVAL;
            if set != vector.written {
                vector.by_guest = set;
                self.counts.by_guest += 1;
            }
            let wanted = bits.max(vector.by_guest);
            if set != wanted {
                let others = now & r::EITR_LLI;
                registers.write(register, wanted | others | r::EITR_KEEP_COUNTER);
            }
            vector.written = wanted;
        }
        self.counts.epochs += 1;
        self.counts.held += u64::from(us > 0);
        self.counts.longest_us = self.counts.longest_us.max(us);
    }
}

/// Descriptors of a transmit queue that aren't done.
fn queued(registers: &mut impl Registers, queue: u32) -> u32 {
    let [entries, head, tail] = r::tx_queue(queue).map(|register| registers.read(register));
    let entries = (entries / DESCRIPTOR).min(1 << 16);
    let (head, tail) = (head & 0xFFFF, tail & 0xFFFF);
    match tail.checked_sub(head) {
        Some(count) => count.min(entries),
        None => (tail + entries).saturating_sub(head),
    }
}
