//! A guest's unit on the real unit's tables, with devices that touch all they reach and a unit that
//! caches all of it, the way to each table too.

use super::super::at::{
    ADDRESS, COMMAND, QUEUE, QUEUE_TAIL, QUEUED, ROOT, SET_ROOT, TLB, TRANSLATES,
};
use super::super::*;
use super::machine::{QUEUE_PAGE, ROOT_TABLE, STATUS_WORD, TABLES, queue};
use crate::tests::model::{ENDPOINTS, HIGH, LOW};
use crate::{Acting, Change, Domains, Hardware, PAGE, Region};
use paging::{Dma, PageSize, VtdSecondLevel};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use window::Memory;

const MEMORY: (u16, u64) = (1, 0xABC000);
const FIRST_ID: u16 = 7;
/// Where a page leads, and how.
pub(super) type To = (u64, u8);

/// What units have cached, by their domain ids.
#[derive(Default)]
pub(super) struct Cache {
    pages: BTreeMap<(u16, u64), BTreeSet<To>>,
    /// Frame of a table, and what it translates.
    tables: BTreeSet<(u16, u64, u64, u64)>,
}

impl Cache {
    fn forget(&mut self, id: u16, (first, bytes): (u64, u64)) {
        let last = first + (bytes - 1);
        self.pages.retain(|(of, page), _| *of != id || *page < first || *page > last);
        self.tables.retain(|(of, _, at, size)| *of != id || *at > last || at + size - 1 < first);
    }

    fn forget_all(&mut self, id: u16) {
        self.pages.retain(|(of, _), _| *of != id);
        self.tables.retain(|(of, ..)| *of != id);
    }
}

pub(super) struct Frames {
    words: HashMap<u64, Box<[u64; 512]>>,
    pub(super) free: Vec<u64>,
    cache: Rc<RefCell<Cache>>,
}

impl paging::Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        self.words[&(pa & !0xFFF)][(pa >> 3 & 511) as usize]
    }

    fn write(&mut self, pa: u64, value: u64) {
        self.words.get_mut(&(pa & !0xFFF)).unwrap()[(pa >> 3 & 511) as usize] = value;
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        let cache = self.cache.borrow();
        assert!(!cache.tables.iter().any(|(_, of, ..)| *of == frame), "a unit may still walk it");
        self.words.insert(frame, Box::new([0; 512]));
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        self.words.remove(&frame).expect("a table's frame");
        self.free.push(frame);
    }
}

pub(super) struct Units {
    pub(super) led: [Option<(u16, u64)>; 3],
    cache: Rc<RefCell<Cache>>,
    /// How often they were waited for.
    pub(super) waits: u64,
}

impl Hardware for Units {
    fn lead(&mut self, endpoint: usize, to: Option<(u16, u64)>) -> bool {
        if let Some((id, _)) = self.led[endpoint] {
            self.cache.borrow_mut().forget_all(id);
        }
        self.led[endpoint] = to;
        self.waits += 1;
        true
    }

    fn flush(&mut self, id: u16, range: (u64, u64), added: bool) -> bool {
        assert!(range.1 > 0);
        // Those that don't cache absence aren't told of what is added.
        if !added {
            self.cache.borrow_mut().forget(id, range);
            self.waits += 1;
        }
        true
    }
}

pub(super) struct Real {
    pub(super) memory: Memory,
    pub(super) page: Box<Page>,
    pub(super) device: Viommu,
    pub(super) vtd: Vtd,
    pub(super) domains: Domains,
    pub(super) frames: Frames,
    pub(super) units: Units,
    pub(super) cache: Rc<RefCell<Cache>>,
    pub(super) next_table: u64,
    pub(super) tail: u32,
    pub(super) now: u64,
    /// The most of one step: words, and waits for the unit.
    pub(super) worst: (u64, u64),
    /// All of them.
    pub(super) sum: (u64, u64, u64),
}

/// Address, bytes, where and how.
type Leaf = (u64, u64, To);
/// A table, and of which address and how many bytes it is.
type Range = (u64, u64, u64);

