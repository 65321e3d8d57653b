//! A unit and its memory for tests, of the least obliging kind that the manual allows: it caches at
//! once all it may cache, that something isn't there too, and keeps it until told otherwise; what
//! it is told between two waits it does late and in the opposite order; it answers late, doesn't
//! see what isn't written back where it doesn't snoop, and panics when the driver breaks the
//! protocol, or opens a window through which a device could reach something.

mod commands;

use crate::amdvi::device;
use crate::amdvi::interrupt;
use crate::amdvi::registers::*;
use crate::{Bdf, Domain, InterruptRoute};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// QEMU 10.0's, with `xtsup=on`: 6 levels, 128-bit entries, all at once.
pub const FEATURES: u64 = 0x29D7;

pub const FIRST_FRAME: u64 = 0x10_0000;
/// Control bits that say how tables are read.
const MODE: u64 = WIDE_ENTRIES | X2APIC | SEGMENTS | ROUTING;
/// Every bit that a driver of this kind may write.
const KNOWN: u64 = MODE
    | RUNNING
    | EVENT_INTERRUPT
    | PASS_PW
    | RESPONSE_PASS_PW
    | ISOCHRONOUS
    | COHERENT
    | HT_TUNNEL
    | ENABLE
    | X2APIC_OWN;
const RUNNING: u64 = COMMAND_BUFFER | EVENT_LOG;

/// A command the unit has carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Device(u16),
    AllPages(u16),
    /// Of a domain, from a page on, so many.
    Pages(u16, u64, u64),
    Interrupts(u16),
    All,
}

type Entry = [u64; 4];

#[derive(Default)]
pub struct State {
    pub efr: u64,
    pub control: u64,
    /// Control bits that the unit doesn't have.
    pub lacks: u64,
    pub device_table: u64,
    pub exclusion: (u64, u64),
    pub xt_interrupt: u64,
    pub command_base: u64,
    pub command_head: u64,
    pub command_tail: u64,
    pub event_base: u64,
    pub event_head: u64,
    pub event_tail: u64,
    /// The status, but for what runs.
    pub sticky: u64,
    /// What runs, and will in so many reads.
    pub runs: u64,
    pending: Option<(u64, u32)>,
    /// Run bits that never change.
    pub deaf_to: u64,
    delay: u32,
    /// Commands are never looked at.
    pub queue_deaf: bool,
    /// The next command is refused, with this code.
    pub refuses: Option<u8>,
    /// After one that is refused, it goes on.
    pub goes_on: bool,
    /// Commands that were fetched since the last wait.
    fetched: Vec<(u64, u64)>,
    pub frames_left: u64,
    /// Memory as the CPU sees it, and as the unit does, from [`FIRST_FRAME`] on.
    pub cpu: Vec<u64>,
    ram: Vec<u64>,
    /// What it has cached: device-table entries, interrupt entries by id and index, domains of
    /// which something is, and some pages.
    entries: BTreeMap<u16, BTreeSet<Entry>>,
    /// The ids among them by which something translates, or is remapped by the table in a frame.
    translating: BTreeSet<u16>,
    remapping: BTreeMap<u64, BTreeSet<u16>>,
    irtes: BTreeMap<(u16, u16), BTreeSet<(u64, u64)>>,
    domains: BTreeSet<u16>,
    pub pages: BTreeSet<(u16, u64)>,
    /// Domains and routes that the unit has ever gone by.
    pub domains_seen: Vec<(u16, Domain)>,
    pub routes_seen: Vec<(u16, u16, InterruptRoute)>,
    pub done: Vec<Done>,
    /// Values of the control register.
    pub controls: Vec<u64>,
    /// Interrupts sent for events.
    pub interrupts: u32,
}

#[derive(Clone)]
pub struct Model(Rc<RefCell<State>>);

