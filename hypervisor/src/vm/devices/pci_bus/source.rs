//! The interrupt sources of a function, and where their interrupts go.
//!
//! It is the same for a device behind an IOMMU, whose sources have entries of a remapping table,
//! and for a paravirtual function, whose sidecore sends by words of ours: `Units` tells them apart
//! by the requester (`routing::calls`).

use crate::vm::guest::Guest;
use crate::vm::interrupts::iommu_units::Units;
use crate::vm::stop::Incident;
use ::iommu::Bdf;
use alloc::vec::Vec;
use routing::{Units as _, VcpuRoutes, rebind, unbind};

/// The sources of one function: the entries of its MSI-X table, or its MSI capability alone.
pub struct Sources {
    requester: Bdf,
    all: Vec<Source>,
}

/// One of them.
struct Source {
    /// Its interrupt entry.
    entry: u16,
    route: Option<Route>,
}

/// Where a source's interrupts go.
#[derive(Clone, Copy)]
struct Route {
    vcpu: usize,
    /// What [`rebind`] gave.
    bound: u8,
    /// The vector the guest asked for.
    guest: u8,
    /// It is posted to a guest of the vCPU's.
    inner: bool,
}

impl Sources {
    /// With these interrupt entries, none of them routed.
    pub fn new(requester: Bdf, entries: impl Iterator<Item = u16>) -> Self {
        Sources { requester, all: entries.map(|entry| Source { entry, route: None }).collect() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Their interrupt entries.
    pub fn entries(&self) -> impl Iterator<Item = u16> {
        self.all.iter().map(|source| source.entry)
    }

    /// The vCPU that a source's interrupts are for, the guest's vector, and whether they are posted
    /// to a guest of the vCPU's.
    pub fn route(&self, source: usize) -> Option<(usize, u8, bool)> {
        self.all.get(source)?.route.map(|route| (route.vcpu, route.guest, route.inner))
    }

    /// The interrupt entry of a source that is routed.
    pub fn routed_entry(&self, source: usize) -> Option<u16> {
        self.all.get(source).filter(|source| source.route.is_some()).map(|source| source.entry)
    }

    /// Where those that are routed go.
    pub fn routes(&self) -> impl Iterator<Item = (usize, u8, bool)> {
        (0..self.all.len()).filter_map(|source| self.route(source))
    }

    /// Sends a source's interrupts to this vCPU as this vector.
    pub fn follow(
        &mut self,
        owner: &Guest,
        source: usize,
        (vcpu, guest, inner): (usize, u8, bool),
    ) -> Result<(), Incident> {
        if self.route(source) == Some((vcpu, guest, inner)) {
            return Ok(());
        }
        let Some(source) = self.all.get_mut(source) else { return Ok(()) };
        let from = source.route.take().map(|route| (routes(owner, &route), route.bound));
        let at = (self.requester, source.entry);
        let to = owner.remotes[vcpu].routes_to(inner);
        let bound = rebind(&Units, at, from, (to, guest));
        source.route = bound.map(|bound| Route { vcpu, bound, guest, inner });
        // An exception's vector is the guest's own mistake, and goes nowhere.
        match source.route {
            None if guest >= 32 => Err(Incident::Route(self.requester)),
            _ => Ok(()),
        }
    }

    /// The interrupts of all of them go nowhere.
    pub fn unbind(&mut self, owner: &Guest) {
        for source in &mut self.all {
            if let Some(route) = source.route.take() {
                let bound = (routes(owner, &route), route.bound);
                unbind(&Units, (self.requester, source.entry), bound);
            }
        }
    }

    /// The same for good, with those that lead nowhere already.
    pub fn close(&mut self, owner: &Guest) {
        for source in self.all.iter().filter(|source| source.route.is_none()) {
            // If that fails its vector finds nobody on the core.
            Units.clear_irte(self.requester, source.entry);
        }
        self.unbind(owner);
    }
}

/// By which a source is bound.
fn routes<'a>(owner: &'a Guest, route: &Route) -> &'a VcpuRoutes {
    owner.remotes[route.vcpu].routes_to(route.inner)
}
