//! Requests of one core to another core's vCPU, from the asking to the entry behind it.
//!
//! Guarantees: a request stands until the vCPU's own core says that it is done, and that core sees
//! it before the vCPU's guest next runs. A core that sees the request for the inbox sees the
//! vector, too. A shared core looks at a blocked vCPU when a request comes that the vCPU wakes up
//! for.
//!
//! | file | is |
//! |---|---|
//! | `lib` | the mailbox: requests, interrupts, start-up state, as atomics |
//! | `asker` | other cores: store what is asked, then get the core to look |
//! | `owner` | its own core: do what is asked, and look last of all before an entry |
//! | `residency` | a shared core: who is resident, who is blocked, which core is to look |
//! | `alarm` | core 0 takes a shared core back at a given time |
//! | `queue` | the same core's own part: who waits for what, and who runs next |
//!
//! All of it runs under loom as it is (`model`). How a core is reached, and what is done there, are
//! the caller's, by the traits [`Kick`], [`Reach`], [`Owner`] and [`Entrant`].
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod alarm;
mod asker;
mod owner;
mod queue;
mod residency;

use delivery::Startup;
use sync::{AtomicU32, AtomicU64, Ordering};

pub use alarm::{Alarm, Clock};
pub use asker::Kick;
pub use owner::{Attended, Entrant, Owner};
pub use queue::{NEVER, Queue, Yield};
pub use residency::{Reach, Residency};

#[cfg(test)]
#[cfg(loom)]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod owner_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod shared_tests;

/// The requests, one bit each.
pub mod request {
    /// Forget cached translations of guest-physical addresses.
    pub const FLUSH: u32 = 1 << 0;
    /// Leave ELI mode: the shadow IDT is taken away.
    pub const LEAVE_ELI: u32 = 1 << 1;
    /// Raise an NMI in the guest.
    pub const NMI: u32 = 1 << 2;
    /// Look at the start-up state: INIT, or the end of the VM.
    pub const STARTUP: u32 = 1 << 4;
    /// Input for the console has arrived.
    pub const CONSOLE: u32 = 1 << 5;
    /// Look over the core's local interrupt sources, for the audit: whenever the vCPU next exits
    /// anyway. Nobody kicks for it.
    pub const SOURCES: u32 = 1 << 6;
    /// Look who else of the shared core could run.
    pub const RESCHEDULE: u32 = 1 << 7;
    /// Look into the inbox: a bit for each of its words.
    pub const INBOX: u32 = 0xF << INBOX_SHIFT;
    pub(crate) const INBOX_SHIFT: u32 = 8;

    /// Requests that wake a blocked vCPU up.
    pub const WAKEUPS: u32 = NMI | INBOX | STARTUP | CONSOLE;
    /// Requests that may wait until the vCPU next exits; none of them is ever overdue.
    /// [`RESCHEDULE`] is among them since core 0 asks for it again after each time slice
    /// ([`Residency::watch`](crate::Residency::watch)).
    pub const LEISURELY: u32 = SOURCES | RESCHEDULE;
}

/// The mailbox of one vCPU.
#[derive(Debug)]
pub struct Mailbox {
    startup: AtomicU32,
    requests: AtomicU32,
    /// The requests that [`Mailbox::overdue`] has found whenever it looked, and since when.
    seen: AtomicU32,
    since: AtomicU64,
    /// Vectors to make pending, by 64.
    inbox: [AtomicU64; 4],
}

const fn at_first(boot_processor: bool) -> Startup {
    if boot_processor { Startup::RUNNING } else { Startup::WAITING }
}

impl Mailbox {
    /// An empty one. The boot processor runs at once, others wait for a start-up.
    pub fn new(boot_processor: bool) -> Self {
        Mailbox {
            startup: AtomicU32::new(at_first(boot_processor).bits()),
            requests: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            since: AtomicU64::new(0),
            inbox: Default::default(),
        }
    }

