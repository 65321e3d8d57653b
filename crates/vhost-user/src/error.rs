//! What is refused, each as a sentence for the log.

use thiserror::Error;

/// The front end said something that can't be. What follows says
/// [`Session::refusal`](crate::Session::refusal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The header's version isn't 1.
    #[error("the front end speaks version {0} of vhost-user, not 1")]
    Version(u32),
    /// A message is longer than any.
    #[error("request {request} has {size} bytes, which is more than any message has")]
    TooLong {
        /// Its number.
        request: u32,
        /// As the header says.
        size: u32,
    },
    /// The payload isn't what this request has.
    #[error("request {request} has {size} bytes, which don't fit it")]
    Size {
        /// Its number.
        request: u32,
        /// Bytes that came.
        size: usize,
    },
    /// As many descriptors came as this request doesn't have.
    #[error("request {request} came with {count} descriptors")]
    Handles {
        /// Its number.
        request: u32,
        /// How many.
        count: usize,
    },
    /// The request isn't known, or wasn't negotiated.
    #[error("request {0} isn't offered")]
    Unknown(u32),
    /// A feature was accepted that wasn't offered.
    #[error("features {0:#x} were accepted and not offered")]
    Features(u64),
    /// A ring that there isn't.
    #[error("ring {0} isn't there")]
    Ring(u32),
    /// A ring's size isn't from 1 to what a ring may have.
    #[error("ring {ring} is to have {size} elements")]
    RingSize {
        /// Which.
        ring: u32,
        /// As it was asked for.
        size: u32,
    },
    /// A ring's index is beyond 16 bits, and no packed rings are offered, which have more.
    #[error("ring {ring} is to begin at {base}")]
    Base {
        /// Which.
        ring: u32,
        /// As it was asked for.
        base: u32,
    },
    /// There are too many regions, or one overlaps another or wraps.
    #[error("the region of memory at {0:#x} can't be one")]
    Region(u64),
    /// A region to be removed isn't there.
    #[error("there is no region of memory at {0:#x} to remove")]
    NoRegion(u64),
    /// The configuration space is to be written, and nothing of it can be.
    #[error("the configuration space can't be written ({size} bytes at {offset})")]
    WrittenConfig {
        /// The first byte.
        offset: u32,
        /// How many.
        size: u32,
    },
    /// A part of the configuration space that can't be.
    #[error("{size} bytes of configuration at {offset} can't be asked for")]
    Config {
        /// The first byte.
        offset: u32,
        /// How many.
        size: u32,
    },
}
