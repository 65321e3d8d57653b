//! Resizable BARs (PCIe 6.0, 7.8.6): how large a function's registers are, where software may
//! choose.
//!
//! A BAR that grows decodes addresses that may be another function's, and its register reads as
//! before if the address suits the new size. Guarantees: where [`Sizes::keep`] returns true, each
//! has the size that [`Sizes::of`] found. A reset may bring back sizes that firmware had changed,
//! so they must be kept before memory is decoded again. Says nothing about virtual functions, whose
//! sizes (7.8.7) are registers of the physical one.

use crate::config::{COMMAND, COMMAND_MEMORY, Config};
use crate::{Bdf, extended_capability};
use alloc::vec::Vec;

const CAPABILITY: u16 = 0x15;
/// The first BAR's control register, in the capability; the next ones' follow every 8 bytes.
const CONTROL: u16 = 8;
const STRIDE: u16 = 8;
/// The number of BARs, in the first control register, and how many there can be.
const COUNT_SHIFT: u16 = 5;
const COUNT_MASK: u16 = 7;
const MOST: u16 = 6;
/// The size of a BAR, in its control register.
const SIZE: u16 = 0x3F << 8;
/// Bytes of configuration space.
const SPACE: u16 = 0x1000;

/// The sizes that a function's resizable BARs had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Offset of each control register, and its size field.
    fields: Vec<(u16, u16)>,
}

/// A size that isn't what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Offset of the control register in configuration space.
    pub at: u16,
    /// Its size field as it is: 2 to the power of this, in MiB.
    pub found: u16,
    /// As it was.
    pub kept: u16,
}

impl Sizes {
    /// Reads them; none where the function has no such BAR.
    pub fn of(config: &impl Config, function: Bdf) -> Self {
        let found = extended_capability(CAPABILITY, |at| config.read32(function, at));
        let found = found.filter(|at| at + CONTROL < SPACE);
        let fields = found.into_iter().flat_map(|at| {
            let count = config.read16(function, at + CONTROL) >> COUNT_SHIFT & COUNT_MASK;
            let controls = (0..count.min(MOST)).map(move |i| at + CONTROL + STRIDE * i);
            // A capability at the end of the space may claim more than there is room for.
            controls.filter(|at| *at < SPACE)
        });
        let fields = fields.map(|at| (at, config.read16(function, at) & SIZE)).collect();
        Sizes { fields }
    }

    /// Is one of them another now?
    pub fn check(&self, config: &impl Config, function: Bdf) -> Result<(), Resized> {
        for (at, kept) in self.fields.iter().copied() {
            let found = config.read16(function, at) & SIZE;
            if found != kept {
                return Err(Resized { at, found: found >> 8, kept: kept >> 8 });
            }
        }
        Ok(())
    }

