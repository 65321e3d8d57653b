//! Which interrupts arrived on a core: the handlers note them, anybody asks.
//!
//! Apart from the handlers, which end in panics, and so in the console: the console asks here, too.

use crate::cpu::this;
use core::sync::atomic::Ordering;

/// Notes an interrupt on this core.
pub(super) fn note(vector: u8) {
    let cpu = this();
    if let Some(word) = cpu.noted.get(usize::from(vector >> 6)) {
        word.fetch_or(1 << (vector & 63), Ordering::Relaxed);
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
