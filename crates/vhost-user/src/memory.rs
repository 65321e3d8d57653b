//! Regions of the front end's memory. A front end names rings by its own ("user") addresses, and
//! what is in rings by the guest's.

use crate::error::Error;
use crate::fields::Fields;
use alloc::vec::Vec;

/// The most regions: what a window has.
pub const MAX_REGIONS: usize = 8;

/// A region as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// The first address in the front end.
    pub user: u64,
    /// Where it begins in the file of its handle, in bytes.
    pub offset: u64,
}

impl Region {
    pub(crate) fn parse(fields: &mut Fields<'_>) -> Option<Self> {
        let (guest, len) = (fields.u64()?, fields.u64()?);
        Some(Region { guest, len, user: fields.u64()?, offset: fields.u64()? })
    }

    /// No address wraps, and there are bytes.
    fn is_possible(&self) -> bool {
        self.len > 0
            && [self.guest, self.user, self.offset]
                .iter()
                .all(|start| start.checked_add(self.len).is_some())
    }

    fn overlaps(&self, other: &Region) -> bool {
        let apart = |a: u64, b: u64| a.saturating_add(self.len) <= b || b + other.len <= a;
        !apart(self.guest, other.guest) || !apart(self.user, other.user)
    }
}

/// Regions in ascending order of guest addresses, which don't overlap.
#[derive(Clone, Debug, Default)]
pub struct Table(Vec<Region>);

impl Table {
    pub fn regions(&self) -> &[Region] {
        &self.0
    }

    pub fn add(&mut self, region: Region) -> Result<(), Error> {
        let bad = !region.is_possible()
            || self.0.len() >= MAX_REGIONS
            || self.0.iter().any(|other| other.overlaps(&region));
        if bad {
            return Err(Error::Region(region.guest));
        }
        let at = self.0.partition_point(|other| other.guest < region.guest);
        self.0.insert(at, region);
        Ok(())
    }

    /// The offset isn't compared: front ends don't say it again when they remove one.
    pub fn remove(&mut self, region: Region) -> Result<Region, Error> {
        let key = |region: &Region| (region.guest, region.len, region.user);
        let at = self.0.iter().position(|other| key(other) == key(&region));
        at.map(|at| self.0.remove(at)).ok_or(Error::NoRegion(region.guest))
    }

    /// The guest's address of what has this one in the front end.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        self.0.iter().find_map(|region| {
            let at = user.checked_sub(region.user).filter(|at| *at < region.len)?;
            Some(region.guest + at)
        })
    }
}
