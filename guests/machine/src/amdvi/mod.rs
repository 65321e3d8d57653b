//! A driver of the guest's own AMD-Vi unit (AMD IOMMU spec 48882), as Linux drives it: page tables
//! of version 1, a command buffer with words in memory that are waited for, a table of entries for
//! interrupts for each device, an event log.
//!
//! Guarantees: no wait without a limit. What is asked is asked as it is, right or wrong.

pub mod formats;
pub mod guests;
pub mod registers;

use crate::boot::Boot;
use crate::cpu::{mmio_read, mmio_read64, mmio_write, mmio_write64};
use crate::pci::Function;
use crate::unit::{Ask, BASE, BOTH, Place, Told, Unit, Why};
use crate::virtqueue::{get, put};
use crate::wait;
use core::cell::Cell;
use formats::*;
use guests::GUEST_APICS;
use registers::*;

const PAGE: u64 = 4096;
/// Where its function is, and that function's capability: its id, and NpCache in its header (3.2).
const FUNCTION: Function = Function { device: 0, function: 2 };
const CAPABILITY: u8 = 0x0F;
const CACHES_ABSENCE: u32 = 1 << 26;

/// Devices that the device table has.
const MOST: u64 = 256;
/// Places in its memory.
const BUFFER: u64 = 2 * PAGE;
const EVENTS: u64 = 3 * PAGE;
const WORD: u64 = 4 * PAGE;
const OF_SOURCES: u64 = 5 * PAGE;
const SOURCES: usize = 4;
const TABLES: u64 = OF_SOURCES + SOURCES as u64 * PAGE;
const BYTES: u64 = TABLES + 2048 * PAGE;

/// Does its PCI function say of the unit what its driver wants? Else what is wrong.
pub fn function() -> Result<(), &'static str> {
    let at = FUNCTION.capability(CAPABILITY).ok_or("no capability")?;
    let base = u64::from(FUNCTION.read(at + 8)) << 32 | u64::from(FUNCTION.read(at + 4));
    match FUNCTION.read(at) & CACHES_ABSENCE {
        0 => Err("it caches no absence"),
        _ if base != BASE | 1 => Err("its registers are elsewhere"),
        _ => Ok(()),
    }
}

/// The unit, with its command buffer running once it translates.
pub struct AmdVi {
    memory: u64,
    next: Cell<u64>,
    tail: Cell<u64>,
    asked: Cell<u64>,
    /// Interrupts are remapped, each source's by a table of its own.
    remaps: Cell<bool>,
    sources: [Cell<Option<u16>>; SOURCES],
}

impl AmdVi {
    fn status(&self) -> u32 {
        mmio_read(BASE + STATUS)
    }

    /// Sets or clears bits of CONTROL.
    pub fn set(&self, bits: u64, on: bool) {
        let control = mmio_read64(BASE + CONTROL);
        mmio_write64(BASE + CONTROL, if on { control | bits } else { control & !bits });
    }

    /// The same, and waits until the unit goes by it: while it does, it takes commands.
    fn set_now(&self, bits: u64, on: bool) -> bool {
        self.set(bits, on);
        self.ask(&[])
    }

    fn is_running(&self) -> bool {
        self.status() & RUNS != 0
    }

    /// Has a device's entry in the device table be this.
    pub fn put_device(&self, id: u32, words: [u64; 2]) {
        let at = self.memory + 32 * u64::from(id);
        put(at, VALID);
        put(at + 8, words[1]);
        put(at, words[0]);
    }

    /// The same of its words for interrupts.
    pub fn put_interrupts(&self, id: u32, word: u64) {
        put(self.memory + 32 * u64::from(id) + 16, word);
    }

    /// Where this source's table of entries for interrupts is; whether it is new.
    pub fn entries(&self, source: u16) -> Option<(u64, bool)> {
        let found = self.sources.iter().position(|of| of.get() == Some(source));
        let slot = found.or_else(|| self.sources.iter().position(|of| of.get().is_none()))?;
        self.sources[slot].set(Some(source));
        Some((self.memory + OF_SOURCES + PAGE * slot as u64, found.is_none()))
    }

    /// The words for interrupts of a device, as remapping is on or not.
    pub fn interrupts(&self, id: u16) -> u64 {
        let slot = self.sources.iter().position(|of| of.get() == Some(id));
        match (self.remaps.get(), slot) {
            (false, _) => 0,
            (true, None) => REMAPS,
            (true, Some(slot)) => {
                let table = self.memory + OF_SOURCES + PAGE * slot as u64;
                table | BY_TABLE | ENTRIES | REMAPS
            }
        }
    }

    /// Puts a command into the buffer; the unit isn't told. Gives where it is.
    pub fn put(&self, command: [u64; 2]) -> u64 {
        let at = self.memory + BUFFER + self.tail.get();
        put(at, command[0]);
        put(at + 8, command[1]);
        self.tail.set((self.tail.get() + 16) % PAGE);
        at
    }

