//! Where a VM runs: the cores that its plan names, and the memory near them.
//!
//! Guarantees: each core is there, started, may run guests and isn't core 0.

use super::Builder;
use crate::cpu::{self, PerCpu};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl Builder<'_> {
    /// The memory near all of these cores; none if they are of several nodes, or firmware doesn't
    /// tell.
    pub(super) fn near(&self, cores: &[&'static PerCpu]) -> Vec<(u64, u64)> {
        let Some(Ok(affinity)) = &self.machine.affinity else { return Vec::new() };
        let mut domains = cores.iter().map(|core| affinity.of(core.apic_id));
        let Some(Some(domain)) =
            domains.next().filter(|first| domains.all(|other| other == *first))
        else {
            return Vec::new();
        };
        let near: Vec<_> = affinity.near(domain).collect();
        if !near.is_empty() {
            log::info!("VM {:?}: its cores and its memory are of node {domain}", self.vm.name);
        }
        near
    }

    /// The cores of its vCPUs.
    pub(super) fn cores(&self) -> Result<Vec<&'static PerCpu>, String> {
        let of = |core: &u32| {
            let found = cpu::get(*core as usize).filter(|cpu| cpu.index != 0);
            if found.is_some_and(|cpu| !cpu.is_parked()) {
                return Err(format!("core {core} can't run it: the core didn't start"));
            }
            if found.is_some_and(|cpu| !cpu.may_run_guests()) {
                return Err(format!(
                    "core {core} can't run it: the firmware has locked virtualisation off there"
                ));
            }
            found.ok_or_else(|| {
                format!(
                    "core {core} can't run it: the machine has cores 0 to {}, and core 0 is the host's",
                    cpu::count() - 1
                )
            })
        };
        self.vm.cpus.iter().map(of).collect()
    }
}
