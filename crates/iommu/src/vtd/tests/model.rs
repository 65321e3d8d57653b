//! A unit and its memory for tests, of the least obliging kind that the specification allows: it
//! caches at once all it may cache and keeps it until told otherwise, answers late, doesn't see
//! what isn't written back where it doesn't snoop, and panics when the driver breaks the protocol.

use crate::vtd::capabilities::Capabilities;
use crate::vtd::context;
use crate::vtd::interrupt;
use crate::vtd::registers::*;
use crate::{Domain, InterruptRoute};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// QEMU 10.0's, with `intremap=on,eim=on`.
pub const CAP: u64 = 0xD2_008C_222F_0606;
pub const ECAP: u64 = 0xF0_0F5A;

const KEPT: u32 = TE | EAFL | QIE | IRE | CFI;
const FIRST_FRAME: u64 = 0x10_0000;
/// An entry of somebody else's tables: present, of domain 0xFFFF.
const STALE: (u64, u64) = (1, 0xFFFF02);

/// A descriptor the unit has carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    ContextGlobal,
    ContextDevice { domain: u16, source: u16 },
    IotlbGlobal,
    IotlbDomain(u16),
    IotlbPages { domain: u16, address: u64, order: u8 },
    InterruptGlobal,
    InterruptEntry(u16),
}

#[derive(Default)]
pub struct State {
    pub ver: u32,
    pub cap: u64,
    pub ecap: u64,
    pub gsts: u32,
    pub pmen: u32,
    pub fsts: u32,
    pub fectl: u32,
    pub fedata: u32,
    pub feaddr: u32,
    pub feuaddr: u32,
    pub records: Vec<(u64, u64)>,
    pub rtaddr: u64,
    pub iqa: u64,
    pub iqh: u64,
    pub iqt: u64,
    pub irta: u64,
    /// The value GSTS will have, and how many reads until then.
    pending: Option<(u32, u32)>,
    queue_delay: u32,
    /// Bits of GCMD that are never answered.
    pub deaf_to: u32,
    /// Descriptors are never looked at.
    pub queue_deaf: bool,
    /// The next descriptor is refused.
    pub queue_fails: bool,
    /// How many more waits are dropped because a device times out.
    pub times_out: u32,
    /// A device completes invalidations all the while that nobody asked it for.
    pub completes: bool,
    /// Which devices ICE and ITE are about.
    pub iqercd: u64,
    pub frames_left: u64,
    pub next_frame: u64,
    /// Memory as the CPU sees it, and as the unit does.
    pub cpu: HashMap<u64, u64>,
    pub ram: HashMap<u64, u64>,
    /// The bus that each context table is for.
    context_tables: HashMap<u64, u16>,
    contexts: BTreeMap<u16, BTreeSet<(u64, u64)>>,
    domains: BTreeSet<u16>,
    irtes: BTreeMap<u16, BTreeSet<(u64, u64)>>,
    /// Routes of present entries that the unit has ever seen.
    pub routes_seen: Vec<(u16, InterruptRoute)>,
    pub done: Vec<Done>,
    pub commands: Vec<u32>,
}

#[derive(Clone)]
pub struct Model(Rc<RefCell<State>>);

impl Model {
    pub fn new(cap: u64, ecap: u64) -> Self {
        let state = State {
            ver: 0x10,
            cap,
            ecap,
            frames_left: 1 << 20,
            next_frame: FIRST_FRAME,
            records: vec![(0, 0); (cap >> 40 & 0xFF) as usize + 1],
            ..State::default()
        };
        Model(Rc::new(RefCell::new(state)))
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    /// What the unit would do with the device's DMA now, straight from the tables.
    pub fn context(&self, source: u16) -> Option<Domain> {
        self.with(|state| {
            state.context(source).and_then(|(low, high)| context::decode((low, high)))
        })
    }

    pub fn irte(&self, index: u16) -> Option<InterruptRoute> {
        self.with(|state| state.irte(index)).and_then(|(low, high)| interrupt::decode(low, high))
    }

    /// Nothing under way, and nothing cached that differs from the tables.
    pub fn assert_settled(&self) {
        self.with(|state| {
            assert_eq!(state.pending, None, "a command wasn't waited for");
            assert_eq!(state.iqh, state.iqt, "an invalidation wasn't waited for");
            for (source, cached) in &state.contexts {
                let now = normal(state.context(*source).unwrap_or((0, 0)));
                assert!(cached.iter().all(|old| *old == now), "context of {source:#x} is stale");
            }
            for (index, cached) in &state.irtes {
                let now = normal(state.irte(*index).unwrap_or((0, 0)));
                assert!(cached.iter().all(|old| *old == now), "IRTE {index} is stale");
            }
            let attached: BTreeSet<u16> = (state.contexts.keys())
                .filter_map(|source| state.context(*source))
                .filter_map(|(low, high)| context::decode((low, high)))
                .map(|context| context.id.0)
                .collect();
            assert!(state.domains.is_subset(&attached), "translations of a gone domain are cached");
        });
    }
}

/// All entries that aren't present are alike.
fn normal((low, high): (u64, u64)) -> (u64, u64) {
    if low & 1 == 0 { (0, 0) } else { (low, high) }
}

impl State {
    fn caching_mode(&self) -> bool {
        self.cap >> 7 & 1 != 0
    }

