//! What bridges pass on, and room there for a BAR that has no address.
//!
//! Guarantees: a place that [`room`] finds is a multiple of the BAR's size, inside a window that
//! every bridge above the function passes on, in reach of the BAR, and clear of everything that is
//! said to be taken. Behind a bridge nothing else answers than the functions there, so what they
//! have, and what bridges among them pass on, is all that is to be known. On a root bus it isn't:
//! which addresses lead there only firmware's own language (AML) tells.

use crate::config::{COMMAND, COMMAND_MEMORY};
use crate::{Bdf, Config, nearest};
use core::ops::Range;

/// Registers of a type 1 header (PCI-to-PCI Bridge 1.2, 3.2.5.8 to 3.2.5.10): memory, prefetchable
/// memory and the upper halves of that.
const MEMORY: u16 = 0x20;
const PREFETCHABLE: u16 = 0x24;
const UPPER_BASE: u16 = 0x28;
const UPPER_LIMIT: u16 = 0x2C;
/// The low bits of the prefetchable window's registers: it has upper halves.
const WIDE: u16 = 1;
/// Windows are multiples of this.
const GRAIN: u64 = 1 << 20;
const FOUR_GIB: u64 = 1 << 32;
/// Where a PC's own things in low memory end.
const LEGACY_END: u64 = 1 << 20;

/// The memory that a bridge passes on; an empty range where it passes none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// For any BAR that reaches it; always below 4 GiB.
    pub memory: Range<u64>,
    /// For prefetchable BARs.
    pub prefetchable: Range<u64>,
}

/// A BAR without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes, a power of two.
    pub size: u64,
    /// It has 64 bits.
    pub wide: bool,
    /// Reads have no effect.
    pub prefetchable: bool,
}

impl Passed {
    /// Reads the windows of a bridge, which must have a type 1 header.
    pub fn of(config: &impl Config, bridge: Bdf) -> Self {
        // Windows mean nothing before they are set (PCI-to-PCI Bridge 1.2, 3.2.5.8), and pass
        // nothing on while memory isn't decoded.
        if config.read16(bridge, COMMAND) & COMMAND_MEMORY == 0 {
            return Passed::default();
        }
        let pair = |at| (config.read16(bridge, at), config.read16(bridge, at + 2));
        let window = |(base, limit): (u16, u16), (upper_base, upper_limit): (u32, u32)| {
            let address = |upper: u32, register: u16| {
                u64::from(upper) << 32 | u64::from(register & 0xFFF0) << 16
            };
            let (start, last) = (address(upper_base, base), address(upper_limit, limit));
            // A base above the limit means that nothing is passed on. What a PC has below 1 MiB
            // answers there first.
            if start > last || start < LEGACY_END {
                0..0
            } else {
                start..last.saturating_add(GRAIN)
            }
        };
        let (base, limit) = pair(PREFETCHABLE);
        let upper = match base & 0xF == WIDE {
            true => (config.read32(bridge, UPPER_BASE), config.read32(bridge, UPPER_LIMIT)),
            false => (0, 0),
        };
        Passed { memory: window(pair(MEMORY), (0, 0)), prefetchable: window((base, limit), upper) }
    }

    /// Both windows, as far as there are any.
    pub fn windows(&self) -> impl Iterator<Item = Range<u64>> {
        [&self.memory, &self.prefetchable].into_iter().filter(|w| !w.is_empty()).cloned()
    }
}

