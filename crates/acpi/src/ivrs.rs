//! What the table of AMD's IOMMUs says (I/O Virtualization Reporting Structure): plain data, each
//! field with its place in AMD's IOMMU specification (48882, revision 3.09).
//!
//! Says only what is used here: features are read from the unit itself, and what an entry permits
//! beyond interrupts (system management messages, address translation by the device) isn't granted
//! to anybody.

use crate::Error;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// Every requester id.
pub(crate) const ALL_IDS: RangeInclusive<u16> = 0..=u16::MAX;

/// The table (5.2.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ivrs {
    /// IVHD blocks, one a unit: of several the newest type that is known.
    pub hardware: Vec<HardwareDefinition>,
    /// IVMD blocks: memory that firmware has devices use behind the system's back.
    pub memory: Vec<MemoryDefinition>,
}

impl Ivrs {
    /// An error if a unit can't translate what devices access: it could confine none of them.
    pub fn check_translation(&self) -> Result<(), Error> {
        match self.hardware.iter().find(|unit| unit.no_translation) {
            Some(unit) => Err(Error::NoTranslation { base: unit.base }),
            None => Ok(()),
        }
    }
}

/// One IOMMU (IVHD, 5.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareDefinition {
    /// Requester id of the PCI function that the unit is, too.
    pub function: u16,
    /// How the unit's control register is to be set.
    pub settings: HardwareSettings,
    /// Host address translation is disabled in it: it walks no page tables of version 1 (HATDis in
    /// the IVHD attributes, which types 11h and 40h have).
    pub no_translation: bool,
    /// Physical address of its registers, a multiple of 16 KiB.
    pub base: u64,
    /// PCI segment it serves.
    pub segment: u16,
    /// The devices it serves, in the table's order: where two entries name one, the later counts.
    pub devices: Vec<DeviceEntry>,
    /// What else of the machine sends requests through it.
    pub special: Vec<SpecialDevice>,
}

/// What the firmware asks of a unit's control register, bit by bit (IVHD flags, 5.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareSettings {
    /// HtTunEn: what comes through HyperTransport tunnels is translated.
    pub ht_tunnel: bool,
    /// PassPW: posted writes may pass others.
    pub pass_posted_writes: bool,
    /// ResPassPW: responses may pass posted writes.
    pub responses_pass_posted_writes: bool,
    /// Isoc: its own reads of tables are isochronous.
    pub isochronous: bool,
}

impl HardwareDefinition {
    /// Whether it serves every device of the segment that no other unit names.
    pub fn include_all(&self) -> bool {
        self.devices.iter().any(DeviceEntry::is_all)
    }

    /// Whose interrupts other than by message the firmware wants to pass, with these interrupts.
    pub fn passing(&self) -> impl Iterator<Item = (RangeInclusive<u16>, Passing)> {
        let devices = self.devices.iter().map(|entry| (entry.ids.clone(), entry.passing));
        let special = self.special.iter().map(|device| (device.id..=device.id, device.passing));
        devices.chain(special).filter(|(_, passing)| passing.any())
    }
}

/// Devices by their requester ids (5.2.2.1 and 5.2.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Their ids.
    pub ids: RangeInclusive<u16>,
    /// The id that their requests carry instead of their own.
    pub alias: Option<u16>,
    /// What the firmware wants to pass.
    pub passing: Passing,
}

impl DeviceEntry {
    /// Whether it means all devices that nothing else names.
    pub(crate) fn is_all(&self) -> bool {
        self.ids == ALL_IDS && self.alias.is_none()
    }
}

/// Something that isn't a PCI function and sends requests all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialDevice {
    /// What it is.
    pub kind: SpecialKind,
    /// The requester id that its requests carry.
    pub id: u16,
    /// What the firmware wants to pass.
    pub passing: Passing,
}

/// Kinds of special device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialKind {
    /// The I/O APIC with this id (variety 1).
    IoApic(u8),
    /// The HPET with this number (variety 2).
    Hpet(u8),
    /// A device of the ACPI namespace, by its hardware id.
    Namespace([u8; 8]),
    /// Another variety.
    Other(u8),
}

impl fmt::Display for SpecialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecialKind::IoApic(id) => write!(f, "I/O APIC {id}"),
            SpecialKind::Hpet(number) => write!(f, "HPET {number}"),
            SpecialKind::Namespace(hid) => write!(f, "ACPI device {:?}", Ascii(hid)),
            SpecialKind::Other(variety) => write!(f, "a special device of variety {variety}"),
        }
    }
}

/// Bytes that should be text, up to the first zero.
struct Ascii<'a>(&'a [u8]);

impl fmt::Debug for Ascii<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        write!(f, "\"{}\"", text.escape_ascii())
    }
}

/// Interrupts that aren't sent as messages with an entry, and which of them the firmware wants to
/// pass the unit: the settings byte of an entry (5.2.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passing(pub u8);

impl Passing {
    const NAMES: [(u8, &'static str); 5] =
        [(1, "INIT"), (2, "ExtINT"), (4, "NMI"), (0x40, "LINT0"), (0x80, "LINT1")];

    fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }

    /// Whether it is any.
    pub fn any(self) -> bool {
        self.names().next().is_some()
    }
}

impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for name in self.names() {
            write!(f, "{between}{name}")?;
            between = ", ";
        }
        Ok(())
    }
}

/// Memory that firmware has devices use (IVMD, 5.2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDefinition {
    /// First byte.
    pub base: u64,
    /// Last byte.
    pub limit: u64,
    /// PCI segment of the devices.
    pub segment: u16,
    /// Their requester ids.
    pub devices: RangeInclusive<u16>,
    /// What they do there.
    pub access: MemoryAccess,
}

/// What devices do in memory that firmware keeps for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// They must find it at its own address, and read or write it.
    Mapped {
        /// Read it.
        read: bool,
        /// Write it.
        write: bool,
    },
    /// The firmware wants the unit not to look at what they do there at all (exclusion range).
    Excluded,
}

impl fmt::Display for MemoryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryAccess::Mapped { read: true, write: false } => "read",
            MemoryAccess::Mapped { read: false, write: true } => "write",
            MemoryAccess::Mapped { read: true, write: true } => "read and write",
            MemoryAccess::Mapped { read: false, write: false } => "find",
            MemoryAccess::Excluded => "reach, past the IOMMU,",
        })
    }
}
