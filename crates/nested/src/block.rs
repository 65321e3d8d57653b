//! A control block of L1's (12), which lies in L1's memory.

use svm::vmcb::Segment;

/// The words of a control block in memory that its owner may change at any moment.
pub trait Block {
    /// The 8 bytes at `at`, a multiple of 8 below 4096.
    fn read(&self, at: usize) -> u64;
    /// Sets them.
    fn write(&mut self, at: usize, value: u64);
}

/// The upper half of a word.
pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The segment register at `at`, read by two words.
pub(crate) fn read_segment(block: &dyn Block, at: usize) -> Segment {
    let (first, base) = (block.read(at), block.read(at + 8));
    Segment { selector: first as u16, attributes: (first >> 16) as u16, limit: high(first), base }
}

/// Writes the segment register at `at`.
pub(crate) fn write_segment(block: &mut dyn Block, at: usize, segment: &Segment) {
    let Segment { selector, attributes, limit, base } = *segment;
    block.write(at, u64::from(selector) | u64::from(attributes) << 16 | u64::from(limit) << 32);
    block.write(at + 8, base);
}
