//! Assigned devices: their BARs in the guest's memory, their interrupts through the
//! remapping table, their resets.
//!
//! Guarantees: the physical BARs, the physical MSI and MSI-X structures and the remapping
//! entries are written by the host alone; an entry of the guest's becomes an interrupt to
//! the guest's own core with the vector that `delivery` allots, from this device only. BARs
//! are mapped straight through but for the pages of the MSI-X table, and but for BARs of
//! less than a page, which may share theirs with another device; those are emulated.

use crate::iommu;
use crate::pci::msi;
use crate::pci::reset::Reset;
use crate::pci::{self, Pci};
use crate::vm::Vm;
use crate::vm::devices::registers::{device_load, device_store};
use crate::vm::memory::DEVICE;
use crate::vm::pc::{Here, Pc};
use crate::vm::stop::Fault;
use crate::vm::stop::Incident;
use ::iommu::Bdf;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;
use delivery::VectorSet;
use platform::msix::{self, Entry, Region, Table};
use platform::pci::{Actions, Addresses, AssignedFunction, BarInfo, Msi, MsixLayout};
use proto::Policy;

const PAGE: u64 = 4096;
const CAPABILITY_MSI: u8 = 0x05;
const CAPABILITY_MSIX: u8 = 0x11;
const BARS: usize = 6;

/// One assigned function.
pub struct Device {
    bdf: Bdf,
    /// Physical addresses of the memory BARs, and their sizes.
    bars: [Option<(u64, u64)>; BARS],
    /// The BAR registers, as the host keeps them.
    registers: [u32; BARS],
    /// Where the guest has them now.
    placed: [Option<u64>; BARS],
    sources: Vec<Source>,
    msix: Option<Msix>,
    /// Offset of the MSI capability.
    msi: Option<u16>,
    /// Resets that go on. Meanwhile nothing is written to it: its BARs are lost, and what the guest
    /// wants of it follows when it has them again.
    resets: u32,
}

/// One interrupt source: an MSI-X entry, or the MSI capability.
struct Source {
    /// Its entry in the remapping table.
    irte: u16,
    route: Option<Route>,
}

/// Where a source's interrupts go.
#[derive(Clone, Copy)]
struct Route {
    vcpu: usize,
    /// What its vCPU's link knows it by.
    physical: u8,
    /// The vector the guest asked for.
    guest: u8,
}

struct Msix {
    table: Table<Vec<Entry>>,
    layout: MsixLayout,
    /// Offset of the capability.
    capability: u16,
    /// Physical address of the table.
    at: u64,
}

impl Device {
    /// Prepares a function for assignment: reads what it is, gives it interrupt entries, and
    /// makes the guest's view of it. Boot only; the error is the end of a sentence about it.
    pub fn new(
        pci: &Pci,
        bdf: Bdf,
        addresses: &mut Addresses,
    ) -> Result<(Self, AssignedFunction), String> {
        let physical = pci.bars(bdf);
        let mut bars = [None; BARS];
        let mut shown: [Option<BarInfo>; BARS] = [None; BARS];
        for bar in physical.iter().filter(|b| !b.kind.is_io()) {
            if bar.address == 0 {
                return Err(alloc::format!(
                    "its BAR {} has no address from the firmware",
                    bar.index
                ));
            }
            let (kind, size) = (bar.kind, bar.size);
            let address = addresses.choose(kind, size).ok_or_else(|| {
                alloc::format!(
                    "its BAR {} of {size:#x} bytes doesn't fit the guest's PCI window",
                    bar.index
                )
            })?;
            shown[bar.index] =
                Some(BarInfo { kind, size, prefetchable: bar.prefetchable, address });
            bars[bar.index] = Some((bar.address, size));
            crate::memory::map_mmio(bar.address & !(PAGE - 1), size.max(PAGE));
        }
        let function =
            AssignedFunction::new(&pci.snapshot(bdf), &shown).map_err(|e| e.to_string())?;
        let layout = function.msix_layout();
        let mut device = Device {
            bdf,
            bars,
            registers: core::array::from_fn(|i| pci.read32(bdf, 0x10 + 4 * i as u16)),
            placed: [None; BARS],
            sources: Vec::new(),
            msix: None,
            msi: pci.capability(bdf, CAPABILITY_MSI),
            resets: 0,
        };
        for _ in 0..layout.map_or(1, |l| l.entries) {
            device.sources.push(Source { irte: iommu::allocate_irte(bdf)?, route: None });
        }
        if let (Some(layout), Some(capability)) = (layout, pci.capability(bdf, CAPABILITY_MSIX)) {
            let bar = bars.get(layout.table_bar as usize).copied().flatten();
            let at = bar.map_or(0, |(at, _)| at) + layout.table_offset as u64;
            let table = Table::new(alloc::vec![Entry::RESET; layout.entries as usize]);
            device.msix = Some(Msix { table, layout, capability, at });
        }
        if device.msix.is_none() && device.msi.is_none() {
            log::warn!(
                "device {bdf} has neither MSI nor MSI-X: a guest gets no interrupts from it, since those by wire (INTx) aren't passed on"
            );
        }
        device.quiesce(pci);
        Ok((device, function))
    }

