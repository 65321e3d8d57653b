//! A controller in a `Vec`: it carries commands out by the specification, in any order, and badly
//! where a test says so. It checks what the driver must keep: entries, identifiers, addresses.
#![allow(dead_code, reason = "each test uses some of it")]

use std::cell::RefCell;
use std::rc::Rc;

use blk::{Completion, Token};
use nvme::{Controller, MEMORY, Registers, State, Times};
use window::{Memory, Window};

/// What devices have memory at, above its guest address.
pub const DMA: u64 = 0x40_0000_0000;
/// Where the driver's memory is; the guests' begins at 0.
pub const DRIVER: u64 = 1 << 30;
/// Bytes of the guests' memory.
pub const GUEST: u64 = 4 << 20;
pub const TIMES: Times = Times { half_second: 100, command: 1000, look: 10, shutdown: 500 };

/// What is wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Ills {
    pub never_ready: bool,
    pub never_stops: bool,
    pub fatal: bool,
    pub gone: bool,
    pub deaf_to_admin: bool,
    pub never_shut_down: bool,
    /// These bytes of what Identify (by CNS) tells are others.
    pub told: Vec<(u32, usize, u8)>,
    /// Admin commands with this opcode fail.
    pub fails_admin: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Pending {
    words: [u64; 8],
    pub id: u16,
}

impl Pending {
    pub fn opcode(&self) -> u8 {
        self.words[0] as u8
    }

    fn dword(&self, number: usize) -> u32 {
        (self.words[number / 2] >> (number % 2 * 32)) as u32
    }

    /// Blocks of a read, a write or Write Zeroes.
    pub fn blocks(&self) -> (u64, u64) {
        (self.words[5], u64::from(self.dword(12) as u16) + 1)
    }

    pub fn is_durable(&self) -> bool {
        self.dword(12) >> 30 & 1 != 0
    }
}

#[derive(Default)]
struct Ring {
    submissions: u64,
    completions: u64,
    entries: u16,
    head: u16,
    tail: u16,
    next: u16,
    wraps: bool,
}

pub struct Model {
    pub window: Window,
    pub cap: u64,
    cc: u32,
    ready: bool,
    asq: u64,
    acq: u64,
    aqa: u32,
    admin: Ring,
    io: Ring,
    pub shift: u32,
    pub mdts: u8,
    pub cache: bool,
    pub disk: Vec<u8>,
    pub ills: Ills,
    /// I/O commands that were fetched and not completed.
    pub pending: Vec<Pending>,
    /// Blocks that were touched at all, for tests of parts.
    pub touched: Vec<(u64, u64)>,
    pub flushes: u32,
    pub durable: u32,
    pub masked: u32,
    pub starts: u32,
}

impl Model {
    pub fn new(window: Window, disk: usize, shift: u32) -> Self {
        Self {
            window,
            // 256 entries and more, TO of 1 second, the NVM command set.
            cap: 0x7FF | 1 << 16 | 2 << 24 | 1 << 37,
            cc: 1,
            ready: true,
            asq: 0,
            acq: 0,
            aqa: 0,
            admin: Ring::default(),
            io: Ring::default(),
            shift,
            mdts: 0,
            cache: true,
            disk: vec![0; disk],
            ills: Ills::default(),
            pending: Vec::new(),
            touched: Vec::new(),
            flushes: 0,
            durable: 0,
            masked: 0,
            starts: 0,
        }
    }

    fn configure(&mut self, value: u32) {
        let was = self.cc & 1 != 0;
        self.cc = value;
        if value & 1 == 0 {
            if was {
                // What was under way is forgotten.
                self.pending.clear();
            }
            self.ready &= self.ills.never_stops;
            return;
        }
        if value >> 14 & 3 != 0 {
            assert!(was && self.pending.is_empty(), "shut down amid commands");
            return;
        }
        assert!(!was, "it is on already");
        assert_eq!(0x46_0000, value & !1, "entry sizes, page size, command set, arbitration");
        assert_eq!(u32::MAX, self.masked, "interrupts aren't masked");
        assert_eq!(0, (self.asq | self.acq) % 4096);
        let entries = (self.aqa as u16) + 1;
        assert_eq!(self.aqa >> 16, u32::from(entries) - 1);
        self.admin =
            Ring { submissions: self.asq, completions: self.acq, entries, ..Ring::default() };
        self.io = Ring::default();
        self.ready = !self.ills.never_ready;
        self.starts += 1;
    }

    fn doorbell(&mut self, number: u32, value: u16) {
        let ring = if number < 2 { &mut self.admin } else { &mut self.io };
        assert!(value < ring.entries, "queue {} of {} entries: {value}", number / 2, ring.entries);
        if number.is_multiple_of(2) {
            ring.tail = value;
        }
    }

