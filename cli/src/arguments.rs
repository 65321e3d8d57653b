//! What several commands read from their command lines alike.

use std::num::NonZeroU64;

/// A whole number, 1 or more: for what makes no sense with none.
pub fn positive(text: &str) -> Result<NonZeroU64, &'static str> {
    text.parse().map_err(|_| "give a whole number, 1 or more")
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
    fn a_number_is_one_or_more() {
        assert_eq!(positive("1"), Ok(NonZeroU64::MIN));
        for wrong in ["0", "-1", "1.5", "x", "", "99999999999999999999"] {
            assert_eq!(positive(wrong), Err("give a whole number, 1 or more"), "{wrong}");
        }
    }
}
