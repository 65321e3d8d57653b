//! The driver on a model of the chip that is as slow, dead or absent as a test says.

use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// A port that becomes ready so many polls after a byte.
struct Chip {
    present: Cell<bool>,
    scratch: Option<Cell<u8>>,
    slowness: Cell<u32>,
    busy: Cell<u32>,
    polls: Cell<u32>,
    sent: RefCell<Vec<u8>>,
    received: RefCell<VecDeque<u8>>,
    control: [Cell<u8>; 8],
    divisor: [Cell<u8>; 2],
}

impl Chip {
    fn new(slowness: u32) -> Chip {
        Chip {
            present: Cell::new(true),
            scratch: Some(Cell::new(0)),
            slowness: Cell::new(slowness),
            busy: Cell::new(0),
            polls: Cell::new(0),
            sent: RefCell::default(),
            received: RefCell::default(),
            control: [const { Cell::new(0x6E) }; 8],
            divisor: [const { Cell::new(0xDD) }; 2],
        }
    }

    fn latched(&self) -> bool {
        self.control[usize::from(LINE_CONTROL)].get() & DIVISOR_LATCH != 0
    }
}

impl Registers for Chip {
    fn read(&self, register: u8) -> u8 {
        if !self.present.get() {
            return NOTHING;
        }
        match register {
            DATA => self.received.borrow_mut().pop_front().unwrap_or(0),
            LINE_STATUS => {
                self.polls.set(self.polls.get() + 1);
                self.busy.set(self.busy.get().saturating_sub(1));
                let ready = if self.busy.get() == 0 { TRANSMITTER_EMPTY | ALL_SENT } else { 0 };
                ready | if self.received.borrow().is_empty() { 0 } else { DATA_READY }
            }
            SCRATCH => self.scratch.as_ref().map_or(0, Cell::get),
            _ => panic!("register {register} is read"),
        }
    }

    fn write(&self, register: u8, value: u8) {
        match register {
            DIVISOR_LOW | DIVISOR_HIGH if self.latched() => {
                self.divisor[usize::from(register)].set(value);
            }
            DATA => {
                self.sent.borrow_mut().push(value);
                self.busy.set(self.slowness.get());
            }
            SCRATCH => self.scratch.iter().for_each(|scratch| scratch.set(value)),
            _ => self.control[usize::from(register)].set(value),
        }
    }
}

#[test]
fn a_port_is_found_by_what_it_keeps() {
    let port = |present, scratch| {
        let scratch = if scratch { Some(Cell::new(0)) } else { None };
        Uart::new(Chip { present: Cell::new(present), scratch, ..Chip::new(1) })
    };
    for (present, scratch, answers, there) in
        [(true, true, true, true), (true, false, true, false), (false, true, false, false)]
    {
        let port = port(present, scratch);
        assert_eq!((port.answers(), port.is_there()), (answers, there));
    }
}

#[test]
fn it_is_set_up_with_its_own_rate_or_ours() {
    for (divisor, latch) in [(None, [0xDD, 0xDD]), (Some(0x0123), [0x23, 0x01])] {
        let port = Uart::new(Chip::new(1));
        port.init(divisor);
        let chip = port.registers();
        assert_eq!(chip.divisor.each_ref().map(Cell::get), latch);
        let control = [INTERRUPT_ENABLE, FIFO_CONTROL, LINE_CONTROL, MODEM_CONTROL];
        let control = control.map(|register| chip.control[usize::from(register)].get());
        assert_eq!(control, [0, 7, 3, 3]);
        assert_eq!(*chip.sent.borrow(), [], "the divisor isn't sent");
    }
}

#[test]
fn a_stuck_transmitter_costs_one_long_wait() {
    let port = Uart::new(Chip::new(2 * PATIENCE));
    assert!(port.send(b'a'));
    assert!(!port.send(b'b'), "dropped after the long wait");
    let polls = port.registers().polls.get();
    for _ in 0..100 {
        assert!(!port.send(b'c'));
    }
    port.drain();
    assert_eq!(port.registers().polls.get(), polls + 101, "one poll for each");
    // It works again.
    port.registers().slowness.set(10);
    port.registers().busy.set(0);
    assert!(port.send(b'd') && port.send(b'e'));
    port.drain();
    assert_eq!(*port.registers().sent.borrow(), *b"ade");
    assert_eq!(port.registers().busy.get(), 0);
}

#[test]
fn nothing_is_sent_nor_received_where_nothing_is() {
    let port = Uart::new(Chip { present: Cell::new(false), ..Chip::new(1) });
    assert!(!port.send(b'a') && port.receive().is_none());
    port.drain();
    assert_eq!(*port.registers().sent.borrow(), []);
    // It is back before the next byte.
    port.registers().present.set(true);
    assert!(port.send(b'b'));
}

#[test]
fn rates_are_met_or_left() {
    for (clock, baud, expected) in [
        (PC_CLOCK, 115_200, Some(1)),
        (PC_CLOCK, 9_600, Some(12)),
        (PC_CLOCK, 300, Some(384)),
        (PC_CLOCK, 1, None),
        (PC_CLOCK, 230_400, None),
        (PC_CLOCK, 100_000, None),
        (48_000_000, 115_200, Some(26)),
        (0, 115_200, None),
        (PC_CLOCK, 0, None),
        (u32::MAX, u32::MAX, None),
    ] {
        assert_eq!(divisor(clock, baud), expected, "{clock} {baud}");
    }
}

proptest! {
    #[test]
    fn bytes_arrive_in_order(bytes: Vec<u8>, slowness in 0..PATIENCE) {
        let port = Uart::new(Chip::new(slowness));
        prop_assert!(bytes.iter().all(|byte| port.send(*byte)));
        port.drain();
        prop_assert_eq!(&*port.registers().sent.borrow(), &bytes);
        port.registers().received.borrow_mut().extend(&bytes);
        let received: Vec<_> = std::iter::from_fn(|| port.receive()).collect();
        prop_assert_eq!(received, bytes);
    }

    #[test]
    fn a_divisor_gives_the_rate_within_3_percent(clock: u32, baud: u32) {
        if let Some(divisor) = divisor(clock, baud) {
            let (clock, rate) = (f64::from(clock), f64::from(divisor) * 16.0 * f64::from(baud));
            prop_assert!((rate / clock - 1.0).abs() <= 0.0301);
        }
    }
}
