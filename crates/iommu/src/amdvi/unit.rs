//! One unit: switched on, then asked to attach devices and to route interrupts.

use super::aliases::Aliases;
use super::by_id::ById;
use super::capabilities::{Capabilities, probe};
use super::control;
use super::device::{self, DEVICES, DeviceTable};
use super::events::EventLog;
use super::interrupt::{self, Interrupts};
use super::queue::{Command, Queue};
use super::registers::{COHERENT, CONTROL, EVENT_INTERRUPT, STATUS, X2APIC_OWN, XT_INTERRUPT};
use crate::entries;
use crate::pages::{Pages, pages};
use crate::tables::Tables;
use crate::{
    Bdf, Delivery, Domain, DomainId, Error, Fault, Firmware, InterruptRoute, Memory, Message,
    Range, Registers, Remapping,
};

/// The largest block of pages that is forgotten by itself, as a power of two.
const MAX_ORDER: u8 = 39;

/// A unit, switched on.
pub struct Unit<R, M> {
    regs: R,
    pub(super) tables: Tables<M>,
    capabilities: Capabilities,
    /// What the control register holds.
    pub(super) control: u64,
    /// It has registers for its own interrupt.
    own_registers: bool,
    pub(super) devices: DeviceTable,
    pub(super) interrupts: Interrupts,
    pub(super) aliases: Aliases,
    /// The domain of each device that is attached.
    attached: ById<Domain>,
    queue: Queue,
    log: EventLog,
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Switches the unit on with no device attached and no interrupt routed, whatever the firmware
    /// left. From then on all DMA of its devices is blocked, and with [`Remapping::On`] all their
    /// interrupts, so interrupts that are still wanted must be off at their devices now. A unit
    /// that is on goes on confining devices by what was there before until it does so by this.
    pub fn enable(
        mut regs: R,
        mem: M,
        remapping: Remapping,
        firmware: &Firmware,
    ) -> Result<Self, Error> {
        let capabilities = probe(&mut regs, remapping)?;
        // It isn't known to snoop before it has been told to.
        let mut tables = Tables::new(mem, false);
        let devices = DeviceTable::new(&mut tables, remapping)?;
        let queue = Queue::new(&mut tables)?;
        let log = EventLog::new(&mut tables)?;

        let on = control::replace(&mut regs, &devices, &queue, &log)?;
        let mut unit = Unit {
            regs,
            tables,
            capabilities,
            control: control::wanted(&capabilities, firmware),
            own_registers: false,
            devices,
            interrupts: Interrupts::default(),
            aliases: Aliases::new(&firmware.aliases),
            attached: ById::default(),
            queue,
            log,
        };
        if on {
            unit.forget_everything()?;
        }
        unit.control = control::switch(&mut unit.regs, unit.control, on)?;
        unit.own_registers = unit.control & X2APIC_OWN != 0;
        unit.tables.set_coherent(unit.control & COHERENT != 0);
        unit.forget_everything()?;
        Ok(unit)
    }

    /// What the unit can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether it snoops the CPU's caches when it walks page tables.
    pub fn coherent(&self) -> bool {
        self.tables.coherent()
    }

    /// Lets `device` reach what the page tables of the domain map, and nothing else: by each id
    /// that its requests may carry. Refused if the unit can't tell it from a device of another
    /// domain.
    pub fn attach(&mut self, device: Bdf, to: Domain) -> Result<(), Error> {
        self.queue.check()?;
        check_domain(to.id)?;
        if !self.capabilities.supports_levels(to.levels) {
            return Err(Error::Levels { levels: to.levels, known: self.capabilities.levels });
        }
        to.check_root()?;
        if self.attached.get(device.requester_id()).is_some() {
            return Err(Error::Attached { device });
        }
        for id in self.aliases.ids(device) {
            let is_elsewhere = |other: Bdf| {
                self.attached.get(other.requester_id()).is_some_and(|domain| *domain != to)
            };
            if self.aliases.devices(id).any(is_elsewhere) {
                return Err(Error::Shared { device, requester: Bdf::from_requester_id(id) });
            }
        }
        self.attached.insert(device.requester_id(), to);
        // It may have cached that the entry denies, and that pages of the domain aren't there.
        let done = self.lead(device, device::translated(to), to.id);
        if done.is_err() {
            self.attached.remove(device.requester_id());
            for id in self.aliases.ids(device) {
                self.devices.set_dma(&mut self.tables, id, self.devices.denied());
            }
        }
        done
    }

