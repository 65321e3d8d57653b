//! A guest with its unit and the real one, and a model of what its tables map.

use super::super::at::{CONTROL, ENABLE, FETCHES, LOGS};
use super::super::*;
use crate::tests::model::{ENDPOINTS, HIGH, LOW, Pages, Unit, shape};
use crate::{PAGE, Reach};
use paging::Access;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use window::Memory;

pub(super) const DEVICES: u64 = 0x1000;
pub(super) const COMMANDS: u64 = 0x3000;
pub(super) const LOG: u64 = 0x4000;
pub(super) const WORD: u64 = 0x5000;
pub(super) const ENTRIES: u64 = 0x6000;
/// Where page tables are made from.
pub(super) const TABLES: u64 = 0x10_0000;
pub(super) const BOTH: Access = Access::READ.union(Access::WRITE);
pub(super) const READ: u64 = 1;
pub(super) const WRITE: u64 = 2;
pub(super) const LENGTH_256: u64 = 8 << 56;

/// A guest with its unit, and the real one.
pub(super) struct Machine {
    pub(super) memory: Memory,
    pub(super) page: Page,
    pub(super) words: &'static [AtomicU32; 4096],
    pub(super) device: Viommu,
    pub(super) unit: AmdVi,
    pub(super) real: Unit,
    pub(super) next_table: u64,
    /// The command buffer: where, and how many bytes.
    pub(super) buffer: (u64, u64),
    pub(super) tail: u64,
    pub(super) number: u64,
    pub(super) reroutes: u32,
}

impl Machine {
    pub(super) fn new(most: usize) -> Self {
        let words: Box<[AtomicU32; 4096]> = Box::new([const { AtomicU32::new(0) }; 4096]);
        let words: &'static _ = Box::leak(words);
        let device = Viommu::new(narrowed(shape()), 0);
        let mut unit = AmdVi::new(&device);
        let page = Page::new(false, words);
        unit.reset(&device, Registers::new(&page));
        Machine {
            memory: Memory::new(&[(LOW.guest, LOW.len), (HIGH.guest, HIGH.len)], 0),
            page,
            words,
            device,
            unit,
            real: Unit::new(most),
            next_table: TABLES,
            buffer: (COMMANDS, 4096),
            tail: 0,
            number: 0,
            reroutes: 0,
        }
    }

    /// One that translates: the device of each endpoint is in a domain of its own, with tables of
    /// four levels.
    pub(super) fn on(most: usize) -> (Self, [u64; 3]) {
        let mut machine = Machine::new(most);
        let roots = [(); 3].map(|()| machine.table());
        for (endpoint, root) in roots.into_iter().enumerate() {
            machine.set_device(endpoint, translated(root, 4, endpoint as u64 + 1));
        }
        machine.write64(at::DEVICE_TABLE, DEVICES);
        machine.write64(at::COMMANDS, COMMANDS | LENGTH_256);
        machine.write64(at::EVENTS, LOG | LENGTH_256);
        machine.write64(CONTROL, ENABLE | LOGS | FETCHES);
        machine.run();
        machine.reroutes = 0;
        (machine, roots)
    }

    pub(super) fn window(&self) -> Window {
        self.memory.window()
    }