    /// Registers on, DMA off, no interrupt: as a guest finds a device after reset.
    fn quiesce(&self, pci: &Pci) {
        pci.write16(self.bdf, pci::COMMAND, pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE);
        if let Some(m) = &self.msix {
            for i in 0..m.layout.entries as u64 {
                msi::write_entry(m.at + 16 * i, None);
            }
            pci.write16(self.bdf, m.capability + 2, 0);
        }
        if let Some(at) = self.msi {
            pci.write16(self.bdf, at + 2, 0);
        }
    }

    /// The source keeps what happens from here on to itself, and what it sent has arrived: a read's answer
    /// doesn't overtake that (PCIe 2.4.1). One that can't be masked goes on sending.
    fn hold(&self, pci: &Pci, source: usize) {
        if let Some(m) = &self.msix {
            let at = m.at + 16 * source as u64;
            msi::write_entry(at, None);
            device_load(at + 12, 4);
        }
        if let (0, Some(at)) = (source, self.msi) {
            msi::hold(pci, self.bdf, at);
        }
    }

    /// While booting: resets the function.
    pub fn reset(&mut self, pci: &Pci) {
        Reset::new(pci, self.bdf).run(pci);
        self.after_reset(pci);
    }

    /// Restores what the host keeps in it.
    fn after_reset(&mut self, pci: &Pci) {
        for (i, value) in self.registers.iter().enumerate() {
            pci.write32(self.bdf, 0x10 + 4 * i as u16, *value);
        }
        self.quiesce(pci);
    }

    /// Stops the device for good: no DMA, no interrupts.
    pub fn stop(&mut self, vm: &Vm, pci: &Pci) {
        self.quiesce(pci);
        for s in &self.sources {
            if let Some(r) = s.route {
                vm.links[r.vcpu].let_go(self.bdf, s.irte);
            }
            // An error leaves the entry; its vector then finds nobody on the core.
            let _ = iommu::clear_irte(self.bdf, s.irte);
        }
        let _ = iommu::detach(self.bdf);
    }

    /// The parts of BAR `index` that are mapped straight through.
    fn open_parts(&self, index: usize, size: u64) -> [Range<u64>; 2] {
        if size < PAGE {
            return [0..0, 0..0];
        }
        match &self.msix {
            Some(m) if m.layout.table_bar as usize == index => {
                let bytes = msix::table_bytes(m.layout.entries as u64);
                let closed = msix::intercepted_pages(m.layout.table_offset as u64, bytes);
                [0..closed.start.min(size), closed.end.min(size)..size]
            }
            _ => [0..size, 0..0],
        }
    }

    /// The BAR that holds a guest-physical address, and the offset in it.
    fn find(&self, gpa: u64) -> Option<(usize, u64)> {
        (0..BARS).find_map(|i| {
            let (at, (_, size)) = (self.placed[i]?, self.bars[i]?);
            let offset = gpa.checked_sub(at).filter(|o| *o < size)?;
            Some((i, offset))
        })
    }
}

/// For who looks from outside at what it may do.
impl Device {
    pub fn bdf(&self) -> Bdf {
        self.bdf
    }

    /// Its entries of the remapping table, by source.
    pub fn entries(&self) -> impl Iterator<Item = u16> {
        self.sources.iter().map(|s| s.irte)
    }

