//! What a machine offers to a plan, as the hypervisor tells it when it is started without one.
//!
//! Each part is a record and, by its `Display`, a line of the log. Guarantees: a part says what the
//! hypervisor saw or would say, in the words that it would refuse a plan in. Says nothing about
//! what a plan may ask for.

use alloc::{string::String, vec::Vec};
use core::fmt;
use serde::{Deserialize, Serialize};

/// A part of the inventory. [`Offer::Complete`] is the last to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offer {
    /// The processor.
    Processor {
        /// Its brand string.
        name: String,
        /// Its TSC runs at one rate in every power state (CPUID 8000_0007 EDX bit 8).
        invariant_tsc: bool,
    },
    /// The cores, by the number that a plan gives them.
    Cores {
        /// Those that can run guests.
        ready: Vec<u32>,
        /// Those that firmware lists and that didn't start.
        silent: Vec<u32>,
    },
    /// An IOMMU.
    Iommu {
        /// "VT-d" or "AMD-Vi".
        kind: String,
        /// Address of its registers.
        base: u64,
        /// It remaps interrupts.
        remaps: bool,
    },
    /// A PCI function.
    Function(Function),
    /// Why no VM can run here: a sentence.
    Missing(String),
    /// Why no VM can have a device here: a part of a sentence.
    NoDevices(String),
    /// Everything was told.
    Complete,
    /// What is known to be wrong with the processor: a sentence about it.
    Erratum(String),
    /// Why no VM can run guests of its own here: a part of a sentence.
    NoNesting(String),
    /// Why no VM can have the policy `posted` here: a part of a sentence.
    NoPosting(String),
}

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Segment in the upper half; bus, device and function number, as a requester id has them, in
    /// the lower.
    pub address: u32,
    /// Vendor and device id.
    pub ids: (u16, u16),
    /// Class, subclass and programming interface: 24 bits.
    pub class: u32,
    /// The name that a plan may give it besides its address, such as "nvme0".
    pub name: Option<String>,
    /// Entries of its MSI-X table; 0 if it has none.
    pub msix: u16,
    /// Messages that it can send by MSI; 0 if it can't.
    pub msi: u16,
    /// How it is reset, in a word; none if it can't be.
    pub reset: Option<String>,
    /// Functions that can't be kept apart from it.
    pub together: Vec<u32>,
    /// Why it can't be a guest's: the end of a sentence about it.
    pub refused: Option<String>,
}

/// A function's [`address`](Function::address) as people write it: with the segment where that
/// isn't 0.
pub struct Address(pub u32);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (segment, id) = (self.0 >> 16, self.0 & 0xFFFF);
        if segment != 0 {
            write!(f, "{segment:04x}:")?;
        }
        write!(f, "{:02x}:{:02x}.{:x}", id >> 8, id >> 3 & 0x1F, id & 7)
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offer::Processor { name, invariant_tsc } => {
                let tsc = if *invariant_tsc { "invariant" } else { "not invariant" };
                write!(f, "processor: {name}; its TSC is {tsc}")
            }
            Offer::Cores { ready, silent } => {
                write!(f, "cores for guests: {}", Ranges(ready))?;
                match silent.is_empty() {
                    true => Ok(()),
                    false => write!(f, "; listed, but not started: {}", Ranges(silent)),
                }
            }
            Offer::Iommu { kind, base, remaps } => {
                let remaps = if *remaps { "remaps" } else { "doesn't remap" };
                write!(f, "IOMMU: {kind} at {base:#x}, {remaps} interrupts")
            }
            Offer::Function(function) => function.fmt(f),
            Offer::Missing(why) => write!(f, "no VM can run here: {why}"),
            Offer::NoDevices(why) => write!(f, "no VM can have a device here: {why}"),
            Offer::NoNesting(why) => write!(f, "no VM can run guests of its own here: {why}"),
            Offer::NoPosting(why) => write!(f, "no VM can have interrupts posted here: {why}"),
            Offer::Erratum(what) => write!(f, "of the processor: {what}"),
            Offer::Complete => f.write_str(
                "no plan was loaded, so this is all; `exitless image vm.toml` packs one",
            ),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vendor, device) = self.ids;
        write!(f, "{} {vendor:04x}:{device:04x} class {:06x}", Address(self.address), self.class)?;
        if let Some(why) = &self.refused {
            return write!(f, ": {why}");
        }
        write!(f, ": {}; ", self.name.as_deref().unwrap_or("by its address"))?;
        match (self.msix, self.msi) {
            (0, 0) => f.write_str("no MSI, so no interrupts")?,
            (0, 1) => f.write_str("1 MSI")?,
            (0, msi) => write!(f, "1 MSI of {msi}")?,
            (msix, _) => write!(f, "{msix} MSI-X")?,
        }
        match &self.reset {
            Some(reset) => write!(f, "; reset {reset}")?,
            None => f.write_str("; no reset")?,
        }
        for (i, other) in self.together.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "; only with " } else { ", " }, Address(*other))?;
        }
        Ok(())
    }
}

/// Numbers in ascending order, those that follow each other as a range.
struct Ranges<'a>(&'a [u32]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let follows = |a: &u32, b: &u32| a.checked_add(1) == Some(*b);
        for (i, run) in self.0.chunk_by(follows).enumerate() {
            let gap = if i == 0 { "" } else { ", " };
            match run {
                [one] => write!(f, "{gap}{one}")?,
                [first, .., last] => write!(f, "{gap}{first} to {last}")?,
                [] => {}
            }
        }
        if self.0.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nvme() -> Function {
        Function {
            address: 0x0020,
            ids: (0x1B36, 0x10),
            class: 0x01_08_02,
            name: Some("nvme0".into()),
            msix: 33,
            reset: Some("by function".into()),
            ..Function::default()
        }
    }

    #[test]
    fn each_part_is_one_line_that_says_what_matters() {
        let cores = Offer::Cores { ready: [1, 2, 3, 7].into(), silent: [4, 5].into() };
        assert_eq!(
            cores.to_string(),
            "cores for guests: 1 to 3, 7; listed, but not started: 4 to 5"
        );
        let none = Offer::Cores { ready: Vec::new(), silent: Vec::new() };
        assert_eq!(none.to_string(), "cores for guests: none");
        let unit = Offer::Iommu { kind: "AMD-Vi".into(), base: 0xFD20_0000, remaps: false };
        assert_eq!(unit.to_string(), "IOMMU: AMD-Vi at 0xfd200000, doesn't remap interrupts");
        assert_eq!(
            Offer::Function(nvme()).to_string(),
            "00:04.0 1b36:0010 class 010802: nvme0; 33 MSI-X; reset by function"
        );
        let plain = Function { name: None, msix: 0, msi: 4, reset: None, ..nvme() };
        let plain = Function { together: [0x0021, 0x0122].into(), ..plain };
        assert_eq!(
            plain.to_string(),
            "00:04.0 1b36:0010 class 010802: by its address; 1 MSI of 4; no reset; only with 00:04.1, 01:04.2"
        );
        let elsewhere = Function { address: 0x000A_0020, ..plain.clone() };
        assert!(elsewhere.to_string().starts_with("000a:00:04.0 "));
        let refused = Function { refused: Some("is a bridge".into()), ..plain };
        assert_eq!(refused.to_string(), "00:04.0 1b36:0010 class 010802: is a bridge");
    }

    #[test]
    fn the_highest_number_ends_a_range() {
        assert_eq!(Ranges(&[u32::MAX - 1, u32::MAX]).to_string(), "4294967294 to 4294967295");
    }
}
