//! One unit, of whatever vendor: all that the hypervisor asks of it.
//!
//! Guarantees what the driver behind it does. A vendor is an arm here and in
//! [`audit`](crate::audit), and nothing outside this crate names one, but for whoever finds the
//! units. What each may differ in: an index of an interrupt entry means something only together
//! with its device (AMD-Vi has a table for each); an entry that changes may be blocked for a
//! moment, or not.

use crate::audit::Outline;
use crate::{
    Bdf, Delivery, Domain, DomainId, Error, Fault, Firmware, InterruptRoute, Memory, Message,
    PageSizes, Range, Registers, Remapping, amdvi, vtd,
};

/// What kind of unit is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// VT-d.
    Intel,
    /// AMD-Vi.
    Amd,
}

impl Vendor {
    /// What its units are called.
    pub const fn unit_name(self) -> &'static str {
        match self {
            Vendor::Intel => "VT-d",
            Vendor::Amd => "AMD-Vi",
        }
    }
}

/// A unit, switched on.
pub enum Unit<R, M> {
    /// Intel's.
    Vtd(vtd::Unit<R, M>),
    /// AMD's.
    AmdVi(amdvi::Unit<R, M>),
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Switches the unit on with no device attached and no interrupt routed, whatever the firmware
    /// left. From then on all DMA of its devices is blocked, and with [`Remapping::On`] all their
    /// interrupts, so interrupts that are still wanted must be off at their devices now.
    /// `interrupt_entries`: how many there are for all its devices, a power of two from 256 to
    /// 65536; AMD's has 256 for each. `firmware`: what firmware's tables say of it.
    pub fn enable(
        vendor: Vendor,
        regs: R,
        mem: M,
        interrupt_entries: u32,
        remapping: Remapping,
        firmware: &Firmware,
    ) -> Result<Self, Error> {
        match vendor {
            Vendor::Intel => {
                vtd::Unit::enable(regs, mem, interrupt_entries, remapping).map(Unit::Vtd)
            }
            Vendor::Amd => amdvi::Unit::enable(regs, mem, remapping, firmware).map(Unit::AmdVi),
        }
    }

    /// Whether interrupts of its devices go by their entries; if not, by what the devices send.
    pub fn remapping(&self) -> Remapping {
        match self {
            Unit::Vtd(unit) => unit.capabilities().remapping,
            Unit::AmdVi(unit) => unit.capabilities().remapping,
        }
    }

    /// Whether it snoops the CPU's caches when it walks page tables.
    pub fn coherent(&self) -> bool {
        match self {
            Unit::Vtd(unit) => unit.capabilities().coherent,
            Unit::AmdVi(unit) => unit.coherent(),
        }
    }

    /// Whether it can walk page tables of so many levels.
    pub fn supports_levels(&self, levels: u8) -> bool {
        match self {
            Unit::Vtd(unit) => unit.capabilities().supports_levels(levels),
            Unit::AmdVi(unit) => unit.capabilities().supports_levels(levels),
        }
    }

    /// Which pages of more than 4 KiB it takes in page tables.
    pub fn page_sizes(&self) -> PageSizes {
        match self {
            Unit::Vtd(unit) => {
                let vtd::Capabilities { pages_2m, pages_1g, .. } = *unit.capabilities();
                PageSizes { pages_2m, pages_1g }
            }
            // An entry of any level may map a page of its level's size.
            Unit::AmdVi(_) => PageSizes { pages_2m: true, pages_1g: true },
        }
    }

