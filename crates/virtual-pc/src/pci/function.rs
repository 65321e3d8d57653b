//! One function's configuration space: of an assigned one by its physical one, and of one that the
//! host makes (`paravirtual`).
//!
//! Guarantees that the guest reads the identity, its own COMMAND, BARs,
//! MSI and MSI-X control, and nothing that the host didn't decide to show; a bit
//! that isn't the guest's never changes. The space is a value and a mask of the
//! guest's bits, so BAR sizing, read-only registers and hidden capabilities all
//! follow from the mask. Interrupt pins aren't offered: Interrupt Disable reads 1.

use super::bar::{BarInfo, BarKind, Misplaced};
use super::capabilities::{self, MsixLayout, Offered};
use crate::message::Written;
use crate::msix::Control;

/// Type 0 header (PCI 3.0, 6.1).
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CLASS: usize = 0x08;
const CACHE_LINE_SIZE: usize = 0x0C;
const HEADER_TYPE: usize = 0x0E;
const BARS: usize = 0x10;
const BARS_END: usize = 0x28;
const SUBSYSTEM: usize = 0x2C;

/// COMMAND (6.2.2).
const COMMAND_IO: u16 = 1 << 0;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_PARITY: u16 = 1 << 6;
const COMMAND_SERR: u16 = 1 << 8;
const COMMAND_INTERRUPT_DISABLE: u16 = 1 << 10;
/// STATUS: 66 MHz, fast back-to-back and DEVSEL timing; no error ever recorded (6.2.3).
const STATUS_SHOWN: u16 = 1 << 5 | 1 << 7 | 3 << 9;

/// Device Control's upper byte in the PCI Express capability, and its FLR bit.
const FLR_BYTE: usize = 9;
const FLR_BIT: u8 = 1 << 7;

bitflags::bitflags! {
    /// What changed by a configuration write, for the host to follow. Each is to be
    /// read as "look again": the new state is what the function's methods say.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Actions: u8 {
        /// Decoding went on or off: see [`super::Bus::placement`].
        const DECODE = 1 << 0;
        /// A BAR has another address: see [`super::Bus::placement`].
        const BARS_MOVED = 1 << 1;
        /// See [`Function::bus_master`].
        const BUS_MASTER = 1 << 2;
        /// See [`Function::msi`].
        const MSI = 1 << 3;
        /// See [`Function::msix_control`].
        const MSIX_CONTROL = 1 << 4;
        /// Reset the physical function (FLR) and restore what the host keeps in it.
        /// The virtual registers are reset already, and what that changed is set too;
        /// the MSI-X table is the host's to reset.
        const RESET = 1 << 5;
    }
}

/// Why a physical function can't be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// A bridge.
    #[error("header type {found} is a bridge's: only type 0 functions can be assigned")]
    HeaderType {
        /// The header type without its multi-function bit.
        found: u8,
    },
    /// A capability runs out of the configuration space or lies in the header.
    #[error("the capability at {offset:#x} doesn't fit between 0x40 and the end of config space")]
    Capability {
        /// Where it begins.
        offset: u8,
    },
    /// A list that never ends.
    #[error("the capability list is a loop: it must end")]
    CapabilityLoop,
    /// A BAR that can't be.
    #[error(
        "BAR {bar} has size {size:#x} and address {address:#x}: it needs a power of two and a multiple of it, in reach of the BAR's kind"
    )]
    Bar {
        /// Its index.
        bar: u8,
        /// The size given.
        size: u64,
        /// The address given.
        address: u64,
    },
    /// The upper half of a 64-bit BAR is missing or used.
    #[error("64-bit BAR {bar} needs the register after it for its upper half")]
    NoUpperHalf {
        /// Its index.
        bar: u8,
    },
    /// MSI-X structures that lie nowhere.
    #[error(
        "the MSI-X table or its pending bits end at {end:#x} in BAR {bar}, which isn't memory of that size"
    )]
    MsixOutside {
        /// The BAR named by the capability.
        bar: u8,
        /// The end of the structure in it.
        end: u64,
    },
    /// A structure of a virtio device that lies nowhere.
    #[error("a virtio structure ends at {end:#x} in BAR {bar}, which isn't memory of that size")]
    StructureOutside {
        /// The BAR named by the capability.
        bar: u8,
        /// The end of the structure in it.
        end: u64,
    },
}

/// The guest's MSI capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// MSI is on.
    pub enabled: bool,
    /// Its one vector is masked.
    pub masked: bool,
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u16,
}

impl Msi {
    /// What is written for the interrupt; `None` while off or masked.
    pub fn written(&self) -> Option<Written> {
        let sends = self.enabled && !self.masked;
        sends.then_some(Written { address: self.address, data: self.data.into() })
    }
}

/// 256 bytes and which of their bits the guest may change. Accesses beyond the end
/// read zero and write nothing.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub value: [u8; 256],
    pub writable: [u8; 256],
}

fn load<const N: usize>(bytes: &[u8; 256], at: usize) -> [u8; N] {
    core::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or(0))
}

