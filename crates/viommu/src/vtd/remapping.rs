//! Remapping of interrupts: what the guest's table says of a message that one of its devices, or
//! its IOAPIC, is to send (VT-d 5.0, 5.1 and 9.10).
//!
//! Guarantees: a message comes out if its entry is there, names its source and is one that the host
//! may deliver; else it is blocked. An entry is read once.

use super::registers::{COMPATIBLE, REMAPS};
use crate::unit::{Blocked, Remapped};
use window::Window;

/// The source id by which the DMAR knows the IOAPIC.
pub const IOAPIC: u16 = 0xFFF8;

const PRESENT: u64 = 1;
const LOGICAL: u64 = 1 << 2;
const HINT: u64 = 1 << 3;
const LEVEL: u64 = 1 << 4;
const POSTED: u64 = 1 << 15;

/// How messages are remapped, by the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remapping {
    pub(super) status: u32,
    pub(super) table: u64,
}

impl Remapping {
    /// Is it on?
    pub fn is_on(&self) -> bool {
        self.status & REMAPS != 0
    }

    fn is_extended(&self) -> bool {
        self.table & 1 << 11 != 0
    }

    /// What an MSI of this address and data becomes; `None`: what it says itself.
    pub fn of_msi(
        &self,
        window: &Window,
        source: u16,
        (address, data): (u64, u32),
    ) -> Result<Option<Remapped>, Blocked> {
        if !self.is_on() {
            return Ok(None);
        }
        if address & 1 << 4 == 0 {
            return self.compatible();
        }
        let handle = (address >> 5 & 0x7FFF | (address >> 2 & 1) << 15) as u32;
        let offset = if address & 1 << 3 != 0 { data & 0xFFFF } else { 0 };
        self.entry(window, source, handle + offset).map(Some)
    }

    /// What an IOAPIC's redirection entry becomes; `None`: what it says itself.
    pub fn of_redirection(&self, window: &Window, entry: u64) -> Result<Option<Remapped>, Blocked> {
        if !self.is_on() {
            return Ok(None);
        }
        if entry & 1 << 48 == 0 {
            return self.compatible();
        }
        let index = (entry >> 49 | (entry >> 11 & 1) << 15) as u32;
        self.entry(window, IOAPIC, index).map(Some)
    }

    fn compatible(&self) -> Result<Option<Remapped>, Blocked> {
        let passes = self.status & COMPATIBLE != 0 && !self.is_extended();
        if passes { Ok(None) } else { Err(Blocked::Format) }
    }

    fn entry(&self, window: &Window, source: u16, index: u32) -> Result<Remapped, Blocked> {
        let entries = 2 << (self.table & 0xF);
        let at = (self.table & !0xFFF).checked_add(16 * u64::from(index));
        let span = at.filter(|_| index < entries).and_then(|at| window.span(at, 16));
        let words = span.and_then(|span| span.load_u64_pair(0).ok());
        let [low, high] = words.ok_or(Blocked::NoEntry(index))?;
        if low & PRESENT == 0 || low & POSTED != 0 {
            return Err(Blocked::NotPresent(index));
        }
        if !is_from(source, high) {
            return Err(Blocked::Source(index));
        }
        let destination = (low >> 32) as u32;
        let wide = self.is_extended();
        Ok(Remapped {
            data: (low >> 16 & 0xFF | (low >> 5 & 7) << 8 | (low & LEVEL) << 11) as u32,
            logical: low & LOGICAL != 0,
            hint: low & HINT != 0,
            destination: if wide { destination } else { destination >> 8 & 0xFF },
            posted: None,
        })
    }
}

/// Does an entry with this upper half let this source through?
fn is_from(source: u16, high: u64) -> bool {
    let wanted = high as u16;
    // By the requester id, but for some bits of the function's number.
    let ignored = [0, 4, 6, 7][(high >> 16 & 3) as usize];
    match high >> 18 & 3 {
        0 => true,
        1 => (source ^ wanted) & !ignored == 0,
        2 => (wanted >> 8..=wanted & 0xFF).contains(&(source >> 8)),
        _ => false,
    }
}
