//! The page of registers, as plain memory that the guest and the unit share (VT-d 5.0, 11.4).
//!
//! Guarantees: each command is taken once, whether a guest's write exits or not. What tells a
//! command that was written from one that was taken is in the words themselves: bits that are
//! reserved, or mean nothing at the time, are set where the unit has looked. What a guest writes
//! to a register that it can only read stands there until the unit next does something; that fools
//! this guest alone.
//!
//! Doesn't guarantee that a driver which writes back the very word that it read of the fault status
//! register clears a bit of it: where no write exits that can't be seen. `faults` says the same of
//! the records.

use core::sync::atomic::{AtomicU32, Ordering};

/// Its bytes.
pub const BYTES: u64 = 4096;
/// Bits of an address in the guest's memory that tables can lead to.
pub const WIDTH: u8 = 48;

/// Offsets.
pub const VERSION: usize = 0x00;
pub const CAPABILITY: usize = 0x08;
pub const EXTENDED: usize = 0x10;
pub const COMMAND: usize = 0x18;
pub const STATUS: usize = 0x1C;
pub const ROOT: usize = 0x20;
pub const CONTEXT_COMMAND: usize = 0x28;
pub const FAULT_STATUS: usize = 0x34;
pub const FAULT_CONTROL: usize = 0x38;
pub const FAULT_DATA: usize = 0x3C;
pub const FAULT_ADDRESS: usize = 0x40;
pub const QUEUE_HEAD: usize = 0x80;
pub const QUEUE_TAIL: usize = 0x88;
pub const QUEUE: usize = 0x90;
const COMPLETION_CONTROL: usize = 0xA0;
pub const REMAPPING: usize = 0xB8;
pub const ADDRESS: usize = 0xF0;
pub const TLB: usize = 0xF8;
/// The records of faults, 16 bytes each. The first of them is never used, so that the number of
/// one isn't 0, and a driver that goes from each to the next meets one that is empty, whenever it
/// is seen what it clears.
const FAULTS: usize = 0x220;
const FAULTS_END: usize = FAULTS + 16 * RECORDS;
pub const RECORDS: usize = 8;

/// Of the command register, and what the status register says of each.
pub const TRANSLATES: u32 = 1 << 31;
pub const SET_ROOT: u32 = 1 << 30;
pub const QUEUED: u32 = 1 << 26;
pub const REMAPS: u32 = 1 << 25;
pub const SET_REMAPPING: u32 = 1 << 24;
pub const COMPATIBLE: u32 = 1 << 23;
/// A reserved bit of the command register, alone: what stands there was taken.
pub const TAKEN: u32 = 1;
/// The upper half of the context and the IOTLB command: to be done.
pub const BUSY: u32 = 1 << 31;
/// Of the fault status register: no record was free; there is a record; the queue has an error.
pub const OVERFLOW: u32 = 1;
pub const PENDING: u32 = 1 << 1;
pub const QUEUE_ERROR: u32 = 1 << 4;
/// The number of the first record. It stands beside all that the unit says, and a driver that
/// clears bits doesn't write it.
const NUMBER: u32 = 0xFF << 8;
/// The interrupt of faults and that of the queue are masked at first; it waits until it isn't.
pub const MASKED: u32 = 1 << 31;
pub const WAITS: u32 = 1 << 30;
/// A reserved bit of the fault event control register: the unit has looked at what stands there.
pub const LOOKED: u32 = 1;
/// Of the last word of a record: there is one, and why. A driver that clears it writes the first
/// alone.
pub const FULL: u32 = 1 << 31;
pub const REASON: u32 = 0xFF;

/// Fixed bits of the capability register: 64 Ki domains, caching mode, reads of no bytes, where the
/// records of faults are and how many, 2 MiB pages, page-selective invalidations of any size, reads
/// and writes that wait.
const CAPABILITIES: u64 = 6 | 1 << 7 | 1 << 22 | WHERE_FAULTS | 1 << 34 | 1 << 39 | 3 << 54;
const WHERE_FAULTS: u64 = (FAULTS as u64 / 16) << 24 | (RECORDS as u64 - 1) << 40;
/// Of the extended one: coherent, a queue, remapping of interrupts with 32-bit destinations,
/// passing through, any handle mask, and where the IOTLB's registers are.
const EXTENDED_CAPABILITIES: u64 =
    1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 6 | (ADDRESS as u64 / 16) << 8 | 0xF << 20;
/// An invalidation's largest size, as the power of two of its pages: all that is translated.
pub const MOST_PAGES: u32 = 36;

/// Did the guest write what stands in the fault status register, and could that clear something?
fn is_written(faults: u32) -> bool {
    faults != 0 && faults & NUMBER == 0
}

/// Did the guest write what stands in the fault event control register, so that an interrupt which
/// waits may be let go? A driver may write back what it read but for the mask.
fn may_unmask(control: u32) -> bool {
    control & LOOKED == 0 || control & (MASKED | WAITS) == WAITS
}

