//! What several targets need.

mod frames;

pub use frames::Frames;
use std::fmt::Display;

/// A refusal is one line that a terminal can show as it is, whatever was refused.
pub fn one_line(refusal: &impl Display) {
    let text = refusal.to_string();
    assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
}