impl Real {
    pub(super) fn new(frames: u64, largest: PageSize, longest: u64) -> Real {
        let cache = Rc::new(RefCell::new(Cache::default()));
        let free = (1..=frames + 3).map(|n| n << 12).collect();
        let mut frames = Frames { words: HashMap::new(), free, cache: cache.clone() };
        let how = (Dma::Vtd(VtdSecondLevel::FourLevels), largest);
        let domains = Domains::new(&mut frames, how, 3, MEMORY, FIRST_ID).unwrap();
        let count = frames.free.len() as u64;
        let device = Viommu::new(narrowed(domains.shape(&ENDPOINTS, &[LOW, HIGH], count)), longest);
        let vtd = Vtd::new(&device);
        let page: Box<Page> = Box::new([const { AtomicU32::new(0) }; 1024]);
        Registers::new(&page).reset(4);
        let memory = Memory::new(&[(LOW.guest, LOW.len), (HIGH.guest, HIGH.len)], 0);
        let units = Units { led: [Some(MEMORY); 3], cache: cache.clone(), waits: 0 };
        Real {
            memory,
            page,
            device,
            vtd,
            domains,
            frames,
            units,
            cache,
            next_table: TABLES,
            tail: 0,
            now: 0,
            worst: (0, 0),
            sum: (0, 0, 0),
        }
    }

