//! The machine's screen: the log and the guests' consoles as text on the framebuffer that firmware
//! left.
//!
//! Guarantees: core 0 alone draws, but for the last words of a panic, which need no lock. Nothing
//! is drawn before [`open`] and after [`give_up`].

use ::screen::{Frame, LastWords, Layout, Pixels, Screen, Show};
use arrayvec::ArrayString;
use core::fmt::{self, Display, Write};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use proto::frame::{Channel, RECORDS};
use spin::{Mutex, Once};

/// Core 0's. An interrupt handler that wrote while core 0 draws would find it locked: nothing waits
/// for it.
static SCREEN: Mutex<Screen> = Mutex::new(Screen::new());
/// For panics.
static LAYOUT: Once<Layout> = Once::new();
static OPEN: AtomicBool = AtomicBool::new(false);

/// What one [`paint`] may cost: some fifteen cells, which take an uncached framebuffer 200 µs.
const WORK: usize = 512;
/// A channel of the screen's alone: what records tell a person, who sees none on the serial line.
pub const CHANNEL: u8 = RECORDS - 1;
const _: () = assert!(Channel::of(CHANNEL).is_none());
/// The longest status line.
const MAX_STATUS: usize = 120;

/// The framebuffer's memory.
#[derive(Clone, Copy)]
struct Framebuffer {
    address: u64,
    bytes: u64,
}

impl Pixels for Framebuffer {
    fn store(&mut self, offset: u64, mut bytes: &[u8]) {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.bytes) {
            return;
        }
        let mut at = self.address + offset;
        // Each store may go over a bus of its own: as few as can be.
        while let Some(&first) = bytes.first() {
            let taken = match bytes.first_chunk() {
                Some(eight) if at.is_multiple_of(8) => {
                    // SAFETY: inside of the framebuffer, which is mapped and no memory of
                    // anybody's; aligned.
                    unsafe { (at as *mut u64).write_volatile(u64::from_le_bytes(*eight)) };
                    8
                }
                _ => {
                    // SAFETY: as above.
                    unsafe { (at as *mut u8).write_volatile(first) };
                    1
                }
            };
            at += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }
}

fn pixels(layout: &Layout) -> Framebuffer {
    Framebuffer { address: layout.frame().address(), bytes: layout.frame().bytes() }
}

/// Does something with the screen, if it is open.
fn with<R>(f: impl FnOnce(&mut Screen, &mut Framebuffer) -> R) -> Option<R> {
    let mut screen = SCREEN.try_lock()?;
    let mut pixels = pixels(screen.layout()?);
    Some(f(&mut screen, &mut pixels))
}

/// Begins to draw on a frame.
///
/// # Safety
/// It is mapped from now on, and no memory of anybody's.
pub unsafe fn open(frame: Frame) {
    let layout = *LAYOUT.call_once(|| Layout::new(frame));
    SCREEN.lock().open(layout, &mut pixels(&layout));
    OPEN.store(true, Ordering::Release);
}

/// Whether it is drawn on.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Where the framebuffer is, while it is drawn on.
pub fn place() -> Option<Range<u64>> {
    let frame = *SCREEN.try_lock()?.layout()?.frame();
    Some(frame.address()..frame.address() + frame.bytes())
}

/// Core 0: all that was written is drawn, and then nothing any more.
pub fn give_up() {
    finish();
    OPEN.store(false, Ordering::Release);
    with(|screen, _| screen.close());
}

/// Core 0: names a VM.
pub fn name(vm: usize, name: &str) {
    with(|screen, _| screen.name(vm, name));
}

/// Core 0: whose console is shown, and what the status line says of it.
pub fn show(show: Show, of: impl Display) {
    let mut line = ArrayString::<MAX_STATUS>::new();
    // What doesn't fit is cut off.
    let _ = write!(line, " Exitless {} | {of}", env!("CARGO_PKG_VERSION"));
    with(|screen, _| {
        screen.show(show);
        screen.status(&line);
    });
}

/// Core 0: what a message for the serial line means for the screen.
pub fn write(channel: u8, payload: &[u8]) {
    with(|screen, _| match Channel::of(channel) {
        Some(Channel::Console(vm)) => screen.guest(vm, payload),
        Some(Channel::Records) => {}
        // The screen's own channel goes with the log.
        Some(Channel::Log) | None => screen.log(payload),
    });
}

/// Core 0: draws a part of what is to be drawn; true when that was all.
pub fn paint() -> bool {
    with(|screen, pixels| screen.paint(pixels, WORK)).unwrap_or(true)
}

/// Core 0: whether all is drawn.
pub fn is_painted() -> bool {
    with(|screen, _| screen.is_painted()).unwrap_or(true)
}

/// Core 0: draws all that is to be drawn.
pub fn finish() {
    while !paint() {}
}

/// While panicking, on any core: says words on the screen, if it is open.
pub fn last_words(words: fmt::Arguments) {
    if let Some(layout) = LAYOUT.get().filter(|_| is_open()) {
        // What finds no room is lost.
        let _ = LastWords::new(*layout, &mut pixels(layout)).write_fmt(words);
    }
}
