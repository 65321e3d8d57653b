//! What a plan says of networks that the host makes (virtio-net): interfaces of VMs, each at a port
//! of a switch that a sidecore serves.
//!
//! Guarantees: an interface that passes [`Plan::check`] has an address of its own and numbers that
//! the host can serve. A switch is served by one sidecore, with all its ports; which one follows
//! from the plan alone. VMs reach each other if they name the same switch and the same VLAN; a
//! switch is a way to a network outside if it has an uplink.

use crate::{
    DeviceName, Error, MAX_DISKS, MAX_QUEUES, Mac, Moving, Place, Plan, Problem, Vm,
    check::name_is_good, shown::Shown,
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::ops::RangeInclusive;
use proto::ServedDevice;
use serde::{Deserialize, Serialize};

/// Interfaces of one VM.
pub const MAX_INTERFACES: usize = 4;
/// Pairs of a receive and a transmit queue of one interface: with the control queue they are as
/// many as a virtio function can have here.
pub const MAX_PAIRS: u16 = 7;
/// Numbers of VLANs (IEEE 802.1Q, 9.6).
pub const VLANS: RangeInclusive<u16> = 1..=4094;
/// Bytes of a packet behind the Ethernet header (virtio 1.2, 5.1.4.1 recommends the least).
pub const MTUS: RangeInclusive<u16> = 1280..=65535;
/// The usual one.
pub const DEFAULT_MTU: u16 = 1500;

/// A network interface that the host makes and a sidecore serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The switch that it is at: a name as VMs have them.
    pub switch: String,
    /// Its address, and the only one that frames may come from.
    pub mac: Mac,
    /// The VLAN that its port is in; it sees no tags. None: the network of those without one.
    pub vlan: Option<u16>,
    /// Pairs of queues, which may be more than the VM has vCPUs.
    pub queues: u16,
    /// Bytes of a packet at most.
    pub mtu: u16,
    /// Bytes a second that it may send, if there is a limit.
    pub rate: Option<u64>,
    /// Bytes a second that all copies of its frames for several others may have, if there is a
    /// limit.
    pub flood: Option<u64>,
    /// The driver tells of frames to send, each time by an exit, as [`Control::kicks`] of a disk:
    /// for comparisons alone.
    ///
    /// [`Control::kicks`]: crate::Control::kicks
    pub kicks: bool,
}

impl Interface {
    /// All its queues: pairs, and the one for commands.
    pub fn all_queues(&self) -> usize {
        2 * usize::from(self.queues) + 1
    }
}

/// What can be wrong with an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInterface {
    /// More than a VM may have.
    #[error("{0} networks are given; a VM may have at most {MAX_INTERFACES}")]
    Many(usize),
    /// A name that can't be shown or told apart.
    #[error(
        "`{}` can't name a switch; use 1 to 32 letters, digits, `-` and `_`, a letter or digit first",
        Shown(.0)
    )]
    Switch(String),
    /// An address that no station can have.
    #[error(
        "{0} can't be an interface's address: it is a group's, or nobody's; with 02 as its first byte it can"
    )]
    Group(Mac),
    /// An address that another interface has.
    #[error("{mac} is the address of [vm.{}] network{index} already; give one of them another, such as mac = \"{free}\", or leave `mac` out", Shown(.by))]
    MacTaken {
        /// The address.
        mac: Mac,
        /// The VM that has it.
        by: String,
        /// Which of its interfaces has it.
        index: usize,
        /// One that no interface has.
        free: Mac,
    },
    /// No such VLAN.
    #[error("{0} is no VLAN; they are {first} to {last}, and without one leave the key out", first = VLANS.start(), last = VLANS.end())]
    Vlan(u16),
    /// No queue, or too many.
    #[error("{0} is out of range; a network may have 1 to {MAX_PAIRS} pairs of queues")]
    Pairs(u16),
    /// Too small.
    #[error("an MTU of {0} is out of range; use {first} to {last}", first = MTUS.start(), last = MTUS.end())]
    Mtu(u16),
    /// Nothing might be sent.
    #[error("with a rate of 0 nothing could be sent; give one such as \"100M/s\"")]
    Rate,
    /// Nobody would be asked for an address.
    #[error(
        "with a flood of 0 no frame could be for all, and no station would be found; give one such as \"10M/s\""
    )]
    Flood,
}

