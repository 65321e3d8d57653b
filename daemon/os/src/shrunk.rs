//! SIGBUS: an access to a page of a mapping that its file doesn't have any more.
//!
//! The handler puts zeroes in the place of the whole mapping, notes it in the mapping's slot, and
//! the access goes on. The whole of it, as each page alone would be a mapping more, of which a
//! program may have 65,530 by default. A SIGBUS at any other address ends the program with status
//! 135, as a shell calls it.
//!
//! The handler reads atomics and makes system calls; it takes no lock and allocates nothing.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Files that are mapped at a time: of 512 front ends each may have eight regions of memory, twice
/// while they change, with its records and its log, before and after.
pub const SLOTS: usize = 512 * 20;
const PAGE: usize = 4096;

/// A mapping that is watched. Its length is 0 if there is none.
struct Slot {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    shrunk: AtomicBool,
}

static WATCHED: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        shrunk: AtomicBool::new(false),
    }
}; SLOTS];

/// A page of any mapping was missing since [`take_any`].
static ANY: AtomicBool = AtomicBool::new(false);

/// Has any mapping shrunk since [`take_any`]?
#[inline]
pub fn has_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// The same, and it is forgotten.
pub fn take_any() -> bool {
    ANY.swap(false, Ordering::Acquire)
}

/// A place in the table, until it is dropped.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches these bytes. None if there are too many mappings.
    pub fn new(start: usize, len: usize) -> Option<Watch> {
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::AcqRel);
        let at = WATCHED.iter().position(free)?;
        let slot = &WATCHED[at];
        slot.shrunk.store(false, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.len.store(len, Ordering::Release);
        Some(Watch(at))
    }

    /// Was a page of it missing?
    pub fn has_shrunk(&self) -> bool {
        WATCHED[self.0].shrunk.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let slot = &WATCHED[self.0];
        slot.len.store(0, Ordering::Release);
        slot.taken.store(false, Ordering::Release);
    }
}

/// From now on a mapping whose file shrinks doesn't end the program. Once is enough.
///
/// # Errors
///
/// The system's, if it refuses the handler.
pub fn survive() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| result = install());
    result
}

fn install() -> io::Result<()> {
    // SAFETY: all zeroes is a `sigaction` without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // What std does at a SIGSEGV ends in a call that isn't allowed later, and would be tried for
    // ever.
    // SAFETY: the default action is always there.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    // SAFETY: the action is whole, and its handler has the signature that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a whole `siginfo_t`, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() }.addr();
    let found = WATCHED.iter().find(|slot| {
        let len = slot.len.load(Ordering::Acquire);
        address.wrapping_sub(slot.start.load(Ordering::Relaxed)) < len
    });
    if let Some(slot) = found {
        slot.shrunk.store(true, Ordering::Release);
        ANY.store(true, Ordering::Release);
        let (start, len) = (slot.start.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
        // A system that counts what could ever be written (`vm.overcommit_memory` 2) may refuse so
        // much.
        // SAFETY: all of it is of a mapping of ours, which stays mapped, readable and writable.
        let done = unsafe { zeroes(start, len) || zeroes(address & !(PAGE - 1), PAGE) };
        if done {
            return;
        }
    }
    let said = b"exitless-io: memory of its own isn't there any more (SIGBUS)\n";
    // SAFETY: the bytes are there. Not by the default action: a program that gave up what it
    // doesn't need can't go back to it.
    unsafe {
        libc::write(2, said.as_ptr().cast(), said.len());
        libc::_exit(128 + signal);
    }
}

/// Puts zeroes of our own at these addresses. False if the system refuses.
///
/// # Safety
///
/// All of it is of a mapping that belongs to this package and is accessed by windows alone.
pub unsafe fn zeroes(start: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let place = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: what is replaced is a mapping of this package, by the caller.
    let there = unsafe { libc::mmap(place, len, protection, flags, -1, 0) };
    there != libc::MAP_FAILED
}