    fn fetch(&mut self, admin: bool) -> Option<Pending> {
        let ring = if admin { &mut self.admin } else { &mut self.io };
        if ring.head == ring.tail {
            return None;
        }
        let at = ring.submissions - DMA + u64::from(ring.head) * 64;
        ring.head = (ring.head + 1) % ring.entries;
        let span = self.window.span(at, 64).unwrap();
        let words: [u64; 8] = std::array::from_fn(|i| span.load_u64(i as u64 * 8).unwrap());
        assert_eq!(0, words[0] as u16 >> 8, "neither fused nor SGLs");
        Some(Pending { words, id: (words[0] >> 16) as u16 })
    }

    /// Writes any completion, of a command that is or isn't.
    pub fn write_completion(&mut self, admin: bool, id: u16, queue: u16, code: u16) {
        let ring = if admin { &mut self.admin } else { &mut self.io };
        if ring.entries == 0 {
            return;
        }
        let at = ring.completions - DMA + u64::from(ring.next) * 16;
        let status = u64::from(code << 1 | u16::from(!ring.wraps));
        let word = status << 48 | u64::from(id) << 32 | u64::from(queue) << 16;
        self.window.span(at + 8, 8).unwrap().store_u64(0, word).unwrap();
        ring.next += 1;
        if ring.next == ring.entries {
            (ring.next, ring.wraps) = (0, !ring.wraps);
        }
    }

    /// Fetches all commands; admin commands are carried out, too.
    pub fn run(&mut self) {
        if !self.ready || self.cc & 1 == 0 {
            return;
        }
        while !self.ills.deaf_to_admin
            && let Some(command) = self.fetch(true)
        {
            let code = self.admin_command(&command);
            self.write_completion(true, command.id, 0, code);
        }
        while self.io.entries != 0
            && let Some(command) = self.fetch(false)
        {
            let twice = self.pending.iter().any(|other| other.id == command.id);
            assert!(!twice && command.id != 0xFFFF, "identifier {:#x}", command.id);
            self.pending.push(command);
            assert!(self.pending.len() < self.io.entries.into());
        }
    }

    fn admin_command(&mut self, command: &Pending) -> u16 {
        if self.ills.fails_admin == Some(command.opcode()) {
            return 0x2;
        }
        let (d10, d11) = (command.dword(10), command.dword(11));
        match command.opcode() {
            0x06 => {
                let mut page = self.identify(d10, command.dword(1));
                for (_, at, byte) in self.ills.told.iter().filter(|(cns, ..)| *cns == d10) {
                    page[*at] = *byte;
                }
                self.window.write(command.words[3] - DMA, &page).unwrap();
                if d10 > 2 && d10 != 6 { 0x2 } else { 0 }
            }
            0x09 => match d10 & 0xFF {
                7 => {
                    assert_eq!(0, d11, "one queue");
                    0
                }
                6 if self.cache => 0,
                _ => 2,
            },
            0x05 => {
                assert_eq!(1, d11, "contiguous, no interrupts");
                self.io.completions = command.words[3];
                self.io.entries = (d10 >> 16) as u16 + 1;
                0
            }
            0x01 => {
                assert_eq!((1 << 16 | 1, 1), (d11, d10 & 0xFFFF));
                assert_eq!(self.io.entries - 1, (d10 >> 16) as u16);
                self.io.submissions = command.words[3];
                0
            }
            other => panic!("admin command {other:#x}"),
        }
    }

    fn identify(&self, cns: u32, namespace: u32) -> [u8; 4096] {
        let mut page = [0; 4096];
        match cns {
            0 => {
                assert_eq!(7, namespace);
                let blocks = (self.disk.len() >> self.shift) as u64;
                page[..8].copy_from_slice(&blocks.to_le_bytes());
                page[26] = 2;
                page[33] = 0b1001;
                page[128 + 2 * 4 + 2] = self.shift as u8;
            }
            1 => {
                page[77] = self.mdts;
                page[80..84].copy_from_slice(&0x2_0000u32.to_le_bytes());
                page[111] = 1;
                (page[512], page[513]) = (0x66, 0x44);
                page[520] = 0b1100;
                page[525] = self.cache.into();
            }
            2 => page[0] = 7,
            _ => {}
        }
        page
    }

