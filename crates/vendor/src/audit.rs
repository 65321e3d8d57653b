//! Looking over what confines a vCPU, from another core and while the vCPU runs.
//!
//! Guarantees: says what must not be, and changes nothing. Words are read one by one and without a
//! lock: between the vCPU's exit and its next entry its core may be changing several of them, so
//! that two of them don't fit each other for a moment. Who looks believes a [`Finding`] only if it
//! stays.

use core::fmt;
use thiserror::Error;

/// Where the controls and permission maps of a vCPU are. Made while booting.
pub trait Outline {
    /// How many parts there are to look at.
    fn parts(&self) -> u32;
    /// Looks at one part, in a bounded number of words. `word`: reads the aligned word at a
    /// physical address.
    fn audit(&self, part: u32, word: impl Fn(u64) -> u64) -> Result<(), Finding>;
    /// Physical address of its control block.
    fn control_block(&self) -> u64;
    /// May it run guests of its own?
    fn has_inner(&self) -> bool;
    /// The tables of the host's by which they run now; none: by the guest's own.
    fn inner_tables(&self, word: impl Fn(u64) -> u64) -> Option<InnerTables>;
}

/// Words that are read at once are of so many bytes.
const WORD: usize = 8;

/// The first bit of a map of so many bytes that isn't as `open` lists it, and whether it is open. A
/// bit that is set exits.
pub fn differs<I: Iterator<Item = usize>>(
    map: u64,
    bytes: usize,
    word: impl Fn(u64) -> u64,
    open: impl Fn() -> I,
) -> Option<(usize, bool)> {
    let at = |index: usize| !word(map + (index * WORD) as u64);
    for index in 0..bytes / WORD {
        let mut passes = at(index);
        while passes != 0 {
            let bit = index * WORD * 8 + passes.trailing_zeros() as usize;
            if !open().any(|o| o == bit) {
                return Some((bit, true));
            }
            passes &= passes - 1;
        }
    }
    let closed = |bit: &usize| at(bit / (WORD * 8)) >> (bit % (WORD * 8)) & 1 == 0;
    open().find(closed).map(|bit| (bit, false))
}

/// The tables by which the guests of a guest run, which the vCPU's core changes without a lock.
#[derive(Clone, Copy, Debug)]
pub struct InnerTables {
    /// Where they begin.
    pub outline: paging::audit::Outline<paging::Nested>,
    /// Where all frames are that they may have: the first, and behind the last.
    pub frames: (u64, u64),
}

/// A finding: something that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    /// A word of the control block isn't as it must be.
    #[error(
        "word {at:#x} of its control block reads {found:#x}, where the bits {bits:#x} must be {right:#x}"
    )]
    Control {
        /// Offset of the word in the control block.
        at: u16,
        /// What it is.
        found: u64,
        /// The bits that matter.
        bits: u64,
        /// What these must be.
        right: u64,
    },
    /// A register is open in a permission map and must exit, or the other way round.
    #[error("the map at {map:#x} lets {} MSR {msr:#x} {}", Access { write: *write }, Opening { open: *open })]
    Msr {
        /// Physical address of the map.
        map: u64,
        /// The register.
        msr: u32,
        /// Writes; else reads.
        write: bool,
        /// It is open; else it exits.
        open: bool,
    },
    /// The same of a port.
    #[error("the map at {map:#x} lets accesses to port {port:#x} {}", Opening { open: *open })]
    Port {
        /// Physical address of the map.
        map: u64,
        /// The port.
        port: u32,
        /// It is open; else it exits.
        open: bool,
    },
}

struct Access {
    write: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.write { "writes of" } else { "reads of" })
    }
}

struct Opening {
    open: bool,
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.open { "pass" } else { "exit, which are to pass" })
    }
}

#[cfg(test)]
mod tests {
    use super::Finding;

    #[test]
    fn a_finding_is_a_sentence() {
        let msr = Finding::Msr { map: 0x1000, msr: 0x1B, write: true, open: true };
        assert_eq!(msr.to_string(), "the map at 0x1000 lets writes of MSR 0x1b pass");
        let port = Finding::Port { map: 0x1000, port: 0x608, open: false };
        let text = "the map at 0x1000 lets accesses to port 0x608 exit, which are to pass";
        assert_eq!(port.to_string(), text);
    }
}
