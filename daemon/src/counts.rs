//! What is counted: of each ring, and of the thread's time.

/// Powers of two of nanoseconds, from below 256 ns on: the last class is all from 2^30 on.
pub const CLASSES: usize = 24;
/// The first class ends at 2^8 ns.
pub const FIRST_CLASS: u32 = 8;

/// Of a ring, since its connection began; or of all rings that a device had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Chains that were completed.
    pub completed: u64,
    /// Chains that were in flight, as vIC counts them, at each of them: what a completion leaves.
    pub left: u64,
    /// Bytes that were asked for, or of frames.
    pub bytes: u64,
    /// Of them, requests that were answered with an I/O error.
    pub errors: u64,
    /// Frames that nobody got.
    pub dropped: u64,
    /// Calls that were made.
    pub calls: u64,
    /// Completions that vIC told of later.
    pub withheld: u64,
    /// Kicks that woke it up.
    pub kicks: u64,
    /// Times that its kicks weren't listened to for a while.
    pub throttled: u64,
    /// Nanoseconds for which its device's limit held that back, by what this ring had been served.
    pub held: u64,
    /// Times that it did.
    pub limited: u64,
    /// Turns, by how long it was seen waiting for them.
    pub waits: Histogram,
    /// Requests or frames, by how long they took: from when the ring was seen waiting, or its turn
    /// began, until the answer was published.
    pub latencies: Histogram,
}

/// Counts by powers of two of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub classes: [u64; CLASSES],
    /// All of them together.
    pub sum: u64,
}

impl Histogram {
    /// One that took so long.
    #[inline]
    pub fn note(&mut self, nanoseconds: u64) {
        self.note_all(nanoseconds, 1);
    }

    /// So many, each of which took so long.
    #[inline]
    pub fn note_all(&mut self, nanoseconds: u64, count: u32) {
        let bits = 64 - nanoseconds.leading_zeros();
        let class = bits.saturating_sub(FIRST_CLASS) as usize;
        self.classes[class.min(CLASSES - 1)] += u64::from(count);
        self.sum = self.sum.saturating_add(nanoseconds.saturating_mul(count.into()));
    }

    fn add(&mut self, other: &Histogram) {
        for (to, from) in self.classes.iter_mut().zip(other.classes) {
            *to += from;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The end of the class in which so many thousandths of all lie, in nanoseconds.
    pub fn quantile(&self, thousandths: u64) -> u64 {
        let wanted = (self.count() * thousandths).div_ceil(1000);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return 1 << (class as u32 + FIRST_CLASS);
            }
        }
        0
    }
}

impl Counts {
    /// Those of another ring, too.
    pub fn add(&mut self, other: &Counts) {
        self.completed += other.completed;
        self.left = self.left.saturating_add(other.left);
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.dropped += other.dropped;
        self.calls += other.calls;
        self.withheld += other.withheld;
        self.kicks += other.kicks;
        self.throttled += other.throttled;
        self.held += other.held;
        self.limited += other.limited;
        self.waits.add(&other.waits);
        self.latencies.add(&other.latencies);
    }
}

/// What the thread did with its time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Passes that found something.
    pub busy: u64,
    /// Passes that didn't.
    pub polling: u64,
    /// In the kernel, for want of work.
    pub asleep: u64,
    /// How often it slept.
    pub sleeps: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), 256);
        for nanoseconds in [0, 255, 256, 511, 1 << 40, u64::MAX] {
            histogram.note(nanoseconds);
        }
        assert_eq!((histogram.classes[0], histogram.classes[1]), (2, 2));
        assert_eq!((histogram.classes[CLASSES - 1], histogram.count()), (2, 6));
        assert_eq!((histogram.quantile(333), histogram.quantile(500)), (256, 512));
    }
}