    /// The vCPU that a source's interrupts are for, and the guest's vector.
    pub fn booked(&self, source: usize) -> Option<(usize, u8)> {
        self.sources.get(source)?.route.map(|r| (r.vcpu, r.guest))
    }

    /// Its registers that a guest may reach itself.
    pub fn open(&self) -> impl Iterator<Item = Range<u64>> {
        let bars = self.bars.iter().enumerate().filter_map(|(i, bar)| Some((i, (*bar)?)));
        let parts = bars.flat_map(|(i, (at, size))| {
            self.open_parts(i, size).map(|part| at + part.start..at + part.end)
        });
        parts.filter(|part| !part.is_empty())
    }
}

impl Pc {
    /// Follows what a configuration write changed.
    pub fn follow(&mut self, here: &mut Here, index: usize, actions: Actions) -> Result<(), Fault> {
        if actions.contains(Actions::RESET) {
            // The rest follows when that is through.
            here.reset = Some((index, actions));
            return Ok(());
        }
        self.follow_on(here, index, actions)
    }

    /// Begins the reset of a device; nothing if there is no such device.
    pub fn begin_reset(&mut self, index: usize) -> Option<Reset> {
        let d = self.devices.get_mut(index)?;
        d.resets += 1;
        if let Some(m) = &mut d.msix {
            m.table.reset();
        }
        Some(Reset::new(&self.pci, d.bdf))
    }

    /// The device is reset.
    pub fn end_reset(&mut self, index: usize) {
        if let Some(d) = self.devices.get_mut(index) {
            d.resets -= 1;
            d.after_reset(&self.pci);
        }
    }

    /// What follows a configuration write, a reset apart.
    pub fn follow_on(
        &mut self,
        here: &mut Here,
        index: usize,
        actions: Actions,
    ) -> Result<(), Fault> {
        if actions.intersects(Actions::DECODE | Actions::BARS_MOVED) {
            self.place_bars(here)?;
        }
        if actions.intersects(Actions::BUS_MASTER | Actions::RESET) {
            self.apply_command(index);
        }
        if actions
            .intersects(Actions::MSIX_CONTROL | Actions::MSI | Actions::RESET | Actions::BUS_MASTER)
        {
            let sources = self.devices.get(index).map_or(0, |d| d.sources.len());
            for source in 0..sources {
                self.route_source(here, index, source)?;
            }
            self.note_sources(here)?;
            self.apply_msi_control(index);
        }
        Ok(())
    }

    fn apply_command(&self, index: usize) {
        let (Some(d), Some(f)) = (self.devices.get(index), self.bus.function(index)) else {
            return;
        };
        if d.resets > 0 {
            return;
        }
        let master = if f.bus_master() { pci::COMMAND_BUS_MASTER } else { 0 };
        let command = pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE | master;
        self.pci.write16(d.bdf, pci::COMMAND, command);
    }

    /// MSI-X enable and function mask as the guest has them; MSI follows its source.
    fn apply_msi_control(&self, index: usize) {
        let (Some(d), Some(f)) = (self.devices.get(index), self.bus.function(index)) else {
            return;
        };
        if let Some(m) = d.msix.as_ref().filter(|_| d.resets == 0) {
            let c = f.msix_control();
            let value = u16::from(c.enabled) << 15 | u16::from(c.masked) << 14;
            self.pci.write16(d.bdf, m.capability + 2, value);
        }
    }

    /// Brings one interrupt source in line with what the guest wrote.
    fn update_source(&mut self, here: &mut Here, index: usize, source: usize) -> Result<(), Fault> {
        self.route_source(here, index, source)?;
        self.note_sources(here)
    }

