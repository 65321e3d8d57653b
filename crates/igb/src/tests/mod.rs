//! The driver against a small model of the controller.

mod hangs;
mod model;
mod tasks;

use crate::registers::*;
use crate::ring::{BUFFER, ENTRIES, RING_BYTES};
use crate::{Controller, Fault, LEAST, MEMORY, MOST, QUEUES, State, Task};
use model::{Device, Model};
use proptest::prelude::*;
use window::{Memory, Span};

const BASE: u64 = 1 << 20;
const DMA: u64 = 1 << 40;
/// Where the tests' own frames are.
const OWN: u64 = 1 << 30;

struct Bench {
    memory: Memory,
    device: Device,
    controller: Controller<Device>,
    now: u64,
}

impl Bench {
    fn new(reset_takes: u32, enable_takes: u32) -> Self {
        let memory = Memory::new(&[(BASE, MEMORY), (OWN, 1 << 17)], DMA);
        let device = Device::new(memory.window(), reset_takes, enable_takes);
        let span = memory.window().span(BASE, MEMORY).unwrap();
        let controller = Controller::new(device.clone(), span, 1, 0).unwrap();
        Bench { memory, device, controller, now: 0 }
    }

    fn running() -> Self {
        let mut bench = Bench::new(2, 2);
        bench.steps(30);
        assert_eq!(bench.controller.state(), State::Running);
        assert!(bench.controller.link());
        bench
    }

    fn steps(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += 1;
            self.controller.step(self.now);
        }
    }

    fn own(&self, at: u64, bytes: u64) -> Span {
        self.memory.window().span(OWN + at, bytes).unwrap()
    }

    fn received(&mut self) -> Option<Vec<u8>> {
        let into = self.own(0, MOST.into());
        let bytes = self.controller.receive(&into)?;
        let mut frame = vec![0; bytes as usize];
        into.read(0, &mut frame).unwrap();
        Some(frame)
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        self.send_by(0, frame, Task::Nothing)
    }

    fn send_by(&mut self, queue: u32, frame: &[u8], task: Task) -> bool {
        let span = self.own(4096, frame.len() as u64);
        span.write(0, frame).unwrap();
        self.controller.send(queue, &[span], task)
    }

    fn model(&self) -> std::cell::RefMut<'_, Model> {
        self.device.0.borrow_mut()
    }

    /// The word that was written back for a receive entry.
    fn write_back(&self, entry: u64, word: u64) {
        let at = BASE + entry * 16 + 8;
        self.memory.window().span(at, 8).unwrap().store_u64(0, word).unwrap();
    }
}

#[test]
fn memory_that_does_not_do_is_refused() {
    let memory = Memory::new(&[(BASE, MEMORY + 4096)], DMA);
    let model = Bench::new(0, 0).device;
    let make = |at, bytes| {
        let span = memory.window().span(BASE + at, bytes).unwrap();
        Controller::new(model.clone(), span, 1, 0).is_some()
    };
    assert!(make(0, MEMORY));
    assert!(!make(8, MEMORY));
    assert!(!make(0, MEMORY - 1));
}

#[test]
fn it_masks_interrupts_and_waits_before_it_looks() {
    let mut bench = Bench::new(0, 0);
    assert_eq!(bench.device.0.borrow().get(IMC), u32::MAX);
    assert_eq!(bench.device.0.borrow().get(EIMC), u32::MAX);
    bench.device.0.borrow_mut().gone = true;
    bench.steps(9);
    assert_eq!(bench.controller.state(), State::Starting);
    bench.steps(3);
    assert_eq!(bench.controller.state(), State::Dead(Fault::Gone));
}

#[test]
fn after_the_reset_interrupts_are_masked_again() {
    let bench = Bench::running();
    let model = bench.device.0.borrow();
    assert_eq!((model.get(IMC), model.get(EIMC)), (u32::MAX, u32::MAX));
    assert_eq!(model.get(CTRL) & (LINK_UP | FORCED), LINK_UP);
    assert_eq!(model.get(rx(0).tail()), ENTRIES - 1);
}

#[test]
fn a_reset_that_does_not_end_has_a_deadline() {
    let mut bench = Bench::new(u32::MAX, 0);
    bench.steps(1000);
    assert_eq!(bench.controller.state(), State::Starting);
    bench.steps(20);
    assert_eq!(bench.controller.state(), State::Dead(Fault::Reset));
}

#[test]
fn queues_that_do_not_start_have_a_deadline() {
    let mut bench = Bench::new(0, u32::MAX);
    bench.steps(1000);
    assert_eq!(bench.controller.state(), State::Starting);
    bench.steps(30);
    assert_eq!(bench.controller.state(), State::Dead(Fault::Queues));
    assert!(!bench.send(&[1; 60]));
}

#[test]
fn one_that_goes_away_is_found_out() {
    let mut bench = Bench::running();
    bench.device.0.borrow_mut().gone = true;
    bench.steps(20);
    assert_eq!(bench.controller.state(), State::Dead(Fault::Gone));
    assert!(!bench.controller.link());
    assert_eq!(bench.received(), None);
}

#[test]
fn frames_that_arrive_are_handed_over_once() {
    let mut bench = Bench::running();
    for round in 0..3 * ENTRIES {
        let frame = vec![round as u8; 60 + round as usize % 1400];
        assert!(bench.model().arrive(0, &frame));
        assert_eq!(bench.received(), Some(frame));
        assert_eq!(bench.received(), None);
        bench.controller.flush();
    }
    assert_eq!(bench.controller.statistics().received, u64::from(3 * ENTRIES));
}