    /// Carries a pending I/O command out.
    pub fn execute(&mut self, command: &Pending) {
        assert_eq!(7, command.dword(1), "namespace");
        let (first, count) = command.blocks();
        let (at, len) = ((first << self.shift) as usize, (count as usize) << self.shift);
        self.durable += u32::from(command.is_durable() && command.opcode() != 0);
        match command.opcode() {
            0 => self.flushes += 1,
            1 | 2 => {
                self.touched.push((at as u64, (at + len) as u64));
                assert!(self.mdts == 0 || len <= 4096 << self.mdts, "MDTS");
                let mut done = 0;
                for (place, bytes) in self.data(command, len as u64) {
                    let bytes = bytes as usize;
                    let span = self.window.span(place - DMA, bytes as u64).unwrap();
                    let part = &mut self.disk[at + done..][..bytes];
                    if command.opcode() == 1 {
                        span.read(0, part).unwrap();
                    } else {
                        span.write(0, part).unwrap();
                    }
                    done += bytes;
                }
                assert_eq!(len, done);
            }
            8 => {
                self.touched.push((at as u64, (at + len) as u64));
                self.disk[at..at + len].fill(0);
            }
            9 => {
                assert_eq!((0, 4), (command.dword(10), command.dword(11)));
                let range = self.window.span(command.words[3] - DMA, 16).unwrap();
                assert_eq!(0, range.load_u32(0).unwrap());
                let len = u64::from(range.load_u32(4).unwrap()) << self.shift;
                let at = range.load_u64(8).unwrap() << self.shift;
                self.touched.push((at, at + len));
                self.disk[at as usize..(at + len) as usize].fill(0xdd);
            }
            other => panic!("command {other:#x}"),
        }
    }

    /// 4.1.1 of the base specification.
    fn data(&self, command: &Pending, mut bytes: u64) -> Vec<(u64, u64)> {
        let (first, second) = (command.words[3], command.words[4]);
        assert_eq!(0, first % 4);
        let now = bytes.min(4096 - first % 4096);
        let mut found = vec![(first, now)];
        bytes -= now;
        if bytes > 4096 {
            for at in (second..).step_by(8).take(bytes.div_ceil(4096) as usize) {
                assert!(at % 8 == 0 && at % 4096 <= 4088);
                let page = self.window.span(at - DMA, 8).unwrap().load_u64(0).unwrap();
                found.push((page, bytes.min(4096)));
                bytes -= bytes.min(4096);
            }
        } else if bytes > 0 {
            found.push((second, bytes));
        }
        assert!(found[1..].iter().all(|(at, _)| at % 4096 == 0));
        found
    }

    /// Ends one of the pending commands, with this code.
    pub fn end(&mut self, pick: usize, code: u16) -> Option<Pending> {
        if self.pending.is_empty() {
            return None;
        }
        let command = self.pending.remove(pick % self.pending.len());
        if code == 0 {
            self.execute(&command);
        }
        self.write_completion(false, command.id, 1, code);
        Some(command)
    }
}

/// The registers of a model.
#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Model>>);

impl Registers for Shared {
    fn read32(&mut self, offset: u32) -> u32 {
        let model = self.0.borrow();
        match offset {
            _ if model.ills.gone => u32::MAX,
            0x1C => {
                let shut = model.cc >> 14 & 3 == 1 && !model.ills.never_shut_down;
                u32::from(model.ready) | u32::from(model.ills.fatal) << 1 | u32::from(shut) << 3
            }
            _ => panic!("read of {offset:#x}"),
        }
    }

    fn read64(&mut self, offset: u32) -> u64 {
        assert_eq!(0, offset);
        self.0.borrow().cap
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let mut model = self.0.borrow_mut();
        match offset {
            0x0C => model.masked |= value,
            0x14 => model.configure(value),
            0x24 => model.aqa = value,
            0x1000.. => model.doorbell((offset - 0x1000) / 4, value as u16),
            _ => panic!("write of {offset:#x}"),
        }
    }

    fn write64(&mut self, offset: u32, value: u64) {
        let mut model = self.0.borrow_mut();
        match offset {
            0x28 => model.asq = value,
            0x30 => model.acq = value,
            _ => panic!("write of {offset:#x}"),
        }
    }
}

/// A controller, the model behind it, memory.
pub struct World {
    pub memory: Memory,
    pub model: Rc<RefCell<Model>>,
    pub controller: Controller<Shared>,
    pub now: u64,
}

impl World {
    pub fn new(disk: usize, shift: u32, change: impl FnOnce(&mut Model)) -> Self {
        let driver = MEMORY.next_multiple_of(4096);
        let memory = Memory::new(&[(0, GUEST), (DRIVER, driver)], DMA);
        let window = memory.window();
        let mut model = Model::new(window, disk, shift);
        change(&mut model);
        let model = Rc::new(RefCell::new(model));
        let span = window.span(DRIVER, driver).unwrap();
        let controller = Controller::new(Shared(model.clone()), span, TIMES, 0).unwrap();
        Self { memory, model, controller, now: 0 }
    }

    /// One round: the driver, the controller's fetches, the failures of a stop.
    pub fn round(&mut self) -> Vec<(u16, Completion)> {
        self.now += 1;
        self.controller.step(self.now);
        self.model.borrow_mut().run();
        std::iter::from_fn(|| self.controller.poll()).take(1000).collect()
    }

    /// Rounds until it runs or fails.
    pub fn start(&mut self) -> State {
        for _ in 0..20_000 {
            let ended = self.round();
            assert!(ended.is_empty());
            if self.controller.state() != State::Starting {
                break;
            }
        }
        self.controller.state()
    }
}

pub fn token(number: usize) -> Token {
    Token::from_bits(number as u64)
}
