//! The look from outside at this unit's tables: see [`crate::audit`], which says what holds.

use super::aliases::Aliases;
use super::by_id::ById;
use super::control::confines;
use super::device::{self, DEVICES, DeviceTable};
use super::interrupt::{self, ENTRIES};
use super::registers::{CONTROL, DEVICE_TABLE, EXCLUSION_BASE};
use super::unit::Unit;
use crate::audit::{Cursor, Entry, Finding};
use crate::entries;
use crate::{Bdf, Domain, InterruptRoute, Memory, Registers, Remapping};
use alloc::boxed::Box;

/// Where the tables are.
#[derive(Debug)]
pub struct Outline {
    control: u64,
    remapping: Remapping,
    devices: DeviceTable,
    aliases: Aliases,
    /// Interrupt tables, and the owner of each entry.
    tables: Box<[(u64, Box<[Bdf]>)]>,
    /// By requester id, where its interrupt table is.
    leads: ById<u64>,
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Its outline.
    pub fn outline(&self) -> Outline {
        let mut leads = ById::default();
        self.interrupts.leads().for_each(|(id, table)| {
            leads.insert(id, table);
        });
        let tables = self.interrupts.tables().map(|(base, owners)| (base, owners.into()));
        Outline {
            control: self.control,
            remapping: self.capabilities().remapping,
            devices: self.devices,
            aliases: self.aliases.clone(),
            tables: tables.collect(),
            leads,
        }
    }
}

impl Outline {
    /// Looks at the unit itself.
    pub fn audit_unit(&self, regs: &mut impl Registers) -> Result<(), Finding> {
        let (control, table) = (regs.read64(CONTROL), regs.read64(DEVICE_TABLE));
        let exclusion = regs.read64(EXCLUSION_BASE);
        let same = confines(control) == confines(self.control);
        match same && table == self.devices.register() && exclusion & EXCLUDES == 0 {
            true => Ok(()),
            false => Err(Finding::Open { control, table, exclusion }),
        }
    }

    /// As [`crate::audit::Outline::audit_interrupts`], table by table.
    pub fn audit_interrupts<M: Memory, J: FnOnce(InterruptRoute) -> bool>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        count: u32,
        mut judge: impl FnMut(Entry) -> Option<J>,
    ) -> Result<bool, Finding> {
        let all = self.tables.len() as u32 * u32::from(ENTRIES);
        for _ in 0..count {
            let number = cursor.number(all);
            let (table, index) =
                (number / u32::from(ENTRIES), (number % u32::from(ENTRIES)) as u16);
            let mut result = Ok(());
            if let Some((base, owners)) = self.tables.get(table as usize)
                && let Some(owner) = owners.get(usize::from(index)).copied()
                && let at = base + u64::from(index) * 16
                && interrupt::is_enabled(mem.read64(at))
            {
                let entry = Entry { table: Some(owner), index };
                let Some(allowed) = judge(entry) else { return Ok(false) };
                let (low, high) = (mem.read64(at), mem.read64(at + 8));
                result = match interrupt::decode(owner, (low, high)) {
                    _ if !interrupt::is_enabled(low) => Ok(()),
                    None => Err(Finding::Malformed { entry, low, high }),
                    Some(route) if entries::check(route).is_ok() && allowed(route) => Ok(()),
                    Some(route) => Err(Finding::Route { entry, route }),
                };
            }
            let ended = cursor.go(number + 1, all);
            result?;
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`crate::audit::Outline::audit_devices`], by the device table.
    pub fn audit_devices<M: Memory>(
        &self,
        mem: &mut M,
        cursor: &mut Cursor,
        entries: u32,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<bool, Finding> {
        for _ in 0..entries {
            let number = cursor.number(DEVICES);
            let result = self.look(mem, number as u16, &allowed);
            let ended = cursor.go(number + 1, DEVICES);
            result?;
            if ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn look<M: Memory>(
        &self,
        mem: &mut M,
        id: u16,
        allowed: impl Fn(Bdf, Domain) -> bool,
    ) -> Result<(), Finding> {
        let mut pair = |at: u64| (mem.read64(at), mem.read64(at + 8));
        let (dma, interrupts) = (pair(self.devices.low(id)), pair(self.devices.high(id)));
        let device = Bdf::from_requester_id(id);
        let own = match (self.leads.get(id), self.remapping) {
            (Some(table), Remapping::On) => device::remapped(*table),
            _ => device::silent(self.remapping),
        };
        if interrupts != own {
            let (low, high) = interrupts;
            return Err(Finding::Interrupts { device, low, high });
        }
        if dma == self.devices.denied() {
            return Ok(());
        }
        let named = device::domain(dma).filter(|domain| device::translated(*domain) == dma);
        let Some(domain) = named else {
            return Err(Finding::Context { device, low: dma.0, high: dma.1 });
        };
        match self.aliases.devices(id).any(|device| allowed(device, domain)) {
            true => Ok(()),
            false => Err(Finding::Domain { device, domain }),
        }
    }
}

/// EXCLUSION_BASE: there is a range, or it is for every device.
const EXCLUDES: u64 = 0b11;
