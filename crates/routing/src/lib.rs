//! Which interrupt is whose: where the interrupts of assigned devices go, and what a physical
//! vector means on the core that it arrives on.
//!
//! A source (an MSI-X entry, or an MSI capability) has an entry in the interrupt remapping table
//! (IRTE). What that sends, by the state of the source, and what ends the state:
//!
//! - *unbound*: nothing; [`rebind`].
//! - *bound to a vCPU with a core of its own*: the guest's vector, or a hidden stand-in if that is
//!   the host's; [`rebind`], [`unbind`].
//! - *bound to a resident vCPU of a shared core*: the guest's vector;
//!   [`CoreRoutes::retarget_to_aliases`].
//! - *the same, descheduled less than the grace period ago*: an alias of class F, and the core
//!   takes the guest's vector for it, too; [`CoreRoutes::retarget_to_guest`], of this vCPU or
//!   another.
//! - *bound to a descheduled vCPU of a shared core*: an alias of class F;
//!   [`CoreRoutes::retarget_to_guest`].
//! - *being unbound, or rebound*: what it sent last, an alias on a shared core; the new IRTE.
//!
//! Guarantees: a physical vector that arrives on a core means one vCPU's vector there
//! (`delivery::Routes`, `delivery::CoreVectors`), also in the middle of a change: a source that is
//! rebound arrives by its old route or by its new one, and both are understood. All of it runs
//! under loom as it is (`model`), beside a unit that goes by old entries for as long as it may.
//! Locks here are taken after a VM's lock, if both are.
//!
//! A paravirtual function has no unit, but a core of the host that sends for it. For these
//! [`calls`] has the entries, and "invalidate and wait". [`Units`] is the same for both.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod calls;
mod core_routes;
#[cfg(test)]
#[cfg(loom)]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use alloc::boxed::Box;
use core::ops::Deref;
pub use core_routes::{CoreRoutes, State};
pub use delivery::Arrived;
use delivery::{FIRST_RESERVED, Routes, VectorSet, is_ordinary};
use iommu::{Bdf, Delivery as Message, InterruptRoute};
use sync::{AtomicU64, Ordering, SpinMutex, SpinMutexGuard, TicketMutexGuard};

/// The IOMMUs of the machine, as far as they route interrupts, and whoever else sends interrupts to
/// guests' cores ([`calls`]). Each call says whether it was done.
pub trait Units {
    /// Routes an interrupt entry. The unit goes by the new route when this returns, and what it
    /// sent by the old one has left it.
    fn set_irte(&self, entry: u16, route: InterruptRoute) -> bool;
    /// The same, but the unit may go by the old route until it is drained.
    fn update_irte(&self, entry: u16, route: InterruptRoute) -> bool;
    /// Blocks an interrupt entry.
    fn clear_irte(&self, device: Bdf, entry: u16) -> bool;
    /// The unit of this device goes by every route as it is now, and what it sent by others has
    /// left it.
    fn drain(&self, device: Bdf) -> bool;
    /// The same for every unit.
    fn drain_all(&self) -> bool;
    /// The time, in TSC ticks.
    fn now(&self) -> u64;
    /// How long a message takes at most from the unit, which has let go of it, to the local APIC,
    /// in TSC ticks.
    fn grace(&self) -> u64;
}

/// The vectors that on a shared core are never a guest's own: the limit of its IDT keeps them from
/// it.
fn reserved() -> VectorSet {
    let mut all = VectorSet::EMPTY;
    (FIRST_RESERVED..=u8::MAX).for_each(|v| all.insert(v));
    all
}

/// The routes that lead to one vCPU. `C`: how it has hold of those of the core that it shares.
#[derive(Debug)]
pub struct VcpuRoutes<C = &'static CoreRoutes> {
    /// The vectors of its core that are never its guest's own.
    host: VectorSet,
    core: Core<C>,
    /// Guest vectors of assigned devices: asked at each interrupt, and so without a lock.
    devices: [AtomicU64; 4],
}

#[derive(Debug)]
enum Core<C> {
    /// `destination`: APIC id of the core.
    Dedicated {
        destination: u32,
        routes: Box<SpinMutex<Routes>>,
    },
    Shared {
        routes: C,
        slot: usize,
    },
}

impl<C: Deref<Target = CoreRoutes>> VcpuRoutes<C> {
    /// None yet, to a vCPU that has the core `destination` to itself. `host`: the host's vectors
    /// there.
    pub fn dedicated(destination: u32, host: VectorSet) -> Self {
        let routes = Box::new(SpinMutex::new(Routes::new(host)));
        let core = Core::Dedicated { destination, routes };
        VcpuRoutes { host, core, devices: Default::default() }
    }

    /// None yet, to the vCPU at `slot` of a shared core.
    pub fn shared(routes: C, slot: usize) -> Self {
        let core = Core::Shared { routes, slot };
        VcpuRoutes { host: reserved(), core, devices: Default::default() }
    }

    /// The vectors of its core that are never its guest's own.
    pub fn host_vectors(&self) -> VectorSet {
        self.host
    }

    /// Binds a source to this vCPU as its vector `guest`; gives what [`VcpuRoutes::end_unbind`]
    /// wants to know of it. `None`: it can't be; the IRTE may lead here all the same, if the unit
    /// took it and then didn't answer.
    fn bind(&self, units: &impl Units, device: Bdf, entry: u16, guest: u8) -> Option<u8> {
        let (destination, routes) = match &self.core {
            Core::Shared { routes, slot } => {
                return routes.bind(units, *slot, device, entry, guest).then_some(guest);
            }
            Core::Dedicated { destination, routes } => (*destination, routes),
        };
        let physical = routes.lock().claim(guest)?;
        let delivery = Message::Fixed(physical);
        let route = InterruptRoute { source: device, destination, delivery };
        units.set_irte(entry, route).then_some(physical)
    }

