//! The most that sidecores serve a VM.

use crate::{Error, Place, Plan, Problem, Vm};
use serde::{Deserialize, Serialize};

/// Of all its paravirtual devices together; nothing is limited by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Requests of disks, frames that are sent and commands, a second. Never 0.
    pub iops: Option<u64>,
    /// Bytes that these move, a second. Never 0.
    pub rate: Option<u64>,
}

impl Limit {
    /// What each of so many sidecores may serve of it: all of them together never serve more.
    pub fn of_each(self, sidecores: u64) -> Limit {
        let part = |limit: u64| (limit / sidecores.max(1)).max(1);
        Limit { iops: self.iops.map(part), rate: self.rate.map(part) }
    }
}

impl<F> Plan<F> {
    /// Whether a VM's limit lets something through, and is of something.
    pub(crate) fn check_limit(&self, vm: &Vm<F>) -> Result<(), Error> {
        let Limit { iops, rate } = vm.limit;
        let (key, problem) = match () {
            () if iops == Some(0) => ("limit.iops", Problem::NoLimit("iops")),
            () if rate == Some(0) => ("limit.rate", Problem::NoLimit("rate")),
            () if vm.limit != Limit::default()
                && vm.disks.is_empty()
                && vm.interfaces.is_empty() =>
            {
                ("limit", Problem::LimitOfNothing)
            }
            () => return Ok(()),
        };
        Err(Error { place: Place::Vm(vm.name.clone()), key, problem })
    }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
