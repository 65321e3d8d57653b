//! Room in memory for BARs: for those that firmware left without an address, and for those of
//! virtual functions.
//!
//! Guarantees: a place is clear of what firmware says is in memory, of configuration space, of the
//! BARs of every function and of windows of bridges that don't lead to it. Behind a bridge that is
//! all there can be. On a root bus it isn't, for only AML tells which addresses lead there: a BAR
//! without an address keeps none there, and virtual functions go near their controller's own
//! registers.

use super::{BRIDGE_CLASS, Bar, COMMAND, COMMAND_MEMORY, Config, Function, HEADER_TYPE, Pci};
use ::pci::{Passed, Wanted, clash, nearest, room};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use handover::{MemoryKind, MemoryMap, MemoryRange};
use iommu::Bdf;
use spin::Once;
use virtual_pc::pci::BarKind;

/// Where interrupt controllers and firmware begin, as on every PC.
const LAST: u64 = 0xFEC0_0000;
/// Where the addresses of interrupt messages end.
const MESSAGES_END: u64 = 0xFEF0_0000;
/// A ROM's address by the kind of header, the bit that switches it on, and the most it has (PCI
/// 3.0, 6.2.5.2).
const ROM: [u16; 2] = [0x30, 0x38];
const ROM_ON: u32 = 1;
const ROM_FLAGS: u32 = 0x7FF;
const LARGEST_ROM: u64 = 16 << 20;

/// What the firmware says is in memory.
static FIRMWARE: Once<Vec<MemoryRange>> = Once::new();
/// Registers of IOMMUs.
static UNITS: Once<Vec<Range<u64>>> = Once::new();

/// Keeps what the firmware says is there clear of BARs.
pub fn keep_clear_of(memory: &MemoryMap) {
    FIRMWARE.call_once(|| memory.ranges().to_vec());
}

/// What the firmware lists, of the kinds that `counts` takes.
fn listed(counts: fn(MemoryKind) -> bool) -> impl Iterator<Item = Range<u64>> {
    let ranges = FIRMWARE.get().into_iter().flatten().filter(move |range| counts(range.kind));
    ranges.map(|range| range.start..range.end)
}

/// Where RAM below 4 GiB ends: devices' addresses begin here at the earliest.
fn low_end() -> u64 {
    let ram = listed(|kind| matches!(kind, MemoryKind::Usable | MemoryKind::Loaded));
    ram.map(|range| range.end).filter(|end| *end <= 1 << 32).max().unwrap_or(0)
}

/// Keeps these registers of IOMMUs clear of BARs, too.
pub fn keep_clear_of_units(registers: impl Iterator<Item = Range<u64>>) {
    UNITS.call_once(|| registers.collect());
}

/// Memory addresses that something answers to.
pub struct InUse {
    taken: Vec<Range<u64>>,
    /// What bridges pass on to the buses behind them.
    bridges: Vec<(Bdf, Passed)>,
}

impl InUse {
    /// Asks every function.
    pub fn find(pci: &Pci, functions: &[Function]) -> Self {
        let mut taken: Vec<_> = listed(|_| true).chain(own(pci)).collect();
        for f in functions {
            let memory = bars(pci, f, functions).into_iter().filter(is_placed);
            taken.extend(memory.map(|b| b.address..b.address.saturating_add(b.size)));
            taken.extend(rom(pci, f));
        }
        let bridges = functions.iter().filter(|f| pci.is_pci_bridge(f));
        let bridges = bridges.map(|f| (f.bdf, Passed::of(pci, f.bdf))).collect();
        InUse { taken, bridges }
    }

    /// Room near `near`, where the same bridges lead to, or none.
    pub fn place(&mut self, near: u64, bytes: u64, align: u64) -> Option<u64> {
        let windows = self.bridges.iter().flat_map(|(_, passed)| passed.windows());
        let (around, elsewhere): (Vec<_>, Vec<_>) = windows.partition(|w| w.contains(&near));
        let whole = low_end()..LAST;
        let window = around.into_iter().min_by_key(|w| w.end - w.start).unwrap_or(whole);
        let taken = [self.taken.as_slice(), &elsewhere].concat();
        let at = nearest(window, &taken, near, bytes, align)?;
        self.taken.push(at..at + bytes);
        Some(at)
    }

    /// Room for a BAR of a function behind these bridges, the nearest first.
    fn behind(&mut self, above: &[Bdf], bar: Wanted) -> Option<u64> {
        let (mut passed, mut taken) = (Vec::new(), self.taken.clone());
        for bridge in above {
            passed.push(self.bridges.iter().find(|(bdf, _)| bdf == bridge)?.1.clone());
        }
        for (_, other) in self.bridges.iter().filter(|(bdf, _)| !above.contains(bdf)) {
            taken.extend(other.windows());
        }
        let at = room(bar, &passed, &taken)?;
        self.taken.push(at..at + bar.size);
        Some(at)
    }
}

/// Addresses where the host's own registers are: configuration space, IOMMUs, interrupt
/// controllers and messages.
fn own(pci: &Pci) -> impl Iterator<Item = Range<u64>> {
    let units = UNITS.get().into_iter().flatten().cloned();
    pci.windows().chain(units).chain(core::iter::once(LAST..MESSAGES_END))
}

/// Where functions' registers are, when all have their addresses.
pub struct Placed(Vec<(Bdf, Bar, bool)>);

