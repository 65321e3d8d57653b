//! Why a framebuffer can't be drawn on.

use thiserror::Error;

/// A reason, as the end of a sentence that begins with "the framebuffer".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A pixel of a size that isn't drawn.
    #[error("has {0} bits for a pixel; 16, 24 or 32 are needed")]
    Bits(u8),
    /// A colour that no bits of a pixel hold.
    #[error("has its {colour} in {bits} bits from bit {shift}; 1 to 16 within a pixel are needed")]
    Channel {
        /// The colour.
        colour: &'static str,
        /// Its lowest bit.
        shift: u8,
        /// How many bits it has.
        bits: u8,
    },
    /// No pixels.
    #[error("has {width} by {height} pixels; one of each is needed at least")]
    Empty {
        /// Pixels in a line.
        width: u32,
        /// Lines.
        height: u32,
    },
    /// Lines that overlap.
    #[error("has {pitch} bytes from line to line; a line of {width} pixels needs {needed}")]
    Pitch {
        /// Bytes from line to line.
        pitch: u32,
        /// Pixels in a line.
        width: u32,
        /// The bytes that these need.
        needed: u64,
    },
    /// More bytes than there are addresses.
    #[error("has {bytes} bytes from {address:#x}, which is beyond the last address")]
    Address {
        /// The first byte.
        address: u64,
        /// How many bytes it has.
        bytes: u64,
    },
}
