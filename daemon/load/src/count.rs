//! Latencies.

/// Buckets of each power of two.
const EACH: u64 = 32;
const POWERS: u64 = 40;

/// Latencies in nanoseconds, each within three hundredths.
pub struct Histogram(Vec<u64>);

impl Histogram {
    pub fn new() -> Histogram {
        Histogram(vec![0; (EACH * POWERS) as usize])
    }

    #[inline]
    pub fn add(&mut self, nanoseconds: u64) {
        let bits = u64::from(nanoseconds.max(EACH).ilog2());
        let within = (nanoseconds.max(EACH) >> (bits - 5)) - EACH;
        let at = ((bits - 5) * EACH + within).min(EACH * POWERS - 1);
        if let Some(bucket) = self.0.get_mut(at as usize) {
            *bucket += 1;
        }
    }

    /// That so many in a thousand don't exceed.
    pub fn at(&self, thousandths: u64) -> u64 {
        let all: u64 = self.0.iter().sum();
        let wanted = (all * thousandths).div_ceil(1000);
        let mut sum = 0;
        for (at, bucket) in (0..).zip(&self.0) {
            sum += bucket;
            if sum >= wanted {
                return (EACH + at % EACH) << (at / EACH);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_three_hundredths() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        for (thousandths, exact) in [(500, 500_000.0), (990, 990_000.0), (1000, 1_000_000.0)] {
            let found = histogram.at(thousandths) as f64;
            assert!((found / exact - 1.0).abs() < 0.035, "{found} for {exact}");
        }
        assert_eq!(Histogram::new().at(500), 32);
    }
}
