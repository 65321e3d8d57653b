//! Text that somebody else wrote, in a sentence of ours.

use core::fmt::{Display, Formatter, Result, Write};

/// Displays a text with its control characters escaped, so that it neither ends the line nor
/// commands the terminal.
pub struct Shown<'a>(pub &'a str);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}
