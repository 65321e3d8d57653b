//! The console's UART against a queue: bytes arrive in order, none is lost or made up, and the
//! interrupt line says what the identification register says.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use virtual_pc::uart::Uart;

#[derive(Arbitrary, Debug)]
enum Step {
    Read(u8),
    Write(u8, u8),
    Input(u8),
    Edge,
}

#[derive(Default)]
struct Model {
    received: VecDeque<u8>,
    fifos: bool,
    divisor_latch: bool,
    modem_control: u8,
    edge: bool,
}

impl Model {
    fn looped(&self) -> bool {
        self.modem_control & 1 << 4 != 0
    }

    fn push(&mut self, byte: u8) -> bool {
        let room = self.received.len() < if self.fifos { 16 } else { 1 };
        if room {
            self.received.push_back(byte);
        }
        room
    }

    /// What a write makes leave on the wire.
    fn write(&mut self, offset: u8, value: u8) -> Option<u8> {
        match offset {
            0 if self.divisor_latch => {}
            0 if self.looped() => _ = self.push(value),
            0 => return Some(value),
            2 => {
                let fifos = value & 1 != 0;
                if fifos != self.fifos || value & 2 != 0 {
                    self.received.clear();
                }
                self.fifos = fifos;
            }
            3 => self.divisor_latch = value & 0x80 != 0,
            4 => self.modem_control = value & 0x1F,
            _ => {}
        }
        None
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut uart = Uart::new();
    let mut model = Model::default();
    for step in steps {
        let line = uart.interrupt();
        match step {
            Step::Read(offset) => {
                let value = uart.read(offset % 10);
                match offset % 10 {
                    0 if !model.divisor_latch => {
                        assert_eq!(value, model.received.pop_front().unwrap_or(0));
                    }
                    4 => assert_eq!(value, model.modem_control),
                    5 => {
                        assert_eq!(value & 1 != 0, !model.received.is_empty());
                        assert_eq!(value & 0x60, 0x60, "the transmitter is always ready");
                        assert_eq!(uart.clone().read(5) & 2, 0, "an overrun is told once");
                    }
                    8.. => assert_eq!(value, 0xFF),
                    _ => {}
                }
            }
            Step::Write(offset, value) => {
                assert_eq!(uart.write(offset % 10, value), model.write(offset % 10, value));
                if offset % 10 == 7 {
                    assert_eq!(uart.read(7), value);
                }
            }
            Step::Input(byte) => {
                let taken = !model.looped() && model.push(byte);
                assert_eq!(uart.push_input(byte), taken);
            }
            Step::Edge => {
                let edge = uart.take_edge();
                assert!(edge || !model.edge, "a rise was lost");
                assert!(!uart.take_edge());
                model.edge = false;
            }
        }
        let now = uart.interrupt();
        model.edge |= now && !line;
        let open = model.modem_control & 0x18 == 0x08;
        let pending = uart.clone().read(2) & 1 == 0;
        assert_eq!(now, open && pending, "OUT2 gates the line, and nothing else does");
    }
});
