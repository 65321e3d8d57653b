//! How a plan names a device: by PCI address, by kind and number ("nvme0" is the first NVMe
//! controller in PCI order), or as a virtual function of a network controller ("nic0.vf1").
//! Virtual functions don't count as controllers: "nic1" stays the same whatever "nic0" has.

use crate::{bounds::MAX_VFS, shown::Shown};
use alloc::string::{String, ToString};
use core::{fmt, str::FromStr};
use serde::{Deserialize, Serialize};

/// A device as a plan names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceName {
    /// A PCI address.
    Address {
        /// Segment number.
        segment: u16,
        /// Bus number.
        bus: u8,
        /// Device number, 0 to 31.
        device: u8,
        /// Function number, 0 to 7.
        function: u8,
    },
    /// The `index`th device of a kind, counted from 0 in order of PCI address.
    Named {
        /// What kind.
        class: Class,
        /// Which of them.
        index: u8,
    },
    /// A virtual function of a network controller (SR-IOV).
    Virtual {
        /// The controller's number.
        nic: u8,
        /// Which of its functions, counted from 0.
        function: u8,
    },
}

/// A kind of device that has a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// NVMe controller.
    Nvme,
    /// Ethernet controller.
    Nic,
    /// SATA controller (AHCI).
    Sata,
    /// USB controller (xHCI).
    Usb,
    /// QEMU's educational device, for tests.
    Edu,
}

/// What tells a kind of device from others.
enum Mark {
    /// Class code, under a mask (PCI Code and ID Assignment Specification).
    Code { value: u32, mask: u32 },
    /// Vendor and device id.
    Ids(u16, u16),
}

impl Class {
    /// Every kind.
    pub const ALL: [Class; 5] = [Class::Nvme, Class::Nic, Class::Sata, Class::Usb, Class::Edu];

    const fn entry(self) -> (&'static str, Mark) {
        match self {
            Class::Nvme => ("nvme", Mark::Code { value: 0x01_08_02, mask: 0xFF_FF_FF }),
            Class::Nic => ("nic", Mark::Code { value: 0x02_00_00, mask: 0xFF_FF_00 }),
            Class::Sata => ("sata", Mark::Code { value: 0x01_06_01, mask: 0xFF_FF_FF }),
            Class::Usb => ("usb", Mark::Code { value: 0x0C_03_30, mask: 0xFF_FF_FF }),
            Class::Edu => ("edu", Mark::Ids(0x1234, 0x11E8)),
        }
    }

    /// The name, without a number.
    pub const fn label(self) -> &'static str {
        self.entry().0
    }

    /// Whether a PCI function is of this kind. `class_code` is base class, sub-class
    /// and programming interface in 24 bits, as config space holds them at 0x09.
    pub const fn matches(self, class_code: u32, vendor: u16, device: u16) -> bool {
        match self.entry().1 {
            Mark::Code { value, mask } => class_code & mask == value,
            Mark::Ids(v, d) => vendor == v && device == d,
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Address { segment, bus, device, function } => {
                if *segment != 0 {
                    write!(f, "{segment:04x}:")?;
                }
                write!(f, "{bus:02x}:{device:02x}.{function:x}")
            }
            DeviceName::Named { class, index } => write!(f, "{}{index}", class.label()),
            DeviceName::Virtual { nic, function } => write!(f, "nic{nic}.vf{function}"),
        }
    }
}

/// The text isn't a device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` names no device; write {kinds} with a number (\"nvme0\"), a virtual function (\"nic0.vf0\" to \"nic0.vf{last}\") or a PCI address (\"00:04.0\")",
    Shown(.0),
    kinds = Kinds,
    last = MAX_VFS - 1
)]
pub struct DeviceError(String);

struct Kinds;

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, class) in Class::ALL.iter().enumerate() {
            let gap = match i {
                0 => "",
                i if i + 1 == Class::ALL.len() => " or ",
                _ => ", ",
            };
            write!(f, "{gap}{}", class.label())?;
        }
        Ok(())
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        address(text)
            .or_else(|| named(text))
            .or_else(|| virtual_function(text))
            .ok_or_else(|| DeviceError(text.to_string()))
    }
}

