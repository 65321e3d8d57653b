//! PCI of the machine, as far as it is logic: which functions there are, which of them can be kept
//! apart, how one is reset, and which addresses it may decode.
//!
//! Registers are read and written through [`Config`] alone. What a guest sees of PCI is elsewhere.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod acs;
mod clash;
mod config;
mod isolation;

mod mirror;
mod place;
pub mod reset;
#[cfg(test)]
mod reset_tests;
mod resizable;
mod scan;
#[cfg(test)]
mod tests;
mod windows;

pub use acs::{Acs, extended_capability};
pub use clash::{Clash, clash};
pub use config::{CAPABILITY_EXPRESS, COMMAND, COMMAND_MEMORY, Config};
pub use isolation::{Function, Kind, Why, together};

pub use mirror::mirrors_configuration;
pub use place::nearest;
pub use resizable::{Resized, Sizes};
pub use scan::{Found, scan};
pub use windows::{Passed, Wanted, room};

use core::fmt;

/// Segment, bus, device and function: where a PCI function is in the machine.
///
/// A function's requests carry the last three, its requester id; an IOMMU is one segment's, and
/// speaks of no other. Ordered by segment, then by requester id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u32);

impl Bdf {
    /// The function of segment 0 with this requester id.
    pub const fn from_requester_id(id: u16) -> Self {
        Bdf(id as u32)
    }

    /// The function at this place of segment 0; none if `device` is above 31 or `function` above 7.
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Bdf((bus as u32) << 8 | (device as u32) << 3 | function as u32))
    }

    /// The function with the same requester id in this segment.
    pub const fn in_segment(self, segment: u16) -> Self {
        Bdf((segment as u32) << 16 | self.requester_id() as u32)
    }

    /// The segment in bits 31:16, the requester id in bits 15:0.
    pub const fn address(self) -> u32 {
        self.0
    }

    /// Segment number.
    pub const fn segment(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The requester id that its requests carry.
    pub const fn requester_id(self) -> u16 {
        self.0 as u16
    }

    /// Bus number.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Device number.
    pub const fn device(self) -> u8 {
        (self.0 >> 3) as u8 & 31
    }

    /// Function number.
    pub const fn function(self) -> u8 {
        self.0 as u8 & 7
    }
}

/// As everybody writes it, with the segment where that isn't 0.
impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.segment() != 0 {
            write!(f, "{:04x}:", self.segment())?;
        }
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