    pub fn coherent(&self) -> bool {
        self.ecap & 1 != 0
    }

    fn ram(&self, pa: u64) -> u64 {
        *self.ram.get(&pa).unwrap_or_else(|| panic!("the unit reads {pa:#x}, not its memory"))
    }

    fn pair(&self, pa: u64) -> (u64, u64) {
        (self.ram(pa), self.ram(pa + 8))
    }

    fn context(&self, source: u16) -> Option<(u64, u64)> {
        let root = self.ram(self.rtaddr + u64::from(source >> 8) * 16);
        (root & 1 != 0).then(|| self.pair((root & !0xFFF) + u64::from(source & 0xFF) * 16))
    }

    fn irte(&self, index: u16) -> Option<(u64, u64)> {
        let entries = 2u32 << (self.irta & 0xF);
        (u32::from(index) < entries)
            .then(|| self.pair((self.irta & !0xFFF) + u64::from(index) * 16))
    }

    /// Memory as the unit sees it changes; what it saw before and sees now, it caches.
    pub fn set_ram(&mut self, pa: u64, value: u64) {
        self.cache_around(pa);
        self.ram.insert(pa, value);
        if pa & !0xFFF == self.rtaddr && value & 1 != 0 {
            self.context_tables.insert(value & !0xFFF, ((pa & 0xFFF) / 16) as u16);
        }
        self.cache_around(pa);
    }

    fn cache_around(&mut self, pa: u64) {
        if self.gsts & TE != 0 {
            if pa & !0xFFF == self.rtaddr {
                let bus = ((pa & 0xFFF) / 16) as u16;
                (0..256).for_each(|devfn| self.cache_context(bus << 8 | devfn));
            }
            if let Some(bus) = self.context_tables.get(&(pa & !0xFFF)) {
                self.cache_context(bus << 8 | ((pa & 0xFFF) / 16) as u16);
            }
        }
        let table = self.irta & !0xFFF;
        let bytes = 32u64 << (self.irta & 0xF);
        if self.gsts & IRE != 0 && (table..table + bytes).contains(&pa) {
            self.cache_irte(((pa - table) / 16) as u16);
        }
    }

    fn cache_context(&mut self, source: u16) {
        let entry = normal(self.context(source).unwrap_or((0, 0)));
        if let Some(context) = context::decode(entry) {
            self.domains.insert(context.id.0);
        } else if !self.caching_mode() {
            return;
        }
        self.contexts.entry(source).or_default().insert(entry);
    }

    fn cache_irte(&mut self, index: u16) {
        let entry = normal(self.irte(index).expect("an index of the table"));
        if entry.0 & 1 != 0 {
            let route = interrupt::decode(entry.0, entry.1).expect("a whole entry");
            self.routes_seen.push((index, route));
        } else if !self.caching_mode() {
            return;
        }
        self.irtes.entry(index).or_default().insert(entry);
    }

    pub fn command(&mut self, value: u32) {
        assert_eq!(self.pending, None, "a command while another is under way");
        assert_eq!(value & !(KEPT | SRTP | SIRTP), 0, "unknown bits in {value:#x}");
        let changed = (value ^ self.gsts) & KEPT | value & (SRTP | SIRTP);
        assert_eq!(changed.count_ones(), 1, "one bit at a time: {value:#x} on {:#x}", self.gsts);
        match changed {
            TE if value & TE != 0 => {
                assert!(self.gsts & SRTP != 0);
                assert!(self.done.contains(&Done::ContextGlobal), "no context invalidation");
                let iotlb = self.done.iter().position(|done| *done == Done::IotlbGlobal);
                let context = self.done.iter().position(|done| *done == Done::ContextGlobal);
                assert!(context < iotlb, "the IOTLB comes after the contexts");
            }
            IRE if value & IRE != 0 => {
                assert!(self.gsts & SIRTP != 0 && self.gsts & CFI == 0 && self.irta & EIME != 0);
                assert!(self.done.contains(&Done::InterruptGlobal), "no entry invalidation");
            }
            QIE => {
                let halted = self.fsts & (IQE | ITE) != 0;
                assert!(self.iqh == self.iqt || halted, "queue switched while not empty");
                self.iqh = 0;
            }
            // What it had cached by the old tables is cached yet.
            SRTP if self.gsts & TE != 0 => {
                self.contexts.entry(0xFFFF).or_default().insert(STALE);
                self.domains.extend([0xFFFF]);
            }
            SIRTP if self.gsts & IRE != 0 => {
                self.irtes.entry(0).or_default().insert(STALE);
            }
            _ => {}
        }
        self.commands.push(changed);
        self.gsts &= !(value & (SRTP | SIRTP));
        let once = self.gsts & (SRTP | SIRTP) | value & (SRTP | SIRTP);
        self.pending = Some((value & KEPT | once, 3));
    }

