//! How far a counter came, and how rates and shares are written.

use crate::table::thousands;

/// How far a counter came. One that went down wrapped if that was a small step, and else
/// started again from 0.
pub fn difference(old: u64, new: u64) -> u64 {
    let step = new.wrapping_sub(old);
    if step > u64::MAX / 2 { new } else { step }
}

/// A number per second: with a decimal while that says something.
pub fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { thousands(rate.round() as u64) }
}

/// A part of a whole in per cent.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_have_a_decimal() {
        let shown = [0.0, 0.04, 3.26, 9.95, 1234.5].map(per_second);
        assert_eq!(shown, ["0", "0.0", "3.3", "10", "1,235"]);
        assert_eq!(percent(0.01234), "1.23 %");
    }
}
