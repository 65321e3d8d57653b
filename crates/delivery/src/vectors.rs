//! Interrupt vectors: sets of them, and which physical vector stands for which
//! guest vector on a core.
//!
//! The paper (4.3) asks that host and guest know an assigned interrupt by the same
//! vector, because either may have to take it and because the vector is its
//! priority. [`Routes`] keeps to that except where the guest picks a vector that
//! the host needs for itself: then the interrupt gets a stand-in, which is hidden in
//! the shadow IDT and therefore always taken by the host and injected.

/// The priority class of a vector (SDM vol. 3, 11.8.3): its upper four bits.
pub const fn class(vector: u8) -> u8 {
    vector >> 4
}

/// Does no exception have this vector? Others can be interrupts', from 16 on, but a host takes them
/// for exceptions.
pub const fn is_ordinary(vector: u8) -> bool {
    vector >= FIRST_INTERRUPT
}

/// A set of vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet([u64; 4]);

impl VectorSet {
    /// The set with nothing in it.
    pub const EMPTY: VectorSet = VectorSet([0; 4]);

    /// The set of these vectors.
    pub const fn of(vectors: &[u8]) -> Self {
        let mut words = [0; 4];
        let mut i = 0;
        while i < vectors.len() {
            words[(vectors[i] >> 6) as usize] |= 1 << (vectors[i] & 63);
            i += 1;
        }
        VectorSet(words)
    }

    /// Adds a vector.
    pub const fn insert(&mut self, vector: u8) {
        self.0[(vector >> 6) as usize] |= 1 << (vector & 63);
    }

    /// Adds the vectors 64 × `index` on that have a bit in `bits`.
    pub const fn insert_word(&mut self, index: u32, bits: u64) {
        self.0[index as usize & 3] |= bits;
    }

    /// Takes a vector out.
    pub const fn remove(&mut self, vector: u8) {
        self.0[(vector >> 6) as usize] &= !(1 << (vector & 63));
    }

    /// Is this vector in the set?
    pub const fn contains(&self, vector: u8) -> bool {
        self.0[(vector >> 6) as usize] & 1 << (vector & 63) != 0
    }

    /// Is the set empty?
    pub const fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// The highest vector: the one a local APIC would pick.
    #[inline]
    pub const fn highest(&self) -> Option<u8> {
        let mut at = self.0.len();
        while at > 0 {
            at -= 1;
            if let Some(bit) = self.0[at].checked_ilog2() {
                return Some(64 * at as u8 + bit as u8);
            }
        }
        None
    }

    /// Takes the highest vector out.
    #[inline]
    pub const fn take_highest(&mut self) -> Option<u8> {
        let mut at = self.0.len();
        while at > 0 {
            at -= 1;
            let word = self.0[at];
            if word != 0 {
                let bit = word.ilog2();
                self.0[at] = word ^ 1 << bit;
                return Some(64 * at as u8 + bit as u8);
            }
        }
        None
    }

    /// Both sets together.
    pub fn union(&self, other: &VectorSet) -> VectorSet {
        VectorSet(core::array::from_fn(|w| self.0[w] | other.0[w]))
    }

    /// The vectors of this set that aren't in `other`.
    pub fn without(&self, other: &VectorSet) -> VectorSet {
        VectorSet(core::array::from_fn(|w| self.0[w] & !other.0[w]))
    }

    /// Vectors 32 × `index` to 32 × `index` + 31 as an ISR or IRR register shows them.
    pub const fn register(&self, index: u8) -> u32 {
        let word = self.0[(index as usize / 2) & 3];
        if index & 1 == 0 { word as u32 } else { (word >> 32) as u32 }
    }

    /// The set that eight ISR or IRR registers show.
    pub fn from_registers(read: impl Fn(u8) -> u32) -> Self {
        VectorSet(core::array::from_fn(|w| {
            read(2 * w as u8) as u64 | (read(2 * w as u8 + 1) as u64) << 32
        }))
    }

    /// The vectors, highest first.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        let mut left = *self;
        core::iter::from_fn(move || {
            let v = left.highest()?;
            left.remove(v);
            Some(v)
        })
    }
}

