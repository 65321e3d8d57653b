//! The interrupt sources of a function, and where their interrupts go.
//!
//! It is the same for a device behind an IOMMU, whose sources have entries of a remapping table,
//! and for a paravirtual function, whose sidecore sends by words of ours: `Units` tells them apart
//! by the requester (`routing::calls`).

use crate::cpu::{rdtsc, tsc_hz};
use crate::vm::guest::Guest;
use crate::vm::interrupts::iommu_units::Units;
use crate::vm::stop::Incident;
use ::iommu::Bdf;
use alloc::vec::Vec;
use routing::{Units as _, VcpuRoutes, rebind, unbind};
use virtual_pc::message::Written;

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
    /// Where it was posted to before, and until when what was sent there may come late.
    left: [Option<(To, u64)>; LEFT],
    /// Which of those is next to be forgotten.
    next: u8,
    /// What it writes, or would if it weren't masked.
    written: Option<Written>,
}

/// So many of those are known.
const LEFT: usize = 3;
/// After so many milliseconds nothing comes any more.
const LATE_MS: u64 = 100;

/// Where a source's interrupts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To {
    pub vcpu: usize,
    /// The vector the guest asked for.
    pub vector: u8,
    /// The backing page, if it is posted to a guest of the vCPU's.
    pub page: Option<u64>,
}

/// The same of one that is bound.
#[derive(Clone, Copy)]
struct Route {
    to: To,
    /// What [`rebind`] gave.
    bound: u8,
}

impl Sources {
    /// With these interrupt entries, none of them routed.
    pub fn new(requester: Bdf, entries: impl Iterator<Item = u16>) -> Self {
        let source =
            |entry| Source { entry, route: None, left: [None; LEFT], next: 0, written: None };
        Sources { requester, all: entries.map(source).collect() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Their interrupt entries.
    pub fn entries(&self) -> impl Iterator<Item = u16> {
        self.all.iter().map(|source| source.entry)
    }

    /// Where a source's interrupts go.
    pub fn route(&self, source: usize) -> Option<To> {
        self.all.get(source)?.route.map(|route| route.to)
    }

    /// Does a source post to a guest of this vCPU's by this vector, or did it shortly before?
    #[inline(never)]
    pub fn posts(&self, source: usize, vcpu: usize, vector: u8) -> bool {
        let Some(source) = self.all.get(source) else { return false };
        let is_so = |to: To| (to.vcpu, to.vector, to.page.is_some()) == (vcpu, vector, true);
        source.route.is_some_and(|route| is_so(route.to))
            || source.left.iter().flatten().any(|(to, until)| is_so(*to) && rdtsc() < *until)
    }

    /// What a source writes, or would if it weren't masked, as it was routed last.
    pub fn written(&self, source: usize) -> Option<Written> {
        self.all.get(source)?.written
    }

    /// The interrupt entry of a source that is routed.
    pub fn routed_entry(&self, source: usize) -> Option<u16> {
        self.all.get(source).filter(|source| source.route.is_some()).map(|source| source.entry)
    }

    /// Where those that are routed go.
    pub fn routes(&self) -> impl Iterator<Item = To> {
        (0..self.all.len()).filter_map(|source| self.route(source))
    }

    /// Sends a source's interrupts there, which it asks for by this message.
    pub fn follow(
        &mut self,
        owner: &Guest,
        source: usize,
        (to, written): (To, Written),
    ) -> Result<(), Incident> {
        let now = self.route(source);
        let Some(source) = self.all.get_mut(source) else { return Ok(()) };
        source.written = Some(written);
        if now == Some(to) {
            return Ok(());
        }
        let from = source.leave().map(|route| (routes(owner, route.to), route.bound));
        let at = (self.requester, source.entry);
        let bound = rebind(&Units, at, from, (routes(owner, to), to.vector));
        source.route = bound.map(|bound| Route { to, bound });
        // An exception's vector is the guest's own mistake, and goes nowhere.
        match source.route {
            None if to.vector >= 32 => Err(Incident::Route(self.requester)),
            _ => Ok(()),
        }
    }

    /// The interrupts of one go nowhere.
    pub fn unbind_one(&mut self, owner: &Guest, source: usize) {
        if let Some(source) = self.all.get_mut(source)
            && let Some(route) = source.leave()
        {
            let bound = (routes(owner, route.to), route.bound);
            unbind(&Units, (self.requester, source.entry), bound);
        }
    }

    /// The interrupts of all of them go nowhere.
    pub fn unbind(&mut self, owner: &Guest) {
        for source in &mut self.all {
            (source.left, source.written) = ([None; LEFT], None);
            if let Some(route) = source.route.take() {
                let bound = (routes(owner, route.to), route.bound);
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

impl Source {
    /// It isn't routed any more, but for what was posted.
    #[inline(never)]
    fn leave(&mut self) -> Option<Route> {
        let route = self.route.take()?;
        if route.to.page.is_some() {
            let until = rdtsc() + tsc_hz() / 1000 * LATE_MS;
            self.left[usize::from(self.next) % LEFT] = Some((route.to, until));
            self.next = self.next.wrapping_add(1);
        }
        Some(route)
    }
}

/// By which a source is bound.
fn routes(owner: &Guest, to: To) -> &VcpuRoutes {
    owner.remotes[to.vcpu].routes_to(to.page.is_some())
}
