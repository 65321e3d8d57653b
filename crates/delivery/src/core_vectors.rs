//! Whose interrupt is it, on a core that several vCPUs share?
//!
//! One vCPU *owns the vectors*: its devices' interrupts arrive by the guest's own vectors, without
//! an exit. Those of the others arrive by an *alias*, a vector of class F that stands for one slot
//! and one guest vector. Class F always exits. The rules:
//!
//! 1. **Guests whose vectors collide:** only the owner has its own vectors in its interrupt
//!    remapping table entries (IRTEs), and an alias belongs to one slot for good. So no physical
//!    vector ever means two guests.
//! 2. **Guest vectors that collide with the host's:** class F is the host's and the aliases'. A
//!    guest's vector of class F never arrives by itself, it always has an alias.
//! 3. **In flight at a switch:** the one that goes has its IRTEs aliased ([`CoreVectors::leave`]),
//!    then the caller invalidates them, waits, and hands over what the local APIC holds
//!    ([`CoreVectors::arrived`]). A completed wait says that a message has left the IOMMU, not that
//!    the local APIC has it: so its own vectors go on meaning it, and only it, for a *grace
//!    period*. Whoever has the core meanwhile has its interrupts by aliases, and all that arrives
//!    reaches the host. After that the caller hands over once more what the local APIC holds, and
//!    its vectors mean nobody ([`CoreVectors::left`]). Then another one owns the vectors
//!    ([`CoreVectors::enter`]) and has its IRTEs changed to its own vectors, without waiting: what
//!    is still in flight by its aliases remains its own. The one that went may own them again at
//!    any time before that.
//! 4. **An IRTE re-targeted:** claim the new vector, write [`CoreVectors::physical`] of it to the
//!    IRTE, queue its invalidation, release the old vector; no need to wait. An alias stands for
//!    the released vector, too, until the owner has next left, after which nothing can be on its
//!    way.
//! 5. **Out of aliases:** a slot has its quota. When that is used up, an alias stands for several
//!    vectors for as long as they are claimed, and each of them is given to the guest: one too many
//!    of its own is harmless (as a spurious one is on hardware), one lost isn't.
//!
//! Guarantees: what arrives is never taken for another guest's, and the vector it was sent for is
//! among those it is taken for; that is the only one unless rule 5 applies. It relies on the
//! caller's following rules 3 and 4, on invalidate-and-wait leaving no interrupt in the IOMMU (VT-d
//! 6.5, "Interrupt Draining"), and on what has left it reaching the local APIC within the grace
//! period.

use crate::VectorSet;

/// From here on vectors are the host's and the aliases' on a shared core.
pub const FIRST_RESERVED: u8 = 0xF0;
/// vCPUs of one core.
const SLOTS: usize = 8;
/// The local APIC's own, while the host has it there: never an alias.
pub const SPURIOUS: u8 = 0xFF;
const FIRST_INTERRUPT: u8 = 32;

/// The meaning of a physical vector that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// The host's own.
    Host,
    /// One vCPU's.
    Of {
        /// Which.
        slot: usize,
        /// The guest's vectors: one, but for rule 5.
        vectors: VectorSet,
    },
    /// Nobody's: nothing that follows the rules sends it.
    Nobody,
}

/// The owners of one shared core's vectors.
#[derive(Clone, Debug)]
pub struct CoreVectors {
    host: VectorSet,
    slots: usize,
    /// The vectors of class F.
    aliases: [Alias; 16],
    /// How many sources of each slot want a guest vector.
    users: [[u16; 256]; SLOTS],
    owner: Option<usize>,
    /// The owner is leaving; `releases` when that began.
    leaving: Option<u64>,
    /// Counts what is released.
    releases: u64,
    /// A bit for each slot that something was released of since its aliases were last looked over.
    released: u8,
}

#[derive(Clone, Copy, Debug)]
struct Alias {
    /// None: the host's, or spare.
    owner: Option<usize>,
    /// The guest's vectors that an interrupt by it may have been sent for. Kept when released.
    vectors: VectorSet,
    /// `releases` when the last of them was released.
    released: u64,
    /// Nothing can be on its way for a vector that isn't claimed.
    settled: bool,
}