    fn route_source(&mut self, here: &mut Here, index: usize, source: usize) -> Result<(), Fault> {
        let (Some(d), Some(f)) = (self.devices.get(index), self.bus.function(index)) else {
            return Ok(());
        };
        let (bdf, msi, control) = (d.bdf, f.msi(), f.msix_control());
        // A masked MSI keeps its route, so that what happens meanwhile waits in its pending bit.
        let wanted = match &d.msix {
            Some(m) if control.enabled => m.table.message(source, control),
            _ if source == 0 => msi.map_or(Ok(None), |m| Msi { masked: false, ..m }.message()),
            _ => Ok(None),
        };
        let wanted = match wanted {
            Ok(message) => message.and_then(|m| Some((here.vm.receiver(&m)?, m.vector))),
            Err(_) => {
                self.incident = Some(Incident::Message(bdf));
                None
            }
        };
        // Such a vector gets a stand-in, which no shadow hides yet: another vCPU would take it.
        let now = d.sources.get(source).and_then(|s| s.route).map(|r| (r.vcpu, r.guest));
        if wanted.is_some_and(|w| Some(w) != now && here.vm.hidden().contains(w.1)) {
            self.drop_all(here)?;
        }
        let Some(d) = self.devices.get_mut(index) else { return Ok(()) };
        let moves = now.is_some() && wanted.is_some_and(|w| Some(w) != now);
        if moves && d.resets == 0 && !iommu::remaps() {
            // It would go on to send its old message, which leads nowhere before long.
            d.hold(&self.pci, source);
        }
        let Some(s) = d.sources.get_mut(source) else { return Ok(()) };
        let mut message = None;
        if let Some((vcpu, guest)) = wanted {
            if s.route.map(|r| (r.vcpu, r.guest)) != Some((vcpu, guest))
                && let Err(incident) = reroute(here.vm, s, bdf, vcpu, guest)
            {
                self.incident = Some(incident);
            }
            message = s.route.and_then(|_| iommu::message(bdf, s.irte));
            if s.route.is_some() && message.is_none() {
                self.incident = Some(Incident::Route(bdf));
            }
        }
        if d.resets > 0 {
            return Ok(());
        }
        if let Some(m) = &d.msix {
            msi::write_entry(m.at + 16 * source as u64, message.filter(|_| control.enabled));
        }
        if source == 0 {
            let masked = msi.is_some_and(|m| m.masked);
            msi::program(&self.pci, bdf, d.msi, message.filter(|_| !control.enabled), masked);
        }
        Ok(())
    }

    /// How many interrupts of devices there can be.
    pub fn sources(&self) -> usize {
        self.devices.iter().map(|d| d.sources.len()).sum()
    }

    /// What depends on the set of routes.
    fn note_sources(&mut self, here: &mut Here) -> Result<(), Fault> {
        let routes = || self.devices.iter().flat_map(|d| &d.sources).filter_map(|s| s.route);
        for (vcpu, link) in here.vm.links.iter().enumerate() {
            let mut guests = VectorSet::EMPTY;
            routes().filter(|r| r.vcpu == vcpu).for_each(|r| guests.insert(r.guest));
            link.vectors.lock().devices = guests;
        }
        let gains = here.vm.policy != Policy::Trap && routes().next().is_some();
        here.vm.direct_gains.store(gains, Ordering::Release);
        if self.shadows.hidden() != VectorSet::EMPTY && self.shadows.hidden() != here.vm.hidden() {
            self.drop_all(here)?;
        }
        Ok(())
    }

    /// Silences every device until the guest sets it up again.
    pub fn quiet_devices(&mut self) {
        for device in &self.devices {
            device.quiesce(&self.pci);
        }
    }

    /// The PC as after its own reset; its devices are reset.
    pub fn restart(&mut self, here: &mut Here) -> Result<(), Fault> {
        self.uart = Default::default();
        self.ioapic = Default::default();
        self.bus = here.vm.bus.clone();
        for d in &mut self.devices {
            for s in &mut d.sources {
                if let Some(r) = s.route.take() {
                    here.vm.links[r.vcpu].let_go(d.bdf, s.irte);
                    // An error leaves the entry to send what nobody takes.
                    let _ = iommu::clear_irte(d.bdf, s.irte);
                    here.vm.links[r.vcpu].disconnect(r.physical);
                }
            }
            if let Some(m) = &mut d.msix {
                m.table.reset();
            }
        }
        self.place_bars(here)?;
        self.note_sources(here)
    }

    /// Silences every device for good.
    pub fn stop_devices(&mut self, vm: &Vm) {
        for device in &mut self.devices {
            device.stop(vm, &self.pci);
        }
    }

    /// Maps every BAR where the guest has it now; first all that moved are unmapped.
    fn place_bars(&mut self, here: &mut Here) -> Result<(), Fault> {
        for map in [false, true] {
            for index in 0..self.devices.len() {
                for bar in 0..BARS {
                    self.place_bar(here, index, bar, map)?;
                }
            }
        }
        Ok(())
    }

