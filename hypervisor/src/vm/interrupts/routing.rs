//! Which interrupt is whose: where the interrupts of assigned devices go, and what a physical vector means
//! on the core that it arrives on.
//!
//! A source (an MSI-X entry, or an MSI capability) has an entry in the interrupt remapping table (IRTE):
//!
//! | state of the source | its IRTE sends | left by |
//! |---|---|---|
//! | unbound | nothing | [`VcpuRoutes::bind`] |
//! | bound to a vCPU with a core of its own | the guest's vector, or a hidden stand-in if that is the host's | [`VcpuRoutes::begin_unbind`] |
//! | bound to a resident vCPU of a shared core | the guest's vector | [`CoreRoutes::retarget_to_aliases`] |
//! | the same, descheduled less than the grace period ago | an alias of class F; the core takes the guest's vector for it, too | [`CoreRoutes::retarget_to_guest`], of this vCPU or another |
//! | bound to a descheduled vCPU of a shared core | an alias of class F | [`CoreRoutes::retarget_to_guest`] |
//! | being unbound, or rebound | what it sent last, an alias on a shared core | the new IRTE, then [`VcpuRoutes::end_unbind`] |
//!
//! Guarantees: a physical vector that arrives on a core means one vCPU's vector there (`delivery::Routes`,
//! `delivery::CoreVectors`), also in the middle of a change: a source that is rebound arrives by its old
//! route or by its new one, and both are understood. Locks here are taken after a VM's lock, if both are.

use crate::cpu::{self, PerCpu, rdtsc};
use crate::interrupts::vectors::{FAULTS, host_vectors};
use crate::iommu;
use ::iommu::{Bdf, Delivery as Message, InterruptRoute};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use delivery::{Arrived, CoreVectors, FIRST_RESERVED, Routes, VectorSet};
use proto::Policy;
use spin::mutex::{SpinMutex, SpinMutexGuard, TicketMutex, TicketMutexGuard};

/// How long a message takes at most from the IOMMU, which has let go of it, to the local APIC: some
/// hundred nanoseconds by what is known, and no manual names a bound.
const GRACE_US: u64 = 20;

/// The vectors that on a shared core are never a guest's own: the limit of its IDT keeps them from
/// it.
fn reserved() -> VectorSet {
    let mut all = VectorSet::EMPTY;
    (FIRST_RESERVED..=u8::MAX).for_each(|v| all.insert(v));
    all
}

/// The routes that lead to one vCPU.
pub struct VcpuRoutes {
    /// APIC id of the core.
    destination: u32,
    /// The vectors of its core that are never its guest's own.
    host: VectorSet,
    core: Core,
    /// Guest vectors of assigned devices.
    devices: SpinMutex<VectorSet>,
}

enum Core {
    Dedicated(Box<SpinMutex<Routes>>),
    Shared { routes: &'static CoreRoutes, slot: usize },
}

impl VcpuRoutes {
    /// None yet, to a vCPU that has the core `destination` to itself.
    pub fn dedicated(destination: u32, policy: Policy) -> Self {
        let host = host_vectors(policy);
        let core = Core::Dedicated(Box::new(SpinMutex::new(Routes::new(host))));
        VcpuRoutes { destination, host, core, devices: Default::default() }
    }

    /// None yet, to the vCPU at `slot` of a shared core.
    pub fn shared(routes: &'static CoreRoutes, slot: usize) -> Self {
        let core = Core::Shared { routes, slot };
        let (destination, host) = (routes.destination, reserved());
        VcpuRoutes { destination, host, core, devices: Default::default() }
    }

    /// The vectors of its core that are never its guest's own.
    pub fn host_vectors(&self) -> VectorSet {
        self.host
    }

    /// Binds a source to this vCPU as its vector `guest`; gives what [`VcpuRoutes::end_unbind`] wants to
    /// know of it. `None`: it can't be, and the IRTE is as it was.
    pub fn bind(&self, device: Bdf, entry: u16, guest: u8) -> Option<u8> {
        let routes = match &self.core {
            Core::Shared { routes, slot } => {
                return routes.bind(*slot, device, entry, guest).then_some(guest);
            }
            Core::Dedicated(routes) => routes,
        };
        let physical = routes.lock().claim(guest)?;
        let (destination, delivery) = (self.destination, Message::Fixed(physical));
        let route = InterruptRoute { source: device, destination, delivery };
        if iommu::set_irte(entry, route).is_err() {
            routes.lock().release(physical);
            return None;
        }
        Some(physical)
    }