/// An address that no manufacturer gave, for an interface that the plan gives none. It is the same
/// in every plan where the VM has this name, so that a guest finds what it knows.
#[cfg(any(test, feature = "file"))]
pub(crate) fn derived_mac(vm: &str, index: usize) -> Mac {
    // FNV-1a: names that differ little are to differ.
    let bytes = vm.bytes().chain([0, index as u8]);
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    // The first byte says: a station's, and locally administered (IEEE 802, 8.2).
    Mac([0x02, a ^ f, b ^ g, c ^ h, d, e])
}

/// Pairs of queues of an interface that doesn't say how many: one for each vCPU, as far as there
/// are.
#[cfg(any(test, feature = "file"))]
pub(crate) fn default_pairs(vcpus: usize) -> u16 {
    u16::try_from(vcpus).unwrap_or(MAX_PAIRS).clamp(1, MAX_PAIRS)
}

/// May a plan have this queue of a device that a sidecore serves?
pub fn may_have(device: ServedDevice, queue: u32) -> bool {
    let (index, most, queues) = match device {
        ServedDevice::Iommu => (0, 1, crate::GuestIommu::Virtio.queues() as u16),
        ServedDevice::Disk(index) => (index, MAX_DISKS, MAX_QUEUES),
        ServedDevice::Network(index) => (index, MAX_INTERFACES, 2 * MAX_PAIRS + 1),
    };
    usize::try_from(index).is_ok_and(|index| index < most) && queue < queues.into()
}

impl<F> Plan<F> {
    /// Every interface with its VM, in the plan's order.
    pub fn interfaces(&self) -> impl Iterator<Item = (&Vm<F>, &Interface)> {
        self.vms.iter().flat_map(|vm| vm.interfaces.iter().map(move |one| (vm, one)))
    }

    /// The names of the switches, each once, in the order in which the plan comes to them.
    pub fn switches(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (_, interface) in self.interfaces() {
            if !names.contains(&interface.switch.as_str()) {
                names.push(&interface.switch);
            }
        }
        names
    }

    /// Which sidecore serves a switch, at first, by its place among the plan's: they go round, or
    /// begin with the first if they go by load.
    pub fn sidecore_of_switch(&self, name: &str) -> Option<usize> {
        let at = self.switches().iter().position(|switch| *switch == name)?;
        let at = if let Moving::ByLoad(_) = self.host.moving { 0 } else { at };
        at.checked_rem(self.sidecores.len())
    }

    /// Which one drives a controller that disks are cut from: they go round where the switches
    /// ended.
    pub fn sidecore_of_controller(&self, device: DeviceName) -> Option<usize> {
        let at = self.part_devices().position(|one| one == device)?;
        (self.switches().len() + at).checked_rem(self.sidecores.len())
    }

    /// Which one serves the disk of this number, of all disks in the plan's order: the one that
    /// drives its controller; the others go round where the controllers ended, or begin with the
    /// first if they go by load.
    pub fn sidecore_of_disk(&self, number: usize) -> Option<usize> {
        if let Some((part, _)) = self.disks().nth(number).and_then(|(_, disk)| disk.part()) {
            return self.sidecore_of_controller(part.device);
        }
        if let Moving::ByLoad(_) = self.host.moving {
            return (!self.sidecores.is_empty()).then_some(0);
        }
        let others = self.disks().take(number).filter(|(_, disk)| disk.part().is_none()).count();
        let first = self.switches().len() + self.part_devices().count();
        (first + others).checked_rem(self.sidecores.len())
    }

    /// How many queues each sidecore serves, at most.
    pub fn served_queues(&self) -> Vec<usize> {
        let disks = self.disks().enumerate().filter(|(_, (_, disk))| !self.moves(disk));
        let disks = disks.map(|(i, (_, disk))| (self.sidecore_of_disk(i), disk.queues.into()));
        let interfaces = self.interfaces().filter(|_| self.host.moving == Moving::Never);
        let interfaces = interfaces.map(|(_, interface)| {
            (self.sidecore_of_switch(&interface.switch), interface.all_queues())
        });
        let mut sums: Vec<usize> = self.sidecores.iter().map(|_| self.moving_queues()).collect();
        let iommus = self.vms.iter().enumerate();
        let iommus = iommus.map(|(i, vm)| (self.sidecore_of_iommu(i), vm.iommu.queues()));
        for (place, queues) in disks.chain(interfaces).chain(iommus) {
            if let Some(sum) = place.and_then(|place| sums.get_mut(place)) {
                *sum = sum.saturating_add(queues);
            }
        }
        sums
    }

