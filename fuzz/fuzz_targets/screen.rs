//! The screen on any frame, with any bytes of guests and of the log: nothing is stored outside of
//! the visible pixels, no guest changes what is shown of the log, and what is painted bit by bit is
//! in the end what is painted at once.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use screen::{Channel, Frame, Framebuffer, LastWords, Layout, Pixels, Screen, Show};
use std::fmt::Write;

#[derive(Arbitrary, Debug)]
struct Input {
    width: u16,
    height: u16,
    padding: u8,
    kind: u8,
    one: Option<u8>,
    names: [String; 2],
    steps: Vec<Step>,
    last: String,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Log(Vec<u8>),
    Guest(u8, Vec<u8>),
    Status(String),
    Paint(u16),
}

struct Memory {
    frame: Framebuffer,
    bytes: Vec<u8>,
}

impl Pixels for Memory {
    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let line = u64::from(self.frame.width) * u64::from(self.frame.bits / 8);
        let pitch = u64::from(self.frame.pitch);
        let (start, row) = (offset % pitch, offset / pitch);
        assert!(start + bytes.len() as u64 <= line && row < u64::from(self.frame.height));
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn frame(input: &Input) -> Framebuffer {
    // Larger ones only take longer.
    let (width, height) = (1 + u32::from(input.width % 300), 1 + u32::from(input.height % 160));
    let (bits, shifts) =
        [(32, [16, 8, 0]), (32, [0, 8, 16]), (24, [16, 8, 0])][usize::from(input.kind % 3)];
    let [red, green, blue] = shifts.map(Channel::byte);
    let pitch = width * u32::from(bits / 8) + u32::from(input.padding);
    Framebuffer { address: 0, width, height, pitch, bits, red, green, blue }
}

struct Shown {
    screen: Box<Screen>,
    memory: Memory,
}

impl Shown {
    fn new(input: &Input) -> Shown {
        let frame = frame(input);
        let bytes = vec![0xA5; frame.pitch as usize * frame.height as usize];
        let mut memory = Memory { frame, bytes };
        let mut screen = Box::<Screen>::default();
        screen.open(Layout::new(Frame::new(frame).unwrap()), &mut memory);
        if let Some(vm) = input.one {
            screen.show(Show::One(vm.into()));
        }
        input.names.iter().enumerate().for_each(|(vm, name)| screen.name(vm, name));
        Shown { screen, memory }
    }

    fn painted(mut self) -> Self {
        assert!(self.screen.paint(&mut self.memory, usize::MAX) && self.screen.is_painted());
        self
    }

    /// The lines of pixels from the first one on, up to those of this row of cells.
    fn above(&self, row: usize) -> &[u8] {
        let lines = row * self.screen.layout().unwrap().row_height() as usize;
        &self.memory.bytes[..lines * self.memory.frame.pitch as usize]
    }
}

fuzz_target!(|input: Input| {
    let [mut all, mut at_once, mut log] = [(); 3].map(|()| Shown::new(&input));
    for step in &input.steps {
        match step {
            Step::Log(text) => {
                [&mut all, &mut at_once, &mut log]
                    .into_iter()
                    .for_each(|shown| shown.screen.log(text));
            }
            Step::Guest(vm, bytes) => {
                [&mut all, &mut at_once]
                    .into_iter()
                    .for_each(|shown| shown.screen.guest((*vm).into(), bytes));
            }
            Step::Status(text) => {
                [&mut all, &mut at_once, &mut log]
                    .into_iter()
                    .for_each(|shown| shown.screen.status(text));
            }
            Step::Paint(work) => _ = all.screen.paint(&mut all.memory, (*work).into()),
        }
    }
    let [mut all, at_once, log] = [all, at_once, log].map(Shown::painted);
    assert!(all.memory.bytes == at_once.memory.bytes, "bit by bit is something else");
    let layout = *all.screen.layout().unwrap();
    let guests = layout.guests().start;
    assert!(all.above(guests) == log.above(guests), "a guest changed what isn't its own");
    // Words that find no room are cut.
    let _ = LastWords::new(layout, &mut all.memory).write_str(&input.last);
    if layout.size().1 > 1 {
        let host = layout.host().end;
        assert!(all.above(host) == log.above(host), "last words are over the log");
    }
});
