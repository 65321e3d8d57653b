//! Atomics, fences and locks: the processor's, or loom's under `cfg(loom)`, which tries every order
//! that the memory model allows.
//!
//! Guarantees: code that uses nothing else to talk to other cores is the same code in the image and
//! under loom. Loom takes `SeqCst` of an access for `AcqRel`: where a store must come before a load
//! of something else, only a [`fence`] is seen by it.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub use model::*;

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use spin::mutex::{SpinMutex, SpinMutexGuard, TicketMutex, TicketMutexGuard};
