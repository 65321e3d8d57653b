//! Which completions of a queue are told to the guest by an interrupt.
//!
//! Guarantees: a completion that the driver wants to be told of is told when the caller asks
//! ([`Signal::call`]), or, if vIC holds it back, at the coalescer's deadline at the latest. What
//! was published stays so, whatever becomes of its interrupt.

use crate::cpu::{rdtsc, tsc_hz, x2apic};
use crate::sidecore::entries;
use crate::sidecore::port::{Counts, Port, add};
use coalesce::{Coalescer, Map, Settings};
use core::ops::Range;
use delivery::FIRST_RESERVED;
use plan::{Coalesce, Coalescing};
use routing::calls::{Called, Caller, Entry, Target};
use virtqueue::Queue;

/// A queue's interrupts.
pub struct Signal {
    coalescer: Coalescer,
    settings: Settings,
    /// Each completion that the driver wants to be told of is told.
    each: bool,
    /// When the last ones were completed, as many were in flight as are coalesced.
    many: bool,
    /// An interrupt that the driver wants was put off.
    owed: bool,
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
        let (parameters, each) = match coalesce {
            Coalesce::Off => (Coalescing::USUAL, true),
            Coalesce::On(parameters) => (parameters, false),
        };
        let Coalescing { in_flight, rate, epoch_us, deferral_us, adapted } = parameters;
        let hz = tsc_hz();
        let ticks = |us: u32| hz.saturating_mul(us.into()) / 1_000_000;
        let settings = Settings {
            ticks_per_second: hz,
            iops_threshold: rate.into(),
            cif_threshold: in_flight,
            epoch: ticks(epoch_us),
            ipi_deferral: ticks(deferral_us),
            map: if adapted { Map::Adapted } else { Map::Paper },
        };
        let coalescer = Coalescer::new(settings, 0);
        Signal { coalescer, settings, each, many: false, owed: false }
    }

    /// The queue has a ring from now on.
    pub fn start(&mut self, now: u64) {
        self.coalescer = Coalescer::new(self.settings, now);
        (self.many, self.owed) = (false, false);
    }

    /// It has none: nothing is to be told any more.
    pub fn stop(&mut self) {
        self.coalescer.settled();
        self.owed = false;
    }

    /// So many chains were completed together. `in_flight`: those that are to come. True: the guest
    /// is to be told now.
    #[inline(always)]
    pub fn completed(&mut self, chains: u32, now: u64, in_flight: u32, counts: &Counts) -> bool {
        if self.each {
            return true;
        }
        self.many = in_flight >= self.settings.cif_threshold.into();
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
        // The driver is asked about what was published since, once.
        if !ring.is_some_and(Queue::wants_call) && !self.owed {
            return self.coalescer.settled();
        }
        let now = rdtsc();
        let vector = line.port.vector(index);
        let entry = vector.and_then(|vector| entries::of(line.entries, vector));
        let counts = line.port.counts(index);
        self.owed = entry.is_some_and(|entry| self.is_put_off(entry, now));
        if self.owed {
            counts.into_iter().for_each(|counts| add(&counts.withheld, 1));
            return;
        }
        self.coalescer.delivered(now);
        if let Some(entry) = entry
            && line.caller.call(entry, send) != Called::Dropped
            && let Some(counts) = counts
        {
            add(&counts.calls, 1);
        }
    }

    /// Does an interrupt wait that was to be sent now? vIC defers IPIs by the last one's stamp
    /// (section 3.3). Here it pays where another vCPU has the core: each of them is an exit in its
    /// time. The one that has the core itself has no exits, by which it would see what waits.
    fn is_put_off(&mut self, entry: &Entry, now: u64) -> bool {
        let waits = || entry.target().is_some_and(|to| to.vector >= FIRST_RESERVED);
        !self.each && self.many && waits() && self.coalescer.defer_ipi(now)
    }
}

/// Writes the ICR.
pub fn send(to: Target) {
    x2apic::send_ipi(to.destination, to.vector);
}
