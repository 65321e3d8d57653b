//! What a unit keeps for some of the requester ids.
//!
//! Guarantees: a map of sorted entries. It is changed while devices are attached and given tables,
//! and only looked at where a route changes. The library's map is 10 KiB of code in the image.

use alloc::vec::Vec;

/// Values by id.
#[derive(Clone, Debug)]
pub struct ById<V>(Vec<(u16, V)>);

impl<V> Default for ById<V> {
    fn default() -> Self {
        ById(Vec::new())
    }
}

impl<V> ById<V> {
    fn place(&self, id: u16) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |entry| entry.0)
    }

    pub fn get(&self, id: u16) -> Option<&V> {
        let place = self.place(id).ok()?;
        self.0.get(place).map(|entry| &entry.1)
    }

    pub fn get_mut(&mut self, id: u16) -> Option<&mut V> {
        let place = self.place(id).ok()?;
        self.0.get_mut(place).map(|entry| &mut entry.1)
    }

    /// Keeps a value, in the place of the one that is there.
    pub fn insert(&mut self, id: u16, value: V) {
        match self.place(id) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (id, value)),
        }
    }

    /// The value; one is made and kept if there is none.
    pub fn try_get_or_insert<E>(
        &mut self,
        id: u16,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        let place = match self.place(id) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, (id, make()?));
                place
            }
        };
        Ok(&mut self.0[place].1)
    }

    pub fn remove(&mut self, id: u16) -> Option<V> {
        let place = self.place(id).ok()?;
        Some(self.0.remove(place).1)
    }

    /// The values, by their ids.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|entry| &entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever is done, it holds what the library's map holds.
        #[test]
        fn is_a_map(steps in prop::collection::vec((0u16..8, prop::option::of(any::<u8>())), 0..64)) {
            let (mut map, mut model) = (ById::default(), BTreeMap::new());
            for (id, value) in steps {
                match value {
                    Some(value) => {
                        map.insert(id, value);
                        model.insert(id, value);
                    }
                    None => prop_assert_eq!(map.remove(id), model.remove(&id)),
                }
                for id in 0..8 {
                    prop_assert_eq!(map.get(id), model.get(&id));
                    prop_assert_eq!(map.get_mut(id), model.get_mut(&id));
                }
                // Made where there is none, and not kept where that fails.
                let made = map.try_get_or_insert(id, || Err(())).copied();
                prop_assert_eq!(made.ok(), model.get(&id).copied());
                let made = map.try_get_or_insert(id, || Ok::<_, ()>(7));
                prop_assert_eq!(made, Ok(model.entry(id).or_insert(7)));
                prop_assert!(map.values().eq(model.values()));
            }
        }
    }
}