    fn place_bar(
        &mut self,
        here: &mut Here,
        index: usize,
        bar: usize,
        map: bool,
    ) -> Result<(), Fault> {
        let Some(d) = self.devices.get_mut(index) else { return Ok(()) };
        let Some((hpa, size)) = d.bars[bar] else { return Ok(()) };
        let wanted = self.bus.placement(index, bar).unwrap_or_else(|_| {
            self.incident = Some(Incident::Bar(d.bdf));
            None
        });
        if d.placed[bar] == wanted {
            return Ok(());
        }
        let parts = d.open_parts(bar, size);
        if let Some(at) = d.placed[bar].take() {
            for part in parts.iter().filter(|p| !p.is_empty()) {
                let (gpa, len) = (at + part.start, part.end - part.start);
                self.tables.unmap(gpa, len, || here.flush_all()).map_err(Fault::Tables)?;
            }
        }
        if let (true, Some(at)) = (map, wanted) {
            d.placed[bar] = Some(at);
            for part in parts.iter().filter(|p| !p.is_empty()) {
                let (gpa, hpa, len) = (at + part.start, hpa + part.start, part.end - part.start);
                self.tables.map(gpa, hpa, len, DEVICE).map_err(Fault::Tables)?;
            }
        }
        Ok(())
    }

    /// A load from a BAR page that isn't mapped straight through; `None`: no BAR there.
    pub fn bar_load(&mut self, gpa: u64, size: u8) -> Option<u64> {
        let (d, (bar, offset)) = self.devices.iter().find_map(|d| Some((d, d.find(gpa)?)))?;
        if let Some(m) = &d.msix
            && let Region::Table(at) = m.layout.region(bar as u8, offset, size)
        {
            return Some(m.table.read(at, size));
        }
        let (hpa, bytes) = d.bars[bar]?;
        Some(if inside(offset, size, bytes) { device_load(hpa + offset, size) } else { u64::MAX })
    }

    /// A store to such a page; `None`: no BAR there.
    pub fn bar_store(
        &mut self,
        here: &mut Here,
        gpa: u64,
        size: u8,
        value: u64,
    ) -> Option<Result<(), Fault>> {
        let (index, (bar, offset)) =
            self.devices.iter().enumerate().find_map(|(i, d)| Some((i, d.find(gpa)?)))?;
        let d = self.devices.get_mut(index)?;
        if let Some(m) = &mut d.msix {
            match m.layout.region(bar as u8, offset, size) {
                Region::Table(at) => {
                    let changed = m.table.write(at, size, value);
                    return Some(
                        changed.map_or(Ok(()), |entry| self.update_source(here, index, entry)),
                    );
                }
                Region::PendingBits => return Some(Ok(())),
                Region::Device => {}
            }
        }
        let (hpa, bytes) = d.bars[bar]?;
        if inside(offset, size, bytes) {
            device_store(hpa + offset, size, value);
        }
        Some(Ok(()))
    }
}

/// Sends a source's interrupts elsewhere. Both vectors mean what they meant until the unit has
/// forgotten the old route: an interrupt arrives by one of the two, and by one only.
fn reroute(vm: &Vm, s: &mut Source, bdf: Bdf, vcpu: usize, guest: u8) -> Result<(), Incident> {
    let old = s.route.take();
    if let Some(r) = old {
        vm.links[r.vcpu].let_go(bdf, s.irte);
    }
    let connected = vm.links[vcpu].connect(bdf, s.irte, guest);
    s.route = connected.map(|physical| Route { vcpu, physical, guest });
    if s.route.is_none() && old.is_some() {
        // Where it led means somebody else's before long.
        let _ = iommu::clear_irte(bdf, s.irte);
    }
    if let Some(r) = old {
        vm.links[r.vcpu].disconnect(r.physical);
    }
    // An exception's vector is the guest's own mistake, and goes nowhere.
    if s.route.is_none() && guest >= 32 { Err(Incident::Route(bdf)) } else { Ok(()) }
}

fn inside(offset: u64, size: u8, bytes: u64) -> bool {
    offset.is_multiple_of(size as u64) && offset + size as u64 <= bytes
}
