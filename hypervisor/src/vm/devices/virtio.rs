//! Virtio functions on the guest's bus: the registers of `virtio_pci` before a device that a
//! sidecore serves.
//!
//! Guarantees: what the guest sets up reaches the sidecore as an order, and no register makes the
//! guest's core wait for the sidecore but masking, which is over within a call, and turning the
//! device's access to memory off, which is over within a piece of work; and, of an IOMMU, its reset
//! and what it does with devices that are in no domain. Routes are the VM's
//! own again when [`PciFunction::quiet`] returns; so is memory, if the port let go of it before.
//! Nothing here reads the guest's memory: the sidecore does, by the checked spans that it makes of
//! an order's addresses.

use crate::iommu::guest::GuestIommu;
use crate::pci::reset::Reset;
use crate::sidecore::build::Virtual;
use crate::sidecore::entries;
use crate::sidecore::guest_iommu::ByExit;
use crate::sidecore::port::{Order, Port};
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::devices::pci_bus::placement::{BARS, Part, Placement};
use crate::vm::devices::pci_bus::source::Sources;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::stop::{DeviceFinding, Incident};
use ::iommu::Bdf;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::ops::Range;
use paging::Access;
use viommu::Change;
use virtio_pci::{Effect, Host, MAX_QUEUES, Queue, bar, config_space};
use virtqueue::Layout;
use virtual_pc::message::Written;
use virtual_pc::pci::{Addresses, BarKind, Function as Shown};

/// Entries of a queue at most.
const QUEUE_SIZE: u16 = 256;

/// The function of a disk, a network interface or an IOMMU.
pub struct VirtioFunction {
    requester: Bdf,
    /// Larger than all the rest.
    registers: Box<virtio_pci::Function>,
    /// The device's part of the registers.
    config: Box<[u8]>,
    port: &'static Port,
    /// Its interrupt entries: of the configuration's changes and of the queues, by the MSI-X entry.
    entries: Range<u16>,
    /// As in the orders.
    life: u32,
    may_access: bool,
    placement: Placement,
    sources: Sources,
    /// What it is a function of, if that is the guest's IOMMU; and who serves it, if no sidecore
    /// does.
    iommu: Option<&'static GuestIommu>,
    by_exit: Option<Box<ByExit>>,
}

impl VirtioFunction {
    /// The function of a device, and how the guest sees it. Boot only; the error is the end of a
    /// sentence about it.
    pub fn new(device: Virtual, addresses: &mut Addresses) -> Result<(Self, Shown), String> {
        let Virtual { function: requester, entries, port, notify, shape, iommu, by_exit } = device;
        let registers = virtio_pci::Function::new(shape.features, shape.queues, QUEUE_SIZE);
        let registers = Box::new(registers.map_err(|e| e.to_string())?);
        let address = addresses.choose(BarKind::Mem32, bar::SIZE);
        let address = address.ok_or("its BAR doesn't fit the guest's PCI window")?;
        let shown =
            config_space::on_bus(shape.kind, shape.queues, shape.config.len() as u32, address);
        let shown = shown.map_err(|e| e.to_string())?;
        let mut sizes = [None; BARS];
        sizes[usize::from(bar::INDEX)] = Some(bar::SIZE);
        let notify = notify.map(|hpa| Part {
            bar: bar::INDEX.into(),
            range: bar::NOTIFY..bar::NOTIFY + bar::PAGE,
            hpa,
            access: Access::READ | Access::WRITE,
        });
        let function = VirtioFunction {
            requester,
            registers,
            config: shape.config,
            port,
            sources: Sources::new(requester, entries.clone()),
            entries,
            life: 1,
            may_access: false,
            placement: Placement::new(sizes, notify.into_iter().collect()),
            iommu,
            by_exit,
        };
        Ok((function, shown))
    }

    /// The registers, and what they go by.
    fn access<T>(&mut self, f: impl FnOnce(&mut virtio_pci::Function, &Host) -> T) -> T {
        if self.port.is_broken(self.life) {
            // The sidecore has sent the interrupt.
            self.registers.needs_reset();
        }
        let mut pending = 0;
        for (bit, entry) in self.entries.clone().enumerate() {
            let waits = entries::get(entry).is_some_and(|entry| entry.pending());
            pending |= u64::from(waits) << bit;
        }
        let host = Host { idle: !self.port.is_busy(), config: &self.config, pending };
        f(&mut self.registers, &host)
    }

    /// Has the sidecore do what the registers say now.
    fn order(&mut self) {
        let mut queues = [None; MAX_QUEUES];
        if self.registers.is_running() {
            let enabled = |queue: &Queue| queue.enabled.then(|| layout(queue));
            let set_up = self.registers.queues().iter().map(enabled);
            queues.iter_mut().zip(set_up).for_each(|(to, queue)| *to = queue);
        }
        let (life, may_access) = (self.life, self.may_access);
        self.port.order(Order { life, may_access, features: self.registers.features(), queues });
        self.follow();
    }

    /// Goes by what was ordered, if no sidecore does.
    fn follow(&mut self) {
        if let Some(by_exit) = &mut self.by_exit {
            by_exit.follow(self.port, &self.entries);
        }
    }

    fn set_vectors(&self) {
        self.port.set_config_vector(self.registers.config_vector());
        for (index, queue) in self.registers.queues().iter().enumerate() {
            self.port.set_vector(index, queue.vector);
        }
    }