    /// The source's IRTE is about to lead elsewhere, or nowhere.
    pub fn begin_unbind(&self, device: Bdf, entry: u16) {
        if let Core::Shared { routes, .. } = &self.core {
            routes.begin_unbind(device, entry);
        }
    }

    /// The IRTE leads elsewhere, or nowhere, by now. `bound`: what [`VcpuRoutes::bind`] gave.
    pub fn end_unbind(&self, bound: u8) {
        match &self.core {
            Core::Dedicated(routes) => routes.lock().release(bound),
            Core::Shared { routes, slot } => {
                routes.state.lock().vectors.release(*slot, bound);
            }
        }
    }

    /// The guest's vector for a physical interrupt that is in service on its core while it has it.
    pub fn guest_vector(&self, physical: u8) -> Option<u8> {
        match &self.core {
            Core::Dedicated(routes) => routes.lock().guest_vector(physical),
            Core::Shared { routes, slot } => match routes.arrived(physical) {
                Arrived::Of { slot: of, vectors } if of == *slot => vectors.highest(),
                _ => None,
            },
        }
    }

    /// What has to be hidden from guests that take their interrupts on its core by a shadow IDT.
    pub fn hidden(&self) -> VectorSet {
        match &self.core {
            Core::Dedicated(routes) => routes.lock().hidden(),
            // They are kept from it by the limit of its IDT.
            Core::Shared { .. } => VectorSet::EMPTY,
        }
    }

    /// Are there a device's interrupts that the guest knows by this vector?
    pub fn is_devices(&self, guest: u8) -> bool {
        self.devices.lock().contains(guest)
    }

    /// The guest vectors of all sources that are bound to this vCPU.
    pub fn set_devices(&self, guests: VectorSet) {
        *self.devices.lock() = guests;
    }

    /// What its core takes vectors for, as long as that is held; `None` while somebody changes it.
    pub fn expected(&self) -> Option<ExpectedVectors<'_>> {
        Some(match &self.core {
            Core::Dedicated(routes) => ExpectedVectors::Dedicated(routes.try_lock()?),
            Core::Shared { routes, slot } => {
                ExpectedVectors::Shared(routes.state.try_lock()?, *slot)
            }
        })
    }

    /// The routes of the core that it shares; `None`: it has its core to itself.
    pub fn of_core(&self) -> Option<&'static CoreRoutes> {
        match &self.core {
            Core::Dedicated(_) => None,
            Core::Shared { routes, .. } => Some(routes),
        }
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
    /// Is a physical interrupt that arrives there taken for the guest's `guest`, and for no other's?
    pub fn is_for(&self, physical: u8, guest: u8) -> bool {
        match self {
            ExpectedVectors::Dedicated(routes) => routes.guest_vector(physical) == Some(guest),
            ExpectedVectors::Shared(state, slot) => state.vectors.is_for(physical, *slot, guest),
        }
    }
}

/// The routes that lead to one shared core.
pub struct CoreRoutes {
    /// APIC id of the core.
    destination: u32,
    state: TicketMutex<State>,
    /// When the vectors of the vCPU that was last retargeted to aliases mean nobody, in TSC ticks. The
    /// core's own.
    grace_ends: AtomicU64,
    /// Interrupts that arrived, were nobody's, and weren't reported; there should be none.
    strays: AtomicU64,
}

/// Which vector is whose, and the sources that are bound.
pub struct State {
    vectors: CoreVectors,
    sources: Vec<Source>,
}

/// A source that is bound to a vCPU of a shared core.
#[derive(Clone, Copy)]
struct Source {
    slot: usize,
    device: Bdf,
    entry: u16,
    guest: u8,
}

impl CoreRoutes {
    /// None yet, to a core with so many slots.
    pub fn new(cpu: &PerCpu, slots: usize) -> Self {
        let mut host = host_vectors(Policy::Eli);
        host.insert(FAULTS);
        let state = State { vectors: CoreVectors::new(host, slots), sources: Vec::new() };
        CoreRoutes {
            destination: cpu.apic_id,
            state: TicketMutex::new(state),
            grace_ends: AtomicU64::new(0),
            strays: AtomicU64::new(0),
        }
    }

