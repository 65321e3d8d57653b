//! The look from outside at this unit's tables: see [`crate::audit`], which says what holds.

use super::context;
use super::interrupt::{self, Entries};
use super::registers::{CFI, EIME, GSTS, IRE, IRTA, RTADDR, TE};
use super::unit::Unit;
use crate::audit::{Cursor, Entry, Finding};
use crate::entries;
use crate::{Bdf, Domain, InterruptRoute, Memory, Registers, Remapping};
use alloc::boxed::Box;

/// Where the tables are.
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

    /// As [`crate::audit::Outline::audit_interrupts`].
    pub fn audit_interrupts<M: Memory, J: FnOnce(InterruptRoute) -> bool>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        entries: u32,
        mut judge: impl FnMut(Entry) -> Option<J>,
    ) -> Result<bool, Finding> {
        for _ in 0..entries {
            let index = cursor.number(self.entries) as u16;
            let at = (self.interrupts & !0xFFF) + u64::from(index) * 16;
            let mut result = Ok(());
            if Entries::is_present(mem.read64(at)) {
                let entry = Entry { table: None, index };
                let Some(allowed) = judge(entry) else { return Ok(false) };
                let (low, high) = (mem.read64(at), mem.read64(at + 8));
                result = match interrupt::decode(low, high) {
                    _ if !Entries::is_present(low) => Ok(()),
                    None => Err(Finding::Malformed { entry, low, high }),
                    Some(route) if entries::check(route).is_ok() && allowed(route) => Ok(()),
                    Some(route) => Err(Finding::Route { entry, route }),
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

    /// As [`crate::audit::Outline::audit_devices`], by the context entries.
    pub fn audit_devices<M: Memory>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<bool, Finding> {
        const DEVICES: u32 = 1 << 16;
        for _ in 0..entries {
            let device = Bdf::from_requester_id(cursor.number(DEVICES) as u16);
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
    allowed: impl Fn(Bdf, Domain) -> bool,
) -> Result<(), Finding> {
    let Some(domain) = context::decode((low, high)) else { return Ok(()) };
    if context::encode(domain) != (low, high) {
        return Err(Finding::Context { device, low, high });
    }
    match allowed(device, domain) {
        true => Ok(()),
        false => Err(Finding::Domain { device, domain }),
    }
}

/// Address of a bus's entry in the root table.
fn root_entry(root: u64, bus: u8) -> u64 {
    root + u64::from(bus) * 16
}
