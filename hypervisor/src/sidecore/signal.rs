//! Which completions of a queue are told to the guest by an interrupt.
//!
//! Guarantees: a completion that the driver wants to be told of is told when the caller asks
//! ([`Signal::call`]), or, if vIC holds it back, at the coalescer's deadline at the latest. What was
//! published stays so, whatever becomes of its interrupt.

use crate::cpu::{rdtsc, tsc_hz, x2apic};
use crate::sidecore::entries;
use crate::sidecore::port::{Counts, Port, add};
use coalesce::{Coalescer, Settings, Verdict};
use core::ops::Range;
use routing::calls::{Called, Caller, Target};
use virtqueue::Queue;

/// A queue's interrupts.
pub struct Signal {
    coalescer: Coalescer,
}

/// What an interrupt of a device goes by.
pub struct Line<'a, 'b> {
    pub port: &'a Port,
    /// The device's entries.
    pub entries: &'a Range<u16>,
    pub caller: &'a mut Caller<'b>,
}

impl Signal {
    /// Of a queue without a ring.
    pub fn new() -> Self {
        Signal { coalescer: Coalescer::new(Settings::paper(tsc_hz()), 0) }
    }

    /// The queue has a ring from now on.
    pub fn start(&mut self, now: u64) {
        self.coalescer = Coalescer::new(Settings::paper(tsc_hz()), now);
    }

    /// It has none: nothing is to be told any more.
    pub fn stop(&mut self) {
        self.coalescer.settled();
    }

    /// So many chains were completed together. `in_flight`: those that are to come. True: the guest
    /// is to be told now.
    #[inline]
    pub fn completed(&mut self, chains: u32, now: u64, in_flight: u32, counts: &Counts) -> bool {
        let mut tell = false;
        for _ in 0..chains {
            match self.coalescer.completed(now, in_flight) {
                Verdict::Deliver => tell = true,
                Verdict::Withhold => add(&counts.withheld, 1),
            }
        }
        tell
    }

    /// By when something that is held back is to be told.
    pub fn deadline(&self) -> Option<u64> {
        self.coalescer.deadline()
    }

    /// Is something that was held back to be told now?
    pub fn is_due(&mut self, now: u64) -> bool {
        self.coalescer.due(now)
    }

    /// Sends the interrupt of this queue of the line's device, if the driver wants one for what was
    /// published in the ring.
    pub fn call(&mut self, ring: Option<&mut Queue>, index: usize, line: &mut Line<'_, '_>) {
        if !ring.is_some_and(Queue::wants_call) {
            return self.coalescer.settled();
        }
        self.coalescer.delivered(rdtsc());
        let vector = line.port.vector(index);
        if let Some(entry) = vector.and_then(|vector| entries::of(line.entries, vector))
            && line.caller.call(entry, send) != Called::Dropped
            && let Some(counts) = line.port.counts(index)
        {
            add(&counts.calls, 1);
        }
    }
}

/// Writes the ICR.
pub fn send(to: Target) {
    x2apic::send_ipi(to.destination, to.vector);
}
