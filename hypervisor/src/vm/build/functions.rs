//! What is on a VM's PCI bus at first: the devices that are assigned to it, and the disks and
//! networks that sidecores serve.

use crate::host::outputs;
use crate::iommu;
use crate::iommu::guest::{GuestIommu, Kind};
use crate::iommu::guest_faults;
use crate::pci::Pci;
use crate::sidecore::build::{Owner, Sidecores, Virtual};
use crate::sidecore::port::Port;
use crate::sidecore::views::window;
use crate::vm::devices::assigned::AssignedDevice;
use crate::vm::devices::pci_bus::PciBus;
use crate::vm::devices::pci_bus::functions::BusFunction;
use crate::vm::devices::pci_bus::unit::{self, RemappingUnit};
use crate::vm::devices::virtio::VirtioFunction;
use crate::vm::memory::{Memory, Tables};
use ::iommu::Bdf;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::slice;
use core::sync::atomic::AtomicU32;
use plan::image::Image;
use proto::ServedDevice;
use viommu::unit::{BASE, Model, Page};
use viommu::{Region, amdvi};
use virtual_pc::pci::{Addresses, Bus, IommuCapability};
use window::Window;

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
    iommu: Option<&'static GuestIommu>,
    unit: Option<RemappingUnit>,
}

impl<'a> Functions<'a> {
    /// None yet.
    pub fn new(whose: (usize, &'a str), pci: Pci) -> Self {
        let (bus, addresses) = (Box::new(Bus::new()), Addresses::new());
        let (all, ports) = (Vec::new(), Vec::new());
        Functions { whose, pci, bus, all, addresses, ports, iommu: None, unit: None }
    }

    /// Makes the VM's own virtio-iommu, which `place` among the sidecores serves, for the devices
    /// that are assigned to it next. It is before them on the bus: what is silenced in that order
    /// can't be led anywhere any more. What it unmaps may wait for `longest` ticks. Domain ids from
    /// `free` on are nobody's; gives those that still are.
    #[cold]
    #[inline(never)]
    pub fn add_iommu(
        &mut self,
        (devices, longest): (&[Bdf], u64),
        (memory, dma_root): (&Memory, u64),
        sidecores: &mut Sidecores,
        place: Option<usize>,
        free: u16,
    ) -> Result<u16, String> {
        // The IOMMU itself comes first.
        let iommu = self.iommu((devices, Kind::Virtio(longest)), (memory, dma_root), 1, free)?;
        let (vm, name) = self.whose;
        let memory = view(memory)?;
        let which = ServedDevice::Iommu;
        let owner = Owner { vm, name, memory, runs: &[], which };
        self.add(which, sidecores.iommu(owner, iommu, place))?;
        Ok(free + devices.len() as u16)
    }

    /// Makes the VM's own unit of this model, otherwise as [`Functions::add_iommu`].
    #[cold]
    #[inline(never)]
    pub fn add_unit(
        &mut self,
        ((model, posts), devices, longest): ((Model, bool), &[Bdf], u64),
        (memory, tables): (&Memory, &mut Tables),
        sidecores: &mut Sidecores,
        place: Option<usize>,
        free: u16,
    ) -> Result<u16, String> {
        let bytes = model.bytes();
        let frame = crate::memory::allocate(bytes, bytes);
        let frame = frame.ok_or("no memory is left for the registers of its IOMMU")?;
        // SAFETY: pages of our own, identity-mapped for good and aligned; the guest and the host
        // access them as atomic words alone.
        let words = unsafe { slice::from_raw_parts(frame as *const AtomicU32, bytes as usize / 4) };
        let page = Page::new(model, posts, words).ok_or("its IOMMU has more registers")?;
        let page: &Page = Box::leak(Box::new(page));
        let polled = place.is_some();
        tables.map(BASE, frame, bytes, unit::access(false)).map_err(|e| e.to_string())?;
        let view: &Window = Box::leak(Box::new(view(memory)?));
        let of = (memory, tables.dma_root());
        let iommu = self.iommu((devices, Kind::Unit(model, page, view, longest)), of, 0, free)?;
        guest_faults::add(iommu, devices);
        let (vm, name) = self.whose;
        let which = ServedDevice::Iommu;
        let owner = Owner { vm, name, memory: *view, runs: &[], which };
        let port = sidecores.registers(owner, iommu, place)?;
        self.ports.push((which, port));
        if model == Model::AmdVi {
            self.bus.set_iommu(capability());
        }
        self.unit = Some(RemappingUnit::new(iommu, port, (frame, bytes), polled));
        Ok(free + devices.len() as u16)
    }

    /// An IOMMU of the VM's own, for the devices that come next on the bus but `before`.
    fn iommu(
        &mut self,
        (devices, kind): (&[Bdf], Kind),
        (memory, dma_root): (&Memory, u64),
        before: u32,
        free: u16,
    ) -> Result<&'static GuestIommu, String> {
        let own = (self.whose.0 as u16 + 1, dma_root);
        let mut ids = Vec::new();
        // The host bridge is device 0.
        for device in (self.all.len() as u32 + 1 + before..).take(devices.len()) {
            ids.push(device << 3);
        }
        let mut regions = Vec::new();
        for r in memory.regions() {
            regions.push(Region { guest: r.gpa, host: r.hpa, len: r.len });
        }
        let iommu = GuestIommu::new(&ids, (devices, kind), own, &regions, free)
            .map_err(|e| format!("its IOMMU can't be made: {e}"))?;
        self.iommu = Some(iommu);
        Ok(iommu)
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
        let runs: Vec<_> = memory.regions().iter().map(|r| (r.hpa, r.len)).collect();
        let memory = view(memory)?;
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

    /// All of it.
    pub fn done(self) -> Made {
        let bus = PciBus::new(self.bus, self.all, self.pci, self.unit);
        Made { bus, served: self.ports, iommu: self.iommu }
    }
}

/// The view of a VM's memory.
#[inline(never)]
fn view(memory: &Memory) -> Result<Window, String> {
    window(memory.regions().iter().map(|r| (r.gpa, r.hpa, r.len)))
}

/// The capability block of an AMD-Vi unit (AMD IOMMU, 3.2): its header, its registers' address, which
/// is enabled, no range of buses, and how wide physical and virtual addresses are.
fn capability() -> IommuCapability {
    [amdvi::CAPABILITY, BASE as u32 | 1, (BASE >> 32) as u32, 0, 48 << 8 | 64 << 15, 0]
}

/// What was made of a VM's functions.
pub struct Made {
    pub bus: PciBus,
    /// The ports of what sidecores serve.
    pub served: Vec<(ServedDevice, &'static Port)>,
    pub iommu: Option<&'static GuestIommu>,
}
