//! Which cores are whose, where the file doesn't say: those of VMs that name none, and sidecores of
//! which only the number is given. What goes by the number of cores is filled in, too.

use super::{Error, Field, Places, Problem};
use crate::{
    MAX_SIDECORES, Moving, MovingProblem, Place, Plan, Vm, disk, interface, parse_micros, problem,
};
use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};
use toml::de::DeValue;

/// The cores that serve devices, as the file names or counts them.
#[derive(Default)]
pub(super) struct Sidecores {
    cores: Vec<u32>,
    more: usize,
}

/// VMs that name no core get one each, the lowest ones that neither a VM nor a sidecore has: cores
/// are only shared where the file says so. Sidecores of which only the number is given come next.
pub(super) fn give_cores(plan: &mut Plan<String>, sidecores: Sidecores, places: &Places) {
    let named = |vm: &Vm<String>| {
        places.iter().any(|(place, key, _)| *key == "cpus" && *place == Place::Vm(vm.name.clone()))
    };
    let taken = plan.vms.iter().filter(|vm| named(vm)).flat_map(|vm| &vm.cpus).copied();
    let taken: BTreeSet<u32> = taken.chain(sidecores.cores.iter().copied()).collect();
    let mut free = (1..).filter(|core| !taken.contains(core));
    for vm in plan.vms.iter_mut().filter(|vm| !named(vm)) {
        vm.cpus = free.next().into_iter().collect();
    }
    plan.sidecores = sidecores.cores;
    plan.sidecores.extend(disk::free_cores(plan, sidecores.more));
    for vm in &mut plan.vms {
        let queues = disk::default_queues(vm.cpus.len());
        vm.disks.iter_mut().filter(|disk| disk.queues == 0).for_each(|disk| disk.queues = queues);
        let pairs = interface::default_pairs(vm.cpus.len());
        vm.interfaces.iter_mut().filter(|one| one.queues == 0).for_each(|one| one.queues = pairs);
    }
}

impl Field<'_, '_, '_> {
    /// What makes disks move; `read` is what was said before.
    pub(super) fn moving(&self, read: &mut Moving) -> Result<(), Error> {
        if *read != Moving::Never {
            let both = problem::Problem::Moving(MovingProblem::Both);
            return self.within(Err(Problem::Check(both)));
        }
        *read = if self.key == "sidecore_latency" {
            let text = self.string("a time in quotes, such as \"100us\"")?;
            Moving::ByLoad(self.within(parse_micros(text))?)
        } else {
            Moving::Rounds(self.number("a whole number of turns, such as 4", 0..=u16::MAX)?)
        };
        Ok(())
    }

    /// A list of cores, or how many there are to be.
    pub(super) fn sidecores(&self) -> Result<Sidecores, Error> {
        match self.value.get_ref() {
            DeValue::Array(_) => Ok(Sidecores { cores: self.cores()?, more: 0 }),
            DeValue::Integer(n) => {
                let number = usize::from_str_radix(n.as_str(), n.radix()).ok();
                let more = number.filter(|n| *n <= MAX_SIDECORES);
                let more = self.within(more.ok_or_else(|| Problem::Sidecores(n.to_string())))?;
                Ok(Sidecores { cores: Vec::new(), more })
            }
            _ => Err(self.wrong("a list of cores, such as [1], or how many there are to be")),
        }
    }
}
