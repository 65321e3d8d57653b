//! Disks that are parts of an NVMe controller's namespace, which the host drives.
//!
//! Guarantees: by the names that the plan has, no two disks have bytes in common unless neither
//! writes, no controller that disks are cut from is a VM's, and none has more disks than its driver
//! serves. It doesn't guarantee that the controller is there and is large enough, nor that two
//! names aren't one device's: the hypervisor checks that when it boots.

use crate::{
    Backing, Class, DeviceName, Disk, Error, MAX_DISK, Place, Plan, Problem, Size, Vm, shown::Shown,
};
use alloc::string::{String, ToString};
use serde::{Deserialize, Serialize};

/// Disks of one controller.
pub const MAX_PARTS: usize = 16;
/// What a part's place and size are multiples of: the largest block that a namespace may have.
pub const PART_ALIGNMENT: u64 = 4096;

/// Where on a controller a disk is. How long it is is the disk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The controller.
    pub device: DeviceName,
    /// Its first byte there.
    pub offset: u64,
}

/// What can be wrong with a part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartProblem {
    /// Of another kind.
    #[error("{0} is no NVMe controller; disks are cut from those, such as \"nvme0\"")]
    Kind(DeviceName),
    /// An address PCI doesn't have.
    #[error("{0} is not a PCI address; a bus has devices 00 to 1f with functions 0 to 7")]
    Address(DeviceName),
    /// Part of a block.
    #[error("{0} bytes are not a multiple of 4K, the largest block that a controller may have")]
    Odd(u64),
    /// Beyond every disk.
    #[error("{size} is too much; a disk may begin at {max} at most", size = Size(*.0), max = Size(MAX_DISK))]
    Far(u64),
    /// The controller is a VM's as a whole.
    #[error(
        "{device} is VM `{}`'s; a controller that disks are cut from stays the host's, so take it from the VM's devices", Shown(.by)
    )]
    Assigned {
        /// The controller.
        device: DeviceName,
        /// Whose it is.
        by: String,
    },
    /// Two disks in one place.
    #[error(
        "it has bytes of {device} in common with disk{index} of VM `{}`, which is there from {offset} to {end}; give it an offset of its own, or make both read-only",
        Shown(.by), offset = Size(*.offset), end = Size(*.end)
    )]
    Overlap {
        /// The controller.
        device: DeviceName,
        /// Whose the other one is.
        by: String,
        /// Which of its disks.
        index: usize,
        /// Where the other one begins.
        offset: u64,
        /// Where it ends.
        end: u64,
    },
    /// More than the controller's driver serves.
    #[error("{0} has more than {MAX_PARTS} disks")]
    Many(DeviceName),
    /// Content for a disk that has its own.
    #[error("what is on a controller stays there; leave the image out")]
    Image,
}

impl<F> Disk<F> {
    /// Its part of a controller, if that is what it is, with its end there.
    pub fn part(&self) -> Option<(Part, u64)> {
        match self.backing {
            Backing::Part(part) => Some((part, part.offset.saturating_add(self.size))),
            Backing::Ram | Backing::Null => None,
        }
    }

    /// What a part must be by itself.
    pub(crate) fn check_part(&self) -> Result<(), (&'static str, PartProblem)> {
        let Some((Part { device, offset }, _)) = self.part() else { return Ok(()) };
        match device {
            DeviceName::Named { class: Class::Nvme, .. } => {}
            DeviceName::Address { .. } if device.is_possible() => {}
            DeviceName::Address { .. } => return Err(("device", PartProblem::Address(device))),
            _ => return Err(("device", PartProblem::Kind(device))),
        }
        if !offset.is_multiple_of(PART_ALIGNMENT) {
            return Err(("offset", PartProblem::Odd(offset)));
        }
        if offset > MAX_DISK {
            return Err(("offset", PartProblem::Far(offset)));
        }
        if !self.size.is_multiple_of(PART_ALIGNMENT) {
            return Err(("size", PartProblem::Odd(self.size)));
        }
        match self.image {
            Some(_) => Err(("image", PartProblem::Image)),
            None => Ok(()),
        }
    }
}

impl<F> Plan<F> {
    /// Every part, with its VM, its disk's number there, the disk, and its end.
    fn parts(&self) -> impl Iterator<Item = (&Vm<F>, usize, &Disk<F>, Part, u64)> {
        self.vms.iter().flat_map(|vm| {
            vm.disks.iter().enumerate().filter_map(move |(index, disk)| {
                disk.part().map(|(part, end)| (vm, index, disk, part, end))
            })
        })
    }

    /// What must hold of all parts together.
    pub(crate) fn check_parts(&self) -> Result<(), Error> {
        for (at, (vm, index, disk, part, end)) in self.parts().enumerate() {
            let device = part.device;
            let error = |key, problem| {
                let place = Place::Disk { vm: vm.name.clone(), index };
                Err(Error { place, key, problem: Problem::Part(problem) })
            };
            if let Some(owner) = self.vms.iter().find(|vm| vm.devices.contains(&device)) {
                let by = owner.name.to_string();
                return error("device", PartProblem::Assigned { device, by });
            }
            let before = || self.parts().take(at).filter(|other| other.3.device == device);
            if before().count() >= MAX_PARTS {
                return error("device", PartProblem::Many(device));
            }
            let meets = |other: &(_, _, &Disk<F>, Part, u64)| {
                other.3.offset < end
                    && part.offset < other.4
                    && !(disk.read_only && other.2.read_only)
            };
            if let Some((owner, index, _, other, end)) = before().find(meets) {
                let (by, offset) = (owner.name.to_string(), other.offset);
                return error("offset", PartProblem::Overlap { device, by, index, offset, end });
            }
        }
        Ok(())
    }

    /// The controllers that disks are cut from, each once, in the order in which they are named.
    pub fn part_devices(&self) -> impl Iterator<Item = DeviceName> {
        self.parts().enumerate().filter_map(|(at, (.., part, _))| {
            let known = self.parts().take(at).any(|other| other.3.device == part.device);
            (!known).then_some(part.device)
        })
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