    /// Takes the device's domain away: its DMA is blocked, and that of devices that the unit can't
    /// tell from it. When this fails, it may still reach the domain's memory, and the unit does
    /// nothing more.
    pub fn detach(&mut self, device: Bdf) -> Result<(), Error> {
        self.queue.check()?;
        let Some(domain) = self.attached.remove(device.requester_id()) else {
            return Err(Error::NotAttached { device });
        };
        self.lead(device, self.devices.denied(), domain.id)
    }

    /// Writes what DMA of the device's ids leads to, and has the unit forget what it was, and then
    /// the translations: in this order, or one could be cached again by way of the old entry.
    fn lead(&mut self, device: Bdf, half: (u64, u64), domain: DomainId) -> Result<(), Error> {
        let mut n = 0;
        while let Some(id) = self.aliases.id(device, n) {
            self.devices.set_dma(&mut self.tables, id, half);
            self.submit(Command::Device(id))?;
            n += 1;
        }
        self.drain()?;
        self.submit(Command::Pages(domain, Pages::All))?;
        self.drain()
    }

    /// Forgets cached translations of a domain. Needed after a mapping was removed or changed, and,
    /// since the unit may cache that there is none, after one was added.
    pub fn flush(&mut self, domain: DomainId, range: Range) -> Result<(), Error> {
        check_domain(domain)?;
        match pages(range, Some(MAX_ORDER)) {
            Pages::None => self.queue.check(),
            what => {
                self.submit(Command::Pages(domain, what))?;
                self.drain()
            }
        }
    }

    /// Allocates interrupt entries of a device in a row, none of them routed: a power of two up to
    /// 32, beginning at a multiple of it. Gives the first one's index. The first call makes a table
    /// of 256 for the device, and for those that the unit can't tell from it.
    pub fn allocate_irtes(&mut self, device: Bdf, count: u16) -> Result<u16, Error> {
        self.queue.check()?;
        let group = self.aliases.group(device);
        let devices = (self.remapping() == Remapping::On).then_some(&self.devices);
        let ids = self.aliases.ids(device);
        let new = self.interrupts.provide(&mut self.tables, devices, group, ids)?;
        if devices.is_some() && !new.is_empty() {
            for id in &new {
                self.submit(Command::Device(*id))?;
            }
            self.drain()?;
            for id in new {
                self.submit(Command::Interrupts(id))?;
            }
            self.drain()?;
        }
        self.interrupts.allocate(group, device, count)
    }

    /// Clears interrupt entries of a device and gives them back.
    pub fn release_irtes(&mut self, device: Bdf, first: u16, count: u16) -> Result<(), Error> {
        for n in 0..count {
            let index = first.checked_add(n).ok_or(Error::NotAllocated { index: u16::MAX })?;
            self.clear_irte(device, index)?;
            self.interrupts.release(self.aliases.group(device), index);
        }
        Ok(())
    }

