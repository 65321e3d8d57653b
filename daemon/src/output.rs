//! What people read: what a command says, and the log.
//!
//! Guarantees: a reader that is gone ends a command without a word, as the signal for that would;
//! a daemon whose log nobody reads any more serves on. A line of the log is written at once.

use anyhow::{Context as _, Result};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _};

/// As a shell tells of SIGPIPE.
const NOBODY_READS: i32 = 128 + 13;

/// Says this.
///
/// # Errors
///
/// If it can't be written. If nobody reads it the program ends.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOBODY_READS),
        written => written.context("the output can't be written"),
    }
}

/// Writes this line to the log. There is nobody to be told that it can't be written.
pub fn log(line: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