impl Model {
    pub fn new(efr: u64) -> Self {
        let state = State { efr, frames_left: 1 << 20, ..State::default() };
        Model(Rc::new(RefCell::new(state)))
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    /// What the unit would do with DMA by this id now, straight from the tables.
    pub fn domain(&self, id: u16) -> Option<Domain> {
        self.with(|state| state.entry(id)).and_then(|[a, b, ..]| device::domain((a, b)))
    }

    /// And with an interrupt.
    pub fn route(&self, id: u16, index: u16) -> Option<InterruptRoute> {
        let entry = self.with(|state| {
            let table = remaps_by(&state.entry(id)?)?;
            Some(state.pair(table + u64::from(index) * 16))
        });
        interrupt::decode(Bdf::from_requester_id(id), entry?)
    }

    /// Nothing under way, and nothing cached that differs from the tables.
    pub fn assert_settled(&self) {
        self.with(|state| {
            assert!(state.pending.is_none(), "a control bit wasn't waited for");
            assert_eq!(state.command_head, state.command_tail, "commands weren't waited for");
            assert_eq!(state.fetched, [], "commands weren't waited for");
            for (id, cached) in &state.entries {
                let now = state.entry(*id).expect("a table");
                assert!(cached.iter().all(|old| *old == now), "entry of {id:#x} is stale");
            }
            for ((id, index), cached) in &state.irtes {
                let now = state.irte(*id, *index).unwrap_or_default();
                let same = cached.iter().all(|old| *old == normal(now));
                assert!(same, "interrupt entry {index} of {id:#x} is stale");
            }
            let ids = state.entries.keys();
            let now: BTreeSet<u16> =
                ids.filter_map(|id| state.entry(*id)).filter_map(tag).collect();
            assert!(state.domains.is_subset(&now), "translations of a gone domain are cached");
        });
    }
}

/// All entries that are disabled are alike.
fn normal((low, high): (u64, u64)) -> (u64, u64) {
    if interrupt::is_enabled(low) { (low, high) } else { (0, 0) }
}

/// The domain by which an entry translates.
fn tag([low, high, ..]: Entry) -> Option<u16> {
    device::domain((low, high)).map(|domain| domain.id.0)
}

/// Where the interrupts of an entry are looked up.
fn remaps_by([.., low, _]: &Entry) -> Option<u64> {
    (low >> 60 & 3 == 2).then_some(low & 0x000F_FFFF_FFFF_FFC0)
}

impl State {
    pub fn coherent(&self) -> bool {
        self.control & COHERENT != 0
    }

    /// Is this the driver's, and the device table?
    fn has_table(&self) -> bool {
        self.device_table >= FIRST_FRAME
    }

    pub fn ram(&self, pa: u64) -> u64 {
        let at = pa.checked_sub(FIRST_FRAME).map(|offset| self.ram.get(offset as usize / 8));
        *at.flatten().unwrap_or_else(|| panic!("the unit reads {pa:#x}, not its memory"))
    }

    fn pair(&self, pa: u64) -> (u64, u64) {
        (self.ram(pa), self.ram(pa + 8))
    }

    fn entry(&self, id: u16) -> Option<Entry> {
        let at = (self.device_table & !0xFFF) + u64::from(id) * 32;
        self.has_table().then(|| [0, 8, 16, 24].map(|offset| self.ram(at + offset)))
    }

    fn irte(&self, id: u16, index: u16) -> Option<(u64, u64)> {
        let table = remaps_by(&self.entry(id)?)?;
        Some(self.pair(table + u64::from(index) * 16))
    }

    /// Memory as the unit sees it changes; what it saw before and sees now, it caches.
    pub fn set_ram(&mut self, pa: u64, words: &[u64]) {
        let (first, last) = (pa & !15, pa + 8 * words.len() as u64);
        let watched = self.control & ENABLE != 0 && words.len() <= 2;
        if watched {
            (first..last).step_by(16).for_each(|pa| self.cache_around(pa));
        }
        let at = (pa - FIRST_FRAME) as usize / 8;
        self.ram[at..at + words.len()].copy_from_slice(words);
        if watched {
            (first..last).step_by(16).for_each(|pa| self.cache_around(pa));
        }
    }

