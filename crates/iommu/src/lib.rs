//! IOMMUs: which memory a device may reach, and which interrupts it may raise.
//!
//! What every vendor's unit has in common stands here, [`Unit`] before all; a driver per vendor
//! below ([`vtd`], [`amdvi`]). All of them deny by default: a device reaches only the memory of the
//! domain it is attached to, and raises only the interrupts for which it has an entry, if the unit
//! remaps interrupts. When a call that takes something away returns `Ok`, the hardware has
//! confirmed that no cache of it is left; when it returns an error, memory that a device had must
//! not be given to anyone else.
//!
//! A unit is one PCI segment's, and its tables know devices by their requester ids: every [`Bdf`]
//! here, given or told, is as one of segment 0. Whose segment it is, is its caller's knowledge.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod amdvi;
pub mod audit;
mod entries;
mod error;
mod pages;
mod poll;
mod tables;
mod unit;
pub mod vtd;

pub use error::Error;
pub use pages::Range;
pub use pci::Bdf;
pub use unit::{Unit, Vendor, fault_pending};

use alloc::vec::Vec;

use core::fmt;

/// A device's registers in memory. Offsets are aligned to the access.
pub trait Registers {
    /// Reads 32 bits.
    fn read32(&mut self, offset: u32) -> u32;
    /// Reads 64 bits.
    fn read64(&mut self, offset: u32) -> u64;
    /// Writes 32 bits.
    fn write32(&mut self, offset: u32, value: u32);
    /// Writes 64 bits.
    fn write64(&mut self, offset: u32, value: u64);
}

/// Memory that the CPU shares with the unit. Only addresses inside frames that
/// [`allocate`](Memory::allocate) gave, aligned to 8, are passed.
pub trait Memory {
    /// Reads 64 bits by one load, anew each time: the unit writes too.
    fn read64(&mut self, pa: u64) -> u64;
    /// Writes 64 bits by one store, seen by the unit in the order of the calls.
    fn write64(&mut self, pa: u64, value: u64);
    /// Writes 128 bits, at an address aligned to 16, by one store: a unit that reads them at once
    /// sees all of the old or all of the new. Ordered as [`Memory::write64`]. Only drivers of
    /// AMD-Vi units ask for it, whose processors all have CMPXCHG16B for that.
    fn write128(&mut self, pa: u64, low: u64, high: u64);
    /// Writes `bytes` bytes from the CPU's caches back to memory, for a unit that doesn't snoop.
    fn write_back(&mut self, pa: u64, bytes: u64);
    /// Gives `frames` zeroed 4 KiB frames in a row, for good.
    fn allocate(&mut self, frames: u64) -> Option<u64>;
}

/// The name under which a unit caches one set of page tables. Devices that share a domain id must
/// share the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u16);

/// The page tables that a device is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// What the unit knows them by.
    pub id: DomainId,
    /// Physical address of the root.
    pub root: u64,
    /// Their levels: 3 for 39 bits of address, 4 for 48, 5 for 57.
    pub levels: u8,
}

impl Domain {
    /// Whether its root is where one can be.
    fn check_root(&self) -> Result<(), Error> {
        match self.root & 0xFFF == 0 && self.root >> 52 == 0 {
            true => Ok(()),
            false => Err(Error::Root { root: self.root }),
        }
    }
}

/// What firmware's tables say about a unit and its devices and its registers don't. Units of
/// Intel's need none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firmware {
    /// Devices whose requests may carry another's id than their own (IVRS alias entries).
    pub aliases: Vec<Alias>,
    /// HyperTransport tunnel traffic is to be translated (IVHD flag HtTunEn).
    pub ht_tunnel: bool,
    /// IVHD flag PassPW.
    pub pass_posted_writes: bool,
    /// IVHD flag ResPassPW.
    pub responses_pass_posted_writes: bool,
    /// IVHD flag Isoc.
    pub isochronous: bool,
}

/// A device and the id that the unit sees it by, as when a bridge speaks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The device.
    pub device: Bdf,
    /// The id that its requests carry.
    pub requester: Bdf,
}

/// Whether a unit stands between its devices' interrupts and the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remapping {
    /// An interrupt that has no entry is blocked.
    On,
    /// The unit can't: a device's write to 0xFEExxxxx is the interrupt that it says, to any
    /// processor. Entries are kept all the same, and [`Unit::message`] says what they say.
    Off,
}

/// Which pages of more than 4 KiB a unit takes in page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSizes {
    /// 2 MiB.
    pub pages_2m: bool,
    /// 1 GiB.
    pub pages_1g: bool,
}

/// Where a device's interrupt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptRoute {
    /// The only device that may raise it.
    pub source: Bdf,
    /// The x2APIC id of the processor it goes to.
    pub destination: u32,
    /// What arrives there.
    pub delivery: Delivery,
}

/// What a remapped interrupt is at its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The vector, edge-triggered.
    Fixed(u8),
    /// A non-maskable interrupt.
    Nmi,
}

/// What to write into a device's MSI capability or MSI-X table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
}

/// Something a device did that a unit blocked or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device that tried it; 00:00.0 for completions and time-outs on units that don't tell.
    pub source: Bdf,
    /// What it tried.
    pub request: Request,
    /// The vendor's code for the reason.
    pub code: u8,
    /// The reason in words.
    pub reason: &'static str,
}

/// What a device tried when it was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reading the page at this address.
    Read(u64),
    /// Writing the page at this address.
    Write(u64),
    /// An interrupt by the entry of this index.
    Interrupt(u16),
    /// An interrupt by a message to this address, of units that tell no index.
    Message(u64),
    /// What the unit doesn't tell the address of.
    Untold,
    /// A command of this crate's at this address, which the unit couldn't carry out: no device
    /// tried anything.
    Command(u64),
    /// A completion of an invalidation of its own cache that nobody asked for.
    Completion,
    /// Not completing such an invalidation.
    TimeOut,
}

/// The sender of a completion, which older units don't tell.
struct Named(Bdf);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.requester_id() {
            0 => f.write_str("a device that the unit doesn't name"),
            _ => write!(f, "device {}", self.0),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { source, reason, code, .. } = self;
        match self.request {
            Request::Read(page) => write!(f, "a read of page {page:#x}")?,
            Request::Write(page) => write!(f, "a write of page {page:#x}")?,
            Request::Interrupt(index) => write!(f, "an interrupt by entry {index}")?,
            Request::Message(address) => write!(f, "an interrupt by a message to {address:#x}")?,
            Request::Untold => f.write_str("a request")?,
            Request::Command(at) => {
                return write!(f, "the command at {at:#x} failed: {reason} ({code:#x})");
            }
            Request::Completion => {
                let what = "a completion of an invalidation";
                return write!(f, "{what} by {} was dropped: {reason}", Named(*source));
            }
            Request::TimeOut => {
                let what = "didn't complete an invalidation in time";
                return write!(f, "{} {what}: {reason}", Named(*source));
            }
        }
        write!(f, " by device {source} was blocked: {reason} ({code:#x})")
    }
}
