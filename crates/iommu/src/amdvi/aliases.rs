//! Which requester ids a device's requests may carry: its own, and the one that firmware names.

use crate::{Alias, Bdf};
use alloc::boxed::Box;

/// What firmware says, by device.
#[derive(Clone, Debug)]
pub struct Aliases(Box<[(u16, u16)]>);

impl Aliases {
    pub fn new(aliases: &[Alias]) -> Self {
        let ids = |a: &Alias| (a.device.requester_id(), a.requester.requester_id());
        let mut pairs: Box<[_]> = aliases.iter().map(ids).collect();
        pairs.sort_unstable();
        Aliases(pairs)
    }

    /// The id that the unit knows the device by.
    pub fn requester(&self, device: Bdf) -> u16 {
        let own = device.requester_id();
        match self.0.binary_search_by_key(&own, |pair| pair.0) {
            Ok(at) => self.0.get(at).map_or(own, |pair| pair.1),
            Err(_) => own,
        }
    }

    /// All ids that its requests may carry. The first is [`Aliases::requester`].
    pub fn ids(&self, device: Bdf) -> impl Iterator<Item = u16> + use<> {
        let (first, own) = (self.requester(device), device.requester_id());
        core::iter::once(first).chain((first != own).then_some(own))
    }

    /// Every device that may use this id.
    pub fn devices(&self, id: u16) -> impl Iterator<Item = Bdf> {
        let others = self.0.iter().filter(move |pair| pair.1 == id && pair.0 != id);
        let others = others.map(|pair| Bdf::from_requester_id(pair.0));
        core::iter::once(Bdf::from_requester_id(id)).chain(others)
    }
}