/// Where stand-ins are looked for: from here downwards, so that they rank above
/// what guests commonly give to devices.
pub const STAND_IN_TOP: u8 = 0xEF;
/// Below this are the exceptions.
const FIRST_INTERRUPT: u8 = 32;

/// Which guest vector each physical vector of one core stands for. What was claimed stays so: an
/// interrupt of its source may still be on its way when the source is gone.
#[derive(Clone, Debug)]
pub struct Routes {
    host: VectorSet,
    stand_ins: VectorSet,
    /// Vectors that ever were a source's own.
    claimed: VectorSet,
    /// For a stand-in: the guest's vector.
    guest: [u8; 256],
}

impl Routes {
    /// No source yet; `host` are the vectors the host raises on this core.
    pub const fn new(host: VectorSet) -> Self {
        let (stand_ins, claimed) = (VectorSet::EMPTY, VectorSet::EMPTY);
        Routes { host, stand_ins, claimed, guest: [0; 256] }
    }

    /// A source of the guest wants `vector`: the physical vector to program, or
    /// `None` when it is an exception's or no stand-in is left.
    pub fn claim(&mut self, vector: u8) -> Option<u8> {
        if vector < FIRST_INTERRUPT {
            return None;
        }
        let physical = if self.hidden().contains(vector) {
            let p = self.stand_in_for(vector)?;
            self.stand_ins.insert(p);
            self.guest[p as usize] = vector;
            p
        } else {
            self.claimed.insert(vector);
            vector
        };
        Some(physical)
    }

    /// Keeps a vector for a source that isn't a device: may it arrive by itself? It may unless the
    /// host needs it. Once it may, it never stands in for another.
    pub fn keep(&mut self, vector: u8) -> bool {
        let own = vector >= FIRST_INTERRUPT && !self.hidden().contains(vector);
        if own {
            self.claimed.insert(vector);
        }
        own
    }

    fn stand_in_for(&self, vector: u8) -> Option<u8> {
        let candidates = || (FIRST_INTERRUPT..=STAND_IN_TOP).rev();
        candidates()
            .find(|p| self.stand_ins.contains(*p) && self.guest[*p as usize] == vector)
            .or_else(|| {
                candidates().find(|p| {
                    *p != vector
                        && !self.claimed.contains(*p)
                        && !self.host.contains(*p)
                        && !self.stand_ins.contains(*p)
                })
            })
    }

    /// The guest's vector for a physical interrupt, `None` if it is the host's.
    pub fn guest_vector(&self, physical: u8) -> Option<u8> {
        if self.host.contains(physical) || physical < FIRST_INTERRUPT {
            None
        } else if self.stand_ins.contains(physical) {
            Some(self.guest[physical as usize])
        } else {
            Some(physical)
        }
    }

