//! Assigned devices: what is physical of them. How the guest's bus has them is `function`.
//!
//! Guarantees: the physical BARs, the physical MSI and MSI-X structures and the remapping
//! entries are written by the host alone. BARs are mapped straight through but for the pages of
//! the MSI-X table, and but for BARs of less than a page, which may share theirs with another
//! device; those are emulated.

mod function;

use crate::iommu;
use crate::pci::msi;
use crate::pci::reset::Method;
use crate::pci::{self, CAPABILITY_EXPRESS, Config, Pci, shown};
use crate::vm::devices::pci_bus::placement::{BARS, Part, Placement};
use crate::vm::devices::pci_bus::source::Sources;
use crate::vm::devices::registers::device_load;
use crate::vm::memory::DEVICE;
use ::iommu::Bdf;
use ::pci::Sizes;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use virtual_pc::msix::{self, Entry, Table};
use virtual_pc::pci::{Addresses, BarInfo, Function, MsixLayout};

const PAGE: u64 = 4096;

/// One assigned function.
pub struct AssignedDevice {
    pci: Pci,
    bdf: Bdf,
    method: Method,
    /// Physical addresses of the memory BARs, and their sizes.
    bars: [Option<(u64, u64)>; BARS],
    /// The BAR registers, as the host keeps them.
    registers: [u32; BARS],
    /// Their sizes, where those can be chosen.
    sizes: Sizes,
    placement: Placement,
    sources: Sources,
    msix: Option<Msix>,
    /// Offset of the MSI capability.
    msi: Option<u16>,
    /// Resets that go on. Meanwhile nothing is written to it: its BARs are lost, and what the guest
    /// wants of it follows when it has them again.
    resets: u32,
    /// It didn't come back from the last one, and is left alone until the next.
    lost: bool,
}

struct Msix {
    table: Table<Vec<Entry>>,
    layout: MsixLayout,
    /// Offset of the capability.
    capability: u16,
    /// Physical address of the table.
    at: u64,
}

/// The parts of the BARs that are mapped straight through.
fn open_parts(bars: &[Option<(u64, u64)>; BARS], layout: Option<MsixLayout>) -> Vec<Part> {
    let mut parts = Vec::new();
    for (bar, found) in bars.iter().enumerate() {
        let Some((at, size)) = found.filter(|(_, size)| *size >= PAGE) else { continue };
        let closed = match layout {
            Some(layout) if layout.table_bar as usize == bar => {
                let bytes = msix::table_bytes(layout.entries as u64);
                msix::intercepted_pages(layout.table_offset as u64, bytes)
            }
            _ => size..size,
        };
        for range in [0..closed.start.min(size), closed.end.min(size)..size] {
            parts.push(Part { bar, hpa: at + range.start, range, access: DEVICE });
        }
    }
    parts
}

/// Sizes of its resizable BARs. Without a PCIe capability there is no extended space, and what
/// reads like it may be something else.
fn sizes(pci: &Pci, bdf: Bdf) -> Sizes {
    pci.capability(bdf, CAPABILITY_EXPRESS).map_or_else(Sizes::default, |_| Sizes::of(pci, bdf))
}

impl AssignedDevice {
    /// Prepares a function for assignment: reads what it is, gives it interrupt entries, and
    /// makes the guest's view of it. Boot only; the error is the end of a sentence about it.
    pub fn new(pci: &Pci, bdf: Bdf, addresses: &mut Addresses) -> Result<(Self, Function), String> {
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
        let entries = (0..layout.map_or(1, |l| l.entries)).map(|_| iommu::allocate_irte(bdf));
        let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
        let capability = pci.capability(bdf, msi::CAPABILITY_MSIX);
        let msix = layout.zip(capability).map(|(layout, capability)| {
            let bar = bars.get(layout.table_bar as usize).copied().flatten();
            let at = bar.map_or(0, |(at, _)| at) + layout.table_offset as u64;
            let table = Table::new(alloc::vec![Entry::RESET; layout.entries as usize]);
            Msix { table, layout, capability, at }
        });
        let open = open_parts(&bars, msix.as_ref().map(|m| m.layout));
        let device = AssignedDevice {
            pci: *pci,
            bdf,
            method: Method::of(pci, bdf),
            bars,
            registers: core::array::from_fn(|i| pci.read32(bdf, 0x10 + 4 * i as u16)),
            sizes: sizes(pci, bdf),
            placement: Placement::new(bars.map(|bar| bar.map(|(_, size)| size)), open),
            sources: Sources::new(bdf, entries.into_iter()),
            msix,
            msi: pci.capability(bdf, msi::CAPABILITY_MSI),
            resets: 0,
            lost: false,
        };
        if device.msix.is_none() && device.msi.is_none() {
            log::warn!(
                "device {bdf} has neither MSI nor MSI-X: a guest gets no interrupts from it, since INTx isn't passed on"
            );
        }
        device.quiesce();
        Ok((device, function))
    }

    /// Registers on, DMA off, no interrupt: as a guest finds a device after reset. One that was
    /// lost decodes nothing, as before.
    fn quiesce(&self) {
        let pci = &self.pci;
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
    fn hold_back(&self, source: usize) {
        if let Some(m) = &self.msix {
            let at = m.at + 16 * source as u64;
            msi::write_entry(at, None);
            device_load(at + 12, 4);
        }
        if let (0, Some(at)) = (source, self.msi) {
            msi::hold(&self.pci, self.bdf, at);
        }
    }

    /// Is it as the host keeps it, so that it can be written to?
    fn is_itself(&self) -> bool {
        self.resets == 0 && !self.lost
    }

    /// While booting: resets the function. The error is the end of a sentence about it.
    pub fn reset(&mut self) -> Result<(), String> {
        let answered = self.method.begin().run(&self.pci);
        match (answered, self.after_reset()) {
            (true, true) => Ok(()),
            (false, _) => Err("it doesn't answer any more after its reset".into()),
            (true, false) => {
                Err("its BARs don't take their sizes and addresses after its reset".into())
            }
        }
    }

    /// Restores what the host keeps in it. False if its BARs don't keep that: it decodes no address
    /// then, as it could be another device's.
    fn after_reset(&mut self) -> bool {
        let pci = &self.pci;
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
        self.quiesce();
        kept
    }
}
