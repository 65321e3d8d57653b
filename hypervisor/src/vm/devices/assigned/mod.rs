//! Assigned devices: their BARs in the guest's memory, their interrupts through the
//! remapping table, their resets.
//!
//! Guarantees: the physical BARs, the physical MSI and MSI-X structures and the remapping
//! entries are written by the host alone; an entry of the guest's becomes an interrupt to
//! the guest's own core with the vector that `delivery` allots, from this device only. BARs
//! are mapped straight through but for the pages of the MSI-X table, and but for BARs of
//! less than a page, which may share theirs with another device; those are emulated.

mod bars;
mod config;
mod sources;

use crate::iommu;
use crate::pci::msi;
use crate::pci::reset::{Method, Reset};
use crate::pci::{self, CAPABILITY_EXPRESS, Config, Pci, shown};
use crate::vm::board::Board;
use crate::vm::devices::registers::device_load;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::interrupts::iommu_units::Units;
use crate::vm::stop::Fault;
use ::iommu::Bdf;
use ::pci::Sizes;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;
use routing::unbind;
use virtual_pc::msix::{self, Entry, Table};
use virtual_pc::pci::{Addresses, Function, BarInfo, Bus, MsixLayout};

const PAGE: u64 = 4096;
const BARS: usize = 6;

