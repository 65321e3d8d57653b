//! Text on the first serial port, and the two kinds of line the harness reads:
//! `ok TEST: detail` and `FAIL TEST: detail`.

use crate::cpu::{inb, outb};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

const COM1: u16 = 0x3F8;
const LINE_STATUS: u16 = COM1 + 5;
const DATA_READY: u8 = 0x01;
const TRANSMITTER_EMPTY: u8 = 0x20;
const TRANSMITTER_IDLE: u8 = 0x40;

static FAILED: AtomicBool = AtomicBool::new(false);

/// The next byte that somebody typed.
pub fn typed() -> Option<u8> {
    (inb(LINE_STATUS) & DATA_READY != 0).then(|| inb(COM1))
}

/// The serial port as a writer.
pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while inb(LINE_STATUS) & TRANSMITTER_EMPTY == 0 {}
            outb(COM1, byte);
        }
        Ok(())
    }
}

/// Waits until all of it has left the port.
pub fn drain() {
    while inb(LINE_STATUS) & TRANSMITTER_IDLE == 0 {}
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => {{
        use core::fmt::Write as _;
        // The console never fails.
        let _ = writeln!($crate::console::Console, $($arg)*);
    }};
}
pub use println;

/// Prints `ok` or `FAIL` for one thing a test checked.
pub fn verdict(good: bool, test: impl fmt::Display, detail: fmt::Arguments) {
    if !good {
        FAILED.store(true, SeqCst);
    }
    println!("{} {test}: {detail}", if good { "ok" } else { "FAIL" });
}

/// `check!(test, condition, "detail {}", …)`: one line of verdict.
#[macro_export]
macro_rules! check {
    ($test:expr, $good:expr, $($arg:tt)*) => {
        $crate::console::verdict($good, $test, format_args!($($arg)*))
    };
}
pub use check;

/// Whether any check failed so far.
pub fn failed() -> bool {
    FAILED.load(SeqCst)
}