    pub fn is_watched(&self, pa: u64) -> bool {
        let table = self.device_table & !0xFFF;
        let in_table = self.has_table() && (table..table + (2 << 20)).contains(&pa);
        let used = || self.remapping.contains_key(&(pa & !0xFFF));
        self.control & ENABLE != 0 && (in_table || used())
    }

    fn cache_around(&mut self, pa: u64) {
        let table = self.device_table & !0xFFF;
        if self.has_table() && (table..table + (2 << 20)).contains(&pa) {
            self.cache_entry(((pa - table) / 32) as u16);
        }
        for id in self.remapping.get(&(pa & !0xFFF)).cloned().unwrap_or_default() {
            self.cache_irte(id, ((pa & 0xFFF) / 16) as u16, self.pair(pa & !15));
        }
    }

    fn cache_entry(&mut self, id: u16) {
        let Some(entry) = self.entry(id) else { return };
        confined(id, &entry);
        if let Some(domain) = device::domain((entry[0], entry[1])) {
            self.domains_seen.push((id, domain));
        }
        self.cache(id, entry);
    }

    fn cache(&mut self, id: u16, entry: Entry) {
        if let Some(domain) = tag(entry) {
            self.domains.insert(domain);
            self.translating.insert(id);
        }
        if let Some(table) = remaps_by(&entry) {
            self.remapping.entry(table).or_default().insert(id);
        }
        self.entries.entry(id).or_default().insert(entry);
    }

    /// Forgets the entries of an id.
    fn forget(&mut self, id: u16) {
        self.entries.remove(&id);
        self.translating.remove(&id);
        self.remapping.values_mut().for_each(|ids| {
            ids.remove(&id);
        });
    }

    fn cache_irte(&mut self, id: u16, index: u16, entry: (u64, u64)) {
        if interrupt::is_enabled(entry.0) {
            let route = interrupt::decode(Bdf::from_requester_id(id), entry);
            self.routes_seen.push((id, index, route.expect("a whole entry")));
        }
        self.irtes.entry((id, index)).or_default().insert(normal(entry));
    }

    /// All that the unit may read from its tables denies.
    fn assert_denies(&self) {
        assert_eq!(self.device_table & 0xFFF, 0x1FF, "not for all devices");
        let [first, _, interrupts, _] = self.entry(0).expect("a table");
        let empty = first & 0x000F_FFFF_FFFF_F000;
        assert!(
            (empty..empty + 0x1000).step_by(8).all(|at| self.ram(at) == 0),
            "tables with pages"
        );
        for id in 0..=u16::MAX {
            let entry = self.entry(id).expect("a table");
            confined(id, &entry);
            let denied = (empty | 4 << 9 | 3, 0, 0);
            assert_eq!((entry[0], entry[1], entry[3]), denied, "{id:#x} isn't denied");
            assert_eq!(entry[2], interrupts);
        }
        assert_eq!(self.exclusion.0 & 3, 0, "an exclusion range");
    }

    pub fn write_control(&mut self, value: u64) {
        let (value, old) = (value & !self.lacks, self.control);
        assert!(value & ENABLE != 0 || old & ENABLE == 0, "switched off: devices reach everything");
        let begins = value & ENABLE != 0 && old & ENABLE == 0;
        if begins || value & ENABLE != 0 && (value ^ old) & (MODE | COHERENT) != 0 {
            self.assert_denies();
            let denied = self.entry(0).expect("a table")[0];
            let is_stale = |e: &Entry| e[0] != denied || e[2] >> 60 & 3 == 2;
            let stale = self.entries.values().flatten().any(is_stale);
            assert!(begins || !stale && self.domains.is_empty(), "tables in use change their kind");
            assert!(begins || self.irtes.is_empty(), "tables in use change their kind");
        }
        assert_eq!(value & !(KNOWN | old), 0, "unknown bits in {value:#x}");
        self.control = value;
        self.controls.push(value);
        let on = value & ENABLE != 0;
        let runs = |bit, run| if on && value & bit != 0 { run } else { 0 };
        let runs = runs(COMMAND_BUFFER, COMMAND_RUN) | runs(EVENT_LOG, EVENT_RUN);
        if runs != self.runs {
            self.pending = Some((runs, 3));
        }
    }

