//! The console: the log, records, and the VMs' consoles, in frames on the serial port; the log and
//! the VMs' consoles as text on the screen, too. Each is used if it is there.
//!
//! Guarantees: core 0 alone sends, receives and draws, so nothing here is waited for; other
//! cores leave bytes in rings and wake it. A record waits for room, a log line
//! is dropped without, and a guest's output never makes its core wait.

pub mod frame;
mod guest;
mod names;
mod output;
mod ring;
pub mod screen;
mod told;
pub mod uart;
mod wake;

pub use guest::{attach, guest_input, guest_output};
pub use ring::Ring;
pub use wake::wake;

use crate::{
    cpu::{self, PerCpu},
    interrupts, memory,
};
use arrayvec::ArrayString;
use core::{
    fmt::{self, Write},
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};
use delivery::VectorSet;
use output::send;
use proto::frame::{Channel, LOG, MAX_PAYLOAD, MAX_VMS, Piece, RECORDS, Reader};
use ring::Pushed;

/// The longest log line; longer ones are cut.
const MAX_LINE: usize = 512;
/// A message in a core's ring: channel, length (u16), payload.
const HEADER: usize = 3;
/// How often the screen is painted on between two looks at what arrived: a thousand cells, some 15
/// ms on an uncached framebuffer.
const PAINTINGS: usize = 64;

struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        let mut line = ArrayString::<MAX_LINE>::new();
        let level = match record.level() {
            log::Level::Error => "error: ",
            log::Level::Warn => "warning: ",
            _ => "",
        };
        // What doesn't fit is cut off.
        let _ = writeln!(Cut(&mut line), "{level}{}", record.args());
        if !line.ends_with('\n') {
            line.pop();
            let _ = line.try_push('\n');
        }
        post(LOG, line.as_bytes());
    }

    fn flush(&self) {
        flush();
    }
}

/// Takes as much as there is room for.
struct Cut<'a>(&'a mut ArrayString<MAX_LINE>);

impl Write for Cut<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        s.chars().try_for_each(|c| self.0.try_push(c)).map_err(|_| core::fmt::Error)
    }
}

/// The UART and the log; the first thing after the boot CPU has its state.
pub fn init() {
    uart::init();
    log::set_max_level(log::LevelFilter::Info);
    // There is no other logger that could have been first.
    let _ = log::set_logger(&Log);
}

/// Core 0 is in [`serve`], which paints what was written, bit by bit.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Sends or queues a message; false when there is no room for it.
fn post(channel: u8, payload: &[u8]) -> bool {
    let cpu = cpu::this();
    if cpu.index == 0 {
        send(channel, payload, || ());
        if !SERVING.load(Ordering::Relaxed) {
            screen::finish();
        }
        return true;
    }
    let length = (payload.len() as u16).to_le_bytes();
    match cpu.messages.push(&[&[channel], &length, payload]) {
        Pushed::Queued => true,
        Pushed::Wake => {
            wake();
            true
        }
        Pushed::Full => false,
    }
}

/// Reports a record. Waits for core 0 when this core's ring is full: not for exit paths.
pub fn record(record: &proto::Record) {
    let (line, bytes) = memory::while_reporting(|| {
        let line = screen::is_open().then(|| told::line(record)).flatten();
        (line, proto::encode(record))
    });
    let wait = |channel, payload: &[u8]| {
        while !post(channel, payload) {
            core::hint::spin_loop();
        }
    };
    if let Some(line) = &line {
        wait(screen::CHANNEL, line.as_bytes());
    }
    wait(RECORDS, &bytes);
    memory::while_reporting(|| drop((line, bytes)));
}

/// Returns when everything that this core and its VM sent is on the wire; on core 0, when it is on
/// the screen, too.
pub fn flush() {
    let cpu = cpu::this();
    if cpu.index == 0 {
        while !drained() {
            pump(&mut || ());
        }
        screen::finish();
        uart::drain();
        return;
    }
    while !cpu.messages.is_drained() || !guest::is_drained(cpu.vm.load(Ordering::Relaxed)) {
        core::hint::spin_loop();
    }
}

