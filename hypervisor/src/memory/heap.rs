//! The heap: used while booting, and after that only to build reports.
//!
//! Guarantees: after [`freeze`] an allocation outside of
//! [`while_reporting`] is a panic that names the core, so an exit path that
//! allocates can't go unnoticed. It doesn't guarantee that reports find room.

use crate::cpu;
use core::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicBool, Ordering},
};
use talc::{TalcLock, source::Claim};

/// Enough to boot to the point where memory is known, or to refuse before.
const FIRST: usize = 64 << 10;

/// The time in which memory is handed out has ended.
static FROZEN: AtomicBool = AtomicBool::new(false);

struct Heap(TalcLock<spin::Mutex<()>, Claim>);

#[global_allocator]
static HEAP: Heap = {
    static mut ARENA: [u8; FIRST] = [0; FIRST];
    // SAFETY: nothing else refers to the arena.
    Heap(TalcLock::new(unsafe { Claim::array(&raw mut ARENA) }))
};

// SAFETY: every call is passed to the allocator of talc, which upholds the contract.
unsafe impl GlobalAlloc for Heap {
    // None of the three is inlined: hundreds of places allocate while booting, and a copy of talc
    // in each of them came to more than 50 KiB.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: our caller keeps `GlobalAlloc`'s contract, which is talc's.
        unsafe { self.0.alloc(layout) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: our caller keeps `GlobalAlloc`'s contract, which is talc's.
        unsafe { self.0.dealloc(ptr, layout) }
    }

    #[inline(never)]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        // SAFETY: our caller keeps `GlobalAlloc`'s contract, which is talc's.
        unsafe { self.0.realloc(ptr, layout, size) }
    }
}

fn check(bytes: usize) {
    if is_frozen() {
        let cpu = cpu::this();
        assert!(
            cpu.reporting.load(Ordering::Relaxed),
            "core {} allocates {bytes} bytes after boot",
            cpu.index
        );
    }
}

/// Ends the time in which memory is handed out.
pub fn freeze() {
    FROZEN.store(true, Ordering::Release);
}

/// Has it ended?
pub fn is_frozen() -> bool {
    FROZEN.load(Ordering::Acquire)
}

/// Runs `f`, in which this core may use the heap also after boot. Not for exit paths.
pub fn while_reporting<R>(f: impl FnOnce() -> R) -> R {
    let reporting = &cpu::this().reporting;
    let before = reporting.swap(true, Ordering::Relaxed);
    let result = f();
    reporting.store(before, Ordering::Relaxed);
    result
}

/// Adds memory to the heap.
///
/// # Safety
/// The range is mapped, writable and nobody else's, for good.
pub unsafe fn extend(start: u64, bytes: u64) {
    // SAFETY: our caller gives the range to the heap alone, for good.
    let claimed = unsafe { HEAP.0.lock().claim(start as *mut u8, bytes as usize) };
    assert!(claimed.is_some(), "{bytes} bytes are too few for a heap");
}