    pub fn status(&mut self) -> u64 {
        match &mut self.pending {
            Some((runs, _)) if (*runs ^ self.runs) & self.deaf_to != 0 => {}
            Some((runs, 0)) => {
                self.runs = *runs;
                self.pending = None;
            }
            Some((_, reads)) => *reads -= 1,
            None => {}
        }
        self.work();
        self.sticky | self.runs
    }

    /// It is asked so many times.
    pub fn answer(&mut self, times: u32) {
        for _ in 0..times {
            self.status();
        }
    }

    /// The unit writes.
    fn put(&mut self, pa: u64, value: u64) {
        let at = (pa - FIRST_FRAME) as usize / 8;
        (self.ram[at], self.cpu[at]) = (value, value);
    }

    /// Logs an event.
    pub fn log(&mut self, low: u64, high: u64) {
        if self.runs & EVENT_RUN == 0 || self.sticky & EVENT_OVERFLOW != 0 {
            return;
        }
        let next = (self.event_tail + 16) % 0x1000;
        if next == self.event_head {
            self.sticky |= EVENT_OVERFLOW;
            self.runs &= !EVENT_RUN;
        } else {
            let at = (self.event_base & !(LENGTH_256 | 0xFFF)) + self.event_tail;
            self.put(at + 8, high);
            self.put(at, low);
            self.event_tail = next;
        }
        if self.sticky & EVENT_ARRIVED == 0 && self.control & EVENT_INTERRUPT != 0 {
            self.interrupts += 1;
        }
        self.sticky |= EVENT_ARRIVED;
    }

    /// Zeroed frames in a row. Zeroes that are still in the CPU's caches aren't what the unit sees.
    pub fn allocate(&mut self, frames: u64) -> Option<u64> {
        self.frames_left = self.frames_left.checked_sub(frames)?;
        let start = FIRST_FRAME + 8 * self.cpu.len() as u64;
        let words = self.cpu.len() + frames as usize * 512;
        self.cpu.resize(words, 0);
        self.ram.resize(words, if self.coherent() { 0 } else { u64::MAX });
        Some(start)
    }

    /// As firmware left it: on, by tables of its own, of which it has cached something.
    pub fn left_on(&mut self, control: u64) {
        self.control = control | ENABLE | RUNNING;
        self.runs = COMMAND_RUN | EVENT_RUN;
        self.device_table = 0x8000 | 0x1FF;
        // The last to be named by who names all, of a domain that is among the first.
        let entry = [0x6000_0000_0000_9603, 1, 1 | 2 << 60 | 0xA000, 0];
        self.cache(0xFFFE, entry);
        self.irtes.insert((0xFFFE, 1), [(1, 0x31)].into());
        self.exclusion = (0xB003, 0xC000);
        (self.command_head, self.command_tail) = (0x40, 0x40);
        self.sticky = EVENT_ARRIVED | EVENT_OVERFLOW;
    }
}

/// V, TV and IV are set, there are tables (QEMU lets pass what has none), and nothing is set that
/// this driver never asks for.
fn confined(id: u16, entry: &Entry) {
    let [a, b, c, d] = *entry;
    let tables = a >> 9 & 7 != 0;
    assert_eq!((a & 3, tables, c & 1), (3, true, 1), "{id:#x} passes: {a:#x} {b:#x} {c:#x} {d:#x}");
    assert_eq!((a & 0x9FF0_0000_0000_01FC, b >> 16, d), (0, 0, 0), "{id:#x}: {a:#x} {b:#x}");
    let kinds = [0, 1 << 60, 2 << 60 | 8 << 1];
    assert!(kinds.contains(&(c & !0x000F_FFFF_FFFF_F001)), "{id:#x}: {c:#x}");
}
