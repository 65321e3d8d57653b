//! The CMOS clock (MC146818) behind ports 0x70 and 0x71: a time that stands still.
//!
//! Guarantees that a driver reads a valid, stable date in BCD and 24 hours, with
//! no update in progress. Writes to time and control registers are ignored, no
//! alarm or periodic interrupt ever comes, and CMOS RAM reads zero.

use crate::ports::{Ports, Sizes};

/// The port that chooses a register.
pub const INDEX: u16 = 0x70;
/// The port of the register chosen.
pub const DATA: u16 = 0x71;
/// Both.
pub const PORTS: Ports = Ports::new(INDEX..=DATA, Sizes::BYTE);

/// Register B: 24-hour mode; binary mode (bit 2) off, interrupts off.
const STATUS_B: u8 = 0x02;
/// Register A: 32768 Hz time base, 1024 Hz rate, no update in progress.
const STATUS_A: u8 = 0x26;
/// Register D: RAM and time are valid.
const STATUS_D: u8 = 0x80;
/// The end of year 9999, the last a two-digit century can name.
const LAST_SECOND: u64 = 253_402_300_799;

/// The clock and the index last written.
#[derive(Clone, Debug)]
pub struct Rtc {
    index: u8,
    seconds: u8,
    minutes: u8,
    hours: u8,
    weekday: u8,
    day: u8,
    month: u8,
    year: u16,
}

impl Rtc {
    /// A clock that shows this time, in seconds since 1970 (UTC), for ever.
    pub fn new(unix_seconds: u64) -> Self {
        let unix_seconds = unix_seconds.min(LAST_SECOND);
        let (days, second) = (unix_seconds / 86400, unix_seconds % 86400);
        let (year, month, day) = civil(days);
        Rtc {
            index: 0,
            seconds: (second % 60) as u8,
            minutes: (second / 60 % 60) as u8,
            hours: (second / 3600) as u8,
            // 1970-01-01 was a Thursday; the clock counts Sunday as 1.
            weekday: ((days + 4) % 7 + 1) as u8,
            day,
            month,
            year,
        }
    }

    /// [`INDEX`]: chooses a register. Bit 7 would mask NMIs; it does nothing here.
    pub fn write_index(&mut self, value: u8) {
        self.index = value & 0x7F;
    }

    /// [`DATA`]: the register chosen.
    pub fn read_data(&self) -> u8 {
        match self.index {
            0x00 => bcd(self.seconds),
            0x02 => bcd(self.minutes),
            0x04 => bcd(self.hours),
            0x06 => self.weekday,
            0x07 => bcd(self.day),
            0x08 => bcd(self.month),
            0x09 => bcd((self.year % 100) as u8),
            0x0A => STATUS_A,
            0x0B => STATUS_B,
            0x0D => STATUS_D,
            0x32 => bcd((self.year / 100) as u8),
            _ => 0,
        }
    }
}

/// Two decimal digits as hexadecimal ones.
const fn bcd(value: u8) -> u8 {
    ((value / 10 % 10) << 4) | (value % 10)
}

/// Days since 1970 as (year, month, day) of the Gregorian calendar. Years are
/// counted from March, so that the leap day comes last; an era is 400 years.
fn civil(days: u64) -> (u16, u8, u8) {
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year as u16, month as u8, day as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn register(rtc: &mut Rtc, index: u8) -> u8 {
        rtc.write_index(index);
        rtc.read_data()
    }

    #[test]
    fn a_known_moment_reads_as_its_date() {
        // 2024-02-29 23:59:58 UTC, a Thursday.
        let mut rtc = Rtc::new(1_709_251_198);
        let read: Vec<u8> =
            [0x32, 9, 8, 7, 6, 4, 2, 0].map(|i| register(&mut rtc, i | 0x80)).to_vec();
        assert_eq!(read, [0x20, 0x24, 0x02, 0x29, 5, 0x23, 0x59, 0x58]);
        assert_eq!(register(&mut rtc, 0x0A) & 0x80, 0, "no update in progress");
        assert_eq!(register(&mut rtc, 0x0A), 0x26, "its rates");
        assert_eq!(register(&mut rtc, 0x0B), 0x02, "24 hours, BCD");
        assert_eq!(register(&mut rtc, 0x0D), 0x80);
        assert_eq!(register(&mut rtc, 0x40), 0);
    }

    #[test]
    fn time_ends_with_the_year_9999() {
        for (seconds, last) in [(253_402_300_798, 0x58), (253_402_300_799, 0x59), (u64::MAX, 0x59)]
        {
            let mut rtc = Rtc::new(seconds);
            let read = [0x32, 9, 8, 7, 6, 4, 2, 0].map(|i| register(&mut rtc, i));
            assert_eq!(read, [0x99, 0x99, 0x12, 0x31, 6, 0x23, 0x59, last], "a Friday");
        }
    }

    #[test]
    fn consecutive_days_are_consecutive_dates_for_four_centuries() {
        let length = |y: u16, m: u8| match m {
            2 if y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400)) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let (mut y, mut m, mut d) = (1970, 1, 1);
        for days in 0..150_000 {
            assert_eq!(civil(days), (y, m, d));
            d += 1;
            if d > length(y, m) {
                (m, d) = (m + 1, 1);
            }
            if m > 12 {
                (y, m) = (y + 1, 1);
            }
        }
    }

    proptest! {
        #[test]
        fn any_time_and_register_is_valid_bcd(seconds: u64, index in prop::sample::select(vec![0u8, 2, 4, 6, 7, 8, 9, 0x32])) {
            let value = register(&mut Rtc::new(seconds), index);
            prop_assert!(value >> 4 <= 9 && value & 0xF <= 9);
        }
    }
}
