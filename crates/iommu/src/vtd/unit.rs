//! One unit: switched on, then asked to attach devices and to route interrupts.

use super::capabilities::{Capabilities, probe};
use super::command;
use super::context::Contexts;
use super::fault;
use super::interrupt::{self, Entries};
use super::queue::{Invalidation, Queue};
use super::registers::{
    CFI, EAFL, EIME, EPM, FEADDR, FECTL, FECTL_IM, FEDATA, FEUADDR, IRE, IRTA, PMEN, PRS, RTADDR,
    SIRTP, SRTP, TE, TTM,
};
use crate::entries;
use crate::pages::{Pages, pages};
use crate::poll::poll;
use crate::tables::Tables;
use crate::{
    Bdf, Delivery, Domain, DomainId, Error, Fault, InterruptRoute, Memory, Message, Range,
    Registers, Remapping,
};

/// A unit, switched on.
pub struct Unit<R, M> {
    regs: R,
    pub(super) tables: Tables<M>,
    capabilities: Capabilities,
    pub(super) contexts: Contexts,
    pub(super) entries: Entries,
    queue: Queue,
}

impl<R: Registers, M: Memory> Unit<R, M> {
    /// Switches the unit on with no device attached and no interrupt routed, whatever the firmware
    /// left. From then on all DMA of its devices is blocked, and with [`Remapping::On`] all their
    /// interrupts, so interrupts that are still wanted must be off at their devices now.
    /// `interrupt_entries` is a power of two from 256 to 65536.
    ///
    /// A unit that remaps already goes on to: its tables are replaced under way (VT-d 6.6,
    /// 11.4.4.1), and until it has forgotten the old ones it goes by either. It stops only where
    /// the manual doesn't let the kind of table change otherwise: from scalable to legacy mode, and
    /// from 8-bit to x2APIC destinations.
    pub fn enable(
        mut regs: R,
        mem: M,
        interrupt_entries: u32,
        remapping: Remapping,
    ) -> Result<Self, Error> {
        let capabilities = probe(&mut regs, remapping)?;
        let mut tables = Tables::new(mem, capabilities.coherent);
        let contexts = Contexts::new(&mut tables)?;
        let entries = Entries::new(&mut tables, interrupt_entries)?;

        // Nobody said yet where to.
        regs.write32(FECTL, FECTL_IM);
        command::clear(&mut regs, EAFL, "stop advanced fault logging")?;
        Queue::disable(&mut regs)?;
        let takes_over_entries = remapping == Remapping::On && regs.read64(IRTA) & EIME != 0;
        if !takes_over_entries {
            command::clear(&mut regs, IRE, "stop remapping interrupts")?;
        }
        if regs.read64(RTADDR) & TTM != 0 {
            command::clear(&mut regs, TE, "stop translating")?;
        }

        regs.write64(RTADDR, contexts.root());
        command::set(&mut regs, SRTP, "take its root table")?;
        let queue = Queue::enable(&mut regs, &mut tables)?;
        let mut unit = Unit { regs, tables, capabilities, contexts, entries, queue };
        unit.invalidate(Invalidation::ContextGlobal)?;
        unit.invalidate(Invalidation::IotlbGlobal)?;

        if remapping == Remapping::On {
            unit.regs.write64(IRTA, unit.entries.irta() | EIME);
            command::set(&mut unit.regs, SIRTP, "take its interrupt remapping table")?;
            unit.invalidate(Invalidation::InterruptGlobal)?;
            command::clear(&mut unit.regs, CFI, "block interrupts in compatibility format")?;
        }

        command::ensure(&mut unit.regs, TE, "start translating")?;
        if remapping == Remapping::On {
            command::ensure(&mut unit.regs, IRE, "start remapping interrupts")?;
        }
        // Regions that firmware kept from all DMA are in the way now, and kept by the tables.
        if unit.capabilities.protected_memory && unit.regs.read32(PMEN) & (EPM | PRS) != 0 {
            unit.regs.write32(PMEN, 0);
            let what = "give up its protected memory regions";
            poll(what, || unit.regs.read32(PMEN) & PRS == 0)?;
        }
        // What was blocked before isn't ours to report.
        unit.faults(|_| {});
        Ok(unit)
    }

