//! A disk's part of the namespace.
//!
//! Guarantees: what [`Blocks`] comes out of [`Part::blocks`] lies in the part. The server in front
//! checks requests against the disk's size already; here it is checked once more, where the
//! namespace's blocks come from, so that no fault there reaches another VM's data.

use blk::SECTOR;
use thiserror::Error;

use crate::identify::Namespace;

/// Where a disk's sectors are, in bytes of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub first: u64,
    /// How many.
    pub bytes: u64,
}

/// The namespace has no such part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadPart {
    /// It ends behind the namespace.
    #[error(
        "it ends at byte {end}, and the controller's namespace has {bytes}; make its offset or its size smaller"
    )]
    TooLarge {
        /// Its end; the largest number if there is none.
        end: u64,
        /// Those of the namespace.
        bytes: u64,
    },
    /// It isn't whole blocks.
    #[error("it isn't made of whole blocks, which have {0} bytes")]
    Blocks(u32),
    /// There are [`crate::MOST_DISKS`] already.
    #[error("the controller has {} disks already", crate::MOST_DISKS)]
    TooMany,
    /// The controller isn't ready.
    #[error("the controller isn't ready")]
    NotReady,
}

/// Blocks of a namespace: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u32,
}

impl Part {
    /// Whether this namespace has it.
    pub(crate) fn check(&self, namespace: &Namespace) -> Result<(), BadPart> {
        let end = self.first.saturating_add(self.bytes);
        if end > namespace.bytes() {
            return Err(BadPart::TooLarge { end, bytes: namespace.bytes() });
        }
        let block = u64::from(namespace.block());
        if !(self.first | self.bytes).is_multiple_of(block) {
            return Err(BadPart::Blocks(namespace.block()));
        }
        Ok(())
    }

    /// The blocks behind sectors of the disk, if they are whole blocks of its part.
    #[inline]
    pub(crate) fn blocks(&self, sector: u64, bytes: u64, shift: u32) -> Option<Blocks> {
        let at = sector.checked_mul(SECTOR)?;
        let end = at.checked_add(bytes)?;
        let mask = (1 << shift) - 1;
        if end > self.bytes || bytes == 0 || (at | bytes) & mask != 0 {
            return None;
        }
        let count = u32::try_from(bytes >> shift).ok()?;
        Some(Blocks { first: (self.first + at) >> shift, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHIFT: u32 = 12;

    fn namespace() -> Namespace {
        Namespace {
            id: 1,
            blocks: 1 << 20,
            block_shift: SHIFT,
            protected: false,
            zeroes_by_deallocating: false,
        }
    }

    #[test]
    fn parts_end_within_the_namespace() {
        let all = 1u64 << 32;
        let check = |first, bytes| Part { first, bytes }.check(&namespace());
        assert_eq!(Ok(()), check(0, all));
        assert_eq!(Ok(()), check(all - 4096, 4096));
        let end = all + 4096;
        assert_eq!(Err(BadPart::TooLarge { end, bytes: all }), check(4096, all));
        let end = u64::MAX;
        assert_eq!(Err(BadPart::TooLarge { end, bytes: all }), check(u64::MAX - 4095, 8192));
        assert_eq!(Err(BadPart::Blocks(4096)), check(512, 4096));
        assert_eq!(Err(BadPart::Blocks(4096)), check(4096, 512));
    }

    proptest! {
        #[test]
        fn blocks_stay_in_the_part(
            first in 0u64..1 << 20, count in 0u64..1 << 20, sector: u64, near in 0u64..1 << 24,
            bytes in prop_oneof![any::<u64>(), 0u64..1 << 20], far: bool,
        ) {
            let part = Part { first: first << SHIFT, bytes: count << SHIFT };
            let sector = if far { sector } else { near };
            if let Some(blocks) = part.blocks(sector, bytes, SHIFT) {
                prop_assert!(blocks.count > 0 && blocks.first >= first);
                prop_assert!(blocks.first + u64::from(blocks.count) <= first + count);
                prop_assert_eq!(u64::from(blocks.count) << SHIFT, bytes);
                prop_assert_eq!((blocks.first - first) * 8, sector);
            }
        }
    }
}
