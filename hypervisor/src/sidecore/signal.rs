//! Which completions of a queue are told to the guest by an interrupt.
//!
//! Guarantees: a completion that the driver wants to be told of is told when the caller asks
//! ([`Signal::call`]), or, if vIC holds it back, at the coalescer's deadline at the latest. What was
//! published stays so, whatever becomes of its interrupt.

use crate::cpu::{rdtsc, tsc_hz, x2apic};
use crate::sidecore::entries;
use crate::sidecore::port::{Counts, Port, add};
use coalesce::{Coalescer, Settings};
use core::ops::Range;
use plan::Coalesce;
use routing::calls::{Called, Caller, Target};
use virtqueue::Queue;

/// A queue's interrupts.
pub struct Signal {
    coalescer: Coalescer,
    settings: Settings,
    /// Each completion that the driver wants to be told of is told.
    each: bool,
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
    pub fn new(coalesce: Coalesce) -> Self {
        let usual = Settings::paper(tsc_hz());
        let settings = match coalesce {
            Coalesce::Usual | Coalesce::Off => usual,
            Coalesce::From { in_flight, rate } => {
                Settings { cif_threshold: in_flight, iops_threshold: rate.into(), ..usual }
            }
        };
        let coalescer = Coalescer::new(settings, 0);
        Signal { coalescer, settings, each: coalesce == Coalesce::Off }
    }

    /// The queue has a ring from now on.
    pub fn start(&mut self, now: u64) {
        self.coalescer = Coalescer::new(self.settings, now);
    }

    /// It has none: nothing is to be told any more.
    pub fn stop(&mut self) {
        self.coalescer.settled();
    }

    /// So many chains were completed together. `in_flight`: those that are to come. True: the guest
    /// is to be told now.
    #[inline]
    pub fn completed(&mut self, chains: u32, now: u64, in_flight: u32, counts: &Counts) -> bool {
        if self.each {
            return true;
        }
        let (tell, withheld) = self.coalescer.completed_together(chains, now, in_flight);
        if withheld > 0 {
            add(&counts.withheld, withheld.into());
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