/// These bits of the fault status register beside the number of the first record.
pub fn number(bits: u32, first: usize) -> u32 {
    if bits == 0 { 0 } else { bits | (first as u32) << 8 & NUMBER }
}

/// Where a record is.
pub fn record(place: usize) -> usize {
    FAULTS + 16 * place
}

/// The words of the page.
pub type Page = [AtomicU32; (BYTES / 4) as usize];

/// The page as both see it.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a> {
    page: &'a Page,
}

impl<'a> Registers<'a> {
    /// Of this page.
    pub fn new(page: &'a Page) -> Self {
        Registers { page }
    }

    fn word(&self, at: usize) -> Option<&'a AtomicU32> {
        self.page.get(at / 4)
    }

    /// The word at this offset.
    #[inline]
    pub fn get(&self, at: usize) -> u32 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The same of two words; the guest may write between.
    pub fn get64(&self, at: usize) -> u64 {
        let high = u64::from(self.get(at + 4)) << 32;
        high | u64::from(self.get(at))
    }

    /// Puts a word there.
    pub fn set(&self, at: usize, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// The same of two words.
    pub fn set64(&self, at: usize, value: u64) {
        self.set(at, value as u32);
        self.set(at + 4, (value >> 32) as u32);
    }

    /// Puts a word there if `from` still is.
    pub fn replace(&self, at: usize, from: u32, to: u32) {
        if let Some(word) = self.word(at) {
            let _ = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Has the guest asked for something that isn't done? Also if it wrote where it can't.
    #[inline]
    pub fn is_news(&self) -> bool {
        let faults = self.get(FAULT_STATUS);
        let queue = self.get(QUEUE_TAIL) != self.get(QUEUE_HEAD);
        let queue = queue && faults & QUEUE_ERROR == 0 && self.get(STATUS) & QUEUED != 0;
        let busy = (self.get(CONTEXT_COMMAND + 4) | self.get(TLB + 4)) & BUSY != 0;
        let told = faults != 0 && (is_written(faults) || may_unmask(self.get(FAULT_CONTROL)));
        queue || self.get(COMMAND) != TAKEN || busy || told
    }

    /// May an interrupt for faults that waits be let go?
    #[inline]
    pub fn may_unmask(&self) -> bool {
        self.get(FAULT_STATUS) != 0 && may_unmask(self.get(FAULT_CONTROL))
    }

    /// Does the status register say that DMA is translated?
    pub fn translates(&self) -> bool {
        self.get(STATUS) & TRANSLATES != 0
    }

    /// The bits that the guest wrote to the fault status register, to clear them.
    #[inline]
    pub fn cleared(&self) -> Option<u32> {
        Some(self.get(FAULT_STATUS)).filter(|faults| is_written(*faults))
    }

    /// A guest's write that exits: `size` bytes of `value`. What it can't write stays.
    pub fn write(&self, at: u64, size: u8, value: u64) {
        let Ok(at) = usize::try_from(at) else { return };
        if !matches!(size, 4 | 8) || !at.is_multiple_of(size.into()) {
            return;
        }
        // The upper half has the bit that says what is to be done.
        for half in 0..usize::from(size) / 4 {
            let (at, word) = (at + 4 * half, (value >> (32 * half)) as u32);
            match at {
                // Only what was written means something.
                FAULT_STATUS => self.set(at, word & !NUMBER),
                // Of a record all but this is read alone.
                FAULTS..FAULTS_END if at % 16 == 12 && word & FULL != 0 => {
                    self.set(at, 0);
                    // The status register may have nothing to say any more.
                    self.set(FAULT_CONTROL, self.get(FAULT_CONTROL) & !LOOKED);
                }
                COMMAND | 0x20..=0x2C | FAULT_CONTROL..=0x44 | QUEUE_TAIL | 0x90..=0x94 => {
                    self.set(at, word);
                }
                COMPLETION_CONTROL..=0xAC | 0xB8..=0xBC | 0xF0..=0xFC => self.set(at, word),
                _ => {}
            }
        }
    }

    /// As at power on; addresses of so many levels are translated.
    pub fn reset(&self, levels: u32) {
        for word in self.page {
            word.store(0, Ordering::Relaxed);
        }
        self.set(FAULT_CONTROL, MASKED);
        self.set(COMPLETION_CONTROL, MASKED);
        self.put_right(levels, 0, 0);
        self.set(COMMAND, TAKEN);
    }

    /// What the guest can only read: it may have written there.
    pub fn put_right(&self, levels: u32, status: u32, head: u32) {
        // Adjusted width: bit 1 stands for 39 bits, bit 2 for 48.
        let width = u64::from(12 + 9 * levels - 1) << 16 | 1 << (8 + levels - 2);
        self.set(VERSION, 0x10);
        self.set64(CAPABILITY, CAPABILITIES | width | u64::from(MOST_PAGES) << 48);
        self.set64(EXTENDED, EXTENDED_CAPABILITIES);
        self.set(STATUS, status);
        self.set(QUEUE_HEAD, head);
    }
}
