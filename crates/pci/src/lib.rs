//! PCI of the machine, as far as it is logic: which functions there are, which of them can be kept
//! apart, and how one is reset.
//!
//! Registers are read and written through [`Config`] alone. What a guest sees of PCI is elsewhere.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod acs;
mod config;
mod isolation;
mod mirror;
pub mod reset;
#[cfg(test)]
mod reset_tests;
mod scan;
#[cfg(test)]
mod tests;

pub use acs::{Acs, extended_capability};
pub use config::{CAPABILITY_EXPRESS, COMMAND, Config};
pub use isolation::{Function, Kind, Why, together};
pub use mirror::mirrors_configuration;
pub use scan::{Found, scan};

use core::fmt;

/// Bus, device and function: a PCI device's requester id in its segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf(u16);

impl Bdf {
    /// The device with this requester id.
    pub const fn from_requester_id(id: u16) -> Self {
        Bdf(id)
    }

    /// The device at this place; none if `device` is above 31 or `function` above 7.
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Bdf((bus as u16) << 8 | (device as u16) << 3 | function as u16))
    }

    /// The requester id that its requests carry.
    pub const fn requester_id(self) -> u16 {
        self.0
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

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus(), self.device(), self.function())
    }
}

impl fmt::Debug for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
