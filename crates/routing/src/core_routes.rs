//! The routes that lead to a core that several vCPUs share, and how they change when one of these
//! comes or goes.

use crate::Units;
use alloc::vec::Vec;
use delivery::{Arrived, CoreVectors, VectorSet};
use iommu::{Bdf, Delivery as Message, InterruptRoute};
use sync::{AtomicU64, AtomicUsize, Ordering, TicketMutex, TicketMutexGuard};

/// No vCPU's own vectors arrive.
const NOBODY: usize = usize::MAX;

/// The routes that lead to one shared core.
#[derive(Debug)]
pub struct CoreRoutes {
    /// APIC id of the core.
    destination: u32,
    state: TicketMutex<State>,
    /// Whose own vectors arrive, or [`NOBODY`]: a copy, so that the core needn't lock to know it,
    /// which alone changes it.
    owner: AtomicUsize,
    /// When the vectors of the vCPU that was last retargeted to aliases mean nobody, in TSC ticks.
    /// The core's own.
    grace_ends: AtomicU64,
    /// Interrupts that arrived, were nobody's, and weren't reported; there should be none.
    strays: AtomicU64,
}

/// Which vector is whose, and the sources that are bound.
#[derive(Debug)]
pub struct State {
    vectors: CoreVectors,
    sources: Vec<Source>,
}

/// A source that is bound to a vCPU of a shared core.
#[derive(Clone, Copy, Debug)]
struct Source {
    slot: usize,
    device: Bdf,
    entry: u16,
    guest: u8,
}

impl CoreRoutes {
    /// None yet, to the core `destination` with so many slots. `host`: the host's vectors there.
    pub fn new(destination: u32, host: VectorSet, slots: usize) -> Self {
        let state = State { vectors: CoreVectors::new(host, slots), sources: Vec::new() };
        CoreRoutes {
            destination,
            state: TicketMutex::new(state),
            owner: AtomicUsize::new(NOBODY),
            grace_ends: AtomicU64::new(0),
            strays: AtomicU64::new(0),
        }
    }

    /// While booting: there can be so many sources.
    pub fn reserve(&self, sources: usize) {
        self.state.lock().sources.reserve_exact(sources);
    }

    pub(crate) fn try_lock(&self) -> Option<TicketMutexGuard<'_, State>> {
        self.state.try_lock()
    }

    pub(crate) fn bind(
        &self,
        units: &impl Units,
        slot: usize,
        device: Bdf,
        entry: u16,
        guest: u8,
    ) -> bool {
        let mut state = self.state.lock();
        let Some(_alias) = state.vectors.claim(slot, guest) else { return false };
        let source = Source { slot, device, entry, guest };
        let bound = state.sources.len() < state.sources.capacity()
            && state.update_irte(units, self.destination, &source)
            && units.drain(device);
        if bound {
            state.sources.retain(|s| s.entry != entry || s.device != device);
            state.sources.push(source);
        } else {
            state.vectors.release(slot, guest);
        }
        bound
    }

    /// The IRTE isn't updated any more when its vCPU comes or goes. Until it leads elsewhere it
    /// sends the alias, since the vCPU may leave the core before that. Messages that it sent by the
    /// guest's own vector are in the local APIC when the grace period after the vCPU's leaving is
    /// over; until then that vector means this vCPU.
    pub(crate) fn begin_unbind(&self, units: &impl Units, device: Bdf, entry: u16) {
        let mut state = self.state.lock();
        let Some(at) = state.sources.iter().position(|s| s.entry == entry && s.device == device)
        else {
            return;
        };
        let source = state.sources.swap_remove(at);
        let updated = state.vectors.alias(source.slot, source.guest).is_some_and(|alias| {
            let (source, delivery) = (device, Message::Fixed(alias));
            let destination = self.destination;
            units.update_irte(entry, InterruptRoute { source, destination, delivery })
        });
        assert!(updated, "the IOMMU takes a route to an alias");
    }

    pub(crate) fn release(&self, slot: usize, guest: u8) {
        self.state.lock().vectors.release(slot, guest);
    }

    /// Whose a physical interrupt is that arrived on this core.
    pub fn arrived(&self, physical: u8) -> Arrived {
        self.state.lock().vectors.arrived(physical)
    }

    /// From here on the interrupts of the vCPU at `slot`, whose own vectors arrive, come by
    /// aliases. Messages by its own vectors are in the local APIC, or get there within the grace
    /// period.
    pub fn retarget_to_aliases(&self, units: &impl Units, slot: usize) {
        self.retarget(units, slot, CoreVectors::leave);
        // A unit that doesn't answer leaves interrupts of this vCPU's to the next one.
        assert!(units.drain_all(), "the IOMMU forgets a route that changed");
        self.grace_ends.store(units.now().wrapping_add(units.grace()), Ordering::Relaxed);
    }

    /// From here on the interrupts of the vCPU at `slot`, which is resident, come by its own
    /// vectors; some may still come by their aliases. False: not yet, since those vectors may still
    /// mean the vCPU that had the core before. `drain` hands over what the local APIC holds.
    pub fn retarget_to_guest(&self, units: &impl Units, slot: usize, drain: impl FnOnce()) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        let others = owner != slot && owner != NOBODY;
        if others {
            let left = self.grace_ends.load(Ordering::Relaxed);
            if (units.now().wrapping_sub(left) as i64) < 0 {
                return false;
            }
            drain();
        }
        self.owner.store(slot, Ordering::Relaxed);
        self.retarget(units, slot, |vectors| {
            if others {
                vectors.left();
            }
            vectors.enter(slot);
        });
        true
    }

    fn retarget(&self, units: &impl Units, slot: usize, change: impl FnOnce(&mut CoreVectors)) {
        let mut state = self.state.lock();
        change(&mut state.vectors);
        for source in state.sources.iter().filter(|s| s.slot == slot) {
            let updated = state.update_irte(units, self.destination, source);
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
    /// Would this physical vector, if it arrived now, be given to this slot as `guest`?
    pub(crate) fn is_for(&self, physical: u8, slot: usize, guest: u8) -> bool {
        self.vectors.is_for(physical, slot, guest)
    }

    /// Writes the IRTE as the source is to be routed now; the unit may still know the old one.
    fn update_irte(&self, units: &impl Units, destination: u32, s: &Source) -> bool {
        self.vectors.physical(s.slot, s.guest).is_some_and(|physical| {
            let (source, delivery) = (s.device, Message::Fixed(physical));
            units.update_irte(s.entry, InterruptRoute { source, destination, delivery })
        })
    }
}
