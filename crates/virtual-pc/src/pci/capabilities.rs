//! The capability list, cut down to what a guest is offered.
//!
//! Kept and relinked in their physical order and place: power management (always
//! D0, no PME), MSI (one vector), PCI Express (as an integrated endpoint, since the
//! guest's bus has no root port; without link and slot) and MSI-X. All others are
//! hidden: they read as zero and nothing points at them.

use super::function::{Space, Unsuitable};

const POWER_MANAGEMENT: u8 = 0x01;
const MSI: u8 = 0x05;
const EXPRESS: u8 = 0x10;
pub(super) const MSIX: u8 = 0x11;

/// Configuration header: status register, capability list bit, first pointer.
pub(super) const STATUS: usize = 0x06;
pub(super) const STATUS_CAPABILITIES: u8 = 1 << 4;
pub(super) const POINTER: usize = 0x34;
/// The header's end, where capabilities may begin.
pub(super) const FIRST: u8 = 0x40;
/// More capabilities than this don't fit, so the list must be a loop.
const MOST: usize = (256 - 0x40) / 4;

/// PM control and status: No_Soft_Reset, power state D0 (PCI PM 1.2, 3.2.4).
const NO_SOFT_RESET: u16 = 1 << 3;
/// PM capabilities without D1, D2 and PME (3.2.3).
const PM_OFFERED: u16 = 0x01FF;

/// PCI Express device types (PCIe 5.0, 7.5.3.2).
const ENDPOINT: u16 = 0;
const LEGACY_ENDPOINT: u16 = 1;
const INTEGRATED_ENDPOINT: u16 = 9;
/// Device Capabilities: Function Level Reset (7.5.3.3).
const FLR_CAPABLE: u32 = 1 << 28;
/// Device Control: Initiate Function Level Reset reads as zero (7.5.3.4).
const INITIATE_FLR: u16 = 1 << 15;

/// Where the MSI-X structures lie (PCIe 5.0, 7.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixLayout {
    /// Entries of the table, 1 to 2048.
    pub entries: u16,
    /// The BAR that holds the table.
    pub table_bar: u8,
    /// The table's offset in that BAR.
    pub table_offset: u32,
    /// The BAR that holds the pending bits.
    pub pba_bar: u8,
    /// Their offset in that BAR.
    pub pba_offset: u32,
}

/// Where the offered capabilities are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offered {
    pub msi: Option<MsiPlace>,
    pub msix: Option<(usize, MsixLayout)>,
    /// Offset of the PCI Express capability, when the function can be reset by it.
    pub flr: Option<usize>,
    /// Offset of virtio's capability that is a window into the BARs.
    pub window: Option<usize>,
}

/// The MSI capability's fields, which depend on its control word.
#[derive(Clone, Copy, Debug)]
pub(super) struct MsiPlace {
    pub at: usize,
    pub wide: bool,
    pub data: usize,
    pub mask: Option<usize>,
    pub end: usize,
}

/// Walks the physical list in `from` and builds the offered one in `to`.
pub(super) fn filter(from: &[u8; 256], to: &mut Space) -> Result<Offered, Unsuitable> {
    let mut offered = Offered::default();
    if from[STATUS] & STATUS_CAPABILITIES == 0 {
        return Ok(offered);
    }
    let physical = Space { value: *from, writable: [0; 256] };
    let mut link = POINTER;
    let mut next = from[POINTER] & 0xFC;
    let (mut has_pm, mut has_express) = (false, false);
    for _ in 0..MOST {
        if next == 0 {
            return Ok(offered);
        }
        if next < FIRST {
            return Err(Unsuitable::Capability { offset: next });
        }
        let at = usize::from(next);
        let id = physical.u8(at);
        let mut copy = Copy { from: &physical, to, at };
        let kept = match id {
            POWER_MANAGEMENT if !has_pm => {
                has_pm = true;
                copy.power_management()
            }
            MSI if offered.msi.is_none() => {
                offered.msi = copy.msi();
                offered.msi.is_some()
            }
            EXPRESS if !has_express => {
                has_express = true;
                let (kept, flr) = copy.express();
                offered.flr = flr;
                kept
            }
            MSIX if offered.msix.is_none() => {
                offered.msix = copy.msix().map(|layout| (at, layout));
                offered.msix.is_some()
            }
            _ => {
                next = physical.u8(at + 1) & 0xFC;
                continue;
            }
        };
        if !kept {
            return Err(Unsuitable::Capability { offset: next });
        }
        to.set_u8(at, id);
        to.set_u8(link, next);
        link = at + 1;
        next = physical.u8(at + 1) & 0xFC;
        to.value[STATUS] |= STATUS_CAPABILITIES;
    }
    Err(Unsuitable::CapabilityLoop)
}

