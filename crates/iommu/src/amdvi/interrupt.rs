//! Interrupt remapping tables (48882, 2.2.5), with entries of 128 bits and x2APIC destinations: one
//! for each group of requester ids (see `aliases`) of which one was given an entry.

use super::by_id::ById;
use super::device::{self, DeviceTable};
use crate::entries::{self, Allocated};
use crate::tables::Tables;
use crate::{Bdf, Delivery, Error, InterruptRoute, Memory, Message};
use alloc::vec;
use alloc::vec::Vec;

/// Entries of a table: as many as a frame has room for, and no more, so that an index is all of the
/// message's vector field.
pub const ENTRIES: u16 = 256;

/// RemapEn: the entry counts.
const ENABLED: u64 = 1 << 0;
/// The destination's lower 24 bits, in the low half.
const DESTINATION_LOW: u32 = 8;
/// The rest of them, in the high half.
const DESTINATION_HIGH: u32 = 56;

/// An entry, low and high half: a fixed interrupt, physical destination. The source isn't in it:
/// whose table it stands in decides about that.
pub fn encode(route: InterruptRoute) -> Result<(u64, u64), Error> {
    entries::check(route)?;
    let Delivery::Fixed(vector) = route.delivery else { return Err(Error::NmiEntry) };
    let destination = u64::from(route.destination);
    let low = ENABLED | (destination & 0xFF_FFFF) << DESTINATION_LOW;
    Ok((low, u64::from(vector) | destination >> 24 << DESTINATION_HIGH))
}

/// The route of an entry of this device's, if it is one that [`encode`] makes.
pub fn decode(source: Bdf, (low, high): (u64, u64)) -> Option<InterruptRoute> {
    let destination =
        (low >> DESTINATION_LOW) as u32 & 0xFF_FFFF | (high >> DESTINATION_HIGH << 24) as u32;
    let route = InterruptRoute { source, destination, delivery: Delivery::Fixed(high as u8) };
    (encode(route) == Ok((low, high))).then_some(route)
}

/// Whether an entry of this low half may raise something.
pub fn is_enabled(low: u64) -> bool {
    low & ENABLED != 0
}

/// The message that raises the interrupt of a device's entry `index` (48882, 2.2.5.1): the index is
/// the data's lowest 11 bits. A device that has a block adds the message's number to that.
pub fn message(index: u16) -> Message {
    Message { address: 0xFEE0_0000, data: index.into() }
}

/// A table, and who has which of its entries.
struct Table {
    base: u64,
    allocated: Allocated,
    /// The device that each entry was allocated for last.
    owners: Vec<Bdf>,
    /// The ids whose entries in the device table lead here.
    users: Vec<u16>,
}

/// The tables, by group.
#[derive(Default)]
pub struct Interrupts(ById<Table>);

impl Interrupts {
    /// Gives `group` a table, if it has none, and makes all of `ids` lead to it. Gives the ids
    /// that didn't.
    pub fn provide<M: Memory>(
        &mut self,
        tables: &mut Tables<M>,
        devices: Option<&DeviceTable>,
        group: u16,
        ids: impl Iterator<Item = u16>,
    ) -> Result<Vec<u16>, Error> {
        let table = self.0.try_get_or_insert(group, || {
            let base = tables.allocate(1)?;
            let owners = vec![Bdf::from_requester_id(group); ENTRIES.into()];
            let allocated = Allocated::new(ENTRIES.into());
            Ok(Table { base, allocated, owners, users: Vec::new() })
        })?;
        let new: Vec<u16> = ids.filter(|id| !table.users.contains(id)).collect();
        for id in &new {
            if let Some(devices) = devices {
                devices.set_interrupts(tables, *id, device::remapped(table.base));
            }
            table.users.push(*id);
        }
        Ok(new)
    }

    /// Allocates `count` entries in a row for `device`.
    pub fn allocate(&mut self, group: u16, device: Bdf, count: u16) -> Result<u16, Error> {
        let Some(table) = self.0.get_mut(group) else {
            return Err(Error::TableFull { count });
        };
        let first = table.allocated.allocate(count)?;
        let block = usize::from(first)..usize::from(first + count);
        table.owners.get_mut(block).into_iter().flatten().for_each(|owner| *owner = device);
        Ok(first)
    }

    pub fn release(&mut self, group: u16, index: u16) {
        if let Some(table) = self.0.get_mut(group) {
            table.allocated.release(index);
        }
    }

    /// Address of an entry, if it is this device's.
    pub fn entry(&self, group: u16, device: Bdf, index: u16) -> Result<u64, Error> {
        let table = self.0.get(group).ok_or(Error::NotAllocated { index })?;
        table.allocated.check(index)?;
        match table.owners.get(usize::from(index)) {
            Some(owner) if *owner == device => Ok(table.base + u64::from(index) * 16),
            _ => Err(Error::NotAllocated { index }),
        }
    }

    /// The ids by which the unit may have cached entries of this table.
    pub fn users(&self, group: u16) -> impl Iterator<Item = u16> {
        self.0.get(group).into_iter().flat_map(|table| table.users.iter().copied())
    }

    /// Each table: its address, and the owner of each entry.
    pub fn tables(&self) -> impl Iterator<Item = (u64, &[Bdf])> {
        self.0.values().map(|table| (table.base, table.owners.as_slice()))
    }

    /// Each id that leads to a table, and to which.
    pub fn leads(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.values().flat_map(|table| table.users.iter().map(|id| (*id, table.base)))
    }
}