/// One assigned function.
pub struct AssignedDevice {
    bdf: Bdf,
    method: Method,
    /// Physical addresses of the memory BARs, and their sizes.
    bars: [Option<(u64, u64)>; BARS],
    /// The BAR registers, as the host keeps them.
    registers: [u32; BARS],
    /// Their sizes, where those can be chosen.
    sizes: Sizes,
    /// Where the guest has them now.
    placed: [Option<u64>; BARS],
    sources: Vec<Source>,
    msix: Option<Msix>,
    /// Offset of the MSI capability.
    msi: Option<u16>,
    /// Resets that go on. Meanwhile nothing is written to it: its BARs are lost, and what the guest
    /// wants of it follows when it has them again.
    resets: u32,
    /// It didn't come back from the last one, and is left alone until the next.
    lost: bool,
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
    /// What [`rebind`](routing::rebind) gave.
    bound: u8,
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

/// Sizes of its resizable BARs. Without a PCIe capability there is no extended space, and what
/// reads like it may be something else.
fn sizes(pci: &Pci, bdf: Bdf) -> Sizes {
    pci.capability(bdf, CAPABILITY_EXPRESS).map_or_else(Sizes::default, |_| Sizes::of(pci, bdf))
}

impl AssignedDevice {
    /// Prepares a function for assignment: reads what it is, gives it interrupt entries, and
    /// makes the guest's view of it. Boot only; the error is the end of a sentence about it.
    pub fn new(
        pci: &Pci,
        bdf: Bdf,
        addresses: &mut Addresses,
    ) -> Result<(Self, Function), String> {
        let physical = shown::bars(pci, bdf);
        let mut bars = [None; BARS];
        let mut shown: [Option<BarInfo>; BARS] = [None; BARS];
        for bar in physical.iter().filter(|b| !b.kind.is_io()) {
            if bar.address == 0 {
                return Err(alloc::format!(
                    "its BAR {} has no address from the firmware, and no window of a bridge above it has room",
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
            Function::assigned(&shown::snapshot(pci, bdf), &shown).map_err(|e| e.to_string())?;
        let layout = function.msix_layout();
        let mut device = AssignedDevice {
            bdf,
            method: Method::of(pci, bdf),
            bars,
            registers: core::array::from_fn(|i| pci.read32(bdf, 0x10 + 4 * i as u16)),
            sizes: sizes(pci, bdf),
            placed: [None; BARS],
            sources: Vec::new(),
            msix: None,
            msi: pci.capability(bdf, msi::CAPABILITY_MSI),
            resets: 0,
            lost: false,
        };
        for _ in 0..layout.map_or(1, |l| l.entries) {
            device.sources.push(Source { irte: iommu::allocate_irte(bdf)?, route: None });
        }
        if let (Some(layout), Some(capability)) =
            (layout, pci.capability(bdf, msi::CAPABILITY_MSIX))
        {
            let bar = bars.get(layout.table_bar as usize).copied().flatten();
            let at = bar.map_or(0, |(at, _)| at) + layout.table_offset as u64;
            let table = Table::new(alloc::vec![Entry::RESET; layout.entries as usize]);
            device.msix = Some(Msix { table, layout, capability, at });
        }
        if device.msix.is_none() && device.msi.is_none() {
            log::warn!(
                "device {bdf} has neither MSI nor MSI-X: a guest gets no interrupts from it, since INTx isn't passed on"
            );
        }
        device.quiesce(pci);
        Ok((device, function))
    }

    /// Registers on, DMA off, no interrupt: as a guest finds a device after reset. One that was
    /// lost decodes nothing, as before.
    fn quiesce(&self, pci: &Pci) {
        if self.lost {
            return pci.write16(self.bdf, pci::COMMAND, pci::COMMAND_INTX_DISABLE);
        }
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

    /// The source keeps what happens from here on to itself, and what it sent has reached the root
    /// complex: a read's answer doesn't overtake that (PCIe 2.4.1). The local APIC may get it a
    /// little later (`routing::Units::grace`). One that can't be masked goes on sending.
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

    /// Is it as the host keeps it, so that it can be written to?
    fn is_itself(&self) -> bool {
        self.resets == 0 && !self.lost
    }

    /// While booting: resets the function. The error is the end of a sentence about it.
    pub fn reset(&mut self, pci: &Pci) -> Result<(), String> {
        let answered = self.method.begin().run(pci);
        match (answered, self.after_reset(pci)) {
            (true, true) => Ok(()),
            (false, _) => Err("it doesn't answer any more after its reset".into()),
            (true, false) => {
                Err("its BARs don't take their sizes and addresses after its reset".into())
            }
        }
    }

    /// Restores what the host keeps in it. False if its BARs don't keep that: it decodes no address
    /// then, as it could be another device's.
    fn after_reset(&mut self, pci: &Pci) -> bool {
        // Its own sizes may be larger, and reach what is another device's.
        let mut kept = self.sizes.keep(pci, self.bdf);
        for (i, value) in self.registers.iter().enumerate() {
            let at = 0x10 + 4 * i as u16;
            pci.write32(self.bdf, at, *value);
            kept &= pci.read32(self.bdf, at) == *value;
        }
        // Told of once, however often the guest resets it.
        if !kept && !self.lost {
            log::warn!(
                "the BARs of device {} don't take their sizes and addresses after its reset",
                self.bdf
            );
        }
        self.lost = !kept;
        self.quiesce(pci);
        kept
    }

    /// Stops the device for good: no DMA, no interrupts.
    pub fn stop(&mut self, guest: &Guest, pci: &Pci) {
        self.quiesce(pci);
        for s in &mut self.sources {
            match s.route.take() {
                Some(r) => {
                    let bound = (&guest.remotes[r.vcpu].routes, r.bound);
                    unbind(&Units, (self.bdf, s.irte), bound);
                }
                // An error leaves the entry; its vector then finds nobody on the core.
                None => drop(iommu::clear_irte(self.bdf, s.irte)),
            }
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
impl AssignedDevice {
    pub fn bdf(&self) -> Bdf {
        self.bdf
    }

    /// Its entries of the remapping table, by source.
    pub fn entries(&self) -> impl Iterator<Item = u16> {
        self.sources.iter().map(|s| s.irte)
    }

    /// The vCPU that a source's interrupts are for, and the guest's vector.
    pub fn expected_route(&self, source: usize) -> Option<(usize, u8)> {
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

/// The guest's PCI bus: configuration space as the guest sees it, and the functions assigned.
pub struct PciBus {
    /// Some KiB each: not to be moved over stacks.
    config: Box<Bus>,
    /// As the VM starts.
    first: Box<Bus>,
    devices: Vec<AssignedDevice>,
    pci: Pci,
}

impl PciBus {
    /// With these functions, which are on `config` in the same order.
    pub fn new(config: Box<Bus>, devices: Vec<AssignedDevice>, pci: Pci) -> Self {
        PciBus { first: config.clone(), config, devices, pci }
    }

    /// The configuration space of the machine.
    #[cfg(feature = "plant")]
    pub fn physical(&self) -> &Pci {
        &self.pci
    }

    /// The functions.
    pub fn devices(&self) -> &[AssignedDevice] {
        &self.devices
    }

    /// Begins the reset of a device; nothing if there is no such device.
    pub fn begin_reset(&mut self, index: usize) -> Option<Reset> {
        let d = self.devices.get_mut(index)?;
        d.resets += 1;
        if let Some(m) = &mut d.msix {
            m.table.reset();
        }
        Some(d.method.begin())
    }

    /// The device is reset.
    pub fn end_reset(&mut self, index: usize) {
        if let Some(d) = self.devices.get_mut(index) {
            d.resets -= 1;
            d.after_reset(&self.pci);
        }
    }

    /// Goes on with a reset; gives how many microseconds to wait then, or `None` when it is
    /// through.
    pub fn step_reset(&self, reset: &mut Reset) -> Option<u64> {
        reset.step(&self.pci)
    }

    /// Silences every device until the guest sets it up again.
    pub fn quiet_devices(&mut self) {
        for device in &self.devices {
            device.quiesce(&self.pci);
        }
    }

    /// As after power on; the functions are reset.
    pub fn restart(&mut self, board: &mut Board, cx: &mut ExitContext) -> Result<(), Fault> {
        self.config.clone_from(&self.first);
        for d in &mut self.devices {
            for s in &mut d.sources {
                if let Some(r) = s.route.take() {
                    let bound = (&cx.guest.remotes[r.vcpu].routes, r.bound);
                    unbind(&Units, (d.bdf, s.irte), bound);
                }
            }
            if let Some(m) = &mut d.msix {
                m.table.reset();
            }
        }
        self.place_bars(board, cx)?;
        self.note_sources(board, cx)
    }

    /// Silences every device for good.
    pub fn stop_devices(&mut self, guest: &Guest) {
        for device in &mut self.devices {
            device.stop(guest, &self.pci);
        }
    }
}
