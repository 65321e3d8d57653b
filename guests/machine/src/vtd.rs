//! A driver of the guest's own VT-d unit, as Linux drives it: tables of the second level, a queue
//! of invalidations with a word that each is waited for by, and entries for interrupts.
//!
//! Guarantees: no wait without a limit. What is asked is asked as it is, right or wrong.

use crate::boot::Boot;
use crate::cpu::{mmio_read, mmio_write, mmio_write64};
use crate::virtqueue::{get, put};
use crate::wait;
use core::cell::Cell;

const PAGE: u64 = 4096;
/// Where the DMAR says that it is.
pub const BASE: u64 = 0xFED9_0000;
/// Registers.
pub const CAPABILITY: u64 = 0x08;
/// As above.
pub const COMMAND: u64 = 0x18;
const STATUS: u64 = 0x1C;
const ROOT: u64 = 0x20;
const FAULT_STATUS: u64 = 0x34;
const FAULT_CONTROL: u64 = 0x38;
const FAULT_DATA: u64 = 0x3C;
const FAULT_ADDRESS: u64 = 0x40;
/// Of the fault status register: no record was free; there is a record.
const OVERFLOW: u32 = 1;
const PENDING: u32 = 1 << 1;
/// Of the fault event control register: the interrupt is masked.
const MASKED: u32 = 1 << 31;
/// Of the last word of a record: there is one; the device wanted to read.
const FULL: u32 = 1 << 31;
const READS: u32 = 1 << 30;
const HEAD: u64 = 0x80;
const TAIL: u64 = 0x88;
const QUEUE: u64 = 0x90;
const REMAPPING: u64 = 0xB8;
/// Commands.
const TRANSLATES: u32 = 1 << 31;
const SET_ROOT: u32 = 1 << 30;
const QUEUED: u32 = 1 << 26;
const REMAPS: u32 = 1 << 25;
const SET_REMAPPING: u32 = 1 << 24;

/// Access that an entry of a table allows.
pub const READ: u64 = 1;
/// As above.
pub const WRITE: u64 = 2;
/// As above.
pub const BOTH: u64 = READ | WRITE;

/// Invalidates what all devices are in.
pub const CONTEXTS: [u64; 2] = [1 | 1 << 4, 0];
/// Invalidates all that is mapped.
pub const ALL: [u64; 2] = [2 | 1 << 4, 0];
/// Invalidates all entries for interrupts.
pub const INTERRUPTS: [u64; 2] = [4, 0];

/// Invalidates this domain's.
pub fn domain(id: u16) -> [u64; 2] {
    [2 | 2 << 4 | u64::from(id) << 16, 0]
}

/// Invalidates so many pages of this domain's, as a power of two.
pub fn pages(id: u16, at: u64, order: u64) -> [u64; 2] {
    [2 | 3 << 4 | u64::from(id) << 16, at | order]
}

/// A request that was blocked, as a record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whose it was.
    pub source: u16,
    /// It was to read, not to write.
    pub is_read: bool,
    /// The page.
    pub address: u64,
    /// The manual's code: 2 without a context, 5 may not write, 6 may not read.
    pub reason: u8,
}

/// Places in its memory.
const CONTEXT_TABLE: u64 = PAGE;
const DESCRIPTORS: u64 = 2 * PAGE;
const WORD: u64 = 3 * PAGE;
const ENTRIES: u64 = 4 * PAGE;
const TABLES: u64 = 5 * PAGE;
/// Bytes of memory for it.
pub const BYTES: u64 = TABLES + 2048 * PAGE;

fn get_register64(at: u64) -> u64 {
    u64::from(mmio_read(BASE + at + 4)) << 32 | u64::from(mmio_read(BASE + at))
}

/// The unit, with its queue running.
pub struct Unit {
    memory: u64,
    next: Cell<u64>,
    tail: Cell<u64>,
    asked: Cell<u32>,
    command: Cell<u32>,
    late: Cell<u32>,
}

impl Unit {
    /// Finds it and starts its queue; nothing is translated yet.
    pub fn start(boot: &Boot) -> Option<Unit> {
        let memory = boot.free_memory().start.next_multiple_of(PAGE);
        let found = mmio_read(BASE);
        if found == 0 || found == u32::MAX {
            return None;
        }
        let unit = Unit {
            memory,
            next: Cell::new(memory + TABLES),
            tail: Cell::new(0),
            asked: Cell::new(0),
            command: Cell::new(0),
            late: Cell::new(0),
        };
        (0..TABLES / 8).for_each(|i| put(memory + 8 * i, 0u64));
        put(memory, (unit.memory + CONTEXT_TABLE) | 1);
        mmio_write64(BASE + ROOT, memory);
        mmio_write(BASE + TAIL, 0);
        mmio_write64(BASE + QUEUE, memory + DESCRIPTORS);
        let started = unit.set(SET_ROOT, true, true) && unit.set(QUEUED, true, false);
        started.then_some(unit)
    }