    /// Vectors whose gate must not be present while the guest takes physical
    /// interrupts itself: the host's own and the stand-ins.
    pub fn hidden(&self) -> VectorSet {
        self.host.union(&self.stand_ins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn same_vector_unless_the_host_needs_it() {
        let mut r = Routes::new(VectorSet::of(&[0xF1, 0xF2]));
        assert_eq!(r.claim(0x41), Some(0x41));
        assert_eq!(r.claim(0x0E), None);
        let p = r.claim(0xF1).unwrap();
        assert_eq!((p, r.guest_vector(p)), (0xEF, Some(0xF1)));
        assert!(r.hidden().contains(p) && !r.hidden().contains(0x41));
        assert_eq!(r.claim(0xF1), Some(p), "one stand-in serves all sources of a vector");
        assert_eq!(r.guest_vector(0xF1), None);
        let q = r.claim(p).unwrap();
        assert_eq!(
            (q, r.guest_vector(q)),
            (0xEE, Some(0xEF)),
            "a guest's use of a stand-in is moved too"
        );
    }

    #[test]
    fn a_vector_that_a_device_had_never_stands_in_for_another() {
        let mut r = Routes::new(VectorSet::of(&[0xF1]));
        assert_eq!(r.claim(0xEF), Some(0xEF));
        let p = r.claim(0xF1).unwrap();
        assert_eq!((p, r.guest_vector(0xEF)), (0xEE, Some(0xEF)), "0xEF may still be in flight");
    }

    #[test]
    fn a_timers_vector_is_its_own_unless_it_is_the_hosts_or_a_stand_in() {
        let mut r = Routes::new(VectorSet::of(&[0xF1]));
        assert_eq!((r.keep(31), r.keep(0xF1), r.keep(0xEF)), (false, false, true));
        let p = r.claim(0xF1).unwrap();
        assert_eq!((p, r.keep(p), r.guest_vector(0xEF)), (0xEE, false, Some(0xEF)));
    }

    #[test]
    fn vectors_from_32_on_are_interrupts_and_stand_in_to_the_last() {
        let mut r = Routes::new(VectorSet::of(&[0xF1]));
        for vector in (0..=0xF0).filter(|vector| *vector != 32) {
            let own = (vector > 32).then_some(vector);
            assert_eq!((r.claim(vector), r.guest_vector(vector)), (own, own), "{vector:#x}");
        }
        let mut full = r.clone();
        assert_eq!((full.claim(32), full.guest_vector(32)), (Some(32), Some(32)));
        assert_eq!(full.claim(0xF1), None, "none is left");
        assert_eq!((r.claim(0xF1), r.guest_vector(32)), (Some(32), Some(0xF1)));
    }

    #[test]
    fn a_set_is_empty_only_without_any_vector() {
        let set = |vectors: &[u8]| {
            let mut set = VectorSet::EMPTY;
            vectors.iter().for_each(|v| set.insert(*v));
            set
        };
        assert!(set(&[]).is_empty());
        // The same bit in several words, and each alone.
        for vectors in [[3, 67], [67, 131], [131, 195], [3, 131], [67, 195], [3, 3], [195, 195]] {
            assert!(!set(&vectors).is_empty(), "{vectors:?}");
        }
    }

    proptest! {
        #[test]
        fn sets_behave_like_sets(vs in proptest::collection::vec(any::<u8>(), 0..40), gone in any::<u8>()) {
            let mut s = VectorSet::of(&vs);
            let mut model: BTreeSet<u8> = vs.iter().copied().collect();
            s.remove(gone);
            model.remove(&gone);
            prop_assert_eq!(s.iter().collect::<Vec<_>>(), model.iter().rev().copied().collect::<Vec<_>>());
            let (mut left, mut others) = (s, model.clone());
            prop_assert_eq!(left.take_highest(), others.pop_last());
            prop_assert_eq!(left.iter().collect::<Vec<_>>(), others.iter().rev().copied().collect::<Vec<_>>());
            prop_assert_eq!(VectorSet::from_registers(|i| s.register(i)), s);
            prop_assert_eq!(s.is_empty(), model.is_empty());
            let mut by_words = VectorSet::EMPTY;
            for index in 0..4 {
                let word = |bits: u64, v: u8| bits | 1 << (v & 63);
                by_words.insert_word(index, s.iter().filter(|v| u32::from(*v) / 64 == index).fold(0, word));
            }
            prop_assert_eq!(by_words, s);
            let other = VectorSet::of(&[gone, gone ^ 1]);
            let both = s.iter().filter(|v| !other.contains(*v)).collect::<Vec<_>>();
            prop_assert_eq!(s.without(&other).iter().collect::<Vec<_>>(), both);
            prop_assert_eq!((s.without(&VectorSet::EMPTY), s.without(&s)), (s, VectorSet::EMPTY));
        }

        #[test]
        fn two_guest_vectors_never_share_a_physical_one(claims in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut r = Routes::new(VectorSet::of(&[0xF0, 0xF1, 0xF2]));
            let mut held: Vec<(u8, u8)> = vec![];
            for v in claims {
                if let Some(p) = r.claim(v) {
                    held.push((v, p));
                }
                for (v, p) in &held {
                    prop_assert_eq!(r.guest_vector(*p), Some(*v));
                }
            }
        }
    }
}