impl CoreVectors {
    /// `host`: the host's vectors on this core. `slots`: how many vCPUs share it, at most 8; each
    /// gets an equal share of what is left of class F. With more than 7 vectors of the host's that
    /// may be none; then [`CoreVectors::claim`] gives none.
    ///
    /// # Panics
    /// If a vector of the host's isn't in class F: it would be a guest's, too.
    pub fn new(host: VectorSet, slots: usize) -> Self {
        assert!(host.iter().all(|vector| vector >= FIRST_RESERVED), "the host's class is F");
        let slots = slots.min(SLOTS);
        let free = || (FIRST_RESERVED..SPURIOUS).filter(|vector| !host.contains(*vector));
        let quota = free().count().checked_div(slots).unwrap_or(0);
        let unused = Alias { owner: None, vectors: VectorSet::EMPTY, released: 0, settled: true };
        let mut aliases = [unused; 16];
        for (index, vector) in free().take(quota * slots).enumerate() {
            aliases[alias_index(vector)].owner = Some(index / quota);
        }
        CoreVectors {
            host,
            slots,
            aliases,
            users: [[0; 256]; SLOTS],
            owner: None,
            leaving: None,
            releases: 0,
            released: 0,
        }
    }

    /// A source of this slot wants the vector `guest`: gives its alias, to which it has a right
    /// until it is released as often as claimed. None for an exception's vector.
    pub fn claim(&mut self, slot: usize, guest: u8) -> Option<u8> {
        if guest < FIRST_INTERRUPT || slot >= self.slots {
            return None;
        }
        let physical = self.standing_for(slot, guest).or_else(|| self.choose(slot))?;
        let idle = self.idle(physical);
        let alias = &mut self.aliases[alias_index(physical)];
        if idle && alias.settled {
            alias.vectors = VectorSet::EMPTY;
        }
        alias.vectors.insert(guest);
        alias.settled = false;
        let users = &mut self.users[slot][usize::from(guest)];
        *users = users.saturating_add(1);
        Some(physical)
    }

    /// A source of this slot that had claimed `guest` doesn't want it any more, and its IRTE holds
    /// something else; the invalidation of that is at least queued.
    pub fn release(&mut self, slot: usize, guest: u8) {
        let Some(physical) = self.alias(slot, guest) else { return };
        self.users[slot][usize::from(guest)] -= 1;
        self.releases += 1;
        self.released |= 1 << slot;
        if self.idle(physical) {
            self.aliases[alias_index(physical)].released = self.releases;
        }
    }

    /// The alias of a vector that this slot has claimed.
    pub fn alias(&self, slot: usize, guest: u8) -> Option<u8> {
        self.claimed(slot, guest).then(|| self.standing_for(slot, guest))?
    }

    /// May this vector arrive by itself for the owner?
    pub const fn arrives_itself(&self, guest: u8) -> bool {
        FIRST_INTERRUPT <= guest && guest < FIRST_RESERVED
    }

    /// What the IRTE of a source of this slot that wants `guest` has to hold now: the vector itself
    /// if the slot owns the vectors, else its alias. None for a vector that it hasn't claimed.
    pub fn physical(&self, slot: usize, guest: u8) -> Option<u8> {
        let alias = self.alias(slot, guest)?;
        let own = self.owner == Some(slot) && self.leaving.is_none() && self.arrives_itself(guest);
        Some(if own { guest } else { alias })
    }

    /// The owner goes: its IRTEs are to be aliased from now on. What arrives by its own
    /// vectors is still its.
    pub fn leave(&mut self) {
        self.leaving = self.owner.map(|_| self.releases);
    }