    /// The first memory behind its own.
    pub fn memory_behind(&self) -> u64 {
        self.memory + BYTES
    }

    /// Whether that is in the status now.
    pub fn is(&self, bit: u32) -> bool {
        mmio_read(BASE + STATUS) & bit != 0
    }

    /// Sets or clears a bit of the command, for once or for good, and waits for the status.
    fn set(&self, bit: u32, on: bool, once: bool) -> bool {
        let command = if on { self.command.get() | bit } else { self.command.get() & !bit };
        if !once {
            self.command.set(command);
        }
        mmio_write(BASE + COMMAND, command);
        self.comes(|| self.is(bit) == on)
    }

    /// Waits for an answer, and counts it if it isn't there at the first look.
    fn comes(&self, is_there: impl Fn() -> bool) -> bool {
        let at_once = is_there();
        self.late.set(self.late.get() + u32::from(!at_once));
        at_once || wait::until(is_there)
    }

    /// How many answers weren't there at the first look.
    pub fn late(&self) -> u32 {
        self.late.get()
    }

    /// Has DMA be translated, or not.
    pub fn translate(&self, on: bool) -> bool {
        self.set(TRANSLATES, on, false)
    }

    /// Has interrupts be remapped, or not: by a table of 256 entries with 32-bit destinations.
    pub fn remap(&self, on: bool) -> bool {
        mmio_write64(BASE + REMAPPING, (self.memory + ENTRIES) | (1 << 11) | 7);
        (!on || self.set(SET_REMAPPING, true, true)) && self.set(REMAPS, on, false)
    }

    /// Has CPU 0 be interrupted by this vector when a request is blocked.
    pub fn aim_faults(&self, vector: u8) {
        mmio_write(BASE + FAULT_DATA, vector.into());
        mmio_write64(BASE + FAULT_ADDRESS, 0xFEE0_0000);
        self.mask_faults(false);
    }

    /// Masks that interrupt, or lets it through.
    pub fn mask_faults(&self, masked: bool) {
        mmio_write(BASE + FAULT_CONTROL, if masked { MASKED } else { 0 });
    }

    /// Is there a record of a blocked request?
    pub fn has_told(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & PENDING != 0
    }

    /// Was there no record for one?
    pub fn overflows(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & OVERFLOW != 0
    }

    /// Takes the records as Linux does: from the first on until one is empty. Gives the first, and
    /// how many there were.
    pub fn take_told(&self) -> (Option<Told>, u64) {
        let capability = get_register64(CAPABILITY);
        let (records, most) = ((capability >> 24 & 0x3FF) * 16, (capability >> 40 & 0xFF) + 1);
        let (mut first, mut found) = (None, 0);
        let mut index = u64::from(mmio_read(BASE + FAULT_STATUS) >> 8 & 0xFF);
        while found < most {
            let record = records + 16 * index;
            let last = mmio_read(BASE + record + 12);
            if last & FULL == 0 {
                break;
            }
            let source = mmio_read(BASE + record + 8) as u16;
            let (address, is_read) = (get_register64(record), last & READS != 0);
            first = first.or(Some(Told { source, is_read, address, reason: last as u8 }));
            mmio_write(BASE + record + 12, FULL);
            (found, index) = (found + 1, (index + 1) % most);
        }
        mmio_write(BASE + FAULT_STATUS, OVERFLOW | PENDING);
        (first, found)
    }

    /// An entry for interrupts: the lower half, and the source that it is for.
    pub fn set_entry(&self, index: u64, low: u64, source: u16) {
        let at = self.memory + ENTRIES + 16 * index;
        put(at, 0u64);
        put(at + 8, 1 << 18 | u64::from(source));
        put(at, low);
    }

    /// A page for a table; the last one again and again when there are no more.
    pub fn table(&self) -> u64 {
        let table = self.next.get();
        if table + 2 * PAGE <= self.memory_behind() {
            self.next.set(table + PAGE);
        }
        (0..PAGE / 8).for_each(|i| put(table + 8 * i, 0u64));
        table
    }

