//! Switches' ways to a network outside: a network controller that a sidecore drives for a switch.
//!
//! Guarantees: by the names that the plan has, an uplink is of a switch that some VM is at, no
//! other one's, no VM's, and has no virtual functions. It doesn't guarantee that the controller is
//! there and is one that the host can drive: the hypervisor checks that when it boots.

use crate::{Class, DeviceName, Network, Plan, check::name_is_good, shown::Shown};
use alloc::string::{String, ToString};

/// What can be wrong with an uplink.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UplinkProblem {
    /// There is no such switch.
    #[error(
        "no VM is at switch `{}`; name one that a VM's network names, such as network = {{ switch = \"lan\" }}",
        Shown(.0)
    )]
    Switch(String),
    /// Two for one switch.
    #[error("nic{other} is the uplink of switch `{}` already; a switch has one", Shown(.switch))]
    Twice {
        /// The switch.
        switch: String,
        /// The controller that it has.
        other: u8,
    },
    /// It is a VM's as a whole.
    #[error(
        "nic{nic} is VM `{}`'s; a switch's uplink stays the host's, so take it from the VM's devices", Shown(.by)
    )]
    Assigned {
        /// The controller.
        nic: u8,
        /// Whose it is.
        by: String,
    },
    /// It is to be shared in another way, too.
    #[error(
        "nic{0} is to have virtual functions; a switch's uplink has none, so leave vfs and macs out, and assign none"
    )]
    Functions(u8),
    /// It sends no interrupts.
    #[error("a switch's uplink sends no interrupts, as a sidecore polls it; take this out")]
    Interrupts,
}

impl<F> Plan<F> {
    /// The controllers that are uplinks, with the names of their switches.
    pub fn uplinks(&self) -> impl Iterator<Item = (DeviceName, &str)> {
        self.networks.iter().filter_map(|Network { nic, uplink, .. }| {
            let device = DeviceName::Named { class: Class::Nic, index: *nic };
            Some((device, uplink.as_deref()?))
        })
    }

    /// The uplink of a switch.
    pub fn uplink_of(&self, switch: &str) -> Option<DeviceName> {
        self.uplinks().find(|(_, of)| *of == switch).map(|(device, _)| device)
    }

    /// What must hold of the uplink that the table at this place asks for.
    pub(crate) fn check_uplink(&self, index: usize) -> Result<(), UplinkProblem> {
        let Some(Network { nic, uplink: Some(switch), .. }) = self.networks.get(index) else {
            return Ok(());
        };
        if !name_is_good(switch) || !self.switches().contains(&switch.as_str()) {
            return Err(UplinkProblem::Switch(switch.clone()));
        }
        let mut before = self.networks.iter().take(index);
        if let Some(other) = before.find(|other| other.uplink.as_ref() == Some(switch)) {
            return Err(UplinkProblem::Twice { switch: switch.clone(), other: other.nic });
        }
        let device = DeviceName::Named { class: Class::Nic, index: *nic };
        if let Some(owner) = self.vms.iter().find(|vm| vm.devices.contains(&device)) {
            return Err(UplinkProblem::Assigned { nic: *nic, by: owner.name.to_string() });
        }
        match self.shared_nic(*nic) {
            Some(_) => Err(UplinkProblem::Functions(*nic)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "uplink_tests.rs"]
mod tests;