    /// As [`Mailbox::new`] makes it. Only while no vCPU of the VM runs.
    pub fn restart(&self, boot_processor: bool) {
        // That one is other VMs': the core they share looks for them.
        self.done(!request::RESCHEDULE);
        // Emptied last: what a device sends meanwhile isn't left there without a request.
        self.take_inbox(request::INBOX, |_, _| {});
        self.startup.store(at_first(boot_processor).bits(), Ordering::Release);
    }

    /// The requests that aren't done yet.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Is there a request that a blocked vCPU wakes up for?
    #[inline]
    pub fn has_wakeup(&self) -> bool {
        self.requests() & request::WAKEUPS != 0
    }

    /// Stores a request. The caller tells the core afterwards.
    fn store(&self, requests: u32) {
        self.requests.fetch_or(requests, Ordering::AcqRel);
    }

    /// These requests are done; only the vCPU's own core says so.
    pub fn done(&self, requests: u32) {
        self.requests.fetch_and(!requests, Ordering::AcqRel);
    }

    /// Leaves a fixed interrupt in the inbox. The caller tells the core afterwards.
    #[inline]
    fn put(&self, vector: u8) {
        let index = vector >> 6;
        if let Some(word) = self.inbox.get(usize::from(index)) {
            word.fetch_or(1 << (vector & 63), Ordering::AcqRel);
            self.store(1 << index << request::INBOX_SHIFT);
        }
    }

    /// Forgets interrupts and NMIs that were asked for: they are gone with the state of the local
    /// APIC.
    pub fn forget_interrupts(&self) {
        self.done(request::INBOX | request::NMI);
        self.take_inbox(request::INBOX, |_, _| {});
    }

    /// Takes what was left in the words that are `asked` for, the highest first: the word's index,
    /// and its bits.
    #[inline]
    fn take_inbox(&self, asked: u32, mut take: impl FnMut(u32, u64)) {
        let mut words = (asked & request::INBOX) >> request::INBOX_SHIFT;
        while words != 0 {
            let index = words.ilog2();
            words ^= 1 << index;
            let word = self.inbox.get(index as usize);
            // Stored before the request was.
            take(index, word.map_or(0, |word| word.swap(0, Ordering::AcqRel)));
        }
    }

    /// Does the vCPU run, so that interrupts mean something to it?
    #[inline]
    pub fn running(&self) -> bool {
        Startup::from_bits(self.startup.load(Ordering::Acquire)).running()
    }

    /// The vCPU has left its guest for good: nobody waits for it any more.
    pub fn leave(&self) {
        self.change(|s| (s.left(), ()));
        self.done(request::WAKEUPS);
    }

