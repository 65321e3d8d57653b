//! A control block of L1's (12), which lies in L1's memory.

use core::mem::offset_of;
use svm::Vmcb;

/// The words of a control block in memory that its owner may change at any moment.
pub trait Block {
    /// The 8 bytes at `at`, a multiple of 8 below 4096.
    fn read(&self, at: usize) -> u64;
    /// Sets them.
    fn write(&mut self, at: usize, value: u64);
}

/// Of the word that has CPL in it, the rest isn't defined.
pub(crate) const CPL_WORD: usize = offset_of!(Vmcb, cpl) & !7;
pub(crate) const CPL: u64 = 0xFF << (offset_of!(Vmcb, cpl) % 8 * 8);

/// Copies so many words from `from` on out of a block.
#[inline(always)]
pub(crate) fn copy_in<B: Block>(v: &mut Vmcb, block: &B, from: usize, words: usize) {
    for at in (0..words).map(|n| from + n * 8) {
        v.set_word(at, block.read(at));
    }
}

/// Copies them into it.
#[inline(always)]
pub(crate) fn copy_out<B: Block>(block: &mut B, v: &Vmcb, from: usize, words: usize) {
    for at in (0..words).map(|n| from + n * 8) {
        block.write(at, v.word(at));
    }
}