    pub fn status(&mut self) -> u32 {
        match &mut self.pending {
            Some((value, _)) if (*value ^ self.gsts) & self.deaf_to != 0 => {}
            Some((value, 0)) => {
                self.gsts = *value;
                self.pending = None;
            }
            Some((_, reads)) => *reads -= 1,
            None => {}
        }
        self.gsts
    }

    /// Each time it is asked, the unit comes a little nearer to looking at its queue.
    pub fn work(&mut self) {
        if self.completes {
            self.fsts |= ICE;
        }
        if self.gsts & QIE == 0 || self.queue_deaf || self.iqh == self.iqt {
            return;
        }
        self.queue_delay += 1;
        if !self.queue_delay.is_multiple_of(3) {
            return;
        }
        if self.queue_fails {
            self.fsts |= IQE;
        }
        while self.iqh != self.iqt && self.fsts & (IQE | ITE) == 0 {
            let (low, high) = self.pair((self.iqa & !0xFFF) + self.iqh);
            self.carry_out(low, high);
            self.iqh = (self.iqh + 16) % 0x1000;
        }
    }

    fn carry_out(&mut self, low: u64, high: u64) {
        let domain = (low >> 16) as u16;
        let granularity = low >> 4 & 3;
        let none = |bits: u64| assert_eq!(bits, 0, "reserved bits in {low:#x} {high:#x}");
        let done = match (low & 0xF, granularity) {
            (1, 1) => {
                none(low & !0x3F | high);
                self.contexts.clear();
                Done::ContextGlobal
            }
            (1, 3) => {
                none(low & !0xFFFF_FFFF_003F | high);
                let source = (low >> 32) as u16;
                if let Some(cached) = self.contexts.get_mut(&source) {
                    let tag = |entry: &(u64, u64)| context::decode(*entry);
                    cached.retain(|entry| tag(entry).map_or(0, |c| c.id.0) != domain);
                }
                self.cache_context(source);
                Done::ContextDevice { domain, source }
            }
            (2, 1) => {
                none(low & !0xFF | high);
                self.domains.clear();
                Done::IotlbGlobal
            }
            (2, 2) => {
                none(low & !0xFFFF_00FF | high);
                self.domains.remove(&domain);
                Done::IotlbDomain(domain)
            }
            (2, 3) => {
                none(low & !0xFFFF_00FF | high & 0xFC0);
                let (address, order) = (high & !0xFFF, (high & 0x3F) as u8);
                assert!(u64::from(order) <= self.cap >> 48 & 0x3F && self.cap >> 39 & 1 != 0);
                none(address & ((1 << (12 + order)) - 1));
                Done::IotlbPages { domain, address, order }
            }
            (4, 0) => {
                none(low & !0xF | high);
                self.irtes.clear();
                Done::InterruptGlobal
            }
            (4, 1) => {
                none(low & !0xFFFF_0000_001F | high);
                let index = (low >> 32) as u16;
                self.irtes.remove(&index);
                self.cache_irte(index);
                Done::InterruptEntry(index)
            }
            (5, 2) if self.times_out > 0 => {
                self.times_out -= 1;
                self.fsts |= ITE;
                return;
            }
            (5, 2) => {
                none(low & !0xFFFF_FFFF_003F | high & 3);
                assert_ne!(high & !0xFFF, self.iqa & !0xFFF, "its status is among descriptors");
                self.ram.insert(high, low >> 32);
                self.cpu.insert(high, low >> 32);
                return;
            }
            _ => panic!("no such descriptor: {low:#x} {high:#x}"),
        };
        // What contexts are cached may be translated by at any moment.
        let entries = self.contexts.values().flatten();
        let contexts = entries.filter_map(|entry| context::decode(*entry));
        self.domains.extend(contexts.map(|domain| domain.id.0));
        self.done.push(done);
    }
}

/// Capabilities as the driver reads them from a model.
pub fn capabilities(cap: u64, ecap: u64) -> Capabilities {
    crate::vtd::probe(&mut Model::new(cap, ecap), crate::Remapping::On)
        .expect("a unit that is good enough")
}
