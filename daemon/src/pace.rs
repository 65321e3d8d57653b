//! How long it takes to tell a front end something. Who waits for an eventfd or at a socket is
//! woken up by whoever tells it, one after the other: a front end that has a million entries in
//! epoll sets for one of them makes each call take a tenth of a second.
//!
//! Guarantees: calls in a row that take longer than [`SLOW`] each, and together as long as
//! [`ALLOWED`], are found out, and how much was lost by them is kept: the device takes no front end
//! for [`TIMES`] as long.
//!
//! Not guaranteed: that less than that isn't lost. What counts is this thread's own time, so that a
//! busy system is nobody's fault; in a virtual machine it may be its host's, which is why a few say
//! nothing.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLOW: Duration = Duration::from_millis(1);
const ALLOWED: Duration = Duration::from_millis(200);
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

/// Is that long for one?
pub fn is_slow(took: Duration) -> bool {
    took >= SLOW
}

/// Of one eventfd or socket.
#[derive(Debug, Default)]
pub struct Pace {
    /// The next ones are to be measured.
    pub is_suspected: bool,
    /// How much those in a row took that were slow.
    lost: Duration,
}

impl Pace {
    /// One took this long. False: it is too much.
    #[must_use]
    pub fn allows(&mut self, took: Duration) -> bool {
        if !is_slow(took) {
            *self = Pace::default();
            return true;
        }
        self.lost += took;
        let is_allowed = self.lost < ALLOWED;
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
    fn slow_ones_in_a_row_are_too_much() {
        let (quick, half) = (SLOW / 2, ALLOWED / 2);
        let mut pace = Pace::default();
        for _ in 0..3 {
            assert!(pace.allows(half) && pace.allows(half / 2));
            assert!(pace.allows(quick));
        }
        assert_eq!(take_owed(), 0);
        assert!(pace.allows(half) && !pace.allows(half));
        assert_eq!(take_owed(), TIMES * ALLOWED.as_nanos() as u64);
        let mut pace = Pace::default();
        assert!((1..ALLOWED.as_millis()).all(|_| pace.allows(SLOW)) && !pace.allows(SLOW));
    }

    /// Who sleeps takes no time of its own.
    #[test]
    fn waiting_isnt_measured() {
        const WAIT: Duration = Duration::from_millis(60);
        let began = Instant::now();
        let ((), took) = measured(|| {
            let (_told, is_told) = std::sync::mpsc::channel::<()>();
            let _ = is_told.recv_timeout(WAIT);
        });
        assert!(!is_slow(took) && began.elapsed() >= WAIT, "{took:?}");
    }
}
