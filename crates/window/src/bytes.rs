//! Copies of bytes that the other side may write, or read, at the same time.
//!
//! Guarantees: each byte is loaded once and stored once, and the compiler assumes nothing about
//! what is there. On x86-64 that is assembly, which is opaque to the compiler and as fast as
//! `memcpy`; elsewhere, and under Miri, relaxed atomics of the window's bytes.
use core::sync::atomic::{AtomicU8, Ordering};

/// From this length on, string instructions are worth their start.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING: usize = 128;

/// Copies `len` bytes of a window in ascending order.
///
/// # Safety
///
/// The bytes at `from` must be memory of a window, those at `to` writable: memory of a window, or
/// private, and then there is no reference to them but the caller's, given up for the call.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller says. Whoever may write a window may make an atomic of its bytes.
    unsafe {
        each(from, to, len, |from| AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed));
    }
}

/// Stores these bytes in ascending order. They may lie in memory that can't be written, of which no
/// atomic may be made.
///
/// # Safety
///
/// As many bytes at `to` must be memory of a window.
#[inline]
pub(crate) unsafe fn store(from: &[u8], to: *mut u8) {
    // SAFETY: nobody writes the bytes of a slice; those at `to` are as the caller says.
    unsafe { each(from.as_ptr(), to, from.len(), |from| from.read()) }
}

/// Copies `len` bytes; `load` loads one, where they aren't moved by assembly.
///
/// # Safety
///
/// `load` may be called for each of the bytes at `from`; those at `to` are as for [`copy`].
#[inline]
unsafe fn each(mut from: *const u8, mut to: *mut u8, len: usize, load: impl Fn(*const u8) -> u8) {
    let mut left = len;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if left >= STRING {
            // SAFETY: it is `left / 8 * 8` bytes, which the caller vouches for; the direction flag
            // is clear, as it is at the start of any assembly.
            unsafe {
                core::arch::asm!(
                    "rep movsq",
                    inout("rcx") left / 8 => _,
                    inout("rsi") from => from,
                    inout("rdi") to => to,
                    options(nostack, preserves_flags),
                );
            }
            left %= 8;
        }
        while left >= 32 {
            // SAFETY: there are 32 bytes more, which the caller vouches for.
            unsafe {
                core::arch::asm!(
                    "mov {a}, [{from}]",
                    "mov {b}, [{from} + 8]",
                    "mov {c}, [{from} + 16]",
                    "mov {d}, [{from} + 24]",
                    "mov [{to}], {a}",
                    "mov [{to} + 8], {b}",
                    "mov [{to} + 16], {c}",
                    "mov [{to} + 24], {d}",
                    a = out(reg) _,
                    b = out(reg) _,
                    c = out(reg) _,
                    d = out(reg) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
                (from, to) = (from.add(32), to.add(32));
            }
            left -= 32;
        }
        while left >= 8 {
            // SAFETY: there are eight bytes more, which the caller vouches for.
            unsafe {
                core::arch::asm!(
                    "mov {word}, [{from}]",
                    "mov [{to}], {word}",
                    word = out(reg) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
                (from, to) = (from.add(8), to.add(8));
            }
            left -= 8;
        }
        if left >= 4 {
            // SAFETY: there are four bytes more, which the caller vouches for.
            unsafe {
                core::arch::asm!(
                    "mov {word:e}, [{from}]",
                    "mov [{to}], {word:e}",
                    word = out(reg) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
                (from, to) = (from.add(4), to.add(4));
            }
            left -= 4;
        }
    }
    while left > 0 {
        // SAFETY: there is one byte more, which the caller vouches for. A byte is always aligned.
        unsafe {
            AtomicU8::from_ptr(to).store(load(from), Ordering::Relaxed);
            (from, to) = (from.add(1), to.add(1));
        }
        left -= 1;
    }
}

/// Stores `len` times this byte.
///
/// # Safety
///
/// The bytes at `to` must be writable memory of a window.
#[inline]
pub(crate) unsafe fn fill(mut to: *mut u8, byte: u8, len: usize) {
    let mut left = len;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if left >= 8 {
        // SAFETY: as for `copy`.
        unsafe {
            core::arch::asm!(
                "rep stosq",
                inout("rcx") left / 8 => _,
                inout("rdi") to => to,
                in("rax") u64::from_ne_bytes([byte; 8]),
                options(nostack, preserves_flags),
            );
        }
        left %= 8;
    }
    while left > 0 {
        // SAFETY: there is one byte more, which the caller vouches for.
        unsafe {
            AtomicU8::from_ptr(to).store(byte, Ordering::Relaxed);
            to = to.add(1);
        }
        left -= 1;
    }
}