    /// Puts a device into a domain with these tables, or into none.
    pub fn set_context(&self, id: u32, domain: u16, root: Option<u64>) {
        let at = self.memory + CONTEXT_TABLE + 16 * u64::from(id);
        put(at, 0u64);
        put(at + 8, (u64::from(domain) << 8) | (self.levels() - 2));
        put(at, root.map_or(0, |root| root | 1));
    }

    /// The same with any words.
    pub fn put_context(&self, id: u32, words: [u64; 2]) {
        let at = self.memory + CONTEXT_TABLE + 16 * u64::from(id);
        put(at, words[0]);
        put(at + 8, words[1]);
    }

    /// The words for a device that reaches memory as it is.
    pub fn passing_through(&self) -> [u64; 2] {
        [2 << 2 | 1, 9 << 8 | (self.levels() - 2)]
    }

    /// Levels of its tables.
    pub fn levels(&self) -> u64 {
        if mmio_read(BASE + CAPABILITY) & 1 << 10 != 0 { 4 } else { 3 }
    }

    /// Has an entry of the last level, or of the one above, be this; makes the tables that lead to
    /// it.
    pub fn map(&self, root: u64, at: u64, large: bool, word: u64) {
        let mut table = root;
        let last = u64::from(large);
        for level in (1 + last..self.levels()).rev() {
            let entry = table + at / (PAGE << (9 * level)) % 512 * 8;
            if get::<u64>(entry) & BOTH == 0 {
                put(entry, self.table() | BOTH);
            }
            table = get::<u64>(entry) & !0xFFF;
        }
        put(table + at / (PAGE << (9 * last)) % 512 * 8, word);
    }

    /// Puts a descriptor into the queue; the unit isn't told.
    pub fn put(&self, descriptor: [u64; 2]) {
        let at = self.memory + DESCRIPTORS + self.tail.get();
        put(at, descriptor[0]);
        put(at + 8, descriptor[1]);
        self.tail.set((self.tail.get() + 16) % PAGE);
    }

    /// Tells the unit of what was put into the queue.
    pub fn tell(&self) {
        mmio_write(BASE + TAIL, self.tail.get() as u32);
    }

    /// Asks for this, and waits until it is done.
    pub fn ask(&self, all: &[[u64; 2]]) -> bool {
        all.iter().for_each(|descriptor| self.put(*descriptor));
        self.asked.set(self.asked.get() + 1);
        let (word, number) = (self.memory + WORD, self.asked.get());
        self.put([5 | 1 << 5 | u64::from(number) << 32, word]);
        self.tell();
        self.comes(|| get::<u32>(word) == number)
    }

    /// Maps a page, and has the unit know it.
    pub fn map_page(&self, root: u64, domain: u16, at: u64, word: u64) -> bool {
        self.map(root, at, false, word);
        self.ask(&[pages(domain, at, 0)])
    }

    /// Is there anything in the fault status register?
    fn has_errors(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & 0x7F != 0
    }

    /// Has an error of its queue forgotten, and what is left in it.
    pub fn forget_errors(&self) -> bool {
        self.set(QUEUED, false, false);
        self.tail.set(0);
        mmio_write(BASE + TAIL, 0);
        mmio_write64(BASE + QUEUE, self.memory + DESCRIPTORS);
        // What is read is the unit's own answer, with the number of a record, or nothing is left.
        let forgets = || {
            self.take_told();
            mmio_write(BASE + FAULT_STATUS, 0x7F);
            wait::until(|| mmio_read(BASE + FAULT_STATUS) & 0xFF00 != 0 || !self.has_errors())
        };
        self.set(QUEUED, true, false) && wait::until(|| forgets() && !self.has_errors())
    }

    /// Has its queue an error?
    pub fn is_wrong(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & 0x10 != 0
    }

    /// Has all of its queue been taken?
    pub fn is_done(&self) -> bool {
        mmio_read(BASE + HEAD) == mmio_read(BASE + TAIL)
    }
}

/// Has a unit in any state do nothing, and waits until all commands before are over. Where a
/// sidecore polls, a command that isn't taken yet is lost when the next one is written, and the
/// status may be a word from before: so the last of three commands is waited for, whose status the
/// one before it can't have.
pub fn calm() -> bool {
    [0, QUEUED, 0].into_iter().all(|command| {
        mmio_write(BASE + COMMAND, command);
        wait::until(|| mmio_read(BASE + STATUS) == command)
    })
}

/// The address by which a message goes by this entry.
pub fn message_address(index: u64) -> u64 {
    0xFEE0_0000 | 1 << 4 | (index & 0x7FFF) << 5
}
