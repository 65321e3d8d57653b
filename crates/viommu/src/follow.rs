//! What each endpoint is in by the tables of the guest whose unit it is behind, and what is to be
//! walked through, so that the real unit's tables say the same.
//!
//! Guarantees: an endpoint is led to a domain that is new when all of that was walked through, and
//! to nothing until then. A domain of which the walk fails is blocked until all of it is walked
//! through. Each call does a bounded piece of work.

use crate::walk::{Format, Walk, id};
use crate::{Domain, MAX_ENDPOINTS, Tables, Viommu};
use window::Window;

/// Words of the guest's tables that a step reads, about.
const STEP: u64 = 512;

/// Nothing, at first.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// What each endpoint is in.
    contexts: [Option<Domain>; MAX_ENDPOINTS],
    /// What is to be walked through: for each place a range.
    walks: [Option<Walk>; MAX_ENDPOINTS],
}

impl Following {
    /// What an endpoint is in.
    pub fn context(&self, endpoint: usize) -> Option<Domain> {
        self.contexts.get(endpoint).copied().flatten()
    }

    /// Is there nothing to walk through?
    pub fn is_idle(&self) -> bool {
        self.walks == [None; MAX_ENDPOINTS]
    }

    /// Walks on, if there is something to walk through; `words` counts those of the guest's memory
    /// that are read.
    pub fn advance<F: Format>(
        &mut self,
        (device, tables): (&mut Viommu, &mut dyn Tables),
        window: &Window,
        words: &mut u64,
    ) -> bool {
        for to in &mut self.walks {
            let Some(mut walk) = *to else { continue };
            *to = match walk.advance::<F>((&mut *device, &mut *tables), window, (STEP, words)) {
                Ok(false) => Some(walk),
                Ok(true) => {
                    if walk.whole && device.is_blocked(walk.place) {
                        let _ = device.block(tables, walk.place, false);
                    }
                    None
                }
                Err(_) => {
                    let _ = device.block(tables, walk.place, true);
                    None
                }
            };
            return true;
        }
        false
    }

    /// Has each endpoint be in the domain that is wanted for its id and the one that it is in, and
    /// walks through those that are new.
    pub fn look_at_contexts(
        &mut self,
        device: &mut Viommu,
        tables: &mut dyn Tables,
        wanted: &mut dyn FnMut(u32, Option<Domain>) -> Option<Domain>,
    ) {
        for endpoint in 0..device.shape.endpoints.len().min(MAX_ENDPOINTS) {
            let id = device.shape.endpoints.get(endpoint).copied().unwrap_or(0);
            let Some(now) = self.contexts.get_mut(endpoint) else { continue };
            let wanted = wanted(id, *now);
            if *now == wanted {
                continue;
            }
            let done = match wanted {
                Some(domain) => device.join(tables, endpoint, domain),
                None => device.leave(tables, endpoint),
            };
            // A unit that fails leaves it where it was, which is looked at again.
            *now = wanted.filter(|_| done.is_ok());
            if wanted.is_none() {
                let _ = tables.lead(endpoint, device.reach(endpoint));
            }
        }
        for place in 0..MAX_ENDPOINTS {
            if device.is_blocked(place) {
                self.walk(device, place, 0, u64::MAX);
            }
        }
    }

    /// Walks through a range, first to last, of the domains that have this number of the guest's
    /// own, or of all.
    pub fn look_at(&mut self, device: &Viommu, number: Option<u16>, (first, last): (u64, u64)) {
        for place in 0..MAX_ENDPOINTS {
            let Some(domain) = device.of(place).filter(|domain| !domain.bypass) else { continue };
            let is_whole = first == 0 && last >= device.shape.last;
            let is_meant = number.is_none_or(|number| number == id(domain.number));
            if is_meant && (!domain.blocked || is_whole) {
                self.walk(device, place, first, last);
            }
        }
    }

    fn walk(&mut self, device: &Viommu, place: usize, first: u64, last: u64) {
        let walk = Walk::new(device, place, first, last);
        self.walks.iter_mut().skip(place).take(1).for_each(|to| *to = Some(walk));
    }
}