    /// What the unit can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Lets `device` reach what the second-level page tables of the domain map, and nothing else.
    pub fn attach(&mut self, device: Bdf, to: Domain) -> Result<(), Error> {
        let Domain { id: domain, levels, .. } = to;
        self.queue.check()?;
        self.check_domain(domain)?;
        if !self.capabilities.supports_levels(levels) {
            return Err(Error::Levels { levels, known: self.capabilities.levels() });
        }
        to.check_root()?;
        if self.contexts.get(&mut self.tables, device).is_some() {
            return Err(Error::Attached { device });
        }
        self.contexts.set(&mut self.tables, device, to)?;
        if self.capabilities.caching_mode {
            // It may have cached that the entry, then tagged with domain 0, wasn't present, and
            // that pages of the domain weren't (VT-d 6.1).
            let forgotten = self
                .invalidate(Invalidation::ContextDevice(DomainId(0), device))
                .and_then(|()| self.invalidate(Invalidation::IotlbDomain(domain)));
            if forgotten.is_err() {
                self.contexts.clear(&mut self.tables, device);
            }
            return forgotten;
        }
        Ok(())
    }

    /// Takes the device's domain away: its DMA is blocked. When this fails, it may still reach the
    /// domain's memory, and the unit does nothing more.
    pub fn detach(&mut self, device: Bdf) -> Result<(), Error> {
        self.queue.check()?;
        let Some(domain) = self.contexts.get(&mut self.tables, device) else {
            return Err(Error::NotAttached { device });
        };
        self.contexts.clear(&mut self.tables, device);
        // In this order, or a translation could be cached again through the cached context entry.
        self.invalidate(Invalidation::ContextDevice(domain.id, device))?;
        self.invalidate(Invalidation::IotlbDomain(domain.id))
    }

    /// Forgets cached translations of a domain. Needed after a mapping was removed or changed; in
    /// caching mode after one was added, too.
    pub fn flush(&mut self, domain: DomainId, range: Range) -> Result<(), Error> {
        self.check_domain(domain)?;
        match pages(range, self.capabilities.page_selective) {
            Pages::None => self.queue.check(),
            Pages::All => self.invalidate(Invalidation::IotlbDomain(domain)),
            Pages::Block { page, order } => {
                self.invalidate(Invalidation::IotlbPages { domain, page, order })
            }
        }
    }

    /// Allocates interrupt entries in a row, none of them routed: a power of two up to 32,
    /// beginning at a multiple of it, as an MSI capability with several messages wants them. Gives
    /// the first one's index.
    pub fn allocate_irtes(&mut self, count: u16) -> Result<u16, Error> {
        self.entries.allocated().allocate(count)
    }

    /// Clears interrupt entries and gives them back.
    pub fn release_irtes(&mut self, first: u16, count: u16) -> Result<(), Error> {
        for n in 0..count {
            let index = first.checked_add(n).ok_or(Error::NotAllocated { index: u16::MAX })?;
            self.clear_irte(index)?;
            self.entries.allocated().release(index);
        }
        Ok(())
    }

