//! A guest with its unit and the real one, and a model of what its tables map.

use super::super::at::{COMMAND, QUEUE, QUEUE_TAIL, QUEUED, ROOT, SET_ROOT, STATUS, TRANSLATES};
use super::super::*;
use crate::tests::model::{ENDPOINTS, HIGH, LOW, Pages, Unit, shape};
use crate::{PAGE, Reach};
use paging::Access;
use std::sync::atomic::AtomicU32;
use window::Memory;

pub(super) const ROOT_TABLE: u64 = 0x1000;
pub(super) const CONTEXT_TABLE: u64 = 0x2000;
pub(super) const QUEUE_PAGE: u64 = 0x3000;
pub(super) const STATUS_WORD: u64 = 0x4000;
pub(super) const ENTRIES: u64 = 0x5000;
/// Where tables of the second level are made from.
pub(super) const TABLES: u64 = 0x10_0000;
pub(super) const BOTH: Access = Access::READ.union(Access::WRITE);

/// A guest with its unit, and the real one.
pub(super) struct Machine {
    pub(super) memory: Memory,
    pub(super) page: Box<Page>,
    pub(super) device: Viommu,
    pub(super) vtd: Vtd,
    pub(super) unit: Unit,
    pub(super) next_table: u64,
    pub(super) tail: u32,
    pub(super) reroutes: u32,
}

impl Machine {
    pub(super) fn new(most: usize) -> Self {
        Machine::waiting(most, 0)
    }

    /// One whose unmappings wait for so long.
    pub(super) fn waiting(most: usize, longest: u64) -> Self {
        let page: Box<Page> = Box::new([const { AtomicU32::new(0) }; 1024]);
        let device = Viommu::new(Shape { reserved: &[MESSAGES], ..shape() }, longest);
        let vtd = Vtd::new(&device);
        let runs = [(LOW.guest, LOW.len), (HIGH.guest, HIGH.len)];
        let memory = Memory::new(&runs, 0);
        Registers::new(&page).reset(4);
        let unit = Unit::new(most);
        Machine { memory, page, device, vtd, unit, next_table: TABLES, tail: 0, reroutes: 0 }
    }

    /// One whose guest has switched all of it on, with endpoint `i` in domain `i + 1`.
    pub(super) fn on(most: usize) -> (Self, [u64; 3]) {
        Machine::new(most).switched_on()
    }

    pub(super) fn switched_on(self) -> (Self, [u64; 3]) {
        let mut machine = self;
        let roots = [(); 3].map(|()| machine.table());
        for (i, root) in roots.into_iter().enumerate() {
            machine.set_context(i, root | 1, (i as u64 + 1) << 8 | 2);
        }
        machine.put(ROOT_TABLE, CONTEXT_TABLE | 1);
        machine.write64(ROOT, ROOT_TABLE);
        machine.command(SET_ROOT);
        machine.write64(QUEUE, QUEUE_PAGE);
        machine.command(QUEUED);
        machine.command(QUEUED | TRANSLATES);
        (machine, roots)
    }

    pub(super) fn window(&self) -> Window {
        self.memory.window()
    }

