//! Loom's, by the names that the image uses; and how a test leaves the fences out.
extern crate std;

pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::Cell;

std::thread_local! {
    /// Loom runs all threads of a model on the thread that asks for it.
    static FENCES: Cell<bool> = const { Cell::new(true) };
}

/// As `core::sync::atomic::fence`; nothing inside [`without_fences`].
pub fn fence(order: Ordering) {
    if FENCES.get() {
        loom::sync::atomic::fence(order);
    }
}

/// The rest of this test's code has no fences: for variants that loom must catch.
pub fn without_fences() {
    FENCES.set(false);
}

/// A lock. The image's kinds differ by who gets it next, which loom tries out in any case.
#[derive(Debug, Default)]
pub struct SpinMutex<T>(loom::sync::Mutex<T>);
/// A lock.
pub type TicketMutex<T> = SpinMutex<T>;
/// What it guards.
pub type SpinMutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;
/// What it guards.
pub type TicketMutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> SpinMutex<T> {
    /// An open one.
    pub fn new(inner: T) -> Self {
        SpinMutex(loom::sync::Mutex::new(inner))
    }

    /// Waits for it.
    pub fn lock(&self) -> SpinMutexGuard<'_, T> {
        self.0.lock().expect("no thread of a model panics and goes on")
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<SpinMutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