impl Placed {
    /// Asks every function.
    pub fn find(pci: &Pci, functions: &[Function]) -> Self {
        let of = |f: &Function| {
            let decodes = pci.read16(f.bdf, COMMAND) & COMMAND_MEMORY != 0;
            let (bdf, bars) = (f.bdf, bars(pci, f, functions));
            bars.into_iter().filter(is_placed).map(move |bar| (bdf, bar, decodes))
        };
        Placed(functions.iter().flat_map(of).collect())
    }

    /// Why an address that a BAR of this function has can't be right, if one can't: the end of a
    /// sentence. Of other functions those count that decode.
    pub fn misplaced(&self, pci: &Pci, functions: &[Function], bdf: Bdf) -> Option<String> {
        let above = above(pci, bdf, functions);
        let passed: Vec<_> = above.into_iter().map(|bridge| Passed::of(pci, bridge)).collect();
        let place = |bar: &Bar| bar.address..bar.address.saturating_add(bar.size);
        self.0.iter().filter(|(of, ..)| *of == bdf).find_map(|(_, bar, _)| {
            // What is reserved may be a window for devices.
            let memory = listed(|kind| kind != MemoryKind::Reserved);
            let others = self.0.iter().filter(|(of, _, decodes)| *of != bdf && *decodes);
            let others = others.map(|(of, bar, _)| (*of, place(bar)));
            let clash = clash(&place(bar), own(pci).chain(memory), &passed, others)?;
            Some(format!("has its BAR {} at {:#x}, {clash}", bar.index, bar.address))
        })
    }
}

/// Gives addresses to BARs that firmware left without, of functions behind bridges whose windows
/// have room. Boot only.
pub fn place_unplaced(pci: &Pci, functions: &[Function]) {
    #[cfg(feature = "plant")]
    unplace(pci, functions);
    #[cfg(feature = "plant")]
    misplace(pci);
    let mut memory = None;
    for f in functions.iter().filter(|f| f.class >> 16 != BRIDGE_CLASS) {
        let above = above(pci, f.bdf, functions);
        if above.is_empty() {
            continue;
        }
        for bar in pci.bars(f.bdf).iter().filter(|b| !b.kind.is_io() && !is_placed(b)) {
            let (wide, prefetchable) = (bar.kind == BarKind::Mem64, bar.prefetchable);
            let wanted = Wanted { size: bar.size, wide, prefetchable };
            let memory = memory.get_or_insert_with(|| InUse::find(pci, functions));
            let Some(at) = memory.behind(&above, wanted) else { continue };
            let command = pci.read16(f.bdf, COMMAND);
            pci.write16(f.bdf, COMMAND, command & !COMMAND_MEMORY);
            pci.set_bar(f.bdf, bar, at);
            pci.write16(f.bdf, COMMAND, command);
            log::info!(
                "BAR {} of {}, which firmware left without an address, is at {at:#x}",
                bar.index,
                f.bdf
            );
        }
    }
}

/// Takes their addresses from BARs of endpoints behind bridges, as firmware may leave them: for
/// tests.
#[cfg(feature = "plant")]
fn unplace(pci: &Pci, functions: &[Function]) {
    let behind =
        |f: &&Function| f.class >> 16 != BRIDGE_CLASS && pci.bridge_to(f.bdf, functions).is_some();
    for bdf in functions.iter().filter(behind).map(|f| f.bdf) {
        pci.write16(bdf, COMMAND, 0);
        pci.bars(bdf).iter().for_each(|bar| pci.set_bar(bdf, bar, 0));
    }
}

/// Puts the first BAR of 00:15.0 over an IOMMU's registers, as firmware may: for tests.
#[cfg(feature = "plant")]
fn misplace(pci: &Pci) {
    let unit = UNITS.get().and_then(|units| units.first());
    let (Some(bdf), Some(unit)) = (Bdf::new(0, 0x15, 0), unit) else { return };
    if let Some(bar) = pci.bars(bdf).first() {
        pci.set_bar(bdf, bar, unit.start & !(bar.size - 1));
    }
}

/// The bridges that lead to a function, the nearest first. Numbers of buses grow away from the
/// root, so that no way is endless.
fn above(pci: &Pci, function: Bdf, functions: &[Function]) -> Vec<Bdf> {
    let next =
        |below: &Bdf| pci.bridge_to(*below, functions).filter(|bridge| bridge.bus() < below.bus());
    core::iter::successors(next(&function), next).collect()
}

fn is_placed(bar: &Bar) -> bool {
    !bar.kind.is_io() && bar.address != 0
}

/// The BARs of a function. What the chipset's own bridges to other than PCI, which are on root
/// buses, have in their place is their own affair.
fn bars(pci: &Pci, f: &Function, functions: &[Function]) -> Vec<Bar> {
    let is_own = f.class >> 16 == BRIDGE_CLASS && !pci.is_pci_bridge(f);
    match is_own && pci.bridge_to(f.bdf, functions).is_none() {
        true => Vec::new(),
        false => pci.bars(f.bdf),
    }
}

/// What a function's ROM may answer to while that is switched on.
fn rom(pci: &Pci, f: &Function) -> Option<Range<u64>> {
    let at = *ROM.get(usize::from(pci.read8(f.bdf, HEADER_TYPE) & 0x7F))?;
    let value = pci.read32(f.bdf, at);
    let start = u64::from(value & !ROM_FLAGS);
    (value & ROM_ON != 0).then_some(start..start + LARGEST_ROM)
}