    /// The source's IRTE is about to lead elsewhere, or nowhere.
    fn begin_unbind(&self, units: &impl Units, device: Bdf, entry: u16) {
        if let Core::Shared { routes, .. } = &self.core {
            routes.begin_unbind(units, device, entry);
        }
    }

    /// The IRTE leads elsewhere, or nowhere, by now. `bound`: what [`VcpuRoutes::bind`] gave. On a
    /// core of its own the vector stays its.
    fn end_unbind(&self, bound: u8) {
        if let Core::Shared { routes, slot } = &self.core {
            routes.release(*slot, bound);
        }
    }

    /// On a shared core: whose a physical interrupt is.
    pub fn arrived(&self, physical: u8) -> Option<Arrived> {
        match &self.core {
            Core::Dedicated { .. } => None,
            Core::Shared { routes, .. } => Some(routes.arrived(physical)),
        }
    }

    /// The guest's vector for a physical interrupt that is in service on its core while it has it.
    pub fn guest_vector(&self, physical: u8) -> Option<u8> {
        match &self.core {
            Core::Dedicated { routes, .. } => routes.lock().guest_vector(physical),
            Core::Shared { routes, slot } => match routes.arrived(physical) {
                Arrived::Of { slot: of, vectors } if of == *slot => vectors.highest(),
                _ => None,
            },
        }
    }

    /// The vectors to be hidden from guests that take interrupts on its core by a shadow IDT.
    pub fn hidden(&self) -> VectorSet {
        match &self.core {
            Core::Dedicated { routes, .. } => routes.lock().hidden(),
            // They are kept from it by the limit of its IDT.
            Core::Shared { .. } => VectorSet::EMPTY,
        }
    }

    /// May the vCPU's timer interrupt its core by this vector of the guest's, while the vCPU owns
    /// the core's vectors? The vector stays its own from then on.
    pub fn keep(&self, guest: u8) -> bool {
        match &self.core {
            Core::Dedicated { routes, .. } => routes.lock().keep(guest),
            Core::Shared { .. } => is_ordinary(guest) && guest < FIRST_RESERVED,
        }
    }

    /// Are there a device's interrupts that the guest knows by this vector?
    #[inline]
    pub fn is_devices(&self, guest: u8) -> bool {
        let word = &self.devices[usize::from(guest >> 6)];
        word.load(Ordering::Relaxed) >> (guest & 63) & 1 != 0
    }

    /// The guest vectors of all sources that are bound to this vCPU.
    pub fn set_devices(&self, guests: VectorSet) {
        for (word, at) in self.devices.iter().zip([0, 2, 4, 6]) {
            let (low, high) = (guests.register(at), guests.register(at + 1));
            word.store(u64::from(high) << 32 | u64::from(low), Ordering::Relaxed);
        }
    }

    /// What its core takes vectors for, as long as that is held; `None` while somebody changes it.
    pub fn expected(&self) -> Option<ExpectedVectors<'_>> {
        Some(match &self.core {
            Core::Dedicated { routes, .. } => ExpectedVectors::Dedicated(routes.try_lock()?),
            Core::Shared { routes, slot } => ExpectedVectors::Shared(routes.try_lock()?, *slot),
        })
    }
}

/// What a core takes vectors for: what [`VcpuRoutes::expected`] gives.
pub enum ExpectedVectors<'a> {
    /// The vCPU has the core to itself.
    Dedicated(SpinMutexGuard<'a, Routes>),
    /// The vCPU has this slot.
    Shared(TicketMutexGuard<'a, State>, usize),
}

impl ExpectedVectors<'_> {
    /// Is a physical interrupt that arrives there taken for the guest's `guest`, and for no
    /// other's?
    pub fn is_for(&self, physical: u8, guest: u8) -> bool {
        match self {
            ExpectedVectors::Dedicated(routes) => routes.guest_vector(physical) == Some(guest),
            ExpectedVectors::Shared(state, slot) => state.is_for(physical, *slot, guest),
        }
    }
}

/// A source that is bound: to which vCPU, and what [`rebind`] gave for it.
pub type Bound<'a, C> = (&'a VcpuRoutes<C>, u8);

/// Sends the interrupts of a source (`device` and its interrupt entry) to the vCPU `to` as its
/// vector `guest`, from wherever they go now; gives what is to be known of it when it is bound
/// elsewhere. `None`: it can't be, and they go nowhere. An interrupt meanwhile arrives by one of
/// the two routes, and by one only. Both vectors mean what they meant until the unit has forgotten
/// the old route. One caller at a time for each source.
pub fn rebind<C: Deref<Target = CoreRoutes>>(
    units: &impl Units,
    (device, entry): (Bdf, u16),
    from: Option<Bound<'_, C>>,
    (to, guest): (&VcpuRoutes<C>, u8),
) -> Option<u8> {
    if let Some((routes, _)) = from {
        routes.begin_unbind(units, device, entry);
    }
    let bound = to.bind(units, device, entry, guest);
    if bound.is_none() {
        // Where it leads means somebody else's before long.
        units.clear_irte(device, entry);
    }
    if let Some((routes, old)) = from {
        routes.end_unbind(old);
    }
    bound
}

/// The interrupts of a source go nowhere from here on. One that comes late finds its vCPU still. If
/// the unit doesn't answer, the entry goes on to send what nobody takes before long.
pub fn unbind<C: Deref<Target = CoreRoutes>>(
    units: &impl Units,
    (device, entry): (Bdf, u16),
    (routes, bound): Bound<'_, C>,
) {
    routes.begin_unbind(units, device, entry);
    units.clear_irte(device, entry);
    routes.end_unbind(bound);
}
