//! Looking a unit's tables over from outside, a few entries at a time.
//!
//! Guarantees, once a pass has ended without a [`Finding`]: each interrupt entry that is present is
//! whole, its source verified, allocated, and one that the caller allows; each device that is attached
//! has the context that the caller allows. It reads memory, as the unit does: a table that something
//! else wrote to is seen. A call reads at most four words for each entry it is to look at. Doesn't
//! say anything about what the unit has cached.

use super::context::Context;
use super::interrupt::{self, Entries};
use super::unit::Unit;
use crate::{Bdf, DomainId, InterruptRoute, Memory, Registers};
use thiserror::Error;

/// How far a pass has come. Starts at the beginning, and does so again after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

impl Cursor {
    /// Gives the next of `count` numbers, and goes on; true if it was the last.
    fn next(&mut self, count: u32) -> (u16, bool) {
        // The numbers are 16 bits wide.
        let now = self.0.min(count.saturating_sub(1)) as u16;
        let ended = u32::from(now) + 1 >= count;
        self.0 = if ended { 0 } else { u32::from(now) + 1 };
        (now, ended)
    }
}

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    /// Present, but nobody's.
    #[error("interrupt entry {index} is present, and nobody has it")]
    Unowned {
        /// Its index.
        index: u16,
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
    /// Not what its owner may have.
    #[error(
        "interrupt entry {index} sends {:?} of device {} to APIC {:#x}, which isn't its own to send",
        route.delivery, route.source, route.destination
    )]
    Route {
        /// Its index.
        index: u16,
        /// What it says.
        route: InterruptRoute,
    },
    /// A context entry with bits that this driver never sets, such as pass-through.
    #[error(
        "the context entry of device {device} reads {low:#x}, {high:#x}, which is none of this driver's"
    )]
    Context {
        /// The device.
        device: Bdf,
        /// Its low half.
        low: u64,
        /// Its high half.
        high: u64,
    },
    /// A device with memory that isn't its VM's.
    #[error("device {device} reaches domain {}, by page tables at {root:#x}, which isn't its own", domain.0)]
    Domain {
        /// The device.
        device: Bdf,
        /// The domain.
        domain: DomainId,
        /// Its page tables.
        root: u64,
    },
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Looks at `entries` more interrupt entries from where `cursor` stands. True when that was the
    /// end of the table. After a finding, the next call goes on behind it.
    ///
    /// `allowed`: may the owner of the entry with this index have this route?
    pub fn audit_interrupts(
        &mut self,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(u16, InterruptRoute) -> bool,
    ) -> Result<bool, Finding> {
        let mut ended = false;
        for _ in 0..entries {
            if ended {
                break;
            }
            let index;
            (index, ended) = cursor.next(self.entries.count());
            let (low, high) = self.entries.get(&mut self.tables, index);
            if !Entries::is_present(low) {
                continue;
            }
            if self.entries.check(index).is_err() {
                return Err(Finding::Unowned { index });
            }
            let Some(route) = interrupt::decode(low, high) else {
                return Err(Finding::Malformed { index, low, high });
            };
            if interrupt::check(route).is_err() || !allowed(index, route) {
                return Err(Finding::Route { index, route });
            }
        }
        Ok(ended)
    }

    /// The same for the context entries of `entries` more devices, present or not; a bus that has
    /// none counts as one.
    ///
    /// `allowed`: may this device be in this domain, with these page tables?
    pub fn audit_contexts(
        &mut self,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, DomainId, u64) -> bool,
    ) -> Result<bool, Finding> {
        let mut ended = false;
        for _ in 0..entries {
            if ended {
                break;
            }
            let id;
            (id, ended) = cursor.next(1 << 16);
            let device = Bdf::from_requester_id(id);
            let Some((low, high)) = self.contexts.raw(&mut self.tables, device) else {
                // Its bus has no table.
                ended = device.bus() == u8::MAX;
                cursor.0 = if ended { 0 } else { (u32::from(device.bus()) + 1) << 8 };
                continue;
            };
            let Some(context) = Context::decode(low, high) else { continue };
            if context.encode() != (low, high) {
                return Err(Finding::Context { device, low, high });
            }
            let Context { domain, root, .. } = context;
            if !allowed(device, domain, root) {
                return Err(Finding::Domain { device, domain, root });
            }
        }
        Ok(ended)
    }
}
