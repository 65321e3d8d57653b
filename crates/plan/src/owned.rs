//! Which devices a plan names, and who is to have them.

use crate::{Class, DeviceName, Plan, Shown};
use core::fmt;

/// Who is to have a device, in a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// The VM of this name.
    Vm(&'a str),
    /// The host: disks are cut from it, it is a switch's uplink, or VMs have its virtual functions.
    Host,
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Vm(name) => write!(f, "VM \"{}\"", Shown(name)),
            Owner::Host => f.write_str("the host"),
        }
    }
}

impl<F> Plan<F> {
    /// Every device that a VM has, or the host for VMs: each needs an IOMMU. Not the controllers
    /// whose virtual functions VMs have.
    pub fn devices(&self) -> impl Iterator<Item = (Owner<'_>, DeviceName)> {
        let of_vms = self.vms.iter().flat_map(|vm| {
            vm.devices.iter().map(move |device| (Owner::Vm(vm.name.as_str()), *device))
        });
        let kept = self.part_devices().chain(self.uplinks().map(|(device, _)| device));
        of_vms.chain(kept.map(|device| (Owner::Host, device)))
    }

    /// One of them, if there is any; those controllers, too.
    pub fn any_device(&self) -> Option<(Owner<'_>, DeviceName)> {
        let nics = self
            .shared_nics()
            .map(|shared| DeviceName::Named { class: Class::Nic, index: shared.nic });
        self.devices().chain(nics.map(|nic| (Owner::Host, nic))).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coalesce, Network, sample::vm};
    use alloc::string::ToString;
    use alloc::{vec, vec::Vec};

    #[test]
    fn whoever_has_a_device_is_named() {
        let mut plan = Plan::new(vec![vm("a", 1), vm("b", 2)]);
        assert_eq!((plan.devices().count(), plan.any_device()), (0, None));
        let (macs, coalesce) = (Vec::new(), Coalesce::Off);
        plan.networks.push(Network { nic: 1, vfs: Some(2), macs, uplink: None, coalesce });
        let of_nic = plan.any_device().map(|(owner, device)| (owner.to_string(), device));
        assert_eq!(of_nic, Some(("the host".to_string(), "nic1".parse().unwrap())));
        assert_eq!(plan.devices().count(), 0);
        plan.vms[1].devices = vec!["nvme0".parse().unwrap()];
        let said: Vec<_> = plan.devices().map(|(o, d)| (o.to_string(), d.to_string())).collect();
        assert_eq!(said, [("VM \"b\"".to_string(), "nvme0".to_string())]);
        assert_eq!(plan.any_device().unwrap().0, Owner::Vm("b"));
    }
}
