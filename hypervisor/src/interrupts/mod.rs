//! Physical interrupts that arrive in the host.
//!
//! Guarantees: each is noted for the core it arrived on and completed (EOI) at
//! once; whoever cares asks with [`take`]. Legacy sources (8259, IOAPIC pins,
//! LINT0, LINT1) are masked and stay so unless somebody unmasks a pin.

mod host;
pub mod legacy;

pub use host::{drain, load, sleep_until_woken};

use crate::cpu::this;
use core::{arch::asm, sync::atomic::Ordering};

/// Vector of the host's own use of the local APIC's timer.
pub const TIMER: u8 = 0xF1;
/// Vector that wakes a core from HLT to look for work.
pub const WAKE: u8 = 0xF2;
/// Vector by which an IOMMU tells that it blocked something.
pub const FAULTS: u8 = 0xF3;
/// Vector of an interrupt that went away; never completed.
pub const SPURIOUS: u8 = 0xFF;

/// Notes an interrupt on this core.
fn note(vector: u8) {
    let cpu = this();
    if let Some(word) = cpu.taken.get(usize::from(vector >> 6)) {
        word.fetch_or(1 << (vector & 63), Ordering::Relaxed);
    }
}

/// Whether an interrupt arrived on this core since they were last taken.
pub fn any() -> bool {
    this().taken.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

/// The vectors of the interrupts that arrived on this core, each once, and forgets them.
pub fn take() -> impl Iterator<Item = u8> {
    let words = this().taken.each_ref().map(|word| word.swap(0, Ordering::Relaxed));
    words.into_iter().enumerate().flat_map(|(i, mut word)| {
        core::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros() as u8)?;
            word &= word - 1;
            Some(i as u8 * 64 + bit)
        })
    })
}

/// Lets interrupts in.
#[inline]
pub fn enable() {
    x86_64::instructions::interrupts::enable();
}

/// Keeps interrupts out, NMIs excepted.
#[inline]
pub fn disable() {
    x86_64::instructions::interrupts::disable();
}

/// Sleeps until an interrupt, with no gap between letting them in and sleeping.
#[inline]
pub fn enable_and_halt() {
    // SAFETY: handlers only note interrupts; STI holds them back until HLT has begun.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}
