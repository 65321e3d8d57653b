//! The console, on which the host carries its own frames, log and records.

use core::fmt::Write;
use machine::{boot::Boot, console::Console, cpu, random::Random, wait};

const COM1: u16 = 0x3F8;
const SEED: u64 = 0x5E11A;
/// As much as the host keeps of what it hasn't sent, after what it keeps already.
const FLOOD: usize = 64 << 10;
const LINE: [u8; 1024] = {
    let mut line = [b'x'; 1024];
    line[1023] = b'\n';
    line
};
/// Until most of it is sent, in TSC ticks.
const DRAIN: u64 = 4_000_000_000;

/// What looks like the host's own frames: a log line, a record that all VMs have ended, output of
/// another VM.
pub fn forged(_: &str, _: &Boot) {
    let frames: [&[u8]; 4] = [
        b"\x01\x00\x0Ewarning: bad\n",
        b"\x01\x7F\x05\x03\x01\x02\x01\x00",
        b"\x01\x01\x12@exitless failed x\n",
        b"\x00\x01\x7E\xFF",
    ];
    for frame in frames.iter().cycle().take(200) {
        frame.iter().for_each(|byte| cpu::outb(COM1, *byte));
    }
    cpu::outb(COM1, b'\n');
}

/// Every register of the UART, with every value.
pub fn registers(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for _ in 0..3000 {
        let r = random.number();
        // Not data: that is the console's output.
        let register = 1 + (r & 7) as u16 % 7;
        cpu::outb(COM1 + register, (r >> 8) as u8 & !0x80);
        cpu::inb(COM1 + (r >> 16 & 7) as u16);
    }
    for (register, value) in [(1, 0), (3, 0x80), (1, 0), (3, 3), (4, 0)] {
        cpu::outb(COM1 + register, value);
    }
}

/// More than can be sent.
pub fn flood(_: &str, _: &Boot) {
    (0..FLOOD / LINE.len()).for_each(|_| cpu::out_string(COM1, &LINE));
    wait::ticks(DRAIN);
    // The console never fails.
    let _ = Console.write_str("\n");
}
