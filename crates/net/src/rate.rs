//! Limits of bytes by time: a token bucket, counted as the time at which it is full again.

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In the long run; 0 counts as 1.
    pub bytes_per_second: u64,
    /// How much may be at once, after a time of less.
    pub burst: u64,
}

/// What is left of a limit. Its caller asks before, and takes as much as it was afterwards: the
/// last one may be more than there is, and the next one waits the longer for it.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Option<Rate>,
    /// The time of a burst at this rate, in nanoseconds.
    burst: u64,
    /// When all that was taken is made up for.
    full_at: u64,
}

impl Bucket {
    /// A full one. Without a rate there is no limit.
    pub fn new(rate: Option<Rate>) -> Bucket {
        let burst = rate.map_or(0, |rate| time(rate.burst, rate.bytes_per_second));
        Bucket { rate, burst, full_at: 0 }
    }

    /// Whether there is a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// From which time on something may be taken, in nanoseconds of the caller's clock.
    pub fn ready_at(&self) -> u64 {
        // With a whole burst taken there is nothing left: one nanosecond's worth must be back.
        if self.rate.is_none() { 0 } else { (self.full_at + 1).saturating_sub(self.burst) }
    }

    /// Takes so many bytes. The clock never goes back.
    pub fn take(&mut self, bytes: u64, now: u64) {
        if let Some(rate) = self.rate {
            let time = time(bytes, rate.bytes_per_second);
            self.full_at = self.full_at.max(now).saturating_add(time).min(u64::MAX - 1);
        }
    }
}

/// How long so many bytes take, rounded up.
fn time(bytes: u64, bytes_per_second: u64) -> u64 {
    let time = u128::from(bytes) * u128::from(SECOND);
    time.div_ceil(bytes_per_second.max(1).into()).try_into().unwrap_or(u64::MAX)
}