#[test]
fn all_buffers_but_one_can_be_full() {
    let mut bench = Bench::running();
    let full = |bench: &Bench| {
        let mut model = bench.device.0.borrow_mut();
        (0..2 * ENTRIES).filter(|i| model.arrive(0, &[*i as u8; 60])).count() as u32
    };
    assert_eq!(full(&bench), ENTRIES - 1);
    for i in 0..ENTRIES - 1 {
        assert_eq!(bench.received(), Some(vec![i as u8; 60]));
    }
    assert_eq!(bench.received(), None);
    // Not before it is told.
    assert_eq!(full(&bench), 0);
    bench.controller.flush();
    assert_eq!(full(&bench), ENTRIES - 1);
}

#[test]
fn a_full_ring_drops_and_counts() {
    let mut bench = Bench::running();
    let sent = (0..2 * ENTRIES).filter(|i| bench.send(&[*i as u8; 60])).count();
    assert_eq!(sent as u32, ENTRIES - 1);
    let statistics = bench.controller.statistics();
    assert_eq!(statistics.sent, u64::from(ENTRIES - 1));
    assert_eq!(statistics.unsent, u64::from(ENTRIES + 1));
    assert!(bench.device.0.borrow().wire.is_empty());
    bench.controller.flush();
    assert_eq!(bench.device.0.borrow().wire.len() as u32, ENTRIES - 1);
    assert!(bench.send(&[9; 60]));
}

#[test]
fn frames_that_are_too_long_are_not_sent() {
    let mut bench = Bench::running();
    assert!(!bench.send(&[1; MOST as usize + 1]));
    assert!(bench.send(&[1; MOST as usize]));
    assert_eq!(bench.controller.statistics().unsent, 1);
}

/// The part pads nothing below 17 bytes; and what pads a frame is nothing that was there before.
#[test]
fn short_frames_are_padded_with_zeroes() {
    let mut bench = Bench::running();
    for _ in 0..ENTRIES {
        assert!(bench.send(&[0xAA; MOST as usize]));
        bench.controller.flush();
    }
    for bytes in [14, 16, 17, 59, 60, 61] {
        bench.device.0.borrow_mut().wire.clear();
        assert!(bench.send(&vec![7; bytes]));
        bench.controller.flush();
        let mut padded = vec![7; bytes];
        padded.resize(bytes.max(LEAST as usize), 0);
        assert_eq!(bench.device.0.borrow().wire, [padded]);
    }
}

/// However much room there is for it.
#[test]
fn a_frame_that_is_too_long_is_dropped() {
    let mut bench = Bench::running();
    for bytes in [MOST + 1, BUFFER as u32, MOST] {
        bench.model().arrive(0, &vec![1; bytes as usize]);
    }
    let into = bench.own(0, 2 * BUFFER);
    assert_eq!(bench.controller.receive(&into), Some(MOST));
    assert_eq!(bench.controller.statistics().bad, 2);
}

#[test]
fn what_is_written_back_is_not_trusted() {
    let mut bench = Bench::running();
    let word = |bytes: u64, status: u64| bytes << 32 | status;
    let long = u64::from(MOST) + 1;
    let bad = [
        word(long, 3),
        word(0xFFFF, 3),
        word(BUFFER + 1, 3),
        word(0, 3),
        // Damaged.
        word(60, 3 | 1 << 31),
        // One frame in three buffers.
        word(60, 1),
        word(60, 1),
        word(60, 3),
    ];
    for (entry, word) in (0..).zip(bad) {
        bench.write_back(entry, word);
    }
    bench.write_back(8, word(60, 3));
    assert_eq!(bench.received(), None);
    assert_eq!(bench.controller.statistics().bad, 8);
    assert_eq!(bench.received(), Some(vec![0; 60]));
    assert_eq!(bench.received(), None);
    assert_eq!(bench.controller.statistics().bad, 8);
}

#[test]
fn addresses_of_buffers_are_written_anew() {
    let mut bench = Bench::running();
    bench.model().arrive(0, &[1; 60]);
    bench.received().unwrap();
    let first = bench.memory.window().span(BASE, 16).unwrap();
    assert_eq!(first.load_u64(0), Ok(DMA + BASE + RING_BYTES));
    assert_eq!(first.load_u64(8), Ok(0));
}

#[derive(Clone, Debug)]
enum Action {
    Arrive(u16),
    Receive,
    Send(u16),
    Flush,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (14..=MOST as u16).prop_map(Action::Arrive),
        Just(Action::Receive),
        (14..=MOST as u16).prop_map(Action::Send),
        Just(Action::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both ways, frames come out in order, and whole.
    #[test]
    fn frames_keep_their_order(actions in prop::collection::vec(action(), 0..1200)) {
        let mut bench = Bench::running();
        let (mut arrived, mut received, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for (number, action) in actions.into_iter().enumerate() {
            let frame = |bytes: u16| {
                let mut frame = vec![number as u8; usize::from(bytes)];
                frame[..2].copy_from_slice(&(number as u16).to_le_bytes());
                frame
            };
            match action {
                Action::Arrive(bytes) => {
                    if bench.model().arrive(0, &frame(bytes)) {
                        arrived.push(frame(bytes));
                    }
                }
                Action::Receive => received.extend(bench.received()),
                Action::Send(bytes) => {
                    if bench.send(&frame(bytes)) {
                        let mut padded = frame(bytes);
                        padded.resize(padded.len().max(LEAST as usize), 0);
                        sent.push(padded);
                    }
                }
                Action::Flush => bench.controller.flush(),
            }
        }
        while let Some(frame) = bench.received() {
            received.push(frame);
        }
        bench.controller.flush();
        prop_assert_eq!(arrived, received);
        prop_assert_eq!(sent, bench.device.0.borrow().wire.clone());
        prop_assert_eq!(bench.controller.statistics().bad, 0);
    }
}