    /// Outside of its memory a guest's store goes nowhere: what it takes for a table may be there.
    pub(super) fn put(&self, at: u64, word: u64) {
        let _ = self.memory.window().write(at, &word.to_le_bytes());
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.window().read(at, &mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    pub(super) fn registers(&self) -> Registers<'_> {
        Registers::new(&self.page)
    }

    pub(super) fn table(&mut self) -> u64 {
        self.next_table += PAGE;
        assert!(self.next_table < LOW.len);
        self.next_table - PAGE
    }

    pub(super) fn change(&mut self, what: Change) {
        let mut acting = Acting {
            domains: &mut self.domains,
            memory: &mut self.frames,
            hardware: &mut self.units,
        };
        self.device.change(&mut acting, what);
        if what == Change::Restart {
            self.vtd.reset(&self.device, Registers::new(&self.page));
            self.tail = 0;
        }
    }

    pub(super) fn step(&mut self) -> Step {
        let waits = self.units.waits;
        let mut acting = Acting {
            domains: &mut self.domains,
            memory: &mut self.frames,
            hardware: &mut self.units,
        };
        let (page, window) = (Registers::new(&self.page), self.memory.window());
        let step = self.vtd.step(page, &window, (&mut self.device, &mut acting));
        let words = self.vtd.take_words() + self.domains.take_words();
        let waits = self.units.waits - waits;
        self.worst = (self.worst.0.max(words), self.worst.1.max(waits));
        let done = u64::from(self.vtd.take_finished());
        self.sum = (self.sum.0 + words, self.sum.1 + waits, self.sum.2 + done);
        step
    }

    /// Steps until nothing is left.
    pub(super) fn run(&mut self) {
        self.device.set_time(self.now);
        for _ in 0..100_000 {
            if !self.registers().is_news() {
                return;
            }
            if self.step() == Step::Reroute {
                self.vtd.rerouted();
            }
        }
        panic!("it never ends");
    }

    pub(super) fn command(&mut self, command: u32) {
        self.registers().write(COMMAND as u64, 4, command.into());
        self.run();
    }

    pub(super) fn set_root(&mut self, root: u64, rest: u32) {
        self.registers().write(ROOT as u64, 8, root);
        self.command(SET_ROOT | rest);
    }

    pub(super) fn switch_on(&mut self) {
        self.set_root(ROOT_TABLE, 0);
        self.registers().write(QUEUE as u64, 8, QUEUE_PAGE);
        self.command(QUEUED);
        self.tail = 0;
        self.command(QUEUED | TRANSLATES);
    }

    /// Has the queue do this, with a wait behind it. False: it stopped.
    pub(super) fn ask(&mut self, all: &[[u64; 2]]) -> bool {
        self.tail = queue(self.tail, all, |at, word| self.put(at, word));
        self.put(STATUS_WORD, 0);
        self.registers().write(QUEUE_TAIL as u64, 4, self.tail.into());
        self.run();
        self.get(STATUS_WORD) == 0x77
    }

    /// The same of mappings, by the register.
    pub(super) fn ask_register(&mut self, granularity: u64, id: u16, pages: u64) {
        self.registers().write(ADDRESS as u64, 8, pages);
        let word = 1 << 63 | granularity << 60 | u64::from(id) << 32;
        self.registers().write(TLB as u64, 8, word);
        self.run();
    }

    /// As a sidecore does, until nothing is due.
    pub(super) fn pass_time(&mut self, ticks: u64) {
        self.now += ticks;
        self.device.set_time(self.now);
        for _ in 0..=crate::MOST / 16 {
            let waits = self.units.waits;
            let mut acting = Acting {
                domains: &mut self.domains,
                memory: &mut self.frames,
                hardware: &mut self.units,
            };
            self.device.tear_down(&mut acting);
            assert!(self.units.waits - waits <= 16);
        }
        self.domains.take_words();
        assert!(self.device.due().is_none_or(|due| due > self.now));
    }

    /// All leaves of a table of the real unit: address, bytes, where and how; and the tables.
    fn leaves(&self, root: u64) -> (Vec<Leaf>, Vec<Range>) {
        let (mut leaves, mut tables) = (Vec::new(), Vec::new());
        let mut todo = vec![(root, 3_u32, 0_u64, 3_u64)];
        while let Some((table, level, base, rights)) = todo.pop() {
            tables.push((table, base, PAGE << (9 * level) << 9));
            for (n, word) in self.frames.words[&table].iter().enumerate() {
                let size = PAGE << (9 * level);
                let (at, rights) = (base + n as u64 * size, rights & word);
                let to = word & 0x000F_FFFF_FFFF_F000;
                if word & 3 == 0 {
                } else if level == 0 || word & 1 << 7 != 0 {
                    leaves.push((at, size, (to, rights as u8 & 3)));
                } else {
                    todo.push((to, level - 1, at, rights));
                }
            }
        }
        (leaves, tables)
    }

    /// Devices touch all that they reach.
    pub(super) fn touch(&mut self) {
        for (id, root) in self.units.led.into_iter().flatten().filter(|to| *to != MEMORY) {
            let (leaves, tables) = self.leaves(root);
            let mut cache = self.cache.borrow_mut();
            for (at, size, (to, rights)) in leaves {
                for page in (0..size).step_by(PAGE as usize) {
                    cache.pages.entry((id, at + page)).or_default().insert((to + page, rights));
                }
            }
            cache.tables.extend(tables.into_iter().map(|(frame, at, size)| (id, frame, at, size)));
        }
    }

    /// What a device reaches by the tables, and by what is cached.
    pub(super) fn reached(
        &self,
        endpoint: usize,
    ) -> (BTreeMap<u64, To>, BTreeMap<u64, BTreeSet<To>>) {
        let Some((id, root)) = self.units.led[endpoint].filter(|to| *to != MEMORY) else {
            return Default::default();
        };
        let mut by_tables = BTreeMap::new();
        for (at, size, (to, rights)) in self.leaves(root).0 {
            for page in (0..size).step_by(PAGE as usize) {
                by_tables.insert(at + page, (to + page, rights));
            }
        }
        let cache = self.cache.borrow();
        let cached = cache.pages.range((id, 0)..=(id, u64::MAX));
        (by_tables, cached.map(|((_, page), to)| (*page, to.clone())).collect())
    }

    /// What the guest's tables say of an address, by the manual; in the machine's memory.
    pub(super) fn lookup(&self, root: u64, at: u64) -> Option<To> {
        let (mut table, mut rights) = (root, 3);
        for level in (0..4_u32).rev() {
            let size = PAGE << (9 * level);
            let word = self.get(table + at / size % 512 * 8);
            rights &= word & 3;
            let large = level > 0 && word & 1 << 7 != 0;
            let to = word & 0x000F_FFFF_FFFF_F000;
            if rights == 0 || large && level == 2 {
                return None;
            }
            if level == 0 || large {
                let (first, to) = (at & !(size - 1), to & !(size - 1));
                let overlaps = |r: &&Region| to >= r.guest && to - r.guest + size <= r.len;
                let run = [LOW, HIGH].iter().find(overlaps).copied()?;
                if first <= 0xFEEF_FFFF && first + size > 0xFEE0_0000 {
                    return None;
                }
                return Some((run.host + (to - run.guest) + (at - first), rights as u8));
            }
            table = to;
        }
        None
    }

    /// The place of the entry of this address at a level, with tables down to it.
    pub(super) fn entry(&mut self, root: u64, at: u64, stop: u32) -> u64 {
        let mut table = root;
        for level in (stop + 1..4).rev() {
            let entry = table + at / (PAGE << (9 * level)) % 512 * 8;
            let word = self.get(entry);
            if word & 3 == 0 || word & 1 << 7 != 0 {
                let new = self.table();
                self.put(entry, new | 3);
            }
            table = self.get(entry) & !0xFFF;
        }
        table + at / (PAGE << (9 * stop)) % 512 * 8
    }
}

pub(super) fn inside(to: u64) -> bool {
    [LOW, HIGH].iter().any(|r| (r.host..r.host + r.len).contains(&to))
}
