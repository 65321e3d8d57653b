//! Which functions a segment has.
//!
//! Guarantees: every bus is looked at once, however bridges lie, and a function is told once. A
//! machine may have several root buses, of which only firmware's own language (AML) tells; each bus
//! that no bridge claims is taken for one. So a bus that a bridge claims is reached by that bridge
//! or not at all.

use crate::{Bdf, Config};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// Kind of the header, and whether the device has several functions (PCI 3.0, 6.1).
const HEADER_TYPE: u16 = 0x0E;
const BRIDGE: u8 = 1;
const SEVERAL: u8 = 0x80;
const CLASS: u16 = 8;
/// The bus right behind a bridge, and the last one behind it (PCI-to-PCI Bridge 1.2, 3.2.5).
const SECONDARY_BUS: u16 = 0x19;
const SUBORDINATE_BUS: u16 = 0x1A;

/// A function that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its place.
    pub bdf: Bdf,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class, subclass and programming interface: 24 bits.
    pub class: u32,
}

/// Every function on these buses of a segment, in the order of their addresses.
pub fn scan(config: &impl Config, segment: u16, buses: RangeInclusive<u8>) -> Vec<Found> {
    let mut scan = Scan { segment, found: Vec::new(), seen: [false; 256], claimed: [false; 256] };
    for root in buses.clone() {
        if scan.seen[usize::from(root)] || scan.claimed[usize::from(root)] {
            continue;
        }
        let mut next = vec![root];
        while let Some(bus) = next.pop() {
            if !core::mem::replace(&mut scan.seen[usize::from(bus)], true) {
                let behind = (0..32).flat_map(|device| scan.device(config, bus, device));
                let behind: Vec<_> = behind.filter(|bus| buses.contains(bus)).collect();
                next.extend(behind.into_iter().rev());
            }
        }
    }
    sort::by_key(&mut scan.found, |f| f.bdf);
    scan.found
}

struct Scan {
    segment: u16,
    found: Vec<Found>,
    /// Buses that were looked at, and those that bridges say are behind them.
    seen: [bool; 256],
    claimed: [bool; 256],
}

