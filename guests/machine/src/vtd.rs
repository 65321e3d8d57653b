//! A driver of the guest's own VT-d unit, as Linux drives it: tables of the second level, a queue
//! of invalidations with a word that each is waited for by, and entries for interrupts.
//!
//! Guarantees: no wait without a limit. What is asked is asked as it is, right or wrong.

use crate::boot::Boot;
use crate::cpu::{mmio_read, mmio_read64, mmio_write, mmio_write64};
use crate::unit::{Ask, BASE, BOTH, Place, Told, Unit, Why};
use crate::virtqueue::{get, put};
use crate::wait;
use core::cell::Cell;

const PAGE: u64 = 4096;
/// Registers.
const CAPABILITY: u64 = 0x08;
const COMMAND: u64 = 0x18;
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
const TAIL: u64 = 0x88;
const QUEUE: u64 = 0x90;
const REMAPPING: u64 = 0xB8;
/// Commands.
const TRANSLATES: u32 = 1 << 31;
const SET_ROOT: u32 = 1 << 30;
const QUEUED: u32 = 1 << 26;
const REMAPS: u32 = 1 << 25;
const SET_REMAPPING: u32 = 1 << 24;

/// Invalidates what all devices are in.
pub const CONTEXTS: [u64; 2] = [1 | 1 << 4, 0];
/// Invalidates all that is mapped.
pub const ALL: [u64; 2] = [2 | 1 << 4, 0];
/// Invalidates all entries for interrupts.
pub const INTERRUPTS: [u64; 2] = [4, 0];

/// Of an entry of a table: it is a large page.
const LARGE: u64 = 1 << 7;

/// The descriptor for this.
pub fn descriptor(what: Ask) -> [u64; 2] {
    match what {
        Ask::Device(_) => CONTEXTS,
        Ask::All => ALL,
        Ask::Domain(id) => [2 | 2 << 4 | u64::from(id) << 16, 0],
        Ask::Pages(id, at, order) => [2 | 3 << 4 | u64::from(id) << 16, at | order],
        Ask::Interrupts(_) => INTERRUPTS,
    }
}

/// Places in its memory.
const CONTEXT_TABLE: u64 = PAGE;
const DESCRIPTORS: u64 = 2 * PAGE;
const WORD: u64 = 3 * PAGE;
const ENTRIES: u64 = 4 * PAGE;
const TABLES: u64 = 5 * PAGE;
/// Bytes of memory for it.
const BYTES: u64 = TABLES + 2048 * PAGE;

/// The unit, with its queue running.
pub struct Vtd {
    memory: u64,
    next: Cell<u64>,
    tail: Cell<u64>,
    asked: Cell<u32>,
    command: Cell<u32>,
    late: Cell<u32>,
}

