//! Addresses of BARs that can't be right: firmware, or a register that was never set, put them over
//! something else.
//!
//! Who gets such a function would reach what else is there.

use crate::{Bdf, Passed};
use core::fmt;
use core::ops::Range;

/// What is wrong with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// Registers of the host's are there, or memory.
    Host,
    /// A bridge on the way doesn't pass these addresses on, or not all of them.
    Unreachable,
    /// Registers of this function are there.
    Function(Bdf),
}

/// What is wrong with `place`, of a function behind these bridges, if something is. `host`: where
/// registers of the host's and memory are; `others`: where those of other functions are, which
/// answer.
pub fn clash(
    place: &Range<u64>,
    mut host: impl Iterator<Item = Range<u64>>,
    above: &[Passed],
    mut others: impl Iterator<Item = (Bdf, Range<u64>)>,
) -> Option<Clash> {
    let touches = |other: &Range<u64>| place.start.max(other.start) < place.end.min(other.end);
    let inside = |window: Range<u64>| window.start <= place.start && place.end <= window.end;
    if host.any(|other| touches(&other)) {
        return Some(Clash::Host);
    }
    if !above.iter().all(|bridge| bridge.windows().any(inside)) {
        return Some(Clash::Unreachable);
    }
    others.find(|(_, other)| touches(other)).map(|(function, _)| Clash::Function(function))
}

/// The end of a sentence about a BAR.
impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clash::Host => f.write_str("where memory or registers of the host's are"),
            Clash::Unreachable => f.write_str("where a bridge above it doesn't lead"),
            Clash::Function(function) => write!(f, "where registers of {function} are"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Bdf = Bdf::from_requester_id(0x18);

    fn of(place: Range<u64>, above: &[Passed]) -> Option<Clash> {
        let others = [(OTHER, 0x9000..0xA000)].into_iter();
        clash(&place, [0x1000..0x2000, 0x5000..0x6000].into_iter(), above, others)
    }

    #[test]
    fn a_place_over_something_else_is_found_whatever_part_of_it() {
        for place in [0x5000..0x6000, 0x5FFF..0x8000, 0x4000..0x5001, 0x4000..0x7000] {
            assert_eq!(of(place, &[]), Some(Clash::Host));
        }
        for place in [0x9000..0xA000, 0x9FFF..0xB000, 0x8000..0x9001, 0x8000..0xC000] {
            assert_eq!(of(place, &[]), Some(Clash::Function(OTHER)));
        }
        for place in [0x2000..0x5000, 0x6000..0x9000, 0xA000..u64::MAX] {
            assert_eq!(of(place, &[]), None);
        }
    }

    #[test]
    fn each_bridge_above_must_lead_there() {
        let passed = |memory, prefetchable| Passed { memory, prefetchable };
        let (near, far) = (passed(0x10_0000..0x20_0000, 0..0), passed(0..0, 0x10_0000..0x40_0000));
        let both = [near.clone(), far];
        assert_eq!(of(0x10_0000..0x20_0000, &both), None);
        for place in [0x1F_F000..0x20_1000, 0xF_F000..0x10_1000, 0x30_0000..0x30_1000] {
            assert_eq!(of(place, &both), Some(Clash::Unreachable));
        }
        assert_eq!(of(0x10_0000..0x20_0000, &[near, Passed::default()]), Some(Clash::Unreachable));
    }

    #[test]
    fn it_is_said_in_words() {
        let said =
            [Clash::Host, Clash::Unreachable, Clash::Function(OTHER)].map(|c| format!("{c}"));
        assert_eq!(said[2], "where registers of 00:03.0 are");
        assert!(said.iter().all(|words| words.starts_with("where ")));
    }
}
