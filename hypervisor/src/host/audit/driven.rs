//! The tables of devices that sidecores drive for guests: what such a device may reach.

use super::read::{ENTRIES, Looked, looked, word};
use crate::iommu;
use crate::iommu::domain::Confinement;
use crate::vm::stop::Finding;
use alloc::vec::Vec;
use paging::Access;
use paging::audit::{Cursor, Region};

/// A device, and what it may reach: that was taken from what it was given at boot.
pub struct Driven {
    confinement: Confinement,
    regions: Vec<Region>,
    at: Cursor,
}

impl Driven {
    /// Nothing is looked at yet.
    pub fn new(confinement: Confinement) -> Self {
        let region = |&(pa, len)| {
            let access = Access::READ | Access::WRITE;
            Region { va: Some(pa), pa, len, access }
        };
        let regions = confinement.mapped.iter().map(region).collect();
        Driven { confinement, regions, at: Cursor::default() }
    }

    /// Looks at the next entries of its tables, which nobody changes after boot.
    pub fn look(&mut self) -> Looked {
        let Driven { confinement, regions, at } = self;
        let Confinement { device, outline, frames, .. } = confinement;
        let is_table = |frame| frames.binary_search(&frame).is_ok();
        let result = outline.audit(word, at, ENTRIES, regions, is_table, || Some(()));
        let (ended, what) = looked(result, *at == Cursor::default());
        (ended, what.map(|what| Finding::Driven { device: *device, what }))
    }

    /// Nothing vouches for what this device reaches: it reaches nothing any more. The driver of a
    /// disk's controller sees commands that don't end, and gives it up; frames of an uplink are
    /// lost.
    pub fn cut_off(device: ::iommu::Bdf) {
        match iommu::detach(device) {
            Ok(()) => log::error!("{device} reaches no memory any more"),
            Err(error) => log::error!("{device} can't be cut off from memory: {error}"),
        }
    }
}