impl Vtd {
    /// Whether that is in the status now.
    fn is(&self, bit: u32) -> bool {
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

    /// Has these words say what a device is in.
    pub fn put_context(&self, id: u32, words: [u64; 2]) {
        let at = self.memory + CONTEXT_TABLE + 16 * u64::from(id);
        put(at, 0u64);
        put(at + 8, words[1]);
        put(at, words[0]);
    }

    /// Levels of its tables.
    fn levels(&self) -> u64 {
        if mmio_read(BASE + CAPABILITY) & 1 << 10 != 0 { 4 } else { 3 }
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

    /// Has the unit taken what was last said of records that were taken? Where a sidecore polls,
    /// that stands in the fault status register until then.
    pub fn has_answered(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) != OVERFLOW | PENDING
    }

    /// Is there anything in the fault status register?
    fn has_errors(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & 0x7F != 0
    }

    /// Has an error of its queue forgotten, and what is left in it.
    fn forget_errors(&self) -> bool {
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
}

impl Unit for Vtd {
    const NAME: &str = "VT-d";
    const IOAPIC: u16 = 0xFFF8;

    fn start(boot: &Boot) -> Option<Vtd> {
        let memory = boot.free_memory().start.next_multiple_of(PAGE);
        // The version.
        let found = mmio_read(BASE);
        if found == 0 || found == u32::MAX {
            return None;
        }
        let unit = Vtd {
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

    fn start_anew(boot: &Boot) -> Option<Vtd> {
        // Where a sidecore polls, a command that isn't taken yet is lost when the next one is
        // written, and the status may be a word from before: so the last of three commands is
        // waited for, whose status the one before it can't have.
        let calm = [0, QUEUED, 0].into_iter().all(|command| {
            mmio_write(BASE + COMMAND, command);
            wait::until(|| mmio_read(BASE + STATUS) == command)
        });
        let unit = calm.then(|| Vtd::start(boot))??;
        unit.forget_errors().then_some(unit)
    }

    fn memory_behind(&self) -> u64 {
        self.memory + BYTES
    }

    fn table(&self) -> u64 {
        let table = self.next.get();
        if table + 2 * PAGE <= self.memory_behind() {
            self.next.set(table + PAGE);
        }
        (0..PAGE / 8).for_each(|i| put(table + 8 * i, 0u64));
        table
    }

    fn looping(&self) -> u64 {
        let table = self.table();
        (0..PAGE / 8).for_each(|n| put(table + 8 * n, table | BOTH));
        table
    }

    fn lead(&self, device: u32, to: Place) {
        let how = self.levels() - 2;
        self.put_context(
            device,
            match to {
                Place::Domain(id, root) => [root | 1, u64::from(id) << 8 | how],
                Place::Through => [2 << 2 | 1, 9 << 8 | how],
                Place::Nowhere => [0, how],
            },
        );
    }

    fn map(&self, root: u64, at: u64, large: bool, to: Option<(u64, u64)>) {
        let mut table = root;
        let last = u64::from(large);
        for level in (1 + last..self.levels()).rev() {
            let entry = table + at / (PAGE << (9 * level)) % 512 * 8;
            if get::<u64>(entry) & BOTH == 0 {
                put(entry, self.table() | BOTH);
            }
            table = get::<u64>(entry) & !0xFFF;
        }
        let size = if large { LARGE } else { 0 };
        let word = to.map_or(0, |(to, rights)| to | rights | size);
        put(table + at / (PAGE << (9 * last)) % 512 * 8, word);
    }

    fn ask(&self, all: &[Ask]) -> bool {
        all.iter().for_each(|what| self.put(descriptor(*what)));
        self.asked.set(self.asked.get() + 1);
        let (word, number) = (self.memory + WORD, self.asked.get());
        self.put([5 | 1 << 5 | u64::from(number) << 32, word]);
        self.tell();
        self.comes(|| get::<u32>(word) == number)
    }

    fn flood(&self, all: &[Ask]) {
        all.iter().for_each(|what| self.put(descriptor(*what)));
        self.tell();
    }

    fn begin(&self, device: u32) -> bool {
        self.ask(&[Ask::Device(device), Ask::All]) && self.translate(true)
    }

    fn translate(&self, on: bool) -> bool {
        self.set(TRANSLATES, on, false)
    }

    fn late(&self) -> Option<u32> {
        Some(self.late.get())
    }

    /// By a table of 256 entries with 32-bit destinations.
    fn remap(&self, on: bool) -> bool {
        mmio_write64(BASE + REMAPPING, (self.memory + ENTRIES) | (1 << 11) | 7);
        (!on || self.set(SET_REMAPPING, true, true)) && self.set(REMAPS, on, false)
    }

    fn set_entry(&self, index: u64, to: Option<(usize, u8)>, source: u16) -> bool {
        let at = self.memory + ENTRIES + 16 * index;
        let low = to.map_or(0, |(cpu, vector)| (cpu as u64) << 32 | u64::from(vector) << 16 | 1);
        put(at, 0u64);
        put(at + 8, 1 << 18 | u64::from(source));
        put(at, low);
        true
    }

    fn message(index: u64) -> (u64, u32) {
        (0xFEE0_0000 | 1 << 4 | (index & 0x7FFF) << 5, 0)
    }

    /// In the place of the vector Linux has the pin.
    fn redirection(index: u64, pin: u32) -> u64 {
        index << 49 | 1 << 48 | u64::from(pin)
    }

    fn aim_faults(&self, vector: u8) -> bool {
        mmio_write(BASE + FAULT_DATA, vector.into());
        mmio_write64(BASE + FAULT_ADDRESS, 0xFEE0_0000);
        self.mask_faults(false)
    }

    fn mask_faults(&self, masked: bool) -> bool {
        mmio_write(BASE + FAULT_CONTROL, if masked { MASKED } else { 0 });
        true
    }

    fn has_told(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & PENDING != 0
    }

    fn overflows(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & OVERFLOW != 0
    }

    /// From the first record on until one is empty.
    fn take_told(&self) -> (Option<Told>, u64) {
        let capability = mmio_read64(BASE + CAPABILITY);
        let (records, most) = ((capability >> 24 & 0x3FF) * 16, (capability >> 40 & 0xFF) + 1);
        let (mut first, mut found) = (None, 0);
        let mut index = u64::from(mmio_read(BASE + FAULT_STATUS) >> 8 & 0xFF);
        while found < most {
            let record = BASE + records + 16 * index;
            let last = mmio_read(record + 12);
            if last & FULL == 0 {
                break;
            }
            let source = mmio_read(record + 8) as u16;
            let (address, is_read) = (mmio_read64(record), last & READS != 0);
            first = first.or(Some(Told { source, is_read, address, code: last & 0xFF }));
            mmio_write(record + 12, FULL);
            (found, index) = (found + 1, (index + 1) % most);
        }
        mmio_write(BASE + FAULT_STATUS, OVERFLOW | PENDING);
        (first, found)
    }

    /// The manual's: 2 without a context, 5 may not write, 6 may not read.
    fn code(why: Why, is_read: bool) -> u32 {
        match why {
            Why::Nowhere => 2,
            _ if is_read => 6,
            _ => 5,
        }
    }

    fn is_wrong(&self) -> bool {
        mmio_read(BASE + FAULT_STATUS) & 0x10 != 0
    }
}