    /// The registers were reset: what is ordered from here on is another life of the device.
    fn begin_life(&mut self) {
        // Zero is that of a device that was never used.
        self.life = self.life.wrapping_add(1).max(1);
        self.order();
        self.set_vectors();
        if let Some(iommu) = self.iommu {
            // Nothing is done for the life before from here on.
            self.port.settle();
            iommu.change(Change::Reset);
        }
    }

    /// The driver wrote to the device's part of the registers.
    fn configure(&mut self, at: u64, size: u8, value: u64) {
        let (on, bypass) = (value & 1 == 1, self.config.get_mut(viommu::BYPASS));
        if let Some((iommu, register)) = self.iommu.zip(bypass)
            && (at, size) == (viommu::BYPASS as u64, 1)
        {
            *register = on.into();
            iommu.change(Change::Bypass(on));
        }
    }
}

fn layout(queue: &Queue) -> Layout {
    let Queue { size, descriptors, driver, device, .. } = *queue;
    Layout { size, descriptors, driver, device }
}

impl PciFunction for VirtioFunction {
    fn bdf(&self) -> Bdf {
        self.requester
    }

    fn placement(&self) -> &Placement {
        &self.placement
    }

    fn placement_mut(&mut self) -> &mut Placement {
        &mut self.placement
    }

    fn sources(&self) -> &Sources {
        &self.sources
    }

    fn sources_mut(&mut self) -> &mut Sources {
        &mut self.sources
    }

    fn load(&mut self, _: &mut ExitContext, _bar: usize, offset: u64, size: u8) -> u64 {
        self.access(|registers, host| registers.read(offset, size, host))
    }

    fn store(
        &mut self,
        _: &mut ExitContext,
        _bar: usize,
        offset: u64,
        size: u8,
        value: u64,
    ) -> Option<usize> {
        match self.access(|registers, host| registers.write(offset, size, value, host)) {
            Effect::Start => self.order(),
            Effect::Reset => self.begin_life(),
            Effect::Vectors => {
                self.set_vectors();
                // What goes by the vector before is sent when the driver goes on.
                entries::settle();
            }
            Effect::Entry(entry) => return Some(entry),
            Effect::Notify(queue) => {
                self.port.kick(queue);
                if let Some(by_exit) = self.by_exit.as_mut().filter(|_| queue == 0) {
                    by_exit.serve(self.port, &self.entries);
                }
            }
            Effect::Config { at, size, value } => self.configure(at, size, value),
            Effect::None => {}
        }
        None
    }

    fn written(&self, shown: &Shown, source: usize) -> Option<Written> {
        // A message is a write to memory (PCI 3.0, 6.2.2, Bus Master).
        if !shown.bus_master() {
            return None;
        }
        self.registers.written(source, shown.msix_control())
    }

    /// Nothing: the units wait until no call goes by the old route.
    fn hold(&mut self, _source: usize) {}

    fn program(&mut self, shown: &Shown, source: usize, open: bool) -> Result<(), Incident> {
        let vector = u16::try_from(source).ok();
        let Some(entry) = vector.and_then(|vector| entries::of(&self.entries, vector)) else {
            return Ok(());
        };
        match (shown.msix_control().enabled, open) {
            (true, true) => {
                if entry.unmask() {
                    match &mut self.by_exit {
                        Some(by_exit) => by_exit.send_waiting(&self.entries),
                        None => entries::ask(),
                    }
                }
                return Ok(());
            }
            (true, false) => entry.mask(),
            (false, _) => entry.disable(),
        }
        if entries::settle() { Ok(()) } else { Err(Incident::Route(self.requester)) }
    }

    /// Bus master: without it the device's queues stand still.
    fn apply_command(&mut self, shown: &Shown) {
        if self.may_access != shown.bus_master() {
            self.may_access = shown.bus_master();
            self.order();
            if !self.may_access {
                // A guest that starts another kernel takes its memory for its own from here on.
                // What a controller was asked for may end later.
                self.port.settle();
            }
        }
    }

    fn apply_msix_control(&mut self, _: &Shown) {}

    /// It has no reset of PCI's: this is the VM's restart.
    fn begin_reset(&mut self) -> Option<Reset> {
        self.registers.reset();
        self.begin_life();
        None
    }

    fn end_reset(&mut self) {}

    fn restart(&mut self) {
        self.may_access = false;
        if let Some(iommu) = self.iommu {
            iommu.change(Change::Restart);
            self.config.iter_mut().skip(viommu::BYPASS).take(1).for_each(|byte| *byte = 1);
        }
    }

    fn quiet(&mut self) {
        if let Some(iommu) = self.iommu {
            // The devices behind it are silenced after this, and may go on until then: they must
            // not reach the guest's memory by addresses that were translated.
            self.port.let_go();
            self.follow();
            self.port.settle();
            iommu.change(Change::Close);
        }
        self.begin_reset();
        self.port.settle();
        // The next life finds the reset done from its first look on, as after power on, whatever is
        // ordered before that.
        self.registers.settled();
        self.entries.clone().filter_map(entries::get).for_each(|entry| entry.disable());
        entries::settle();
    }

    fn stop(&mut self, owner: &Guest) {
        self.quiet();
        self.sources.close(owner);
    }

    /// Nothing of it can be changed but by the host.
    fn audit(&self, _: &Shown) -> Result<(), DeviceFinding> {
        Ok(())
    }
}