/// One capability on its way; each method says false or nothing when it runs out
/// of the 256 bytes.
struct Copy<'a> {
    from: &'a Space,
    to: &'a mut Space,
    at: usize,
}

impl Copy<'_> {
    fn fits(&self, length: usize) -> bool {
        self.at + length <= 256
    }

    fn keep_u16(&mut self, offset: usize, mask: u16) -> u16 {
        let value = self.from.u16(self.at + offset) & mask;
        self.to.set_u16(self.at + offset, value);
        value
    }

    fn keep_u32(&mut self, offset: usize, mask: u32) -> u32 {
        let value = self.from.u32(self.at + offset) & mask;
        self.to.set_u32(self.at + offset, value);
        value
    }

    fn power_management(&mut self) -> bool {
        self.keep_u16(2, PM_OFFERED);
        self.to.set_u16(self.at + 4, NO_SOFT_RESET);
        self.fits(8)
    }

    /// PCI 3.0, 6.8.1: control at 2, address at 4, data after it, mask after that.
    fn msi(&mut self) -> Option<MsiPlace> {
        // 64-bit addresses and per-vector masking; one vector; nothing enabled.
        let control = self.keep_u16(2, 1 << 7 | 1 << 8);
        let (wide, maskable) = (control & 1 << 7 != 0, control & 1 << 8 != 0);
        let data = if wide { 12 } else { 8 };
        let length = if maskable { data + 12 } else { data + 2 };
        if !self.fits(length) {
            return None;
        }
        let at = self.at;
        self.to.allow_u16(at + 2, 1);
        self.to.allow_u32(at + 4, !3);
        if wide {
            self.to.allow_u32(at + 8, !0);
        }
        self.to.allow_u16(at + data, !0);
        let mask = maskable.then_some(at + data + 4);
        if let Some(mask) = mask {
            self.to.allow_u32(mask, 1);
        }
        Some(MsiPlace { at, wide, data: at + data, mask, end: at + length })
    }

    /// PCIe 5.0, 7.5.3: capabilities at 2, device at 4, link, slot and root after
    /// 0xC, and from version 2 on the second device registers at 0x24.
    fn express(&mut self) -> (bool, Option<usize>) {
        let flags = self.from.u16(self.at + 2);
        let kind = match flags >> 4 & 0xF {
            ENDPOINT | LEGACY_ENDPOINT => INTEGRATED_ENDPOINT,
            kind => kind,
        };
        self.to.set_u16(self.at + 2, flags & 0xF | kind << 4);
        let device = self.keep_u32(4, !0);
        self.keep_u16(8, !INITIATE_FLR);
        let second = flags & 0xF >= 2;
        if second {
            self.keep_u32(0x24, !0);
            self.keep_u16(0x28, !0);
        }
        let flr = (device & FLR_CAPABLE != 0).then_some(self.at);
        (self.fits(if second { 0x3C } else { 0x14 }), flr)
    }

    /// PCIe 5.0, 7.7.2: control at 2, table at 4, pending bits at 8.
    fn msix(&mut self) -> Option<MsixLayout> {
        let size = self.keep_u16(2, 0x7FF);
        let table = self.keep_u32(4, !0);
        let pba = self.keep_u32(8, !0);
        self.to.allow_u16(self.at + 2, 1 << 15 | 1 << 14);
        self.fits(12).then_some(MsixLayout {
            entries: size + 1,
            table_bar: table as u8 & 7,
            table_offset: table & !7,
            pba_bar: pba as u8 & 7,
            pba_offset: pba & !7,
        })
    }
}

#[cfg(test)]
mod tests;
