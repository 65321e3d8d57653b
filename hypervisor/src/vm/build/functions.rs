//! What is on a VM's PCI bus at first: the devices that are assigned to it, and the disks and
//! networks that sidecores serve.

use crate::host::outputs;
use crate::iommu;
use crate::pci::Pci;
use crate::sidecore::build::{Owner, Sidecores, Virtual};
use crate::sidecore::port::Port;
use crate::sidecore::views::window;
use crate::vm::devices::assigned::AssignedDevice;
use crate::vm::devices::pci_bus::PciBus;
use crate::vm::devices::pci_bus::functions::BusFunction;
use crate::vm::devices::virtio::VirtioFunction;
use crate::vm::memory::Memory;
use ::iommu::Bdf;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use plan::image::Image;
use proto::ServedDevice;
use virtual_pc::pci::{Addresses, Bus};

/// The functions of one VM, as far as they are found and made.
pub struct Functions<'a> {
    /// The VM's place in the plan, and its name.
    whose: (usize, &'a str),
    pci: Pci,
    bus: Box<Bus>,
    all: Vec<BusFunction>,
    addresses: Addresses,
    /// Of what sidecores serve.
    ports: Vec<(ServedDevice, &'static Port)>,
}

impl<'a> Functions<'a> {
    /// None yet.
    pub fn new(whose: (usize, &'a str), pci: Pci) -> Self {
        let (bus, addresses) = (Box::new(Bus::new()), Addresses::new());
        Functions { whose, pci, bus, all: Vec::new(), addresses, ports: Vec::new() }
    }

    /// Confines these devices to the VM's memory and puts them on the bus.
    pub fn assign(
        &mut self,
        devices: Vec<Bdf>,
        dma_root: u64,
        format: iommu::PageFormat,
    ) -> Result<(), String> {
        for bdf in devices {
            let refused = |e: String| format!("device {bdf} can't be assigned: {e}");
            outputs::leave(&self.pci, bdf, self.whose.1).map_err(refused)?;
            let (mut device, shown) =
                AssignedDevice::new(&self.pci, bdf, &mut self.addresses).map_err(refused)?;
            device.reset().map_err(refused)?;
            let domain = self.whose.0 as u16 + 1;
            iommu::attach(bdf, domain, dma_root, format).map_err(refused)?;
            self.bus.assign(shown).map_err(|e| refused(e.to_string()))?;
            self.all.push(BusFunction::Assigned(Box::new(device)));
        }
        Ok(())
    }

    /// Makes what sidecores serve of the VM, whose memory this is, and puts it on the bus.
    pub fn add_served(
        &mut self,
        vm: &plan::Vm,
        image: &Image<'static>,
        memory: &Memory,
        sidecores: &mut Sidecores,
    ) -> Result<(), String> {
        let regions = memory.regions().iter().map(|r| (r.gpa, r.hpa, r.len));
        let runs: Vec<_> = memory.regions().iter().map(|r| (r.hpa, r.len)).collect();
        let memory = window(regions)?;
        let (index, name) = self.whose;
        let owner = |which| Owner { vm: index, name, memory, runs: &runs, which };
        for (disk, which) in vm.disks.iter().zip((0..).map(ServedDevice::Disk)) {
            self.add(which, sidecores.disk(owner(which), disk, image.disk(disk)))?;
        }
        for (interface, which) in vm.interfaces.iter().zip((0..).map(ServedDevice::Network)) {
            self.add(which, sidecores.interface(owner(which), interface))?;
        }
        Ok(())
    }

    fn add(&mut self, which: ServedDevice, made: Result<Virtual, String>) -> Result<(), String> {
        let refused = |e: String| format!("its {which} can't be made: {e}");
        let made = made.map_err(refused)?;
        self.ports.push((which, made.port));
        let (function, shown) = VirtioFunction::new(made, &mut self.addresses).map_err(refused)?;
        self.bus.assign(shown).map_err(|e| refused(e.to_string()))?;
        self.all.push(BusFunction::Virtio(Box::new(function)));
        Ok(())
    }

    /// The bus, and the ports of what sidecores serve.
    pub fn done(self) -> (PciBus, Vec<(ServedDevice, &'static Port)>) {
        (PciBus::new(self.bus, self.all, self.pci), self.ports)
    }
}