    /// Its IRTEs are invalidated, the grace period is over, and the local APIC holds nothing by its
    /// own vectors: they mean nobody now.
    pub fn left(&mut self) {
        let (owner, since) = (self.owner.take(), self.leaving.take());
        // Of what was released meanwhile something may be on its way: wait for the next time.
        let Some(bit) = owner.map(|slot| 1 << slot).filter(|_| since == Some(self.releases)) else {
            return;
        };
        if self.released & bit == 0 {
            return;
        }
        self.released &= !bit;
        for physical in FIRST_RESERVED..SPURIOUS {
            if self.aliases[alias_index(physical)].owner != owner {
                continue;
            }
            if self.idle(physical) {
                self.aliases[alias_index(physical)].settled = true;
            } else {
                self.aliases[alias_index(physical)].vectors = self.claimed_through(physical);
            }
        }
    }

    /// This one owns the vectors from now on; the one before has left, or is this one.
    pub fn enter(&mut self, slot: usize) {
        debug_assert!(self.owner.is_none_or(|owner| owner == slot), "two can't own the vectors");
        self.owner = (slot < self.slots).then_some(slot);
        self.leaving = None;
    }

    /// Whose own vectors arrive, until it has left.
    pub fn owner(&self) -> Option<usize> {
        self.owner
    }

    /// The meaning of a physical vector that has arrived.
    pub fn arrived(&self, physical: u8) -> Arrived {
        if self.host.contains(physical) {
            return Arrived::Host;
        }
        let (owner, vectors) = if physical >= FIRST_RESERVED {
            let alias = &self.aliases[alias_index(physical)];
            (alias.owner.filter(|_| !alias.vectors.is_empty()), alias.vectors)
        } else {
            (self.owner.filter(|_| self.arrives_itself(physical)), VectorSet::of(&[physical]))
        };
        owner.map_or(Arrived::Nobody, |slot| Arrived::Of { slot, vectors })
    }

    /// Would this physical vector, if it arrived now, be given to this slot as `guest`? By the
    /// rules above it is so for what any entry of its sources holds, at every moment.
    pub fn is_for(&self, physical: u8, slot: usize, guest: u8) -> bool {
        matches!(self.arrived(physical),
            Arrived::Of { slot: of, vectors } if of == slot && vectors.contains(guest))
    }

    fn claimed(&self, slot: usize, guest: u8) -> bool {
        self.users.get(slot).is_some_and(|users| users[usize::from(guest)] != 0)
    }

    /// Those of the vectors this alias may stand for that are claimed.
    fn claimed_through(&self, physical: u8) -> VectorSet {
        let alias = &self.aliases[alias_index(physical)];
        let mut vectors = alias.vectors;
        for guest in alias.vectors.iter() {
            if !alias.owner.is_some_and(|slot| self.claimed(slot, guest)) {
                vectors.remove(guest);
            }
        }
        vectors
    }

    fn idle(&self, physical: u8) -> bool {
        self.claimed_through(physical).is_empty()
    }

    fn owned(&self, slot: usize) -> impl DoubleEndedIterator<Item = u8> {
        (FIRST_RESERVED..SPURIOUS)
            .filter(move |physical| self.aliases[alias_index(*physical)].owner == Some(slot))
    }

    /// The alias that stands for this vector, claimed or not.
    fn standing_for(&self, slot: usize, guest: u8) -> Option<u8> {
        self.owned(slot)
            .find(|physical| self.aliases[alias_index(*physical)].vectors.contains(guest))
    }

    /// An alias for one more vector: one never used or else released longest ago, of those first
    /// that can't have an interrupt on its way; or the last one, which is shared.
    fn choose(&self, slot: usize) -> Option<u8> {
        let idle = self.owned(slot).filter(|physical| self.idle(*physical));
        let longest = idle.min_by_key(|physical| {
            let alias = &self.aliases[alias_index(*physical)];
            (!alias.settled, alias.released)
        });
        longest.or_else(|| self.owned(slot).next_back())
    }
}

const fn alias_index(physical: u8) -> usize {
    physical as usize & 0xF
}

#[cfg(test)]
#[path = "core_vectors_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "core_vectors_world.rs"]
mod world;
