//! What a plan says of network controllers: how many virtual functions each is to have,
//! and their addresses.

use crate::{Coalesce, DeviceName, Plan, shown::Shown};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};
use serde::{Deserialize, Serialize};

/// A network controller's virtual functions, as a plan gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The controller: `nic0` is 0.
    pub nic: u8,
    /// How many; if not given, as many as have an address here or are some VM's.
    pub vfs: Option<u8>,
    /// The addresses of the first ones; the others get theirs from the controller's own.
    pub macs: Vec<Mac>,
    /// The switch that it is the way to a network outside for; it has no virtual functions then.
    pub uplink: Option<String>,
    /// Whether the host has its virtual functions hold interrupts back, by their own throttle.
    pub coalesce: Coalesce,
}

/// A network controller that is to have virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared<'a> {
    /// The controller: `nic0` is 0.
    pub nic: u8,
    /// How many virtual functions.
    pub vfs: u8,
    /// The addresses of the first ones.
    pub macs: &'a [Mac],
    /// Whether their interrupts are held back, and how.
    pub coalesce: Coalesce,
}

impl<F> Plan<F> {
    /// The controllers that are to have virtual functions, by their numbers.
    pub fn shared_nics(&self) -> impl Iterator<Item = Shared<'_>> {
        (0..=u8::MAX).filter_map(|nic| self.shared_nic(nic))
    }

    /// A controller, if it is to have virtual functions.
    pub fn shared_nic(&self, nic: u8) -> Option<Shared<'_>> {
        let table = self.networks.iter().find(|n| n.nic == nic);
        let macs = table.map_or(&[][..], |n| &n.macs);
        let devices = self.vms.iter().flat_map(|vm| &vm.devices);
        let named = devices.filter_map(|device| match device {
            DeviceName::Virtual { nic: n, function } if *n == nic => {
                Some(function.saturating_add(1))
            }
            _ => None,
        });
        let needed = named.max().unwrap_or(0).max(macs.len().try_into().unwrap_or(u8::MAX));
        let vfs = table.and_then(|n| n.vfs).unwrap_or(needed);
        let coalesce = table.map_or(Coalesce::Off, |n| n.coalesce);
        (vfs > 0).then_some(Shared { nic, vfs, macs, coalesce })
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Set in the first byte of addresses of groups (IEEE 802, 8.2).
    const GROUP: u8 = 1;
    /// Set in the first byte of addresses that no manufacturer gave.
    const LOCAL: u8 = 2;

    /// Whether a single station can have it.
    pub fn is_a_stations(self) -> bool {
        self.0[0] & Mac::GROUP == 0 && self.0 != [0; 6]
    }

    /// An address for a virtual function of the controller with this one: locally administered,
    /// another for each function below 255, and never the controller's own.
    pub const fn of_function(self, function: u8) -> Mac {
        let [a, b, c, d, e, f] = self.0;
        Mac([a & !Mac::GROUP | Mac::LOCAL, b ^ function.wrapping_add(1), c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text isn't an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no MAC address; write six pairs of hexadecimal digits, such as \"02:00:00:00:00:01\"", Shown(.0))]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        parse(text).ok_or_else(|| MacError(text.to_string()))
    }
}

fn parse(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut pairs = text.split(':');
    for byte in &mut bytes {
        let pair = pairs.next()?;
        let plain = pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
        *byte = plain.then(|| u8::from_str_radix(pair, 16).ok())??;
    }
    pairs.next().is_none().then_some(Mac(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_read_as_written() {
        let mac = Mac([0x52, 0x54, 0, 0x12, 0xAB, 0xFF]);
        assert_eq!("52:54:00:12:aB:FF".parse(), Ok(mac));
        assert_eq!(mac.to_string(), "52:54:00:12:ab:ff");
        assert_eq!(format!("{mac:?}"), "52:54:00:12:ab:ff");
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "5:54:00:12:34:56", "+2:54:00:12:34:56"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!(
            "a\tb".parse::<Mac>().unwrap_err().to_string(),
            "`a\\tb` is no MAC address; write six pairs of hexadecimal digits, such as \"02:00:00:00:00:01\""
        );
    }

    #[test]
    fn stations_are_neither_groups_nor_nobody() {
        assert!(Mac([2, 0, 0, 0, 0, 0]).is_a_stations());
        assert!(!Mac([0; 6]).is_a_stations() && !Mac([0xFF; 6]).is_a_stations());
        assert!(!Mac([1, 0, 0x5E, 0, 0, 1]).is_a_stations());
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same(bytes: [u8; 6]) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
        }

        #[test]
        fn functions_have_addresses_of_their_own(bytes: [u8; 6], a in 0u8..255, b in 0u8..255) {
            let mac = Mac(bytes);
            let (one, other) = (mac.of_function(a), mac.of_function(b));
            prop_assert!(one.is_a_stations() && one.0[0] & 2 != 0 && one != mac);
            prop_assert_eq!(one == other, a == b);
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<Mac>();
        }
    }
}