    pub(super) fn put(&self, at: u64, word: u64) {
        self.window().write(at, &word.to_le_bytes()).unwrap();
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.window().read(at, &mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    pub(super) fn set_context(&self, endpoint: usize, low: u64, high: u64) {
        let at = CONTEXT_TABLE + 16 * u64::from(ENDPOINTS[endpoint]);
        self.put(at, low);
        self.put(at + 8, high);
    }

    pub(super) fn table(&mut self) -> u64 {
        self.next_table += PAGE;
        self.next_table - PAGE
    }

    pub(super) fn registers(&self) -> Registers<'_> {
        Registers::new(&self.page)
    }

    pub(super) fn write64(&self, at: usize, value: u64) {
        self.registers().write(at as u64, 8, value);
    }

    pub(super) fn read(&self, at: usize) -> u32 {
        self.registers().get(at)
    }

    pub(super) fn step(&mut self) -> Step {
        let (page, window) = (Registers::new(&self.page), self.memory.window());
        self.vtd.step(page, &window, (&mut self.device, &mut self.unit))
    }

    /// Steps until there is nothing to do; routes are followed.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.registers().is_news() {
                return;
            }
            if self.step() == Step::Reroute {
                self.reroutes += 1;
                self.vtd.rerouted();
            }
        }
        panic!("it never ends");
    }

    pub(super) fn command(&mut self, command: u32) {
        self.registers().write(COMMAND as u64, 4, command.into());
        self.run();
        assert_eq!(self.read(STATUS), command);
    }

    /// Puts descriptors into the queue, and one behind them that writes a word.
    pub(super) fn ask(&mut self, all: &[[u64; 2]]) -> u32 {
        self.tail = queue(self.tail, all, |at, word| self.put(at, word));
        self.put(STATUS_WORD, 0);
        self.registers().write(QUEUE_TAIL as u64, 4, self.tail.into());
        self.run();
        self.get(STATUS_WORD) as u32
    }

    /// The place in the table of the last level but `above` levels that is of this address.
    pub(super) fn entry(&mut self, root: u64, at: u64, above: u32) -> u64 {
        let mut table = root;
        for level in (1 + above..4).rev() {
            let entry = table + at / (PAGE << (9 * level)) % 512 * 8;
            if self.get(entry) & 3 == 0 {
                let new = self.table();
                self.put(entry, new | 3);
            }
            table = self.get(entry) & !0xFFF;
        }
        table + at / (PAGE << (9 * above)) % 512 * 8
    }

    pub(super) fn map(&mut self, root: u64, at: u64, word: u64) {
        let entry = self.entry(root, at, 0);
        self.put(entry, word);
    }

    /// What a domain maps by the manual: the whole tree.
    pub(super) fn model(&self, root: u64) -> Pages {
        let mut pages = Pages::new();
        self.collect(root, 3, 0, 3, &mut pages);
        pages
    }

    pub(super) fn collect(&self, table: u64, level: u32, at: u64, rights: u64, into: &mut Pages) {
        let size = PAGE << (9 * level);
        for n in 0..512 {
            let word = self.get(table + 8 * n);
            let (rights, at, to) = (rights & word & 3, at + n * size, word & !0xFFF);
            let large = word & 1 << 7 != 0;
            if rights == 0 || level == 2 && large {
                continue;
            }
            if level > 0 && !(level == 1 && large) {
                self.collect(to, level - 1, at, rights, into);
                continue;
            }
            let to = to & !(size - 1);
            let inside = |run: &crate::Region| {
                (to >= run.guest && to - run.guest + size <= run.len)
                    .then(|| run.host + to - run.guest)
            };
            let Some(host) = [LOW, HIGH].iter().find_map(inside) else { continue };
            if at >> 20 == 0xFEE || (0xFEE0_0000..0xFEF0_0000).contains(&at) {
                continue;
            }
            let mut access = Access::empty();
            access.set(Access::READ, rights & 1 != 0);
            access.set(Access::WRITE, rights & 2 != 0);
            for page in (0..size).step_by(PAGE as usize) {
                into.insert(at + page, (host + page, access));
            }
        }
    }

    pub(super) fn place(&self, endpoint: usize) -> usize {
        match self.unit.reach[endpoint] {
            Reach::Domain(place) => place,
            other => panic!("endpoint {endpoint} reaches {other:?}"),
        }
    }

    pub(super) fn mapped(&self, endpoint: usize) -> Pages {
        self.unit.places[self.place(endpoint)].clone()
    }
}

/// Puts descriptors into the queue, and one behind them that writes a word; the tail then.
pub(super) fn queue(tail: u32, all: &[[u64; 2]], put: impl Fn(u64, u64)) -> u32 {
    let wait = [5 | 1 << 5 | 0x77 << 32, STATUS_WORD];
    all.iter().chain([&wait]).fold(tail, |tail, descriptor| {
        let at = QUEUE_PAGE + u64::from(tail);
        put(at, descriptor[0]);
        put(at + 8, descriptor[1]);
        (tail + 16) % 4096
    })
}

pub(super) fn pages(id: u16, at: u64, order: u64) -> [u64; 2] {
    [2 | 3 << 4 | u64::from(id) << 16, at | order]
}

pub(super) fn domain(id: u16) -> [u64; 2] {
    [2 | 2 << 4 | u64::from(id) << 16, 0]
}

pub(super) const ALL: [u64; 2] = [2 | 1 << 4, 0];
pub(super) const CONTEXTS: [u64; 2] = [1 | 1 << 4, 0];
pub(super) const INTERRUPTS: [u64; 2] = [4, 0];