    /// Routes an allocated interrupt entry of the route's source, or routes it anew: by one store,
    /// so that no interrupt is lost and the unit sees no half of one.
    pub fn set_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        let at = self.entry(route.source, index)?;
        let entry = interrupt::encode(route)?;
        self.tables.write_pair(at, entry);
        self.forget_entries(route.source)?;
        self.drain()
    }

    /// As [`Unit::set_irte`], but the unit may go by the old route until [`Unit::drain`] returns:
    /// for many entries that change together, or where the old route still means what it meant.
    pub fn update_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        let at = self.entry(route.source, index)?;
        let entry = interrupt::encode(route)?;
        if self.tables.read_pair(at) == entry {
            return Ok(());
        }
        self.tables.write_pair(at, entry);
        self.forget_entries(route.source)
    }

    /// Returns when the unit goes by every route as it is now, and has done with what it sent by
    /// others (48882, 2.4.1: COMPLETION_WAIT ends when all commands before it have been carried
    /// out).
    #[inline(never)]
    pub fn drain(&mut self) -> Result<(), Error> {
        self.queue.drain(&mut self.regs, &mut self.tables)?;
        // By the manual it stops at what it can't carry out. QEMU's logs it and goes on.
        if self.log.refused(&mut self.regs, &mut self.tables) {
            let status = self.regs.read64(STATUS);
            return self.queue.refused(status);
        }
        Ok(())
    }

    /// The route of an allocated interrupt entry, if it has one.
    pub fn irte(&mut self, device: Bdf, index: u16) -> Result<Option<InterruptRoute>, Error> {
        let at = self.interrupts.entry(self.aliases.group(device), device, index)?;
        Ok(interrupt::decode(device, self.tables.read_pair(at)))
    }

    /// What the device must send for the interrupt of this entry: its index, or, where nothing
    /// remaps it, what the entry says itself. None if it isn't routed, or if no message can say
    /// that.
    pub fn message(&mut self, device: Bdf, index: u16) -> Result<Option<Message>, Error> {
        let route = self.irte(device, index)?;
        Ok(route.and_then(|route| match self.remapping() {
            Remapping::On => Some(interrupt::message(index)),
            Remapping::Off => entries::compatibility_message(route.destination, route.delivery),
        }))
    }

    /// Disables an allocated interrupt entry: the interrupt is blocked, where it is remapped.
    pub fn clear_irte(&mut self, device: Bdf, index: u16) -> Result<(), Error> {
        let at = self.entry(device, index)?;
        self.tables.write_pair(at, (0, 0));
        self.forget_entries(device)?;
        self.drain()
    }

    /// Reports the events that were logged, and makes room for more; true if some weren't.
    pub fn faults(&mut self, report: impl FnMut(Fault)) -> bool {
        let (regs, tables) = (&mut self.regs, &mut self.tables);
        let taken = self.log.take(regs, tables, self.control, report);
        if taken.refused {
            let status = self.regs.read64(STATUS);
            // Whoever invalidates next is told.
            let _ = self.queue.refused(status);
        }
        taken.overflowed
    }

    /// Has the unit send an interrupt when it logs an event (48882, 2.5.2, 3.4.10). It isn't
    /// remapped: `destination` is an x2APIC id. Units that know these ids have a register for that,
    /// which can't say NMI; otherwise it is the message that this gives, which the caller must
    /// write into the MSI capability of the unit's own PCI function, and enable there.
    pub fn send_faults(
        &mut self,
        destination: u32,
        delivery: Delivery,
    ) -> Result<Option<Message>, Error> {
        let message = match delivery {
            Delivery::Fixed(vector) if self.own_registers => {
                let low = u64::from(destination & 0xFF_FFFF) << 8;
                let high = u64::from(destination >> 24) << 56;
                self.regs.write64(XT_INTERRUPT, high | u64::from(vector) << 32 | low);
                None
            }
            _ => {
                let message = entries::compatibility_message(destination, delivery);
                Some(message.ok_or(Error::FaultInterrupt { destination })?)
            }
        };
        self.control &= !X2APIC_OWN;
        if message.is_none() {
            self.control |= X2APIC_OWN;
        }
        self.mask_faults(false);
        Ok(message)
    }

    /// Holds that interrupt back, or not. For an event that is logged meanwhile the manual promises
    /// none afterwards: [`fault_pending`](super::fault_pending) tells of it.
    pub fn mask_faults(&mut self, masked: bool) {
        self.control &= !EVENT_INTERRUPT;
        if !masked {
            self.control |= EVENT_INTERRUPT;
        }
        self.regs.write64(CONTROL, self.control);
    }

    fn remapping(&self) -> Remapping {
        self.capabilities.remapping
    }

    /// Address of an allocated entry that may be changed now.
    fn entry(&self, device: Bdf, index: u16) -> Result<u64, Error> {
        self.queue.check()?;
        self.interrupts.entry(self.aliases.group(device), device, index)
    }

    /// Has the unit begin to forget the device's interrupt entries. Where it remaps nothing it has
    /// read none.
    fn forget_entries(&mut self, device: Bdf) -> Result<(), Error> {
        if self.remapping() == Remapping::Off {
            return Ok(());
        }
        for id in self.interrupts.users(self.aliases.group(device)) {
            self.queue.submit(&mut self.regs, &mut self.tables, Command::Interrupts(id))?;
        }
        Ok(())
    }

    /// Has the unit forget all it has ever read. One that has no command for that is asked for each
    /// thing: first the device-table entries, by which it may read the others again.
    fn forget_everything(&mut self) -> Result<(), Error> {
        if self.capabilities.invalidates_all {
            self.submit(Command::All)?;
            return self.drain();
        }
        let ids = || (0..DEVICES).map(|id| id as u16);
        ids().try_for_each(|id| self.submit(Command::Device(id)))?;
        self.drain()?;
        for id in ids() {
            self.submit(Command::Interrupts(id))?;
            self.submit(Command::Pages(DomainId(id), Pages::All))?;
        }
        self.drain()
    }

    #[inline(never)]
    fn submit(&mut self, what: Command) -> Result<(), Error> {
        self.queue.submit(&mut self.regs, &mut self.tables, what)
    }
}

/// 0 tags what is denied.
fn check_domain(domain: DomainId) -> Result<(), Error> {
    match domain.0 {
        0 => Err(Error::Domain { domain, most: u16::MAX }),
        _ => Ok(()),
    }
}