    /// The sidecore that serves the IOMMU of the VM at this place of the plan, if it has one; none
    /// where there is no sidecore, and the VM's own exits do.
    pub fn sidecore_of_iommu(&self, vm: usize) -> Option<usize> {
        vm.checked_rem(self.sidecores.len())
    }

    /// What must hold of the interfaces of the VM at this place of the plan.
    pub(crate) fn check_interfaces(&self, at: usize) -> Result<(), Error> {
        let Some(vm) = self.vms.get(at) else { return Ok(()) };
        let whole =
            |problem| Err(Error { place: Place::Vm(vm.name.clone()), key: "network", problem });
        if vm.interfaces.len() > MAX_INTERFACES {
            return whole(BadInterface::Many(vm.interfaces.len()).into());
        }
        if !vm.interfaces.is_empty() && self.sidecores.is_empty() {
            return whole(Problem::NoSidecore);
        }
        for (index, interface) in vm.interfaces.iter().enumerate() {
            let taken = || self.other_with(interface.mac, at, index);
            interface.check(taken).map_err(|(key, problem)| {
                let place = Place::Interface { vm: vm.name.clone(), index };
                Error { place, key, problem: problem.into() }
            })?;
        }
        Ok(())
    }

    /// A locally administered address that no interface of the plan has, nor a virtual function.
    fn free_mac(&self) -> Mac {
        let functions = || self.networks.iter().flat_map(|network| &network.macs);
        let taken = |mac: &Mac| {
            self.interfaces().any(|(_, one)| one.mac == *mac) || functions().any(|one| one == mac)
        };
        let macs = (1..=u16::MAX).map(|n| {
            let [high, low] = n.to_be_bytes();
            Mac([2, 0, 0, 0, high, low])
        });
        // A plan has fewer addresses than these, whose first free one it is.
        macs.into_iter().find(|mac| !taken(mac)).unwrap_or(Mac([2; 6]))
    }

    /// An interface before this one that has the address.
    fn other_with(&self, mac: Mac, at: usize, index: usize) -> Option<BadInterface> {
        let before = |(place, vm): (usize, &Vm<F>)| {
            let end = if place == at { index } else { usize::MAX };
            let found = vm.interfaces.iter().take(end).position(|other| other.mac == mac)?;
            Some(BadInterface::MacTaken {
                mac,
                by: vm.name.to_string(),
                index: found,
                free: self.free_mac(),
            })
        };
        self.vms.iter().enumerate().take(at + 1).find_map(before)
    }
}

impl Interface {
    fn check(
        &self,
        taken: impl FnOnce() -> Option<BadInterface>,
    ) -> Result<(), (&'static str, BadInterface)> {
        if !name_is_good(&self.switch) {
            return Err(("switch", BadInterface::Switch(self.switch.clone())));
        }
        if !self.mac.is_a_stations() {
            return Err(("mac", BadInterface::Group(self.mac)));
        }
        if let Some(taken) = taken() {
            return Err(("mac", taken));
        }
        match self.vlan {
            Some(vlan) if !VLANS.contains(&vlan) => return Err(("vlan", BadInterface::Vlan(vlan))),
            _ => {}
        }
        if !(1..=MAX_PAIRS).contains(&self.queues) {
            return Err(("queues", BadInterface::Pairs(self.queues)));
        }
        if !MTUS.contains(&self.mtu) {
            return Err(("mtu", BadInterface::Mtu(self.mtu)));
        }
        match (self.rate, self.flood) {
            (Some(0), _) => Err(("rate", BadInterface::Rate)),
            (_, Some(0)) => Err(("flood", BadInterface::Flood)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "interface_tests.rs"]
mod tests;
