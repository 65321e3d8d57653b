//! Remapping of interrupts: what the guest's tables say of a message that one of its devices, or
//! its IOAPIC, is to send (AMD IOMMU spec 48882, 2.2.5).
//!
//! Guarantees: a message comes out if the device's own table has an entry for it that remaps, and
//! that the host may deliver; or as it is, if the device's entry of the device table lets it pass.
//! Else it is blocked. All is read when the message is asked for, an entry at once.
//!
//! A message that is remapped has the number of its entry in bits 10:0, where else its vector and
//! delivery mode are; bit 15, level, is its own.

use super::device::{Interrupts, interrupts};
use super::registers::{ENABLE, WIDE_ENTRIES, X2APIC};
use crate::unit::{Blocked, Posted, Remapped};
use window::Window;

/// The source id by which the IVRS knows the IOAPIC, which Linux insists on.
pub const IOAPIC: u16 = 0xA0;

/// Of an entry of either size: RemapEn, DM, GuestMode.
const REMAPS: u64 = 1 << 0;
const LOGICAL: u64 = 1 << 6;
const GUEST_MODE: u64 = 1 << 7;
/// IntType, as messages have their delivery mode.
const TYPE: u32 = 2;
const LEVEL: u32 = 1 << 15;
/// With GuestMode: GALogIntr, IsRun, and the address of the backing page.
const LOGS_POSTED: u64 = 1 << 2;
const RUNS: u64 = 1 << 6;
const ROOT: u64 = 0x000F_FFFF_FFFF_F000;
/// Of the control register: such entries are of 128 bits, with 32-bit destinations.
const GUESTS: u64 = WIDE_ENTRIES | X2APIC;

/// How messages are remapped, by the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remapping {
    pub(super) control: u64,
    /// The device table.
    pub(super) devices: u64,
    /// Entries for guests of the guest's are offered.
    pub(super) posts: bool,
}

impl Remapping {
    /// Is it on?
    pub fn is_on(&self) -> bool {
        self.control & ENABLE != 0
    }

    /// What an MSI of this address and data becomes; `None`: what it says itself.
    pub fn of_msi(
        &self,
        window: &Window,
        source: u16,
        (_, data): (u64, u32),
    ) -> Result<Option<Remapped>, Blocked> {
        self.of(window, source, data)
    }

    /// What an IOAPIC's redirection entry becomes; `None`: what it says itself.
    pub fn of_redirection(&self, window: &Window, entry: u64) -> Result<Option<Remapped>, Blocked> {
        self.of(window, IOAPIC, entry as u32)
    }

    fn of(&self, window: &Window, source: u16, data: u32) -> Result<Option<Remapped>, Blocked> {
        if !self.is_on() {
            return Ok(None);
        }
        match interrupts(window, self.devices, source) {
            Interrupts::Pass => Ok(None),
            Interrupts::Blocked => Err(Blocked::Format),
            Interrupts::Table(table, entries) => {
                let index = data & 0x7FF;
                let entry = (index < entries).then(|| self.entry(window, table, index)).flatten();
                let remapped = self.read(entry.ok_or(Blocked::NoEntry(index))?);
                let remapped = remapped.ok_or(Blocked::NotPresent(index))?;
                Ok(Some(Remapped { data: remapped.data | data & LEVEL, ..remapped }))
            }
        }
    }

    /// The words of an entry: those of 32 bits have one.
    fn entry(&self, window: &Window, table: u64, index: u32) -> Option<[u64; 2]> {
        let place = |bytes: u64| table.checked_add(bytes * u64::from(index));
        if self.control & WIDE_ENTRIES != 0 {
            return window.span(place(16)?, 16)?.load_u64_pair(0).ok();
        }
        Some([window.span(place(4)?, 4)?.load_u32(0).ok()?.into(), 0])
    }

    /// The message of an entry.
    fn read(&self, words: [u64; 2]) -> Option<Remapped> {
        let is_posted = words[0] & GUEST_MODE != 0;
        if words[0] & REMAPS == 0 || is_posted && !(self.posts && self.control & GUESTS == GUESTS) {
            return None;
        }
        Some(if is_posted { posted(words) } else { remapped(words, self.control) })
    }
}

/// The message of an entry for a guest of the guest's.
fn posted([low, high]: [u64; 2]) -> Remapped {
    let tag = (low & LOGS_POSTED != 0).then_some((low >> 32) as u32);
    Remapped {
        data: high as u8 as u32,
        logical: false,
        hint: false,
        destination: (low >> 8 & 0xFF_FFFF | high >> 56 << 24) as u32,
        posted: Some(Posted { page: high & ROOT, tag, runs: low & RUNS != 0 }),
    }
}

/// The message of any other entry.
fn remapped([low, high]: [u64; 2], control: u64) -> Remapped {
    let (vector, destination) = match (control & WIDE_ENTRIES, control & X2APIC) {
        (0, _) => (low >> 16 & 0xFF, low >> 8 & 0xFF),
        (_, 0) => (high & 0xFF, low >> 8 & 0xFF),
        _ => (high & 0xFF, low >> 8 & 0xFF_FFFF | high >> 56 << 24),
    };
    Remapped {
        data: (vector | (low >> TYPE & 7) << 8) as u32,
        logical: low & LOGICAL != 0,
        hint: false,
        destination: destination as u32,
        posted: None,
    }
}