    /// Tells the unit of what was put into the buffer.
    pub fn tell(&self) {
        mmio_write(BASE + COMMAND_TAIL, self.tail.get() as u32);
    }

    /// Has the buffer be where it was at first, and empty.
    pub fn rewind(&self) {
        self.tail.set(0);
        mmio_write64(BASE + COMMANDS, (self.memory + BUFFER) | LENGTH);
        mmio_write(BASE + COMMAND_HEAD, 0);
        mmio_write(BASE + COMMAND_TAIL, 0);
    }

    /// Has the unit take commands again where it stopped, from an empty buffer on.
    pub fn restart_commands(&self) -> bool {
        self.set(FETCHES, false);
        self.rewind();
        self.set_now(FETCHES, true)
    }

    /// Has the log have room for so many events. Gives where the first is to be.
    pub fn leave_room(&self, events: u32) -> u32 {
        loop {
            let tail = mmio_read(BASE + LOG_TAIL);
            mmio_write(BASE + LOG_HEAD, (tail + 16 * (events + 1)) % PAGE as u32);
            // Unless one came late, of what was tried before.
            if mmio_read(BASE + LOG_TAIL) == tail {
                return tail;
            }
        }
    }

    /// Has what is in the log begin there.
    pub fn begin_log(&self, at: u32) {
        mmio_write(BASE + LOG_HEAD, at);
    }

    fn restart_log(&self) {
        self.set(LOGS, false);
        self.set(INTERRUPTS, false);
        mmio_write(BASE + STATUS, OVERFLOW);
        self.set(INTERRUPTS, true);
        self.set(LOGS, true);
    }

    /// Does the unit log?
    pub fn logs(&self) -> bool {
        self.status() & LOG_RUNS != 0
    }

    /// The next event, if there is one: the words of it.
    pub fn event(&self) -> Option<[u64; 2]> {
        let (head, tail) = (mmio_read(BASE + LOG_HEAD), mmio_read(BASE + LOG_TAIL));
        let at = self.memory + EVENTS + u64::from(head) % PAGE;
        (head != tail).then(|| {
            let words = [get(at), get(at + 8)];
            // Linux does, for units that say too early that it is there.
            put(at, 0u64);
            put(at + 8, 0u64);
            mmio_write(BASE + LOG_HEAD, (head + 16) % PAGE as u32);
            words
        })
    }

    fn new(boot: &Boot) -> AmdVi {
        let memory = boot.free_memory().start.next_multiple_of(PAGE);
        AmdVi {
            memory,
            next: Cell::new(memory + TABLES),
            tail: Cell::new(0),
            asked: Cell::new(0),
            remaps: Cell::new(false),
            sources: [const { Cell::new(None) }; SOURCES],
        }
    }

    /// Says where all of it is, and that it is empty.
    fn place(&self) {
        mmio_write64(BASE + DEVICES, self.memory | (32 * MOST / PAGE - 1));
        self.rewind();
        mmio_write64(BASE + LOG, (self.memory + EVENTS) | LENGTH);
        mmio_write(BASE + LOG_HEAD, 0);
        mmio_write(BASE + LOG_TAIL, 0);
    }
}

impl Unit for AmdVi {
    const NAME: &str = "AMD-Vi";
    const IOAPIC: u16 = 0xA0;

    fn start(boot: &Boot) -> Option<AmdVi> {
        let features = mmio_read64(BASE + FEATURES);
        if features & WANTED != WANTED || features == u64::MAX || function().is_err() {
            return None;
        }
        let unit = AmdVi::new(boot);
        mmio_write64(BASE + CONTROL, 0);
        if !wait::until(|| unit.status() & (RUNS | LOG_RUNS) == 0) {
            return None;
        }
        (0..TABLES / 8).for_each(|i| put(unit.memory + 8 * i, 0u64));
        (0..MOST as u32).for_each(|id| unit.put_device(id, [VALID, 0]));
        unit.place();
        unit.set(FETCHES, true);
        unit.set(LOGS, true);
        unit.set(WIDE, true);
        unit.set(X2APIC, true);
        if unit.posts() {
            unit.set(GUEST_APICS, true);
        }
        Some(unit)
    }

    fn start_anew(boot: &Boot) -> Option<AmdVi> {
        // Where a sidecore polls, what the status says may be a word from before: so it is to say
        // one thing and the other, and that again.
        let unit = AmdVi::new(boot);
        let calm = [false, true, false, true, false].into_iter().all(|on| {
            unit.place();
            mmio_write64(BASE + CONTROL, if on { TRANSLATES | LOGS } else { 0 });
            wait::until(|| unit.logs() == on && unit.status() & RUNS == 0)
        });
        calm.then(|| AmdVi::start(boot))?
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
        (0..PAGE / 8).for_each(|n| put(table + 8 * n, entry(table, n % LEVELS, BOTH)));
        table
    }

    fn lead(&self, device: u32, to: Place) {
        self.put_device(
            device,
            match to {
                Place::Domain(id, root) => [entry(root, LEVELS, BOTH) | VALID, id.into()],
                Place::Through => [BOTH << RIGHTS | VALID, 9],
                Place::Nowhere => [VALID, 0],
            },
        );
    }

