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

/// Writes a command's result to standard output.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = stdout();
    write!(out, "{text}").and_then(|()| out.flush()).context("standard output can't be written")
}
