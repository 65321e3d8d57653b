//! Which requester ids a device's requests may carry: its own, and those that firmware names.
//!
//! Firmware may name a bridge for a device and another bridge for that one. Ids that are connected
//! so are one group: the unit can't tell some of its devices from others, so a group has one table
//! of interrupts.

use super::by_id::ById;
use crate::{Alias, Bdf};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What firmware says.
#[derive(Clone, Debug)]
pub struct Aliases {
    /// Device and requester, by device; neither the same id twice nor a pair twice.
    pairs: Box<[(u16, u16)]>,
    /// From each id but a group's lowest to a lower one of its group.
    lower: ById<u16>,
}

impl Aliases {
    pub fn new(aliases: &[Alias]) -> Self {
        let ids = |a: &Alias| (a.device.requester_id(), a.requester.requester_id());
        let pairs = aliases.iter().map(ids).filter(|(device, requester)| device != requester);
        let mut pairs: Vec<_> = pairs.collect();
        sort::by_key(&mut pairs, |pair| *pair);
        pairs.dedup();
        let mut lower = ById::default();
        for (device, requester) in &pairs {
            let (a, b) = (lowest(&lower, *device), lowest(&lower, *requester));
            if a != b {
                lower.insert(a.max(b), a.min(b));
            }
        }
        Aliases { pairs: pairs.into(), lower }
    }

    /// The lowest id of the device's group.
    pub fn group(&self, device: Bdf) -> u16 {
        lowest(&self.lower, device.requester_id())
    }

    /// The `n`th of the ids that its requests may carry, from 0. The first is its own.
    pub fn id(&self, device: Bdf, n: usize) -> Option<u16> {
        let own = device.requester_id();
        let Some(named) = n.checked_sub(1) else { return Some(own) };
        let from = self.pairs.partition_point(|pair| pair.0 < own);
        let pair = self.pairs.get(from..)?.get(named)?;
        (pair.0 == own).then_some(pair.1)
    }

    /// All of them.
    pub fn ids(&self, device: Bdf) -> impl Iterator<Item = u16> {
        (0..).map_while(move |n| self.id(device, n))
    }

    /// Every device that may use this id.
    pub fn devices(&self, id: u16) -> impl Iterator<Item = Bdf> {
        let others = self.pairs.iter().filter(move |pair| pair.1 == id);
        let others = others.map(|pair| Bdf::from_requester_id(pair.0));
        core::iter::once(Bdf::from_requester_id(id)).chain(others)
    }
}

fn lowest(lower: &ById<u16>, mut id: u16) -> u16 {
    // Each step goes to a lower id, so this ends.
    while let Some(next) = lower.get(id) {
        id = *next;
    }
    id
}
