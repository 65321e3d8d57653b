//! Writes of eventfds that others have, too. Who shares one can have it wait for room, whatever was
//! set before; no system call writes to it otherwise. So a clock ticks while such writes are made,
//! and a write that waits is interrupted by it. So is a message that is taken ([`interrupted`]):
//! the system itself closes the descriptors in it for which there is no place, and that may wait.
//!
//! Guarantees: either waits for two ticks at most, if what it waits for hears signals. Without them
//! nothing ticks. The handler reads
//! atomics and makes a system call; it takes no lock and allocates nothing.
//!
//! Not guaranteed: that other system calls of this thread, which is the one that hears signals,
//! aren't interrupted by the clock. All of them are asked for again by who makes them.

use rustix::fd::AsFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

/// Microseconds between two ticks.
const TICK: libc::suseconds_t = 5_000;

/// The clock ticks.
static TICKS: AtomicBool = AtomicBool::new(false);
/// A write is being made.
static WRITES: AtomicBool = AtomicBool::new(false);
/// Writes so far, and what the last tick saw of them.
static COUNT: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
/// A write was being made at a tick.
static LATE: AtomicBool = AtomicBool::new(false);

/// From now on writes may be interrupted.
///
/// # Errors
///
/// The system's, if it refuses the handler.
pub fn watch_writes() -> io::Result<()> {
    // SAFETY: all zeroes is a `sigaction` without flags and with an empty mask. Without SA_RESTART
    // a write that waits isn't made again by the system.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = on_tick;
    action.sa_sigaction = handler as usize;
    // SAFETY: the action is whole, and its handler has the signature for no flags.
    match unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Adds this to an eventfd: how many bytes it took, which are 8.
///
/// # Errors
///
/// The system's: [`io::ErrorKind::Interrupted`] says that it waited, which it doesn't by itself.
pub fn add_to_event(event: impl AsFd, what: u64) -> io::Result<usize> {
    interrupted(|| rustix::io::write(event, &what.to_ne_bytes())).map_err(Into::into)
}

/// Does this, which the clock interrupts if it waits.
pub fn interrupted<T>(call: impl FnOnce() -> T) -> T {
    // The handler runs in this thread, between two of these: it lets the clock tick on.
    WRITES.store(true, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if !TICKS.load(Ordering::Relaxed) {
        TICKS.store(true, Ordering::Relaxed);
        set_clock(TICK);
    }
    let done = call();
    COUNT.store(COUNT.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    WRITES.store(false, Ordering::Relaxed);
    done
}

/// Did the clock tick in a write, since this was last asked? In one of many, or in one that takes
/// long.
#[inline]
pub fn take_late() -> bool {
    LATE.load(Ordering::Relaxed) && LATE.swap(false, Ordering::Relaxed)
}

extern "C" fn on_tick(_: libc::c_int) {
    let count = COUNT.load(Ordering::Relaxed);
    if WRITES.load(Ordering::Relaxed) {
        LATE.store(true, Ordering::Relaxed);
        return;
    }
    if SEEN.swap(count, Ordering::Relaxed) != count {
        return;
    }
    TICKS.store(false, Ordering::Relaxed);
    set_clock(0);
}

/// Ticks each so many microseconds, or no more. If the system refuses that, what was interrupted
/// sees the error number of its own call nevertheless.
fn set_clock(every: libc::suseconds_t) {
    let time = libc::timeval { tv_sec: 0, tv_usec: every };
    let clock = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the clock is whole, and the old one isn't asked for. The place of the error number is
    // this thread's.
    unsafe {
        let place = libc::__errno_location();
        let before = *place;
        libc::setitimer(libc::ITIMER_REAL, &clock, std::ptr::null_mut());
        *place = before;
    }
}
