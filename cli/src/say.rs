//! What is told the person: on standard error, where nobody may be listening.
//!
//! Guarantees: that standard error is closed, full or gone stops nothing. (The macros of
//! the standard library would panic.) Nothing that is said there steers the terminal, wherever
//! the words come from.

use crate::stream::printable;
use anyhow::{Context, Result};
use std::{
    fmt::Display,
    io::{Write, stderr, stdout},
};

/// Tells the person something, on lines of its own.
pub fn say(text: impl Display) {
    let text = text.to_string();
    let lines: String = text.lines().map(|line| printable(line) + "\n").collect();
    // Fails when there is nobody.
    let _ = stderr().write_all(lines.as_bytes());
}

/// An error's sentence without the system's numbers: `No such file or directory (os error 2)` says
/// the same without what stands in brackets.
pub fn plain(error: impl Display) -> String {
    const BEFORE: &str = " (os error ";
    let text = format!("{error:#}");
    let mut parts = text.split(BEFORE);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => plain += rest,
            _ => plain.extend([BEFORE, part]),
        }
    }
    plain
}

/// Writes a command's result to standard output.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = stdout();
    write!(out, "{text}").and_then(|()| out.flush()).context("standard output can't be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use std::io;

    #[test]
    fn an_error_is_told_without_its_number() {
        let of = |number| anyhow::Error::from(io::Error::from_raw_os_error(number));
        assert!(format!("{:#}", of(2)).contains("(os error 2)"), "the library has changed");
        assert_eq!(
            plain(of(2).context("k can't be read")),
            "k can't be read: No such file or directory"
        );
        let inside = io::Error::other(format!("{:#} at path x", of(13)));
        assert_eq!(plain(inside), "Permission denied at path x");
        for kept in ["", "no number", "x (os error two)", "x (os error 2"] {
            assert_eq!(plain(anyhow!(kept)), kept);
        }
    }
}
