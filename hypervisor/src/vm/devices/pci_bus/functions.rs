//! The kinds of functions that a guest's PCI bus has.
//!
//! A new kind is a variant here, and an implementation of [`PciFunction`] beside its device.

use crate::vm::devices::assigned::AssignedDevice;
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::devices::virtio::VirtioFunction;
use alloc::boxed::Box;

/// A function of the guest's bus.
pub enum BusFunction {
    /// One of the machine's.
    Assigned(Box<AssignedDevice>),
    /// One that the host makes, and a sidecore serves.
    Virtio(Box<VirtioFunction>),
}

impl BusFunction {
    /// As the bus knows it.
    pub fn get(&self) -> &dyn PciFunction {
        match self {
            BusFunction::Assigned(device) => &**device,
            BusFunction::Virtio(function) => &**function,
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self) -> &mut dyn PciFunction {
        match self {
            BusFunction::Assigned(device) => &mut **device,
            BusFunction::Virtio(function) => &mut **function,
        }
    }

    /// One of the machine's, if it is one.
    pub fn assigned(&self) -> Option<&AssignedDevice> {
        match self {
            BusFunction::Assigned(device) => Some(device),
            BusFunction::Virtio(_) => None,
        }
    }
}
