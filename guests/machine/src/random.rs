//! Random-looking numbers that repeat: xorshift64 (Marsaglia 2003).

use crate::boot::Boot;

/// The seed that the command line gives, by `seed=` and a decimal number.
pub fn seed(boot: &Boot) -> Option<u64> {
    boot.option("seed")?.parse().ok()
}

/// The generator.
pub struct Random(u64);

impl Random {
    /// Starts from a seed; zero becomes one.
    pub fn new(seed: u64) -> Random {
        Random(seed.max(1))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