/// Core 0: passes output and input on, for ever; sleeps in between. `input` is told of VMs that
/// have input, which is looked for at each wake-up. After that `each_wake` may do as it likes, or
/// end this; it is told which interrupts arrived. `meanwhile` doesn't wait for output: it is called
/// in the middle of frames, too, and must not send anything itself.
pub fn serve(
    mut meanwhile: impl FnMut(),
    mut input: impl FnMut(usize),
    mut each_wake: impl FnMut(&VectorSet) -> ControlFlow<()>,
) {
    let mut reader = Reader::new();
    SERVING.store(true, Ordering::Relaxed);
    loop {
        let mut arrived = VectorSet::EMPTY;
        interrupts::take().for_each(|vector| arrived.insert(vector));
        receive(&mut reader, &mut input);
        pump(&mut meanwhile);
        for _ in 0..PAINTINGS {
            meanwhile();
            if screen::paint() {
                break;
            }
        }
        if each_wake(&arrived).is_break() {
            break;
        }
        // A wake-up that came since `take` is seen here; one that comes later ends the HLT.
        interrupts::disable();
        if drained() && screen::is_painted() && !interrupts::any() {
            interrupts::sleep();
        } else {
            interrupts::enable();
        }
    }
    SERVING.store(false, Ordering::Relaxed);
}

/// While panicking, on any core: says words on the serial port, outside of any frame, and on the
/// screen. No lock is taken.
pub fn last_words(words: fmt::Arguments) {
    frame::complete();
    // Neither can fail; what finds no room on the screen is lost.
    let _ = fmt::write(&mut Raw, words);
    screen::last_words(words);
}

/// The serial port, outside of any frame.
struct Raw;

impl Write for Raw {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.bytes().for_each(uart::send);
        Ok(())
    }
}

/// Core 0: whether nothing waits to be sent.
fn drained() -> bool {
    cpu::all().all(|cpu| cpu.messages.is_drained()) && guest::all_drained()
}

/// Core 0: sends the other cores' messages, and a frame of each VM's output.
fn pump(meanwhile: &mut impl FnMut()) {
    cpu::all().for_each(|cpu| send_messages(cpu, meanwhile));
    guest::pump(meanwhile);
}

fn send_messages(cpu: &PerCpu, meanwhile: &mut impl FnMut()) {
    let ring = &cpu.messages;
    let mut header = [0; HEADER];
    while ring.peek(0, &mut header) == HEADER {
        let [channel, low, high] = header;
        let length = usize::from(u16::from_le_bytes([low, high]));
        let mut chunk = [0; MAX_PAYLOAD];
        let mut sent = 0;
        while sent < length {
            let room = chunk.len().min(length - sent);
            let count = ring.peek(HEADER + sent, &mut chunk[..room]);
            send(channel, &chunk[..count], &mut *meanwhile);
            sent += count;
        }
        ring.consume(HEADER + length);
    }
}

/// The command line asked for the vCPUs' counters, and [`take_question`] wasn't called since.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Core 0: whether the command line asked for the vCPUs' counters since this was last called.
pub fn take_question() -> bool {
    ASKED.swap(false, Ordering::Relaxed)
}

/// Core 0: gives received bytes to the VMs they are for, and takes those for the host.
fn receive(reader: &mut Reader, input: &mut impl FnMut(usize)) {
    let mut kicks = 0u32;
    while let Some(byte) = uart::receive() {
        match reader.next(&mut &[byte][..]) {
            Some(Piece::Payload(Channel::Records, _)) if byte == proto::ASK_LIVE => {
                ASKED.store(true, Ordering::Relaxed);
            }
            Some(Piece::Payload(Channel::Console(vm), _)) if guest::input(vm, byte) => {
                kicks |= 1 << vm;
            }
            _ => {}
        }
    }
    (0..MAX_VMS).filter(|vm| kicks >> vm & 1 != 0).for_each(input);
}