    /// Brings them back, with memory decoding off if there is one to bring back. False if the
    /// function doesn't take them: what it decodes isn't known then. BARs lose their addresses.
    pub fn keep(&self, config: &impl Config, function: Bdf) -> bool {
        if self.check(config, function).is_ok() {
            return true;
        }
        let command = config.read16(function, COMMAND) & !COMMAND_MEMORY;
        config.write16(function, COMMAND, command);
        for (at, kept) in self.fields.iter().copied() {
            let control = config.read16(function, at) & !SIZE;
            config.write16(function, at, control | kept);
        }
        self.check(config, function).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    const FUNCTION: Bdf = Bdf::from_requester_id(0x0300);
    const AT: u16 = 0x200;

    /// The words of a function's space.
    #[derive(Clone, Debug, Default)]
    struct Space {
        words: RefCell<BTreeMap<u16, u32>>,
        /// It takes no sizes.
        stuck: bool,
    }

    impl Config for Space {
        fn read32(&self, _: Bdf, offset: u16) -> u32 {
            assert!(offset < 0x1000);
            self.words.borrow().get(&(offset & !3)).copied().unwrap_or(0)
        }

        fn write16(&self, function: Bdf, offset: u16, value: u16) {
            if offset != COMMAND {
                let decodes = self.read16(function, COMMAND) & COMMAND_MEMORY != 0;
                assert!(!decodes, "resized while memory is decoded");
                assert_ne!(offset % 4, 2, "the upper half says what sizes there are");
            }
            if offset == COMMAND || !self.stuck {
                let word = self.read32(function, offset) & 0xFFFF_0000 | u32::from(value);
                self.words.borrow_mut().insert(offset & !3, word);
            }
        }
    }

    /// A function whose BARs have these sizes, and another capability before the one for them.
    fn space(sizes: &[u16]) -> Space {
        let header = [(COMMAND, 0x0010_0002), (0x100, 0x2001_0001), (AT, 0x0001_0015)];
        let count = (sizes.len() as u32) << 5;
        let controls = sizes.iter().enumerate().map(|(i, size)| {
            let count = if i == 0 { count } else { 0 };
            let control = 0x00FF_0000 | u32::from(*size) << 8 | count | i as u32;
            (AT + 8 + 8 * i as u16, control)
        });
        Space { words: RefCell::new(header.into_iter().chain(controls).collect()), stuck: false }
    }

    /// The function has its own sizes again, as after a reset.
    fn reset(space: &Space) {
        let mut words = space.words.borrow_mut();
        words.insert(COMMAND, 0x0010_0000);
        for word in words.range_mut(AT + 8..).map(|(_, word)| word) {
            *word = *word & !(0x3F << 8) | 0x0D << 8;
        }
    }

    #[test]
    fn a_reset_that_resizes_is_undone() {
        let space = space(&[8, 2]);
        let sizes = Sizes::of(&space, FUNCTION);
        assert_eq!(sizes.fields, [(0x208, 0x800), (0x210, 0x200)]);
        assert_eq!(sizes.check(&space, FUNCTION), Ok(()));
        reset(&space);
        let grown = Resized { at: 0x208, found: 0x0D, kept: 8 };
        assert_eq!(sizes.check(&space, FUNCTION), Err(grown));
        assert!(sizes.keep(&space, FUNCTION));
        assert_eq!(Sizes::of(&space, FUNCTION), sizes);
        assert_eq!(space.read32(FUNCTION, 0x208), 0x00FF_0840, "the rest of it stays");
    }

    #[test]
    fn memory_isn_t_decoded_while_sizes_change_nor_touched_otherwise() {
        let space = space(&[8]);
        let sizes = Sizes::of(&space, FUNCTION);
        assert!(sizes.keep(&space, FUNCTION));
        assert_eq!(space.read16(FUNCTION, COMMAND), 2, "nothing was to be done");
        reset(&space);
        space.write16(FUNCTION, COMMAND, 2);
        assert!(sizes.keep(&space, FUNCTION));
        assert_eq!(space.read16(FUNCTION, COMMAND), 0);
    }

    #[test]
    fn a_function_that_takes_no_size_is_told_of() {
        let space = Space { stuck: true, ..space(&[8]) };
        let sizes = Sizes::of(&space, FUNCTION);
        reset(&space);
        assert!(!sizes.keep(&space, FUNCTION));
    }

    #[test]
    fn most_functions_have_none() {
        let sizes = Sizes::of(&Space::default(), FUNCTION);
        assert_eq!(sizes, Sizes::default());
        assert!(sizes.keep(&Space::default(), FUNCTION));
        let other = space(&[3]);
        other.words.borrow_mut().insert(AT, 0x0001_0024);
        assert_eq!(Sizes::of(&other, FUNCTION), Sizes::default(), "those of virtual functions");
    }

    proptest! {
        /// Whatever a function's registers say: at most six, no access past the space's end, and
        /// what was read is found again.
        #[test]
        fn any_space_gives_an_answer(
            at in 0x40u16..0x400, count in 0u32..8, words in prop::collection::vec(any::<u32>(), 12),
        ) {
            let at = 4 * at;
            let mut all: BTreeMap<_, _> = (at + 4..0x1000).step_by(4).zip(words).collect();
            all.insert(at, 0x0001_0015);
            all.entry(at + 8).and_modify(|word| *word = *word & !0xE0 | count << 5);
            if at != 0x100 {
                all.insert(0x100, u32::from(at) << 20 | 0x0001_0001);
            }
            let space = Space { words: RefCell::new(all), stuck: true };
            let sizes = Sizes::of(&space, FUNCTION);
            prop_assert!(sizes.fields.len() <= 6);
            prop_assert_eq!(sizes.check(&space, FUNCTION), Ok(()));
        }
    }
}
