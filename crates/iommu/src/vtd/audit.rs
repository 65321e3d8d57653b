//! Looking a unit over from outside, a few entries at a time, while it is used.
//!
//! Guarantees, once a pass has ended without a [`Finding`]: the unit remaps, as far as it was
//! asked to, and goes by its own tables; each interrupt entry that is present is whole, its source verified, and one that the host's
//! books allow; each device that is attached has the context that the caller allows. It reads
//! memory, as the unit does: a table that something else wrote to is seen. Nobody who uses the unit is kept
//! waiting by it. A call reads at most five words for each entry it is to look at. Doesn't say anything
//! about what the unit has cached.

use super::capabilities::Remapping;
use super::context::Context;
use super::interrupt::{self, Entries};
use super::registers::{CFI, EIME, GSTS, IRE, IRTA, RTADDR, TE};
use super::unit::Unit;
use crate::{Bdf, Delivery, DomainId, InterruptRoute, Memory, Registers};
use alloc::boxed::Box;
use thiserror::Error;

/// How far a pass has come. Starts at the beginning, and does so again after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

impl Cursor {
    /// The next of `count` numbers.
    fn index(self, count: u32) -> u16 {
        // The numbers are 16 bits wide.
        self.0.min(count.saturating_sub(1)) as u16
    }

    /// Goes on to this one of `count`; true if that is past the end.
    fn go(&mut self, next: u32, count: u32) -> bool {
        let ended = next >= count;
        self.0 = if ended { 0 } else { next };
        ended
    }
}

/// What the host's books say of an interrupt entry, whatever the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booked {
    /// The device that has it.
    pub source: Bdf,
    /// The x2APIC id of the processor that its interrupts are for.
    pub destination: u32,
}

impl Booked {
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
    /// Not as this driver writes entries: any device may raise it, say.
    #[error("interrupt entry {index} reads {low:#x}, {high:#x}, which is none of this driver's")]
    Malformed {
        /// Its index.
        index: u16,
        /// Its low half.
        low: u64,
        /// Its high half.
        high: u64,
    },
    /// Not what its owner may have, if it has one.
    #[error(
        "interrupt entry {index} sends {:?} of device {} to APIC {:#x}, which nobody may by it",
        route.delivery, route.source, route.destination
    )]
    Route {
        /// Its index.
        index: u16,
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
    /// A device with memory that isn't its VM's.
    #[error(
        "device {device} reaches domain {}, by page tables of {levels} levels at {root:#x}, which isn't its own",
        domain.0
    )]
    Domain {
        /// The device.
        device: Bdf,
        /// The domain.
        domain: DomainId,
        /// Its page tables.
        root: u64,
        /// Their levels.
        levels: u8,
    },
}

impl Finding {
    /// The device that it is about, if it is about one.
    pub fn device(&self) -> Option<Bdf> {
        match self {
            Finding::Route { route, .. } => Some(route.source),
            Finding::Context { device, .. } | Finding::Domain { device, .. } => Some(*device),
            Finding::Off { .. } | Finding::Malformed { .. } | Finding::Bus { .. } => None,
        }
    }
}

/// Where a unit's tables are, for whoever looks at them without holding it. Made when the last device
/// is attached: context tables that are made later aren't known to it.
#[derive(Debug)]
pub struct Outline {
    interrupts: u64,
    entries: u32,
    remapping: Remapping,
    root: u64,
    /// The root table's entries, by bus.
    buses: Box<[u64]>,
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Its outline.
    pub fn outline(&mut self) -> Outline {
        let root = self.contexts.root();
        let buses = (0..=u8::MAX).map(|bus| self.tables.read(root_entry(root, bus))).collect();
        let (interrupts, entries) = (self.entries.irta() | EIME, self.entries.count());
        let remapping = self.capabilities().remapping;
        Outline { interrupts, entries, remapping, root, buses }
    }
}

impl Outline {
    /// Looks at the unit itself.
    pub fn audit_unit(&self, regs: &mut impl Registers) -> Result<(), Finding> {
        let (status, root) = (regs.read32(GSTS), regs.read64(RTADDR));
        let interrupts = regs.read64(IRTA);
        let remaps = match self.remapping {
            Remapping::On => status & (IRE | CFI) == IRE && interrupts == self.interrupts,
            Remapping::Off => true,
        };
        match remaps && status & TE != 0 && root == self.root {
            true => Ok(()),
            false => Err(Finding::Off { status, root, interrupts }),
        }
    }

    /// Looks at `entries` more interrupt entries from where `cursor` stands. True when that was the
    /// end of the table. After a finding, the next call goes on behind it.
    ///
    /// `judge`: what to ask about the entry with this index, which nobody changes while that is
    /// held; none: not now, and the next call goes on there.
    pub fn audit_interrupts<M: Memory, J: FnOnce(InterruptRoute) -> bool>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        entries: u32,
        mut judge: impl FnMut(u16) -> Option<J>,
    ) -> Result<bool, Finding> {
        for _ in 0..entries {
            let index = cursor.index(self.entries);
            let at = (self.interrupts & !0xFFF) + u64::from(index) * 16;
            let mut result = Ok(());
            if Entries::is_present(mem.read64(at)) {
                let Some(allowed) = judge(index) else { return Ok(false) };
                let (low, high) = (mem.read64(at), mem.read64(at + 8));
                result = match interrupt::decode(low, high) {
                    _ if !Entries::is_present(low) => Ok(()),
                    None => Err(Finding::Malformed { index, low, high }),
                    Some(route) if interrupt::check(route).is_ok() && allowed(route) => Ok(()),
                    Some(route) => Err(Finding::Route { index, route }),
                };
            }
            let ended = cursor.go(u32::from(index) + 1, self.entries);
            result?;
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same for the context entries of `entries` more devices, present or not; a bus that has
    /// none counts as one.
    ///
    /// `allowed`: may this device be in this domain, with these page tables, of so many levels?
    pub fn audit_contexts<M: Memory>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, DomainId, u64, u8) -> bool,
    ) -> Result<bool, Finding> {
        const DEVICES: u32 = 1 << 16;
        for _ in 0..entries {
            let device = Bdf::from_requester_id(cursor.index(DEVICES));
            let (bus, id) = (device.bus(), u32::from(device.requester_id()));
            let entry = mem.read64(root_entry(self.root, bus));
            let known = self.buses.get(usize::from(bus)).copied().unwrap_or(0);
            // What somebody else wrote there isn't followed.
            let (result, next) = match Entries::is_present(known) {
                _ if entry != known => (Err(Finding::Bus { bus, entry }), (id | 0xFF) + 1),
                false => (Ok(()), (id | 0xFF) + 1),
                true => {
                    let at = (known & !0xFFF) + u64::from(device.requester_id() & 0xFF) * 16;
                    let raw = (mem.read64(at), mem.read64(at + 8));
                    (look(device, raw, &allowed), id + 1)
                }
            };
            let ended = cursor.go(next, DEVICES);
            result?;
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn look(
    device: Bdf,
    (low, high): (u64, u64),
    allowed: impl Fn(Bdf, DomainId, u64, u8) -> bool,
) -> Result<(), Finding> {
    let Some(context) = Context::decode(low, high) else { return Ok(()) };
    if context.encode() != (low, high) {
        return Err(Finding::Context { device, low, high });
    }
    let Context { domain, root, levels } = context;
    match allowed(device, domain, root, levels) {
        true => Ok(()),
        false => Err(Finding::Domain { device, domain, root, levels }),
    }
}

/// Address of a bus's entry in the root table.
fn root_entry(root: u64, bus: u8) -> u64 {
    root + u64::from(bus) * 16
}