    /// While booting: there can be so many sources.
    pub fn reserve(&self, sources: usize) {
        self.state.lock().sources.reserve_exact(sources);
    }

    fn bind(&self, slot: usize, device: Bdf, entry: u16, guest: u8) -> bool {
        let mut state = self.state.lock();
        let Some(_alias) = state.vectors.claim(slot, guest) else { return false };
        let source = Source { slot, device, entry, guest };
        let bound = state.sources.len() < state.sources.capacity()
            && state.update_irte(self.destination, &source)
            && iommu::drain(device).is_ok();
        if bound {
            state.sources.retain(|s| s.entry != entry || s.device != device);
            state.sources.push(source);
        } else {
            state.vectors.release(slot, guest);
        }
        bound
    }

    /// The IRTE isn't updated any more when its vCPU comes or goes. Until it leads elsewhere it sends the
    /// alias, since its vCPU may leave before that; what it sent by the guest's own vector has arrived
    /// when its vCPU has left.
    fn begin_unbind(&self, device: Bdf, entry: u16) {
        let mut state = self.state.lock();
        let Some(at) = state.sources.iter().position(|s| s.entry == entry && s.device == device)
        else {
            return;
        };
        let source = state.sources.swap_remove(at);
        let updated = state.vectors.alias(source.slot, source.guest).is_some_and(|alias| {
            let (source, delivery) = (device, Message::Fixed(alias));
            let route = InterruptRoute { source, destination: self.destination, delivery };
            iommu::update_irte(entry, route).is_ok()
        });
        assert!(updated, "the IOMMU takes a route to an alias");
    }

    /// Whose a physical interrupt is that arrived on this core.
    pub fn arrived(&self, physical: u8) -> Arrived {
        self.state.lock().vectors.arrived(physical)
    }

    /// From here on the interrupts of the vCPU at `slot`, whose own vectors arrive, come by aliases. What
    /// came by its own vectors is in the local APIC, or gets there within the grace period.
    pub fn retarget_to_aliases(&self, slot: usize) {
        self.retarget(slot, CoreVectors::leave);
        // A unit that doesn't answer leaves interrupts of this vCPU's to the next one.
        iommu::drain_all().expect("the IOMMU forgets a route that changed");
        let grace = cpu::tsc_hz() / 1_000_000 * GRACE_US;
        self.grace_ends.store(rdtsc().wrapping_add(grace), Ordering::Relaxed);
    }

    /// From here on the interrupts of the vCPU at `slot`, which is resident, come by its own vectors; some
    /// may still come by their aliases. False: not yet, since those vectors may still mean the vCPU that
    /// had the core before. `drain` hands over what the local APIC holds.
    pub fn retarget_to_guest(&self, slot: usize, drain: impl FnOnce()) -> bool {
        let owner = self.state.lock().vectors.owner();
        if owner.is_some_and(|owner| owner != slot) {
            if (rdtsc().wrapping_sub(self.grace_ends.load(Ordering::Relaxed)) as i64) < 0 {
                return false;
            }
            drain();
            self.state.lock().vectors.left();
        }
        self.retarget(slot, |vectors| vectors.enter(slot));
        true
    }

    fn retarget(&self, slot: usize, change: impl FnOnce(&mut CoreVectors)) {
        let mut state = self.state.lock();
        change(&mut state.vectors);
        for source in state.sources.iter().filter(|s| s.slot == slot) {
            let updated = state.update_irte(self.destination, source);
            assert!(updated, "the IOMMU takes a route that it had");
        }
    }

    /// An interrupt arrived that is nobody's.
    pub fn note_stray(&self) {
        self.strays.fetch_add(1, Ordering::Relaxed);
    }

    /// How many interrupts arrived since the last call that were nobody's.
    pub fn take_strays(&self) -> u64 {
        self.strays.swap(0, Ordering::Relaxed)
    }
}

impl State {
    /// Writes the IRTE as the source is to be routed now; the unit may still know the old one.
    fn update_irte(&self, destination: u32, s: &Source) -> bool {
        self.vectors.physical(s.slot, s.guest).is_some_and(|physical| {
            let (source, delivery) = (s.device, Message::Fixed(physical));
            iommu::update_irte(s.entry, InterruptRoute { source, destination, delivery }).is_ok()
        })
    }
}
