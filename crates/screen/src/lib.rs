//! A text console on the framebuffer that firmware leaves: the host's log in the upper half, the
//! guests' consoles in the lower one, a status line between them.
//!
//! Guarantees: nothing outside the visible part of the frame is ever written, whatever its geometry
//! is and whatever is shown. What a guest writes stays in its own lines of the lower half: it can
//! neither garble nor scroll away a line of the host's. The framebuffer is never read. Each byte
//! costs bounded work on the cells, and [`Screen::paint`] does as much of the drawing as it is
//! told. It doesn't draw all that was ever written: what was scrolled away before it was painted is
//! never seen.
//!
//! The font is the misc-fixed of X11, which is in the public domain, with the letters of ISO
//! 8859-1. Other characters are shown as '?'.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "read"))]
extern crate alloc;

mod draw;
mod error;
pub mod escape;
mod frame;
mod last_words;
mod layout;
mod pane;
#[cfg(any(test, feature = "read"))]
pub mod read;
mod screen;
mod style;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use frame::{Channel, Frame, Framebuffer, Pixels};
pub use last_words::LastWords;
pub use layout::{Layout, MAX_COLUMNS, MAX_ROWS};
pub use screen::{Screen, Show};