impl Scan {
    /// A device's functions; gives the buses to which its bridges lead, away from the root.
    fn device(&mut self, config: &impl Config, bus: u8, device: u8) -> Vec<u8> {
        let mut behind = Vec::new();
        let all = (0..8).filter_map(|function| Bdf::new(bus, device, function));
        for bdf in all.map(|bdf| bdf.in_segment(self.segment)) {
            let id = config.read32(bdf, 0);
            if id as u16 == 0xFFFF {
                if bdf.function() == 0 {
                    break;
                }
                continue;
            }
            let class = config.read32(bdf, CLASS) >> 8;
            self.found.push(Found { bdf, vendor: id as u16, device: (id >> 16) as u16, class });
            let header = config.read8(bdf, HEADER_TYPE);
            if header & !SEVERAL == BRIDGE {
                let first = config.read8(bdf, SECONDARY_BUS);
                let last = config.read8(bdf, SUBORDINATE_BUS).max(first);
                // A bridge that firmware hasn't set up claims nothing.
                let claimed = if first == 0 {
                    &mut []
                } else {
                    &mut self.claimed[usize::from(first)..=usize::from(last)]
                };
                claimed.fill(true);
                behind.extend((first > bus).then_some(first));
            }
            if bdf.function() == 0 && header & SEVERAL == 0 {
                break;
            }
        }
        behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Functions by place: class, header type, secondary and subordinate bus.
    #[derive(Debug)]
    struct Machine(Vec<(Bdf, u32, u8, (u8, u8))>);

    impl Config for Machine {
        fn read32(&self, function: Bdf, offset: u16) -> u32 {
            let Some((_, class, header, (first, last))) = self.0.iter().find(|f| f.0 == function)
            else {
                return u32::MAX;
            };
            match offset & !3 {
                0 => 0x1234_8086,
                8 => class << 8,
                0x0C => u32::from(*header) << 16,
                0x18 => u32::from(*first) << 8 | u32::from(*last) << 16,
                _ => 0,
            }
        }
        fn write16(&self, _: Bdf, _: u16, _: u16) {}
    }

    fn at(bus: u8, device: u8, function: u8) -> Bdf {
        Bdf::new(bus, device, function).unwrap()
    }

    fn endpoint(bdf: Bdf) -> (Bdf, u32, u8, (u8, u8)) {
        (bdf, 0x02_0000, 0, (0, 0))
    }

    fn bridge(bdf: Bdf, first: u8, last: u8) -> (Bdf, u32, u8, (u8, u8)) {
        (bdf, 0x06_0400, BRIDGE, (first, last))
    }

    fn places(machine: &Machine, buses: RangeInclusive<u8>) -> Vec<Bdf> {
        scan(machine, 0, buses).into_iter().map(|f| f.bdf).collect()
    }

    #[test]
    fn what_is_behind_bridges_and_on_other_root_buses_is_found() {
        let functions = [
            endpoint(at(0, 0, 0)),
            bridge(at(0, 1, 0), 1, 2),
            bridge(at(1, 0, 0), 2, 2),
            endpoint(at(2, 0, 0)),
            bridge(at(0x40, 0, 0), 0x41, 0x41),
            endpoint(at(0x41, 0, 0)),
            endpoint(at(0x80, 31, 0)),
        ];
        let all = functions.map(|f| f.0);
        let machine = Machine(functions.into());
        assert_eq!(places(&machine, 0..=255), all);
        assert_eq!(places(&machine, 0..=0x40), all[..5]);
        let found = scan(&machine, 0, 0..=0)[0];
        assert_eq!((found.vendor, found.device, found.class), (0x8086, 0x1234, 0x02_0000));
    }

    #[test]
    fn segments_have_the_same_buses_and_other_functions() {
        let there = |bdf: Bdf| bdf.in_segment(0x101);
        let machine = Machine(vec![
            endpoint(at(0, 2, 0)),
            bridge(at(0, 1, 0), 2, 2),
            bridge(there(at(0, 1, 0)), 1, 1),
            endpoint(there(at(1, 0, 0))),
            // Segment 0's bridge claims this bus of segment 0 alone.
            endpoint(there(at(2, 3, 0))),
        ]);
        let of = |segment| -> Vec<_> {
            scan(&machine, segment, 0..=255).into_iter().map(|f| f.bdf).collect()
        };
        assert_eq!(of(0), [at(0, 1, 0), at(0, 2, 0)]);
        assert_eq!(of(0x101), [at(0, 1, 0), at(1, 0, 0), at(2, 3, 0)].map(there));
        assert_eq!(of(1), []);
    }

    #[test]
    fn only_a_device_that_says_so_has_several_functions() {
        let several = (at(0, 3, 0), 0x02_0000, SEVERAL, (0, 0));
        let machine = Machine(vec![
            several,
            endpoint(at(0, 3, 2)),
            endpoint(at(0, 4, 0)),
            endpoint(at(0, 4, 1)),
            endpoint(at(0, 5, 1)),
        ]);
        assert_eq!(places(&machine, 0..=0), [at(0, 3, 0), at(0, 3, 2), at(0, 4, 0)]);
    }

    /// Such a bus isn't a root bus, whose functions would pass for kept apart.
    #[test]
    fn a_bus_that_a_bridge_claims_without_leading_there_is_left_out() {
        let backwards = bridge(at(3, 0, 0), 2, 2);
        let machine = Machine(vec![bridge(at(0, 1, 0), 3, 3), backwards, endpoint(at(2, 0, 0))]);
        assert_eq!(places(&machine, 3..=3), [at(3, 0, 0)]);
        let wide = Machine(vec![bridge(at(0, 1, 0), 3, 9), endpoint(at(5, 0, 0))]);
        assert_eq!(places(&wide, 0..=255), [at(0, 1, 0)]);
        let unset = Machine(vec![bridge(at(0, 1, 0), 0, 0), endpoint(at(1, 0, 0))]);
        assert_eq!(places(&unset, 0..=255), [at(0, 1, 0), at(1, 0, 0)]);
    }

    proptest! {
        #[test]
        fn each_function_is_told_once_whatever_bridges_say(
            bridges in proptest::collection::vec((any::<u8>(), 0..32u8, any::<(u8, u8)>()), 0..40),
            start in any::<u8>(),
        ) {
            let machine = Machine(bridges.into_iter().map(|(bus, device, behind)| {
                (at(bus, device, 0), 0x06_0400, BRIDGE, behind)
            }).collect());
            let found = places(&machine, start..=255);
            prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
            prop_assert!(found.iter().all(|bdf| bdf.bus() >= start));
        }
    }
}