fn store(bytes: &mut [u8; 256], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

impl Space {
    pub fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(load(&self.value, at))
    }
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(load(&self.value, at))
    }
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(load(&self.value, at))
    }
    pub fn set_u8(&mut self, at: usize, value: u8) {
        store(&mut self.value, at, &[value]);
    }
    pub fn set_u16(&mut self, at: usize, value: u16) {
        store(&mut self.value, at, &value.to_le_bytes());
    }
    pub fn set_u32(&mut self, at: usize, value: u32) {
        store(&mut self.value, at, &value.to_le_bytes());
    }
    pub fn allow_u16(&mut self, at: usize, bits: u16) {
        store(&mut self.writable, at, &bits.to_le_bytes());
    }
    pub fn allow_u32(&mut self, at: usize, bits: u32) {
        store(&mut self.writable, at, &bits.to_le_bytes());
    }
}

/// A function as its guest sees it.
#[derive(Clone, Debug)]
pub struct Function {
    pub(super) space: Space,
    pub(super) bars: [Option<BarInfo>; 6],
    pub(super) offered: Offered,
}

impl Function {
    /// Builds the guest's view from the physical configuration space, read while
    /// nobody else writes to it, and the BARs as probed. A BAR left out reads as
    /// zero, as one that isn't implemented.
    pub fn assigned(physical: &[u8; 256], bars: &[Option<BarInfo>; 6]) -> Result<Self, Unsuitable> {
        let header_type = physical[HEADER_TYPE] & 0x7F;
        if header_type != 0 {
            return Err(Unsuitable::HeaderType { found: header_type });
        }
        let mut space = Space { value: [0; 256], writable: [0; 256] };
        for kept in [0..COMMAND, CLASS..CACHE_LINE_SIZE, SUBSYSTEM..SUBSYSTEM + 4] {
            store(&mut space.value, kept.start, &physical[kept]);
        }
        let status = u16::from_le_bytes(load(physical, STATUS)) & STATUS_SHOWN;
        space.set_u16(STATUS, status);
        open_header(&mut space, bars)?;
        let offered = capabilities::filter(physical, &mut space)?;
        if let Some((_, layout)) = offered.msix {
            check_msix(bars, &layout)?;
        }
        Ok(Function { space, bars: *bars, offered })
    }

    /// The guest reads `size` (1, 2 or 4) bytes at `offset`.
    pub fn read(&self, offset: u8, size: u8) -> u32 {
        let ones = crate::ports::unclaimed(size);
        self.space.u32(offset.into()) & ones
    }

    /// The guest writes `size` (up to 4) bytes at `offset`; gives what changed.
    pub fn write(&mut self, offset: u8, size: u8, value: u32) -> Actions {
        let before = self.space.value;
        let start = usize::from(offset);
        let written = start..start + usize::from(size.min(4));
        let bits = self.space.value.iter_mut().zip(self.space.writable);
        let bits = bits.skip(start).take(written.len());
        for ((value, writable), byte) in bits.zip(value.to_le_bytes()) {
            *value = *value & !writable | byte & writable;
        }
        let flr = self.offered.flr.map(|express| express + FLR_BYTE).filter(|at| {
            written.contains(at) && (value >> (8 * (at - start))) as u8 & FLR_BIT != 0
        });
        if flr.is_some() {
            for (value, writable) in self.space.value.iter_mut().zip(self.space.writable) {
                *value &= !writable;
            }
        }
        let mut actions = self.changes(&before);
        actions.set(Actions::RESET, flr.is_some());
        actions
    }

    fn changes(&self, before: &[u8; 256]) -> Actions {
        let changed = |range: core::ops::Range<usize>| {
            before.get(range.clone()) != self.space.value.get(range)
        };
        let command = u16::from_le_bytes(load(before, COMMAND)) ^ self.space.u16(COMMAND);
        let mut actions = Actions::empty();
        actions.set(Actions::DECODE, command & (COMMAND_IO | COMMAND_MEMORY) != 0);
        actions.set(Actions::BUS_MASTER, command & COMMAND_BUS_MASTER != 0);
        actions.set(Actions::BARS_MOVED, changed(BARS..BARS_END));
        let msi = self.offered.msi.map(|place| place.at..place.end);
        actions.set(Actions::MSI, msi.is_some_and(changed));
        let msix = self.offered.msix.map(|(at, _)| at..at + 4);
        actions.set(Actions::MSIX_CONTROL, msix.is_some_and(changed));
        actions
    }

