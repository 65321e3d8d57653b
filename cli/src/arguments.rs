//! What several commands read from their command lines alike.

use std::num::NonZeroU64;

/// A whole number, 1 or more: for what makes no sense with none.
pub fn positive(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "give a whole number, 1 or more")
}

/// A whole number in a range that a person can read.
pub fn between(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| format!("give a whole number from {least} to {most}"))
    }
}

/// The number of a process.
pub fn process(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "give the number of a process")
}

/// The arguments of a command as they stand on a line, without its name; for tests.
pub fn of_line<A: clap::Args>(line: &str) -> Result<A, String> {
    let words = std::iter::once("exitless").chain(line.split(' ').filter(|word| !word.is_empty()));
    let command = A::augment_args(clap::Command::new("exitless"));
    let matches = command.try_get_matches_from(words).map_err(|e| e.to_string())?;
    A::from_arg_matches(&matches).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_in_the_range_is_told_the_range() {
        let read = between(1, 64);
        assert_eq!([read("1"), read("64")], [Ok(1), Ok(64)]);
        for wrong in ["0", "65", "-1", "two", "1.5", "", "99999999999999999999"] {
            assert_eq!(read(wrong), Err("give a whole number from 1 to 64".to_owned()), "{wrong}");
        }
        assert_eq!(process("42"), Ok(42));
        assert_eq!(process("x"), Err("give the number of a process"));
    }

    #[test]
    fn a_number_is_one_or_more() {
        assert_eq!(positive("1"), Ok(NonZeroU64::MIN));
        for wrong in ["0", "-1", "1.5", "x", "", "99999999999999999999"] {
            assert_eq!(positive(wrong), Err("give a whole number, 1 or more"), "{wrong}");
        }
    }
}
