//! Text that somebody else wrote, in a sentence of ours.
//!
//! Guarantees: what is displayed stays on its line, doesn't command the terminal and doesn't
//! change the order in which the line is read. [`Shown`] is short, too.

use core::fmt::{Display, Formatter, Result, Write};

/// How many characters of a text a sentence shows.
const MOST: usize = 64;

/// Displays a text with what isn't to be read escaped: control characters, and those that
/// reorder a line or have no width.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

/// The same, cut after 64 characters.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

/// Whether a character does something to the line instead of standing in it (Unicode's
/// directional marks and overrides, line separators, zero-width characters, byte order mark).
fn is_hidden(c: char) -> bool {
    let formats = ['\u{61C}', '\u{FEFF}'];
    c.is_control()
        || formats.contains(&c)
        || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}')
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.chars().try_for_each(|c| match is_hidden(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0.char_indices().nth(MOST) {
            Some((end, _)) => write!(f, "{}…", Escaped(self.0.get(..end).unwrap_or(""))),
            None => write!(f, "{}", Escaped(self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_hidden_is_written_out() {
        assert_eq!(Escaped("a\n\u{1b}[m\tä€").to_string(), "a\\n\\u{1b}[m\\tä€");
        assert_eq!(Shown("\u{202E}x\u{200B}\u{FEFF}").to_string(), "\\u{202e}x\\u{200b}\\u{feff}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(Shown(&"ä".repeat(64)).to_string(), "ä".repeat(64));
        assert_eq!(Shown(&"ä".repeat(5_000)).to_string(), "ä".repeat(64) + "…");
        assert_eq!(Escaped(&"x".repeat(5_000)).to_string().len(), 5_000);
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(text: String) {
            prop_assert!(!Escaped(&text).to_string().contains(is_hidden));
            prop_assert!(Shown(&text).to_string().chars().count() <= MOST * 10 + 1);
        }
    }
}