/// "00:04.0", also with the segment before it, as `lspci -D` prints it.
fn address(text: &str) -> Option<DeviceName> {
    let (place, function) = text.rsplit_once('.')?;
    let (place, device) = place.rsplit_once(':')?;
    let (segment, bus) = place.split_once(':').unwrap_or(("0000", place));
    let byte = |text, digits| u8::try_from(hex(text, digits)?).ok();
    let name = DeviceName::Address {
        segment: hex(segment, 4)?,
        bus: byte(bus, 2)?,
        device: byte(device, 2)?,
        function: byte(function, 1)?,
    };
    name.is_possible().then_some(name)
}

fn hex(text: &str, digits: usize) -> Option<u16> {
    let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u16::from_str_radix(text, 16).ok())?
}

fn named(text: &str) -> Option<DeviceName> {
    let (class, number) =
        Class::ALL.iter().find_map(|c| Some((*c, text.strip_prefix(c.label())?)))?;
    Some(DeviceName::Named { class, index: decimal(number)? })
}

fn virtual_function(text: &str) -> Option<DeviceName> {
    let (nic, function) = text.strip_prefix(Class::Nic.label())?.split_once(".vf")?;
    Some(DeviceName::Virtual { nic: decimal(nic)?, function: decimal(function)? })
}

fn decimal(text: &str) -> Option<u8> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

impl DeviceName {
    /// Whether a device can have this name: PCI has 32 devices a bus, 8 functions each.
    pub fn is_possible(self) -> bool {
        match self {
            DeviceName::Address { device, function, .. } => device < 32 && function < 8,
            DeviceName::Named { .. } | DeviceName::Virtual { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_read_as_written() {
        let at = |segment| DeviceName::Address { segment, bus: 0, device: 0x1f, function: 7 };
        let address = at(0);
        assert_eq!("00:1f.7".parse(), Ok(address));
        assert_eq!("0000:00:1F.7".parse(), Ok(address));
        assert_eq!("00a1:00:1f.7".parse(), Ok(at(0xA1)));
        assert_eq!("nvme0".parse(), Ok(DeviceName::Named { class: Class::Nvme, index: 0 }));
        assert_eq!("edu12".parse(), Ok(DeviceName::Named { class: Class::Edu, index: 12 }));
        assert_eq!("nic1.vf7".parse(), Ok(DeviceName::Virtual { nic: 1, function: 7 }));
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_would_be() {
        let texts = [
            "",
            "nvme",
            "nvme+1",
            "nvme256",
            "00:20.0",
            "00:04.8",
            "0:4.0",
            "1:00:04.0",
            "10000:00:04.0",
            "0001:0:00:04.0",
            "+001:00:04.0",
            "nic0.vf",
            "nic.vf0",
            "nvme0.vf0",
            "nic0.vf+1",
            "nic0vf1",
            "nic0.vf256",
        ];
        for text in texts {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
        assert_eq!(
            "nvm0".parse::<DeviceName>().unwrap_err().to_string(),
            "`nvm0` names no device; write nvme, nic, sata, usb or edu with a number (\"nvme0\"), \
             a virtual function (\"nic0.vf0\" to \"nic0.vf63\") or a PCI address (\"00:04.0\")"
        );
    }

    #[test]
    fn kinds_match_their_functions_only() {
        assert!(Class::Nvme.matches(0x01_08_02, 0x1b36, 0x0010));
        assert!(!Class::Nvme.matches(0x01_08_01, 0x1b36, 0x0010));
        assert!(Class::Nic.matches(0x02_00_00, 0x8086, 0x10c9));
        assert!(!Class::Nic.matches(0x02_80_00, 0x8086, 0x10c9));
        assert!(Class::Edu.matches(0x00_FF_00, 0x1234, 0x11e8));
        assert!(!Class::Edu.matches(0x00_FF_00, 0x1234, 0x11e9));
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same(
            segment: u16, bus: u8, device in 0u8..32, function in 0u8..8,
            class in 0..Class::ALL.len(), index: u8,
        ) {
            let address = DeviceName::Address { segment, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
            let named = DeviceName::Named { class: Class::ALL[class], index };
            prop_assert_eq!(named.to_string().parse(), Ok(named));
            let function = DeviceName::Virtual { nic: index, function: bus };
            prop_assert_eq!(function.to_string().parse(), Ok(function));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<DeviceName>();
        }
    }
}