    pub(super) fn put(&self, at: u64, word: u64) {
        let _ = self.window().write(at, &word.to_le_bytes());
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.window().read(at, &mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    pub(super) fn set_device(&self, endpoint: usize, [low, high]: [u64; 2]) {
        let at = DEVICES + 32 * u64::from(ENDPOINTS[endpoint]);
        self.put(at, low);
        self.put(at + 8, high);
    }

    pub(super) fn table(&mut self) -> u64 {
        self.next_table += PAGE;
        assert!(self.next_table < LOW.len);
        self.next_table - PAGE
    }

    pub(super) fn registers(&self) -> Registers<'_> {
        Registers::new(&self.page)
    }

    /// A write that exits.
    pub(super) fn write64(&self, at: usize, value: u64) {
        self.registers().write(at as u64, 8, value);
    }

    /// A store that doesn't.
    pub(super) fn store(&self, at: usize, word: u32) {
        self.words[at / 4].store(word, Relaxed);
    }

    pub(super) fn read(&self, at: usize) -> u32 {
        self.registers().get(at)
    }

    pub(super) fn step(&mut self) -> Step {
        let (page, window) = (Registers::new(&self.page), self.memory.window());
        self.unit.step(page, &window, (&mut self.device, &mut self.real))
    }

    /// Steps until there is nothing to do; routes are followed.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.registers().is_news() {
                return;
            }
            if self.step() == Step::Reroute {
                self.reroutes += 1;
                self.unit.rerouted();
            }
        }
        panic!("it never ends");
    }

    pub(super) fn interrupt(&mut self) -> Option<Notice> {
        let page = Registers::new(&self.page);
        self.unit.take_interrupt(page)
    }

    pub(super) fn tries(&mut self, endpoint: usize, is_write: bool, address: u64) {
        let fault = Fault { endpoint, is_write, address };
        let (page, window) = (Registers::new(&self.page), self.memory.window());
        self.unit.record(&self.device, page, &window, fault);
    }

    /// Puts a command into the buffer, without a word to the unit.
    pub(super) fn push(&mut self, command: [u64; 2]) {
        let at = self.buffer.0 + self.tail;
        self.put(at, command[0]);
        self.put(at + 8, command[1]);
        self.tail = (self.tail + 16) % self.buffer.1;
    }

    /// Has the unit do commands, and one behind them that writes a word. Did it?
    pub(super) fn ask(&mut self, all: &[[u64; 2]]) -> bool {
        all.iter().for_each(|command| self.push(*command));
        self.number += 1;
        self.push([1 << 60 | WORD | 1, self.number]);
        self.write64(at::COMMAND_TAIL, self.tail);
        self.run();
        self.get(WORD) == self.number
    }

    /// The place of the entry of this address in a table of `level`, below tables of four levels.
    pub(super) fn entry(&mut self, root: u64, at: u64, level: u32) -> u64 {
        self.entry_of(root, 4, at, level)
    }

    pub(super) fn entry_of(&mut self, root: u64, mode: u32, at: u64, level: u32) -> u64 {
        let mut to = root;
        for level in (level + 1..=mode).rev() {
            let entry = to + at / (PAGE << (9 * (level - 1))) % 512 * 8;
            let word = self.get(entry);
            if word & 1 == 0 || word >> 9 & 7 != u64::from(level - 1) {
                let new = self.table();
                self.put(entry, table(new, u64::from(level - 1), READ | WRITE));
            }
            to = self.get(entry) & 0x000F_FFFF_FFFF_F000;
        }
        to + at / (PAGE << (9 * (level - 1))) % 512 * 8
    }

    pub(super) fn map(&mut self, root: u64, at: u64, to: u64, rights: u64) {
        let entry = self.entry(root, at, 1);
        self.put(entry, leaf(to, 0, rights));
    }

    pub(super) fn unmap(&mut self, root: u64, at: u64) {
        let entry = self.entry(root, at, 1);
        self.put(entry, 0);
    }

    /// What a domain maps by the manual, page by page of the whole tree: of its root, mode, rights.
    pub(super) fn model(&self, root: u64, mode: u32, rights: u64) -> Pages {
        let mut pages = Pages::new();
        self.collect(root, mode, (0, rights), &mut pages);
        pages
    }

    fn collect(&self, table: u64, level: u32, (at, rights): (u64, u64), into: &mut Pages) {
        let size = 1_u64 << (12 + 9 * (level - 1));
        for n in 0..512 {
            let word = self.get(table + 8 * n);
            let (rights, at) = (rights & word >> 61, at.saturating_add(n.saturating_mul(size)));
            let (to, next) = (word & 0x000F_FFFF_FFFF_F000, (word >> 9 & 7) as u32);
            if word & 1 == 0 || rights == 0 || at > self.device.shape().last {
                continue;
            }
            if (1..=6).contains(&next) {
                // Skipped levels translate to the same addresses: their bits are 0.
                if next < level {
                    self.collect(to, next, (at, rights), into);
                }
                continue;
            }
            let mut bytes = size;
            if next == 7 {
                bytes = 0x2000;
                while to & bytes >> 1 != 0 {
                    bytes <<= 1;
                }
            }
            if bytes < size {
                continue;
            }
            // Page by page, but none if a part of the entry is elsewhere.
            let first = (to & !(bytes - 1)) + at % bytes;
            let run = [LOW, HIGH]
                .into_iter()
                .find(|run| first >= run.guest && first - run.guest + size <= run.len);
            let Some(run) = run else { continue };
            let taken = |first: u64, last: u64| at <= last && first < at + size;
            if taken(0xFEE0_0000, 0xFEEF_FFFF) || taken(0xFD_0000_0000, 0xFF_FFFF_FFFF) {
                continue;
            }
            let mut access = Access::empty();
            access.set(Access::READ, rights & READ != 0);
            access.set(Access::WRITE, rights & WRITE != 0);
            for page in (0..size).step_by(PAGE as usize) {
                into.insert(at + page, (run.host + first - run.guest + page, access));
            }
        }
    }

    pub(super) fn place(&self, endpoint: usize) -> usize {
        match self.real.reach[endpoint] {
            Reach::Domain(place) => place,
            other => panic!("endpoint {endpoint} reaches {other:?}"),
        }
    }

    pub(super) fn mapped(&self, endpoint: usize) -> Pages {
        self.real.places[self.place(endpoint)].clone()
    }
}

/// The half of a device's entry that has tables.
pub(super) fn translated(root: u64, mode: u64, id: u64) -> [u64; 2] {
    [root | 3 | mode << 9 | 3 << 61, id]
}

/// An entry that leads to a table.
pub(super) fn table(to: u64, level: u64, rights: u64) -> u64 {
    to | 1 | level << 9 | rights << 61
}

/// One that leads to memory: of the size of its level (0), or by its address (7).
pub(super) fn leaf(to: u64, kind: u64, rights: u64) -> u64 {
    table(to, kind, rights)
}

pub(super) fn pages(id: u64, at: u64, order: u32) -> [u64; 2] {
    let several = if order == 0 { 0 } else { 1 | ((1 << (order - 1)) - 1) << 12 };
    [3 << 60 | id << 32, at & !((PAGE << order) - 1) | several]
}

pub(super) fn domain(id: u64) -> [u64; 2] {
    [3 << 60 | id << 32, 0x7FFF_FFFF_FFFF_F003]
}

pub(super) fn device(endpoint: usize) -> [u64; 2] {
    [2 << 60 | u64::from(ENDPOINTS[endpoint]), 0]
}

pub(super) const ALL: [u64; 2] = [8 << 60, 0];
