//! Which interrupts arrived on a core: the handlers note them, anybody asks.
//!
//! Apart from the handlers, which end in panics, and so in the console: the console asks here, too.

use crate::cpu::{PerCpu, this};
use core::sync::atomic::Ordering;
use spin::Once;

/// Notes an interrupt on this core.
pub(super) fn note(vector: u8) {
    let cpu = this();
    if let Some(word) = cpu.noted.get(usize::from(vector >> 6)) {
        word.fetch_or(1 << (vector & 63), Ordering::Relaxed);
    }
}

/// Whom core 0 tells of its timer's interrupt, and of those that wake it.
static ON_CORE_0: Once<fn(bool)> = Once::new();

/// While booting: whom core 0 tells in the handler of its timer's interrupt, and of those that wake
/// it; is it the timer's?
pub fn on_core_0(tell: fn(bool)) {
    ON_CORE_0.call_once(|| tell);
}

/// In the handler of one of them, wherever it came.
pub(super) fn tell_core_0(cpu: &PerCpu, timers: bool) {
    if cpu.index == 0
        && let Some(tell) = ON_CORE_0.get()
    {
        tell(timers);
    }
}

/// Whether an interrupt arrived on this core since they were last taken.
pub fn any() -> bool {
    this().noted.iter().any(|word| word.load(Ordering::Relaxed) != 0)
}

/// The vectors of the interrupts that arrived on this core, each once, and forgets them.
pub fn take() -> impl Iterator<Item = u8> {
    let words = this().noted.each_ref().map(|word| word.swap(0, Ordering::Relaxed));
    words.into_iter().enumerate().flat_map(|(i, mut word)| {
        core::iter::from_fn(move || {
            let bit = (word != 0).then(|| word.trailing_zeros() as u8)?;
            word &= word - 1;
            Some(i as u8 * 64 + bit)
        })
    })
}
