//! Sizes of memory as people write them: "512M", "1G"; fractions are refused.

use crate::shown::Shown;
use alloc::string::{String, ToString};
use core::fmt;

/// The text isn't a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No unit.
    #[error("`{}` has no unit; write it with K, M, G or T, such as \"512M\" or \"1G\"", Shown(.0))]
    NoUnit(String),
    /// Nothing.
    #[error("`{}` is empty; write a size with K, M, G or T, such as \"512M\" or \"1G\"", Shown(.0))]
    Empty(String),
    /// Something else.
    #[error("`{}` is no size; write a whole number with K, M, G or T, such as \"512M\" or \"1G\"", Shown(.0))]
    NotASize(String),
    /// More bytes than 64 bits count.
    #[error("`{}` is more than any machine has", Shown(.0))]
    TooMuch(String),
}

const UNITS: [(u8, u32); 4] = [(b'K', 10), (b'M', 20), (b'G', 30), (b'T', 40)];

/// Reads "512M", "1G", "2GiB": powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let wrong = || SizeError::NotASize(text.to_string());
    if !text.is_empty() && text.bytes().all(|b| b == b'0') {
        return Err(SizeError::Empty(text.to_string()));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(SizeError::NoUnit(text.to_string()));
    }
    let short = text.strip_suffix("iB").unwrap_or(text);
    let (unit, digits) = short.as_bytes().split_last().ok_or_else(wrong)?;
    let (_, shift) = UNITS.iter().find(|(u, _)| u == unit).ok_or_else(wrong)?;
    let whole = |d: &&str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit());
    let digits = core::str::from_utf8(digits).ok().filter(whole).ok_or_else(wrong)?;
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    number.ok_or_else(|| SizeError::TooMuch(text.to_string()))
}

/// The text isn't a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// No unit.
    #[error("`{}` has no unit; write bytes in a second with K, M, G or T, such as \"100M/s\"", Shown(.0))]
    NoUnit(String),
    /// Something else.
    #[error("`{}` is no rate; write bytes in a second with K, M, G or T, such as \"100M/s\"", Shown(.0))]
    NotARate(String),
}

/// Reads "100M/s": bytes in a second, by powers of 1024.
pub fn parse_rate(text: &str) -> Result<u64, RateError> {
    match text.strip_suffix("/s").map(parse_size) {
        Some(Ok(bytes)) => Ok(bytes),
        Some(Err(SizeError::NoUnit(_) | SizeError::Empty(_))) => {
            Err(RateError::NoUnit(text.to_string()))
        }
        _ => Err(RateError::NotARate(text.to_string())),
    }
}

/// Prints bytes in the largest unit that divides them: `1G`, `96M`, `5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().rev().find(|(_, s)| self.0 != 0 && self.0.is_multiple_of(1 << s));
        match whole {
            Some((unit, shift)) => write!(f, "{}{}", self.0 >> shift, char::from(*unit)),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_told_from_sizes() {
        assert_eq!(parse_rate("100M/s"), Ok(100 << 20));
        for text in ["", "/s", "100M", "100Mbit/s", "1.5M/s", "100M/min", "99999999T/s"] {
            assert_eq!(parse_rate(text), Err(RateError::NotARate(text.into())), "{text}");
        }
        for text in ["0/s", "1/s", "100/s"] {
            assert_eq!(parse_rate(text), Err(RateError::NoUnit(text.into())), "{text}");
        }
        assert_eq!(
            parse_rate("1/s").unwrap_err().to_string(),
            "`1/s` has no unit; write bytes in a second with K, M, G or T, such as \"100M/s\""
        );
        assert_eq!(
            parse_rate("1M").unwrap_err().to_string(),
            "`1M` is no rate; write bytes in a second with K, M, G or T, such as \"100M/s\""
        );
    }

    #[test]
    fn sizes_read_as_written() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("64"), Err(SizeError::NoUnit("64".into())));
        assert_eq!(parse_size("0"), Err(SizeError::Empty("0".into())));
        for text in ["", "M", "1.5G", "-1M", "+1M", "1m", "1 G", "GiB", "1µ"] {
            assert_eq!(parse_size(text), Err(SizeError::NotASize(text.into())), "{text}");
        }
        assert_eq!(parse_size("16777215T"), Ok(16_777_215 << 40));
        for text in ["16777216T", "99999999999999999999M"] {
            assert_eq!(parse_size(text), Err(SizeError::TooMuch(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same(n in 1u64..u64::MAX >> 10) {
            prop_assert_eq!(parse_size(&Size(n << 10).to_string()), Ok(n << 10));
        }

        #[test]
        fn rates_are_sizes_in_a_second(n in 1u64..u64::MAX >> 10) {
            prop_assert_eq!(parse_rate(&format!("{}/s", Size(n << 10))), Ok(n << 10));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = (parse_size(&text), parse_rate(&text));
        }
    }
}