    fn map(&self, root: u64, at: u64, large: bool, to: Option<(u64, u64)>) {
        let mut table = root;
        let last = u64::from(large);
        for level in (1 + last..LEVELS).rev() {
            let place = table + at / (PAGE << (9 * level)) % 512 * 8;
            if get::<u64>(place) & PRESENT == 0 {
                put(place, entry(self.table(), level, BOTH));
            }
            table = get::<u64>(place) & 0x000F_FFFF_FFFF_F000;
        }
        let word = to.map_or(0, |(to, rights)| entry(to, 0, rights));
        put(table + at / (PAGE << (9 * last)) % 512 * 8, word);
    }

    fn ask(&self, all: &[Ask]) -> bool {
        all.iter().for_each(|what| {
            self.put(command(*what));
        });
        self.asked.set(self.asked.get() + 1);
        let (word, number) = (self.memory + WORD, self.asked.get());
        self.put([1 << 60 | word | 1, number]);
        self.tell();
        wait::until(|| get::<u64>(word) == number)
    }

    fn flood(&self, all: &[Ask]) {
        all.iter().for_each(|what| {
            self.put(command(*what));
        });
        self.tell();
    }

    fn begin(&self, device: u32) -> bool {
        self.translate(true) && self.ask(&[Ask::Device(device), Ask::All])
    }

    fn translate(&self, on: bool) -> bool {
        self.set(TRANSLATES, on);
        wait::until(|| self.is_running() == on)
    }

    /// Linux asks for the first thing when it translates.
    fn late(&self) -> Option<u32> {
        None
    }

    fn remap(&self, on: bool) -> bool {
        self.remaps.set(on);
        (0..MOST as u32).for_each(|id| self.put_interrupts(id, self.interrupts(id as u16)));
        !self.is_running() || self.ask(&[Ask::All])
    }

    /// 128 bits, of which the lower half has what makes it one.
    fn set_entry(&self, index: u64, to: Option<(usize, u8)>, source: u16) -> bool {
        let Some((table, is_new)) = self.entries(source) else { return false };
        for slot in 0..SOURCES as u64 {
            put(self.memory + OF_SOURCES + PAGE * slot + 16 * index, 0u64);
        }
        if let Some((cpu, vector)) = to {
            let cpu = cpu as u64;
            put(table + 16 * index + 8, cpu >> 24 << 56 | u64::from(vector));
            put(table + 16 * index, (cpu & 0xFF_FFFF) << 8 | 1);
        }
        self.put_interrupts(source.into(), self.interrupts(source));
        !is_new || !self.is_running() || self.ask(&[Ask::Device(source.into())])
    }

    fn message(index: u64) -> (u64, u32) {
        (0xFEE0_0000, index as u32)
    }

    /// In the place of the vector and the delivery mode.
    fn redirection(index: u64, _: u32) -> u64 {
        index & 0x7FF
    }

    fn aim_faults(&self, vector: u8) -> bool {
        mmio_write64(BASE + INTERRUPT, u64::from(vector) << 32);
        self.set_now(OWN_INTERRUPT | INTERRUPTS, true)
    }

    fn mask_faults(&self, masked: bool) -> bool {
        self.set_now(INTERRUPTS, !masked)
    }

    fn has_told(&self) -> bool {
        let is_empty = mmio_read(BASE + LOG_HEAD) == mmio_read(BASE + LOG_TAIL);
        !is_empty || self.status() & (LOGGED | OVERFLOW) != 0
    }

    fn overflows(&self) -> bool {
        self.status() & OVERFLOW != 0
    }

    /// What the status says is cleared first: what comes later says it again. Where a sidecore
    /// polls, a word that isn't taken yet is lost when the next one is written: so that is done
    /// until the status says nothing, as Linux does.
    fn take_told(&self) -> (Option<Told>, u64) {
        let (mut first, mut found) = (None, 0);
        wait::until(|| {
            let overflows = self.overflows();
            if !self.has_told() {
                return true;
            }
            mmio_write(BASE + STATUS, OVERFLOW | LOGGED);
            while let Some([low, address]) = self.event() {
                let what = (low >> 32) as u32;
                let (is_read, code) = (what & WROTE == 0, what & !WROTE);
                first = first.or(Some(Told { source: low as u16, is_read, address, code }));
                found += 1;
            }
            if overflows && !self.logs() {
                self.restart_log();
            }
            false
        });
        (first, found)
    }

    /// The kind of event, its flags and the domain id.
    fn code(why: Why, _: bool) -> u32 {
        match why {
            Why::Absent(domain) => PAGE_FAULT | u32::from(domain),
            Why::Right(domain) => PAGE_FAULT | WAS_PRESENT | FORBIDDEN | u32::from(domain),
            Why::Nowhere => PAGE_FAULT,
        }
    }

    fn is_wrong(&self) -> bool {
        !self.is_running()
    }
}