    /// The function may access memory and send interrupts.
    pub fn bus_master(&self) -> bool {
        self.space.u16(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// What a BAR physically is; `None` for one that isn't there or is an upper half.
    pub fn bar(&self, index: usize) -> Option<BarInfo> {
        *self.bars.get(index)?
    }

    /// Where a BAR is to be mapped now, the rest of the bus aside: `None` when it
    /// doesn't exist or its decoding is off. [`super::Bus::placement`] is what to map.
    pub fn placement(&self, index: usize) -> Result<Option<u64>, Misplaced> {
        match self.decoded().find(|(bar, _)| *bar == index) {
            None => Ok(None),
            Some((_, bar)) if bar.is_in_window() => Ok(Some(bar.address)),
            Some((_, BarInfo { address, size, .. })) => {
                Err(Misplaced::Outside { address, size, bar: index as u8 })
            }
        }
    }

    /// The BARs that are decoded now, each with the guest's address.
    pub(super) fn decoded(&self) -> impl Iterator<Item = (usize, BarInfo)> + '_ {
        let command = self.space.u16(COMMAND);
        self.bars.iter().enumerate().filter_map(move |(i, bar)| {
            let bar = (*bar)?;
            let bit = if bar.kind.is_io() { COMMAND_IO } else { COMMAND_MEMORY };
            (command & bit != 0).then(|| (i, BarInfo { address: self.address(i, &bar), ..bar }))
        })
    }

    /// The address in a BAR's registers.
    fn address(&self, index: usize, bar: &BarInfo) -> u64 {
        let at = BARS + 4 * index;
        let low = u64::from(self.space.u32(at) & !(if bar.kind.is_io() { 3 } else { 0xF }));
        match bar.kind {
            BarKind::Mem64 => low | u64::from(self.space.u32(at + 4)) << 32,
            BarKind::Mem32 | BarKind::Io => low,
        }
    }

    /// Where the MSI-X structures lie, when the function has MSI-X.
    pub fn msix_layout(&self) -> Option<MsixLayout> {
        self.offered.msix.map(|(_, layout)| layout)
    }

    /// The guest's MSI-X enable and function mask; off without MSI-X.
    pub fn msix_control(&self) -> Control {
        let control = self.offered.msix.map_or(0, |(at, _)| self.space.u16(at + 2));
        Control { enabled: control & 1 << 15 != 0, masked: control & 1 << 14 != 0 }
    }

    /// The guest's MSI state, when the function has MSI.
    pub fn msi(&self) -> Option<Msi> {
        let place = self.offered.msi?;
        let high = if place.wide { u64::from(self.space.u32(place.at + 8)) << 32 } else { 0 };
        Some(Msi {
            enabled: self.space.u16(place.at + 2) & 1 != 0,
            masked: place.mask.is_some_and(|at| self.space.u32(at) & 1 != 0),
            address: high | u64::from(self.space.u32(place.at + 4)),
            data: self.space.u16(place.data),
        })
    }
}

/// What the guest may change of a header, with these BARs.
pub(super) fn open_header(
    space: &mut Space,
    bars: &[Option<BarInfo>; 6],
) -> Result<(), Unsuitable> {
    space.set_u16(COMMAND, COMMAND_INTERRUPT_DISABLE);
    let has = |io| bars.iter().flatten().any(|b| b.kind.is_io() == io);
    let decode =
        if has(true) { COMMAND_IO } else { 0 } | if has(false) { COMMAND_MEMORY } else { 0 };
    space.allow_u16(COMMAND, decode | COMMAND_BUS_MASTER | COMMAND_PARITY | COMMAND_SERR);
    space.writable[CACHE_LINE_SIZE] = 0xFF;
    for (i, bar) in bars.iter().enumerate() {
        if let Some(bar) = bar {
            add_bar(space, bars, i, bar)?;
        }
    }
    Ok(())
}

fn add_bar(
    space: &mut Space,
    bars: &[Option<BarInfo>; 6],
    index: usize,
    bar: &BarInfo,
) -> Result<(), Unsuitable> {
    if !bar.is_sound() {
        return Err(Unsuitable::Bar { bar: index as u8, size: bar.size, address: bar.address });
    }
    let at = BARS + 4 * index;
    let mask = !(bar.size - 1);
    space.set_u32(at, bar.address as u32 | bar.flags());
    space.allow_u32(at, mask as u32);
    if bar.kind == BarKind::Mem64 {
        if bars.get(index + 1) != Some(&None) {
            return Err(Unsuitable::NoUpperHalf { bar: index as u8 });
        }
        space.set_u32(at + 4, (bar.address >> 32) as u32);
        space.allow_u32(at + 4, (mask >> 32) as u32);
    }
    Ok(())
}

pub(super) fn check_msix(
    bars: &[Option<BarInfo>; 6],
    layout: &MsixLayout,
) -> Result<(), Unsuitable> {
    let entries = u64::from(layout.entries);
    for (bar, offset, length) in [
        (layout.table_bar, layout.table_offset, crate::msix::table_bytes(entries)),
        (layout.pba_bar, layout.pba_offset, crate::msix::pending_bytes(entries)),
    ] {
        let end = u64::from(offset) + length;
        let info = bars.get(usize::from(bar)).copied().flatten();
        if !info.is_some_and(|info| !info.kind.is_io() && end <= info.size) {
            return Err(Unsuitable::MsixOutside { bar, end });
        }
    }
    Ok(())
}
