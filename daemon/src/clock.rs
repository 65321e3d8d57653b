//! The time, in nanoseconds since the start; or as a test says it.

use std::time::Instant;
#[cfg(test)]
use std::{cell::Cell, rc::Rc};

/// Ticks of the clock in a second.
pub const HERTZ: u64 = 1_000_000_000;

/// What tells the time.
#[derive(Clone, Debug)]
pub enum Clock {
    System(Instant),
    #[cfg(test)]
    Manual(Rc<Cell<u64>>),
}

impl Clock {
    /// The system's, which never goes back.
    pub fn system() -> Clock {
        Clock::System(Instant::now())
    }

    #[inline]
    pub fn now(&self) -> u64 {
        match self {
            Clock::System(began) => u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            #[cfg(test)]
            Clock::Manual(now) => now.get(),
        }
    }
}
