//! The nested tables of either vendor's processors behind one type.

use crate::format::{Access, Entry, Format};
use crate::{Ept, Nested};

/// The format of a guest's nested tables, as the machine's processors have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondLevel {
    /// SVM's.
    Nested,
    /// VMX's.
    Ept,
}

impl Format for SecondLevel {
    const SIGNED: bool = false;
    const PHYSICAL_BITS: u32 = 52;

    fn levels(&self) -> u32 {
        match self {
            Self::Nested => Nested.levels(),
            Self::Ept => Ept.levels(),
        }
    }

    fn table(&self, level: u32, frame: u64) -> u64 {
        match self {
            Self::Nested => Nested.table(level, frame),
            Self::Ept => Ept.table(level, frame),
        }
    }

    fn leaf(&self, level: u32, pa: u64, access: Access) -> u64 {
        match self {
            Self::Nested => Nested.leaf(level, pa, access),
            Self::Ept => Ept.leaf(level, pa, access),
        }
    }

    fn decode(&self, level: u32, entry: u64) -> Entry {
        match self {
            Self::Nested => Nested.decode(level, entry),
            Self::Ept => Ept.decode(level, entry),
        }
    }
}
