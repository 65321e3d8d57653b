//! A limit for log lines that a guest can cause.

use crate::cpu::tsc_hz;
use core::sync::atomic::{AtomicU64, Ordering};

/// At most one line a second: the TSC of the last one.
#[derive(Default)]
pub struct OnceASecond(AtomicU64);

impl OnceASecond {
    /// None was written yet.
    pub const fn new() -> Self {
        OnceASecond(AtomicU64::new(0))
    }

    /// Is it time for another line? Then the caller writes it.
    pub fn claim(&self, now: u64) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let due = last == 0 || now.wrapping_sub(last) >= tsc_hz();
        due && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
