//! The time, in nanoseconds since the system's start; or as a test says it.

use rustix::time::{ClockId, clock_gettime};
#[cfg(test)]
use std::{cell::Cell, rc::Rc};

/// Ticks of the clock in a second.
pub const HERTZ: u64 = 1_000_000_000;

/// What tells the time.
#[derive(Clone, Debug)]
pub enum Clock {
    System,
    /// A test: the time, and how much passes until each look.
    #[cfg(test)]
    Manual(Rc<Cell<u64>>, Rc<Cell<u64>>),
}

impl Clock {
    /// The system's, which never goes back.
    pub fn system() -> Clock {
        Clock::System
    }

    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Clock::System => {
                let time = clock_gettime(ClockId::Monotonic);
                (time.tv_sec as u64).wrapping_mul(HERTZ).wrapping_add(time.tv_nsec as u64)
            }
            #[cfg(test)]
            Clock::Manual(now, step) => {
                now.set(now.get() + step.get());
                now.get()
            }
        }
    }
}
