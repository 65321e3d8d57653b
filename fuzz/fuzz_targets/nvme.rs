//! A controller that may be hostile: any answers to Identify, any words of the memory that it
//! shares with the driver changed at any time, any values of its registers, completions in any
//! order and of nobody. The driver must not panic, loop or wait; each operation ends once, and in
//! bounded time all have.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use arbitrary::Arbitrary;
use blk::{Backend, Failure, Operation, Submitted, Token};
use libfuzzer_sys::fuzz_target;
use nvme_disks::{Controller, MEMORY, Part, Registers, State, Times};
use window::{Memory, Span};

const GUEST: u64 = 1 << 18;
const DRIVER: u64 = 1 << 30;
const DMA: u64 = 1 << 40;
const TIMES: Times = Times { half_second: 4, command: 40, look: 4, shutdown: 30 };

#[derive(Arbitrary, Debug)]
struct Input {
    cap: u64,
    /// Else CAP is one that the driver takes.
    any_cap: bool,
    told: Vec<(u16, u8)>,
    block: u8,
    size: u32,
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Ask {
        kind: u8,
        disk: u8,
        sector: u64,
        near: bool,
        spans: Vec<(u16, u16)>,
    },
    /// The controller writes anything into the driver's memory.
    Poke {
        at: u32,
        value: u64,
    },
    /// A completion with the phase that the driver waits for, mostly.
    Complete {
        admin: bool,
        id: u16,
        known: bool,
        queue: u16,
        status: u16,
    },
    Status(u32),
    Steps(u8),
    CutOff,
}

/// What registers read as.
#[derive(Default)]
struct Register {
    cap: u64,
    status: u32,
    /// Status follows CC.EN.
    honest: bool,
    enabled: bool,
}

struct Fake(Rc<RefCell<Register>>);

impl Registers for Fake {
    fn read32(&mut self, _: u32) -> u32 {
        let state = self.0.borrow();
        if state.honest { u32::from(state.enabled) } else { state.status }
    }

    fn read64(&mut self, _: u32) -> u64 {
        self.0.borrow().cap
    }

    fn write32(&mut self, offset: u32, value: u32) {
        if offset == 0x14 {
            self.0.borrow_mut().enabled = value & 1 != 0;
        }
    }

    fn write64(&mut self, _: u32, _: u64) {}
}

/// Where the driver has its rings, as its sizes give it: for answers that hit.
const ADMIN_COMPLETIONS: u64 = 4096;
const DATA: u64 = 2 * 4096;
const SUBMISSIONS: u64 = 3 * 4096;
const COMPLETIONS: u64 = 7 * 4096;

struct Ring {
    at: u64,
    entries: u64,
    next: u64,
    phase: u64,
}

impl Ring {
    fn new(at: u64, entries: u64) -> Self {
        Self { at, entries, next: 0, phase: 1 }
    }

    fn write(&mut self, driver: &Span, id: u16, queue: u16, status: u16) {
        let word = u64::from(status & 0x7FFF) << 49
            | self.phase << 48
            | u64::from(id) << 32
            | u64::from(queue) << 16;
        driver.store_u64(self.at + self.next * 16 + 8, word).unwrap();
        self.next += 1;
        if self.next == self.entries {
            (self.next, self.phase) = (0, self.phase ^ 1);
        }
    }
}

