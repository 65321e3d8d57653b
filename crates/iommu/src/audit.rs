//! Looking a unit over from outside, a few entries at a time, while it is used.
//!
//! Guarantees, once a pass has ended without a [`Finding`]: the unit remaps, as far as it was asked
//! to, and goes by its own tables; each interrupt entry that is present is whole, its source
//! verified, and one that the host expects; each device that is attached has the page tables that
//! the caller allows. It reads memory, as the unit does: a table that something else wrote to is
//! seen. Nobody who uses the unit is kept waiting by it. A call reads at most five words for each
//! entry it is to look at. Doesn't say anything about what the unit has cached.

use crate::{Bdf, Delivery, Domain, InterruptRoute, Memory, Registers, amdvi, vtd};
use core::fmt;
use thiserror::Error;

/// How far a pass has come. Starts at the beginning, and does so again after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

impl Cursor {
    /// The next of `count` numbers.
    pub(crate) fn number(self, count: u32) -> u32 {
        self.0.min(count.saturating_sub(1))
    }

    /// Goes on to this one of `count`; true if that is past the end.
    pub(crate) fn go(&mut self, next: u32, count: u32) -> bool {
        let ended = next >= count;
        self.0 = if ended { 0 } else { next };
        ended
    }
}

/// The route that the host expects an interrupt entry to have, whatever the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The device that has it.
    pub source: Bdf,
    /// The x2APIC id of the processor that its interrupts are for.
    pub destination: u32,
}

impl Expected {
    /// Is this route right? `understood`: is this vector, when it arrives there, taken for the
    /// interrupt that the entry is for, and for no other?
    pub fn allows(&self, route: InterruptRoute, understood: impl FnOnce(u8) -> bool) -> bool {
        let own = (route.source, route.destination) == (self.source, self.destination);
        own && matches!(route.delivery, Delivery::Fixed(vector) if understood(vector))
    }
}

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    /// It doesn't remap, or not by its own tables.
    #[error(
        "the unit's status reads {status:#x}, its tables are at {root:#x} and {interrupts:#x}: it doesn't remap everything by the host's tables"
    )]
    Off {
        /// Global status.
        status: u32,
        /// Where its root table is.
        root: u64,
        /// Where its interrupt remapping table is, and how large.
        interrupts: u64,
    },
    /// It isn't on as it should be, or not by its own table.
    #[error(
        "the unit's control reads {control:#x}, its device table is at {table:#x} and its exclusion range at {exclusion:#x}: it doesn't confine every device by the host's table"
    )]
    Open {
        /// Control register.
        control: u64,
        /// Where its device table is, and how large.
        table: u64,
        /// Where memory begins that devices reach without its tables, and whether there is some.
        exclusion: u64,
    },
    /// Not as this driver writes entries: any device may raise it, say.
    #[error("{entry} reads {low:#x}, {high:#x}, which is none of this driver's")]
    Malformed {
        /// Which one.
        entry: Entry,
        /// Its low half.
        low: u64,
        /// Its high half.
        high: u64,
    },
    /// Not what its owner may have, if it has one.
    #[error(
        "{entry} sends {:?} of device {} to APIC {:#x}, which nobody may by it",
        route.delivery, route.source, route.destination
    )]
    Route {
        /// Which one.
        entry: Entry,
        /// What it says.
        route: InterruptRoute,
    },
    /// Context entries of a bus where the driver has none.
    #[error("the root entry of bus {bus:#x} reads {entry:#x}, which the host didn't write")]
    Bus {
        /// The bus.
        bus: u8,
        /// The entry.
        entry: u64,
    },
    /// A context entry with bits that this driver never sets, such as pass-through.
    #[error(
        "the context entry of device {device} reads {low:#x}, {high:#x}, which is none of this driver's"
    )]
    Context {
        /// The device.
        device: Bdf,
        /// The low half.
        low: u64,
        /// The high half.
        high: u64,
    },
    /// A device's interrupts by another table than its own, or past it.
    #[error(
        "the device-table entry of device {device} reads {low:#x}, {high:#x} for interrupts, which the host didn't write"
    )]
    Interrupts {
        /// The device.
        device: Bdf,
        /// The low half of that half.
        low: u64,
        /// The high half of it.
        high: u64,
    },
    /// A device with memory that isn't its VM's.
    #[error(
        "device {device} reaches domain {}, by page tables of {} levels at {:#x}, which isn't its own",
        domain.id.0, domain.levels, domain.root
    )]
    Domain {
        /// The device.
        device: Bdf,
        /// The domain.
        domain: Domain,
    },
}

impl Finding {
    /// Whether the unit confines nobody.
    pub fn is_open(&self) -> bool {
        matches!(self, Finding::Off { .. } | Finding::Open { .. })
    }

    /// The device that it is about, if it is about one.
    pub fn device(&self) -> Option<Bdf> {
        match self {
            Finding::Route { route, .. } => Some(route.source),
            Finding::Context { device, .. }
            | Finding::Interrupts { device, .. }
            | Finding::Domain { device, .. } => Some(*device),
            Finding::Off { .. }
            | Finding::Open { .. }
            | Finding::Malformed { .. }
            | Finding::Bus { .. } => None,
        }
    }
}

/// An interrupt entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device that it was allocated for, where each device has a table of its own.
    pub table: Option<Bdf>,
    /// Its index in the table.
    pub index: u16,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupt entry {}", self.index)?;
        self.table.map_or(Ok(()), |device| write!(f, " of device {device}"))
    }
}

/// Where a unit's tables are, for whoever looks at them without holding it. Made when the last
/// device is attached: tables that are made later aren't known to it.
#[derive(Debug)]
pub enum Outline {
    /// Of Intel's.
    Vtd(vtd::audit::Outline),
    /// Of AMD's.
    AmdVi(amdvi::audit::Outline),
}

impl Outline {
    /// Looks at the unit itself.
    pub fn audit_unit(&self, regs: &mut impl Registers) -> Result<(), Finding> {
        match self {
            Outline::Vtd(outline) => outline.audit_unit(regs),
            Outline::AmdVi(outline) => outline.audit_unit(regs),
        }
    }

    /// Looks at `entries` more interrupt entries from where `cursor` stands. True when that was the
    /// end of the tables. After a finding, the next call goes on behind it.
    ///
    /// `judge`: what to ask about this entry, which nobody changes while that is held; none: not
    /// now, and the next call goes on there.
    pub fn audit_interrupts<J: FnOnce(InterruptRoute) -> bool>(
        &self,
        mem: &mut impl Memory,
        cursor: &mut Cursor,
        entries: u32,
        judge: impl FnMut(Entry) -> Option<J>,
    ) -> Result<bool, Finding> {
        match self {
            Outline::Vtd(outline) => outline.audit_interrupts(mem, cursor, entries, judge),
            Outline::AmdVi(outline) => outline.audit_interrupts(mem, cursor, entries, judge),
        }
    }

    /// The same for the domains of `entries` more devices, attached or not; a bus that has none
    /// attached may count as one.
    ///
    /// `allowed`: may this device be in this domain?
    pub fn audit_devices(
        &self,
        mem: &mut impl Memory,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<bool, Finding> {
        match self {
            Outline::Vtd(outline) => outline.audit_devices(mem, cursor, entries, allowed),
            Outline::AmdVi(outline) => outline.audit_devices(mem, cursor, entries, allowed),
        }
    }
}