    /// Lets `device` reach what the domain's page tables map, and nothing else. Refused if the unit
    /// can't tell it from one that is attached to another domain.
    pub fn attach(&mut self, device: Bdf, to: Domain) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.attach(device, to),
            Unit::AmdVi(unit) => unit.attach(device, to),
        }
    }

    /// Takes the device's domain away: its DMA is blocked, and that of others that the unit can't
    /// tell from it. When this fails, it may still reach the
    /// domain's memory, and the unit does nothing more.
    pub fn detach(&mut self, device: Bdf) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.detach(device),
            Unit::AmdVi(unit) => unit.detach(device),
        }
    }

    /// Has the unit forget what it may have cached of a domain's translations in a range: after a
    /// mapping was removed or changed, and, if it [caches absence](Unit::caches_absence), after one
    /// was added. Returns when it has.
    pub fn flush(&mut self, domain: DomainId, range: Range) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.flush(domain, range),
            Unit::AmdVi(unit) => unit.flush(domain, range),
        }
    }

    /// Whether it may have cached that something isn't mapped.
    pub fn caches_absence(&self) -> bool {
        match self {
            Unit::Vtd(unit) => unit.capabilities().caching_mode,
            // Its driver doesn't ask for NpCache, and takes it that it does.
            Unit::AmdVi(_) => true,
        }
    }

    /// Allocates interrupt entries of a device in a row, none of them routed: a power of two up to
    /// 32, beginning at a multiple of it, as an MSI capability with several messages wants them.
    /// Gives the first one's index.
    pub fn allocate_irtes(&mut self, device: Bdf, count: u16) -> Result<u16, Error> {
        match self {
            Unit::Vtd(unit) => unit.allocate_irtes(count),
            Unit::AmdVi(unit) => unit.allocate_irtes(device, count),
        }
    }

    /// Clears interrupt entries of a device and gives them back.
    pub fn release_irtes(&mut self, device: Bdf, first: u16, count: u16) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.release_irtes(first, count),
            Unit::AmdVi(unit) => unit.release_irtes(device, first, count),
        }
    }

    /// Routes an allocated interrupt entry of the route's source, or routes it anew. Returns when
    /// the unit goes by it, and what it sent by the old route has left it, for a local APIC.
    pub fn set_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.set_irte(index, route),
            Unit::AmdVi(unit) => unit.set_irte(index, route),
        }
    }

    /// As [`Unit::set_irte`], but the unit may go by the old route until [`Unit::drain`] returns:
    /// for many entries that change together, or where the old route still means what it meant.
    pub fn update_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.update_irte(index, route),
            Unit::AmdVi(unit) => unit.update_irte(index, route),
        }
    }

    /// Returns when the unit goes by every route as it is now, and what it sent by others has left
    /// it for its local APIC.
    pub fn drain(&mut self) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.drain(),
            Unit::AmdVi(unit) => unit.drain(),
        }
    }

    /// Blocks the interrupt of an allocated entry of a device, where it is remapped.
    pub fn clear_irte(&mut self, device: Bdf, index: u16) -> Result<(), Error> {
        match self {
            Unit::Vtd(unit) => unit.clear_irte(index),
            Unit::AmdVi(unit) => unit.clear_irte(device, index),
        }
    }

    /// What the device must send for the interrupt of this entry of its own: by its index, or,
    /// where nothing remaps it, what the entry says itself. None if it isn't routed, or if no
    /// message can say that.
    pub fn message(&mut self, device: Bdf, index: u16) -> Result<Option<Message>, Error> {
        match self {
            Unit::Vtd(unit) => unit.message(index),
            Unit::AmdVi(unit) => unit.message(device, index),
        }
    }

    /// Reports what devices did that was blocked or dropped, and clears the records; true if there
    /// was more than records.
    pub fn faults(&mut self, report: impl FnMut(Fault)) -> bool {
        match self {
            Unit::Vtd(unit) => unit.faults(report),
            Unit::AmdVi(unit) => unit.faults(report),
        }
    }

    /// Has the unit send an interrupt when it records a fault and had none. It isn't remapped:
    /// `destination` is an x2APIC id.
    ///
    /// Gives the message that the caller must write into the MSI capability of the unit's own PCI
    /// function, which it must enable, if the unit sends by that. None: it needs nothing more.
    pub fn send_faults(
        &mut self,
        destination: u32,
        delivery: Delivery,
    ) -> Result<Option<Message>, Error> {
        match self {
            Unit::Vtd(unit) => {
                unit.send_faults(destination, delivery);
                Ok(None)
            }
            Unit::AmdVi(unit) => unit.send_faults(destination, delivery),
        }
    }

    /// Holds that interrupt back, or not. One that comes meanwhile is sent when it isn't any more,
    /// or [`fault_pending`] tells of what it was for: AMD's manual doesn't promise the former.
    pub fn mask_faults(&mut self, masked: bool) {
        match self {
            Unit::Vtd(unit) => unit.mask_faults(masked),
            Unit::AmdVi(unit) => unit.mask_faults(masked),
        }
    }

    /// Where its tables are.
    pub fn outline(&mut self) -> Outline {
        match self {
            Unit::Vtd(unit) => Outline::Vtd(unit.outline()),
            Unit::AmdVi(unit) => Outline::AmdVi(unit.outline()),
        }
    }
}

/// Has a unit of this kind something to report? Asked without the unit: reading changes nothing.
pub fn fault_pending(vendor: Vendor, regs: &mut impl Registers) -> bool {
    match vendor {
        Vendor::Intel => vtd::fault_pending(regs),
        Vendor::Amd => amdvi::fault_pending(regs),
    }
}