    /// Routes an allocated interrupt entry, or routes it anew.
    ///
    /// The unit never sees half an entry. As long as the source stays, all that changes is in one
    /// 64-bit half, so that a present entry is replaced by one store and no interrupt is lost. For
    /// another source, the entry is first made not present, and forgotten, before the half with the
    /// source is written.
    pub fn set_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        let [(old_low, old_high), (low, high)] = self.change(index, route)?;
        if old_high != high {
            if Entries::is_present(old_low) {
                self.clear_irte(index)?;
            }
            self.entries.set_high(&mut self.tables, index, high);
        }
        self.entries.set_low(&mut self.tables, index, low);
        self.invalidate(Invalidation::InterruptEntry(index))
    }

    /// As [`Unit::set_irte`], but the unit may go by the old route until [`Unit::drain`] returns:
    /// for many entries that change together, or where the old route still means what it meant.
    pub fn update_irte(&mut self, index: u16, route: InterruptRoute) -> Result<(), Error> {
        let [(old_low, old_high), (low, high)] = self.change(index, route)?;
        if old_high != high {
            return self.set_irte(index, route);
        }
        if old_low == low {
            return Ok(());
        }
        self.entries.set_low(&mut self.tables, index, low);
        let what = Invalidation::InterruptEntry(index);
        self.queue.submit(&mut self.regs, &mut self.tables, &self.capabilities, what)
    }

    /// An allocated entry as it is and as the route wants it, if both are possible: low and high.
    fn change(&mut self, index: u16, route: InterruptRoute) -> Result<[(u64, u64); 2], Error> {
        self.queue.check()?;
        entries::check(route)?;
        self.entries.allocated().check(index)?;
        Ok([self.entries.get(&mut self.tables, index), interrupt::encode(route)])
    }

    /// Returns when the unit goes by every route as it is now, and what it sent by others has left
    /// it (VT-d 6.5.2.7: the interrupts drained by an invalidation). It reaches its local APIC
    /// within the grace period (`routing::Units::grace`).
    pub fn drain(&mut self) -> Result<(), Error> {
        self.queue.drain(&mut self.regs, &mut self.tables)
    }

    /// The route of an allocated interrupt entry, if it has one.
    pub fn irte(&mut self, index: u16) -> Result<Option<InterruptRoute>, Error> {
        self.entries.allocated().check(index)?;
        let (low, high) = self.entries.get(&mut self.tables, index);
        Ok(interrupt::decode(low, high))
    }

    /// What the device must send for the interrupt of this entry: by its index, or, where nothing
    /// remaps it, what the entry says itself. None if it isn't routed, or if no message can say
    /// that.
    pub fn message(&mut self, index: u16) -> Result<Option<Message>, Error> {
        let route = self.irte(index)?;
        Ok(match self.capabilities.remapping {
            Remapping::On => route.map(|_| interrupt::message(index)),
            Remapping::Off => {
                route.and_then(|r| entries::compatibility_message(r.destination, r.delivery))
            }
        })
    }

    /// Makes an allocated interrupt entry not present: the interrupt is blocked, where it is
    /// remapped.
    pub fn clear_irte(&mut self, index: u16) -> Result<(), Error> {
        self.queue.check()?;
        self.entries.allocated().check(index)?;
        self.entries.set_low(&mut self.tables, index, 0);
        self.invalidate(Invalidation::InterruptEntry(index))
    }

    /// Reports recorded faults and clears the records; true if there were more than records.
    pub fn faults(&mut self, mut report: impl FnMut(Fault)) -> bool {
        self.queue.take_time_out().into_iter().for_each(&mut report);
        fault::take(&mut self.regs, &self.capabilities, report)
    }

    /// Has the unit send an interrupt when it records a fault and had none (VT-d 7.3). It isn't
    /// remapped: `destination` is an x2APIC id.
    pub fn send_faults(&mut self, destination: u32, delivery: Delivery) {
        let data = match delivery {
            Delivery::Fixed(vector) => u32::from(vector),
            Delivery::Nmi => 4 << 8,
        };
        self.regs.write32(FEDATA, data);
        self.regs.write32(FEADDR, 0xFEE0_0000 | (destination & 0xFF) << 12);
        self.regs.write32(FEUADDR, destination & !0xFF);
        self.mask_faults(false);
    }

    /// Holds that interrupt back, or not. One that comes meanwhile is sent when it isn't any more.
    pub fn mask_faults(&mut self, masked: bool) {
        self.regs.write32(FECTL, if masked { FECTL_IM } else { 0 });
    }

    fn check_domain(&self, domain: DomainId) -> Result<(), Error> {
        let most = self.capabilities.max_domain;
        match domain.0 {
            // In caching mode, 0 tags what isn't present (VT-d 9.3); it is left alone everywhere.
            0 => Err(Error::Domain { domain, most }),
            id if id > most => Err(Error::Domain { domain, most }),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn invalidate(&mut self, what: Invalidation) -> Result<(), Error> {
        self.queue.submit(&mut self.regs, &mut self.tables, &self.capabilities, what)?;
        self.drain()
    }
}
