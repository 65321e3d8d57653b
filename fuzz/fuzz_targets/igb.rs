//! A network controller that may be hostile: any values of its registers, any words of the memory
//! that it shares with the driver, at any time. The driver must not panic or loop; a frame that it
//! hands over has a length that a frame may have, and nothing behind it is written.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use arbitrary::Arbitrary;
use igb_driver::{Controller, MEMORY, MOST, QUEUES, REGISTERS, Registers, State, Task};
use libfuzzer_sys::fuzz_target;
use window::Memory;

const OWN: u64 = 0;
const DRIVER: u64 = 1 << 30;
const DMA: u64 = 1 << 40;
/// Behind the frame that is handed over.
const GUARD: u64 = 0xA5A5_A5A5_A5A5_A5A5;
/// From one ring to the next, as the driver's sizes give it: for words that hit.
const RING: u64 = MEMORY / (2 * QUEUES as u64);

#[derive(Arbitrary, Debug)]
struct Input {
    /// It starts as an honest one does.
    honest: bool,
    registers: Vec<u32>,
    actions: Vec<Action>,
}

#[derive(Arbitrary, Debug)]
enum Action {
    /// Anything is written anywhere.
    Poke {
        at: u32,
        value: u64,
    },
    /// A descriptor is written back.
    WriteBack {
        ring: u8,
        entry: u8,
        value: u64,
    },
    Receive(u8),
    Send {
        bytes: u16,
        parted: u16,
        times: u8,
        queue: u32,
        what: What,
    },
    Flush,
    Step(u16),
    Dishonest,
}

/// What is to be done for a frame.
#[derive(Arbitrary, Debug)]
enum What {
    Nothing,
    Checksum { ethernet: u8, start: u16, tcp: bool },
    Segments { ethernet: u8, start: u16, six: bool, headers: u16, size: u16 },
}

impl What {
    fn task(&self) -> Task {
        match *self {
            What::Nothing => Task::Nothing,
            What::Checksum { ethernet, start, tcp } => {
                Task::Checksum { ethernet: ethernet.into(), start, tcp }
            }
            What::Segments { ethernet, start, six, headers, size } => {
                Task::Segments { ethernet: ethernet.into(), start, six, headers, size }
            }
        }
    }
}

/// What registers read as.
struct Fake(Rc<RefCell<(bool, Vec<u32>)>>);

impl Registers for Fake {
    fn read32(&mut self, offset: u32) -> u32 {
        assert!(u64::from(offset) < REGISTERS && offset.is_multiple_of(4));
        let (honest, values) = &mut *self.0.borrow_mut();
        match (*honest, offset) {
            (true, 0) => 0,
            (true, 8) => 2,
            (true, _) => 1 << 25,
            (false, _) => values.pop().unwrap_or(0),
        }
    }

    fn write32(&mut self, offset: u32, _: u32) {
        assert!(u64::from(offset) < REGISTERS && offset.is_multiple_of(4));
    }
}

fuzz_target!(|input: Input| {
    let memory = Memory::new(&[(OWN, 1 << 17), (DRIVER, MEMORY.next_multiple_of(4096))], DMA);
    let window = memory.window();
    let driver = window.span(DRIVER, MEMORY).unwrap();
    let state = Rc::new(RefCell::new((input.honest, input.registers)));
    let mut controller = Controller::new(Fake(state.clone()), driver, 1, 0).unwrap();
    let mut now = 0;
    for _ in 0..20 {
        now += 1;
        controller.step(now);
    }
    assert!(!input.honest || controller.state() == State::Running);
    let into = window.span(OWN, MOST.into()).unwrap();
    let guard = window.span(OWN + u64::from(MOST).next_multiple_of(8), 8).unwrap();
    guard.store_u64(0, GUARD).unwrap();
    let (mut received, mut handed) = (0, 0);
    for action in input.actions {
        match action {
            Action::Poke { at, value } => {
                let at = u64::from(at) * 8 % MEMORY;
                driver.store_u64(at, value).unwrap();
            }
            Action::WriteBack { ring, entry, value } => {
                let at = u64::from(ring) % (2 * QUEUES as u64) * RING + u64::from(entry) * 16 + 8;
                driver.store_u64(at, value).unwrap();
            }
            Action::Receive(times) => {
                for _ in 0..times {
                    let Some(bytes) = controller.receive(&into) else { break };
                    assert!((1..=MOST).contains(&bytes));
                    received += 1;
                }
            }
            Action::Send { bytes, parted, times, queue, what } => {
                let bytes = u64::from(bytes);
                let at = u64::from(parted).min(bytes);
                let parts = [(0, at), (at, bytes - at)]
                    .map(|(at, bytes)| window.span(OWN + at, bytes).unwrap());
                for _ in 0..times {
                    controller.send(queue, &parts, what.task());
                    handed += 1;
                }
            }
            Action::Flush => controller.flush(),
            Action::Step(milliseconds) => {
                now += u64::from(milliseconds);
                controller.step(now);
            }
            Action::Dishonest => state.borrow_mut().0 = false,
        }
        assert_eq!(guard.load_u64(0), Ok(GUARD));
    }
    let statistics = controller.statistics();
    assert_eq!(statistics.received, received);
    assert_eq!(statistics.sent + statistics.unsent, handed);
});