fuzz_target!(|input: Input| {
    let memory = Memory::new(&[(0, GUEST), (DRIVER, MEMORY.next_multiple_of(4096))], DMA);
    let window = memory.window();
    let driver = window.span(DRIVER, MEMORY).unwrap();
    let cap = if input.any_cap { input.cap } else { 0x7FF | 2 << 24 | 1 << 37 };
    let state = Rc::new(RefCell::new(Register { cap, honest: true, ..Register::default() }));
    let mut controller = Controller::new(Fake(state.clone()), driver, TIMES, 0).unwrap();
    let mut now = 0;
    let (mut admin, mut io) = (Ring::new(ADMIN_COMPLETIONS, 64), Ring::new(COMPLETIONS, 256));
    // A start by an honest register, with any data.
    for id in 0..9u16 {
        for _ in 0..2 {
            now += 1;
            controller.step(now);
            assert!(controller.poll().is_none());
        }
        if id > 0 {
            let page = driver.sub(DATA, 4096).unwrap();
            let put = |at: u64, bytes: &[u8]| page.write(at, bytes).unwrap();
            match id {
                1 => {
                    put(512, &[0x66, 0x44]);
                    put(520, &[0x0c, 0]);
                    put(525, &[1]);
                    put(82, &[2]);
                }
                2 => put(0, &[1]),
                3 => {
                    put(0, &u64::from(input.size).to_le_bytes());
                    put(130, &[9 + input.block % 4]);
                }
                _ => {}
            }
            for (at, byte) in input.told.iter().filter(|(at, _)| at >> 12 == id) {
                put((at & 0xFFF).into(), &[*byte]);
            }
            admin.write(&driver, id, 0, 0);
        }
    }
    let mut disks = 0;
    if let Some(namespace) = controller.namespace().copied() {
        let half = (namespace.bytes() / 2) & !4095;
        for first in [0, half] {
            disks += u16::from(controller.add_disk(Part { first, bytes: half }).is_ok());
        }
    }
    let mut waiting: Vec<u64> = Vec::new();
    let mut number = 0;
    let ended = |controller: &mut Controller<Fake>, waiting: &mut Vec<u64>| {
        for _ in 0..300 {
            let Some((disk, completion)) = controller.poll() else { break };
            assert!(disk < disks);
            let bits = completion.token.bits();
            let place = waiting.iter().position(|other| *other == bits);
            waiting.swap_remove(place.expect("it waits"));
        }
    };
    for action in input.actions.into_iter().take(200) {
        match action {
            Action::Ask { kind, disk, sector, near, spans } => {
                let sector = if near { sector % 64 } else { sector };
                let spans: Vec<Span> = spans
                    .iter()
                    .take(130)
                    .filter_map(|(at, len)| {
                        window.span(u64::from(*at) * 4 + u64::from(*len & 1), (*len).into())
                    })
                    .collect();
                let sectors = spans.first().map_or(1, Span::len);
                let operation = match kind % 5 {
                    0 => Operation::Read { sector, into: &spans },
                    1 => Operation::Write { sector, from: &spans, durable: kind > 99 },
                    2 => Operation::Flush,
                    3 => Operation::Discard { sector, sectors },
                    _ => Operation::WriteZeroes { sector, sectors, unmap: true, durable: true },
                };
                number += 1;
                let mut backend = controller.disk(u16::from(disk % 3));
                match backend.submit(Token::from_bits(number), operation) {
                    Submitted::Accepted => waiting.push(number),
                    Submitted::Done(Err(Failure::Io | Failure::Unsupported)) | Submitted::Full => {}
                    Submitted::Done(Ok(())) => assert!(kind % 5 == 2),
                }
            }
            Action::Poke { at, value } => {
                let _ = driver.store_u64(u64::from(at) % MEMORY & !7, value);
            }
            Action::Complete { admin: true, id, queue, status, .. } => {
                admin.write(&driver, id, queue, status);
            }
            Action::Complete { id, known, queue, status, .. } => {
                let (id, queue, status) = if known {
                    let at = SUBMISSIONS + u64::from(id % 256) * 64;
                    ((driver.load_u32(at).unwrap() >> 16) as u16, 1, status % 2)
                } else {
                    (id, queue, status)
                };
                io.write(&driver, id, queue, status);
            }
            Action::Status(status) => {
                let mut state = state.borrow_mut();
                (state.status, state.honest) = (status, status % 3 == 0);
            }
            Action::Steps(count) => {
                for _ in 0..count % 64 {
                    now += 1;
                    controller.step(now);
                    ended(&mut controller, &mut waiting);
                }
            }
            Action::CutOff => controller.cut_off(),
        }
        now += 1;
        controller.step(now);
        ended(&mut controller, &mut waiting);
    }
    // Whatever it does: in bounded time all has ended.
    for _ in 0..2000 {
        now += 1;
        controller.step(now);
        if matches!(controller.state(), State::Unstopped(_)) {
            controller.cut_off();
        }
        ended(&mut controller, &mut waiting);
        if waiting.is_empty() && controller.state() != State::Starting {
            break;
        }
    }
    assert!(waiting.is_empty(), "{waiting:?} {:?}", controller.state());
    assert_eq!(0, controller.under_way());
    // And it is shut down, or can't be.
    let over = (0..2000).any(|_| {
        now += 1;
        controller.step(now);
        ended(&mut controller, &mut waiting);
        if matches!(controller.state(), State::Unstopped(_)) {
            controller.cut_off();
        }
        controller.shut_down()
    });
    assert!(over, "{:?}", controller.state());
});
