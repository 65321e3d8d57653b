//! How long it takes to tell a front end something. Who waits for an eventfd or at a socket is
//! woken up by whoever tells it, one after the other: a front end that has a million entries in
//! epoll sets for one of them makes each call take a tenth of a second.
//!
//! Guarantees: two in a row that take longer than [`LONG`], or [`IN_A_ROW`] that take longer than
//! [`SLOW`], are found out, and how much was lost by them is kept: the device takes no front end
//! for [`TIMES`] as long.
//!
//! Not guaranteed: that two calls alone don't take long. What counts is this thread's own time, so
//! that a busy system is nobody's fault; in a virtual machine it may be of its host's, which is why
//! one alone says nothing.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const LONG: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(1);
const IN_A_ROW: u32 = 8;
const TIMES: u64 = 50;

/// Nanoseconds that were lost, since that was last asked.
static LOST: AtomicU64 = AtomicU64::new(0);

/// For how many nanoseconds a device takes no front end, for what was lost since this was last
/// asked.
pub fn take_owed() -> u64 {
    LOST.swap(0, Ordering::Relaxed).saturating_mul(TIMES)
}

/// Does this, and tells what it took of this thread's time. A clock of it that is coarse doesn't
/// make that longer than it was.
pub fn measured<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let own = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    };
    let (began, before) = (Instant::now(), own());
    let done = call();
    let took = own().saturating_sub(before).min(began.elapsed());
    (done, took)
}

/// Of one eventfd or socket.
#[derive(Debug, Default)]
pub struct Pace {
    /// The next ones are to be measured.
    pub is_suspected: bool,
    /// So many in a row were slow, and how much they took.
    slow: u32,
    lost: Duration,
}

impl Pace {
    /// One took this long. False: it is too much.
    #[must_use]
    pub fn allows(&mut self, took: Duration) -> bool {
        if took < SLOW {
            *self = Pace::default();
            return true;
        }
        self.slow += if took < LONG { 1 } else { IN_A_ROW / 2 };
        self.lost += took;
        let is_allowed = self.slow < IN_A_ROW;
        if !is_allowed {
            LOST.fetch_add(self.lost.as_nanos() as u64, Ordering::Relaxed);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_one_or_several_slow_ones_are_too_much() {
        let quick = SLOW / 2;
        let mut pace = Pace::default();
        for _ in 0..3 {
            assert!((1..IN_A_ROW).all(|_| pace.allows(SLOW)));
            assert!(pace.allows(quick));
        }
        assert_eq!(take_owed(), 0);
        assert!((1..IN_A_ROW).all(|_| pace.allows(SLOW)) && !pace.allows(SLOW));
        let slow = SLOW.as_nanos() as u64 * u64::from(IN_A_ROW);
        assert_eq!(take_owed(), TIMES * slow);
        let mut pace = Pace::default();
        assert!(pace.allows(LONG) && !pace.allows(LONG));
        assert_eq!(take_owed(), 2 * TIMES * LONG.as_nanos() as u64);
        assert_eq!(take_owed(), 0);
    }

    /// Who sleeps takes no time of its own.
    #[test]
    fn waiting_isnt_measured() {
        let began = Instant::now();
        let ((), took) = measured(|| {
            let (_told, is_told) = std::sync::mpsc::channel::<()>();
            let _ = is_told.recv_timeout(3 * LONG);
        });
        assert!(took < LONG && began.elapsed() >= 3 * LONG, "{took:?}");
    }
}