    /// Changes the start-up state; gives what `f` gives besides.
    fn change<R>(&self, f: impl Fn(Startup) -> (Startup, R)) -> R {
        let mut old = self.startup.load(Ordering::Acquire);
        loop {
            let (new, result) = f(Startup::from_bits(old));
            match self.startup.compare_exchange_weak(
                old,
                new.bits(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return result,
                Err(seen) => old = seen,
            }
        }
    }

    /// The requests that were asked for at every call in the last `patience` ticks and still are,
    /// if the vCPU runs; once per `patience`. `now` in the same ticks. One caller only.
    pub fn overdue(&self, now: u64, patience: u64) -> Option<u32> {
        let asked = self.requests() & !request::LEISURELY;
        let still = asked & self.seen.load(Ordering::Relaxed);
        if still == 0 {
            self.seen.store(asked, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            return None;
        }
        self.seen.store(still, Ordering::Relaxed);
        let waited = now.wrapping_sub(self.since.load(Ordering::Relaxed));
        let overdue = waited > patience && self.running();
        if overdue {
            self.since.store(now, Ordering::Relaxed);
        }
        overdue.then_some(still)
    }
}

/// The vectors of a word of the inbox, the highest first.
fn vectors_of(index: u32, mut bits: u64) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || {
        let bit = bits.checked_ilog2()?;
        bits ^= 1 << bit;
        Some((64 * index + bit) as u8)
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_stays_until_it_is_done() {
        let mailbox = Mailbox::new(true);
        mailbox.store(request::FLUSH);
        assert!(!mailbox.has_wakeup());
        mailbox.store(request::NMI);
        assert!(mailbox.has_wakeup());
        mailbox.done(request::NMI);
        assert_eq!(mailbox.requests(), request::FLUSH);
    }

    #[test]
    fn each_request_has_a_bit_of_its_own() {
        use request::{CONSOLE, FLUSH, INBOX, LEAVE_ELI, NMI, RESCHEDULE, SOURCES, STARTUP};
        let all = [FLUSH, LEAVE_ELI, NMI, STARTUP, CONSOLE, SOURCES, RESCHEDULE];
        let words = [0x100, 0x200, 0x400, 0x800];
        assert_eq!(INBOX, words.iter().sum());
        let together = all.iter().chain(&words).fold(0, |sum, one| {
            assert!(one.is_power_of_two() && sum & one == 0, "{one:#x}");
            sum | one
        });
        for one in (0..32).map(|bit| 1 << bit).filter(|one| together & one != 0) {
            let mailbox = Mailbox::new(true);
            mailbox.store(one);
            let wakes = [NMI, STARTUP, CONSOLE].contains(&one) || words.contains(&one);
            assert_eq!(mailbox.has_wakeup(), wakes, "{one:#x}");
        }
    }

    #[test]
    fn the_inbox_keeps_every_vector_once() {
        let mailbox = Mailbox::new(true);
        let vectors = [0, 31, 32, 63, 64, 127, 128, 255];
        vectors.iter().chain(&vectors).for_each(|v| mailbox.put(*v));
        assert_eq!(mailbox.requests(), request::INBOX);
        let taken = || {
            let mut taken = std::vec::Vec::new();
            mailbox.take_inbox(request::INBOX, |index, bits| taken.extend(vectors_of(index, bits)));
            taken
        };
        assert!(taken().iter().rev().eq(&vectors));
        assert!(taken().is_empty());
    }

    #[test]
    fn a_restart_forgets_what_was_asked() {
        let mailbox = Mailbox::new(true);
        mailbox.put(0x41);
        mailbox.store(request::RESCHEDULE | request::FLUSH);
        mailbox.restart(false);
        assert_eq!((mailbox.requests(), mailbox.running()), (request::RESCHEDULE, false));
        mailbox.take_inbox(request::INBOX, |_, bits| assert_eq!(bits, 0));
        mailbox.restart(true);
        assert!(mailbox.running());
    }

    #[test]
    fn a_request_is_overdue_once_in_a_while_and_only_if_it_stood_all_the_time() {
        let mailbox = Mailbox::new(true);
        mailbox.store(request::NMI);
        assert_eq!(mailbox.overdue(0, 10), None);
        assert_eq!(mailbox.overdue(10, 10), None);
        assert_eq!(mailbox.overdue(11, 10), Some(request::NMI));
        assert_eq!(mailbox.overdue(12, 10), None);
        assert_eq!(mailbox.overdue(22, 10), Some(request::NMI));
        // Done, and another one asked for: that one is new.
        mailbox.done(request::NMI);
        mailbox.store(request::FLUSH);
        assert_eq!(mailbox.overdue(40, 10), None);
        assert_eq!(mailbox.overdue(50, 10), None);
        assert_eq!(mailbox.overdue(51, 10), Some(request::FLUSH));
    }

    #[test]
    fn what_may_wait_is_never_overdue_and_hides_nothing_that_is() {
        let mailbox = Mailbox::new(true);
        mailbox.ask_at_leisure(request::SOURCES);
        mailbox.store(request::RESCHEDULE);
        assert!(!mailbox.has_wakeup());
        assert_eq!(mailbox.overdue(0, 10), None);
        assert_eq!(mailbox.overdue(20, 10), None);
        mailbox.store(request::FLUSH);
        assert_eq!(mailbox.overdue(21, 10), None);
        assert_eq!(mailbox.overdue(31, 10), None);
        assert_eq!(mailbox.overdue(32, 10), Some(request::FLUSH));
    }

    #[test]
    fn nobody_is_waited_for_that_does_not_run() {
        let mailbox = Mailbox::new(false);
        mailbox.store(request::NMI);
        assert_eq!(mailbox.overdue(0, 10), None);
        assert_eq!(mailbox.overdue(100, 10), None);
    }
}