/// The lowest place for a BAR of a function behind these bridges, the nearest first, clear of
/// `taken`; none if there is none, or no bridge.
pub fn room(bar: Wanted, above: &[Passed], taken: &[Range<u64>]) -> Option<u64> {
    let (nearest_bridge, others) = above.split_first()?;
    let reach = if bar.wide { u64::MAX } else { FOUR_GIB };
    let own =
        [bar.prefetchable.then_some(&nearest_bridge.prefetchable), Some(&nearest_bridge.memory)];
    own.into_iter().flatten().find_map(|window| {
        let leads = |other: &Passed| {
            other.windows().any(|w| w.start <= window.start && window.end <= w.end)
        };
        let window = window.start..window.end.min(reach);
        // Where a bridge above passes on less, firmware's word isn't to be trusted.
        let trusted = !window.is_empty() && others.iter().all(leads);
        trusted.then(|| nearest(window.clone(), taken, window.start, bar.size, bar.size))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// A bridge's registers from 0x20 on, and its command register.
    struct Bridge([u32; 4], u16);

    impl Config for Bridge {
        fn read32(&self, _: Bdf, offset: u16) -> u32 {
            if offset == COMMAND {
                return self.1.into();
            }
            self.0[usize::from(offset - MEMORY) / 4]
        }

        fn write16(&self, _: Bdf, _: u16, _: u16) {
            unreachable!("windows are only read");
        }
    }

    fn passed(words: [u32; 4]) -> Passed {
        Passed::of(&Bridge(words, COMMAND_MEMORY), Bdf::from_requester_id(8))
    }

    fn wanted(mib: u64, wide: bool, prefetchable: bool) -> Wanted {
        Wanted { size: mib * MIB, wide, prefetchable }
    }

    #[test]
    fn windows_are_read_with_their_upper_halves() {
        let found = passed([0xFEB0_FE80, 0x0011_0001, 0x40, 0x41]);
        assert_eq!(found.memory, 0xFE80_0000..0xFEC0_0000);
        assert_eq!(found.prefetchable, 0x40_0000_0000..0x41_0020_0000);
        let narrow = passed([0xFE80_FE80, 0xE010_E000, 0x40, 0x41]);
        assert_eq!(narrow.memory, 0xFE80_0000..0xFE90_0000, "a single MiB");
        assert_eq!(narrow.prefetchable, 0xE000_0000..0xE020_0000, "without upper halves");
        let none = passed([0x0000_FFF0, 0x0001_FFF1, 0, 0]);
        assert_eq!(none, Passed::default());
        assert_eq!(none.windows().count(), 0);
        let set = [0xFEB0_FE80, 0x0011_0001, 0x40, 0x41];
        let off = Passed::of(&Bridge(set, !COMMAND_MEMORY), Bdf::from_requester_id(8));
        assert_eq!(off, Passed::default());
        assert_eq!(passed([0; 4]), Passed::default(), "never set");
        assert_eq!(passed([0, 0xFFF1_FFF1, u32::MAX, u32::MAX]).prefetchable.end, u64::MAX);
    }

    #[test]
    fn a_bar_goes_where_its_kind_may() {
        let high = 0x40_0000_0000;
        let bridge = Passed { memory: 0..8 * MIB, prefetchable: high..high + 8 * MIB };
        let place = |bar, taken: &[Range<u64>]| room(bar, core::slice::from_ref(&bridge), taken);
        assert_eq!(place(wanted(4, true, true), &[]), Some(high));
        assert_eq!(place(wanted(4, true, false), &[]), Some(0));
        assert_eq!(place(wanted(4, false, true), &[]), Some(0), "32 bits don't reach there");
        let full = high..high + 5 * MIB;
        assert_eq!(place(wanted(4, true, true), core::slice::from_ref(&full)), Some(0));
        assert_eq!(place(wanted(4, true, true), &[full, 0..MIB]), Some(4 * MIB));
        assert_eq!(place(wanted(16, true, true), &[]), None);
        assert_eq!(room(wanted(1, true, true), &[], &[]), None, "on a root bus");
        let tall = Passed { prefetchable: 0xFF00_0000..high, ..Passed::default() };
        assert_eq!(room(wanted(32, false, true), &[tall], &[]), None, "it would pass 4 GiB");
    }

    #[test]
    fn every_bridge_above_must_lead_there() {
        let near = Passed { memory: 2 * MIB..4 * MIB, ..Passed::default() };
        let above = |memory| [near.clone(), Passed { memory, ..Passed::default() }];
        let bar = wanted(1, false, false);
        assert_eq!(room(bar, &above(0..8 * MIB), &[]), Some(2 * MIB));
        assert_eq!(room(bar, &above(2 * MIB..4 * MIB), &[]), Some(2 * MIB));
        assert_eq!(room(bar, &above(3 * MIB..8 * MIB), &[]), None);
        assert_eq!(room(bar, &above(0..3 * MIB), &[]), None);
    }

    proptest! {
        /// Against every aligned address there is.
        #[test]
        fn a_place_is_aligned_inside_and_free_and_found_if_there_is_one(
            raw in prop::collection::vec((0u64..32, 0u64..32, 0u64..32, 0u64..32), 1..3),
            taken in prop::collection::vec((0u64..32, 0u64..6), 0..6),
            shift in 0u32..4, wide: bool, prefetchable: bool, base in prop::sample::select(
                vec![0u64, FOUR_GIB - 16 * MIB, FOUR_GIB],
            ),
        ) {
            let range = |start: u64, end: u64| {
                if start < end { base + start * MIB..base + end * MIB } else { 0..0 }
            };
            let above: Vec<_> = raw
                .into_iter()
                .map(|(a, b, c, d)| Passed { memory: range(a, b), prefetchable: range(c, d) })
                .collect();
            let taken: Vec<_> = taken.into_iter().map(|(s, l)| range(s, s + l)).collect();
            let bar = Wanted { size: MIB << shift, wide, prefetchable };
            let fits = |at: u64| {
                let end = at + bar.size;
                let inside = |w: &Range<u64>| w.start <= at && end <= w.end;
                let near = &above[0];
                let own = prefetchable && inside(&near.prefetchable) || inside(&near.memory);
                own && (wide || end <= FOUR_GIB)
                    && above.iter().all(|p| p.windows().any(|w| inside(&w)))
                    && taken.iter().all(|t| t.is_empty() || end <= t.start || t.end <= at)
            };
            match room(bar, &above, &taken) {
                Some(at) => prop_assert!(at.is_multiple_of(bar.size) && fits(at), "{at:#x}"),
                None if above.len() == 1 => {
                    let all = (0..64).map(|i| (base + i * MIB).next_multiple_of(bar.size));
                    prop_assert_eq!(all.into_iter().find(|at| fits(*at)), None);
                }
                None => {}
            }
        }
    }
}
