//! Which PCI functions the device scopes of a table mean (VT-d 8.3.1).
//!
//! Guarantees that a scope whose path can't be followed means nothing. Functions are named by
//! their requester ids: bus, device and function in 8, 5 and 3 bits.

use crate::{Scope, ScopeKind};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// Functions by name, and all behind bridges that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    functions: Vec<u16>,
    buses: Vec<RangeInclusive<u8>>,
}

impl Covered {
    /// What these scopes mean. `buses_behind`: the buses behind the bridge with this requester id,
    /// nearest first.
    pub fn of(scopes: &[Scope], buses_behind: impl Fn(u16) -> Option<RangeInclusive<u8>>) -> Self {
        let mut covered = Covered::default();
        for scope in scopes {
            let Some(function) = function(scope, &buses_behind) else { continue };
            match scope.kind {
                ScopeKind::Endpoint => covered.functions.push(function),
                ScopeKind::Bridge => covered.buses.extend(buses_behind(function)),
                // Not of PCI.
                ScopeKind::IoApic | ScopeKind::Hpet | ScopeKind::Namespace => {}
                ScopeKind::Other(_) => {}
            }
        }
        covered
    }

    /// Whether the function with this requester id is among them.
    pub fn contains(&self, function: u16) -> bool {
        let bus = (function >> 8) as u8;
        self.functions.contains(&function) || self.buses.iter().any(|buses| buses.contains(&bus))
    }
}

/// The function that a scope's path leads to, from bridge to bridge.
fn function(
    scope: &Scope,
    buses_behind: impl Fn(u16) -> Option<RangeInclusive<u8>>,
) -> Option<u16> {
    let id = |bus: u8, device: u8, function: u8| {
        u16::from(bus) << 8 | u16::from(device & 31) << 3 | u16::from(function & 7)
    };
    let (last, way) = scope.path.split_last()?;
    let bus = way.iter().try_fold(scope.bus, |bus, step| {
        Some(*buses_behind(id(bus, step.device, step.function))?.start())
    })?;
    Some(id(bus, last.device, last.function))
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for id in &self.functions {
            write!(f, "{between}device {:02x}:{:02x}.{}", id >> 8, id >> 3 & 31, id & 7)?;
            between = ", ";
        }
        for buses in &self.buses {
            write!(f, "{between}devices on buses {:#x} to {:#x}", buses.start(), buses.end())?;
            between = ", ";
        }
        if between.is_empty() { f.write_str("devices that aren't there") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PathStep;

    fn scope(kind: ScopeKind, bus: u8, path: &[(u8, u8)]) -> Scope {
        let path = path.iter().map(|&(device, function)| PathStep { device, function }).collect();
        Scope { kind, enumeration_id: 0, bus, path }
    }

    /// 00:1c.3 leads to buses 2 to 4, 02:00.0 to bus 3 and 4.
    fn buses_behind(bridge: u16) -> Option<RangeInclusive<u8>> {
        match bridge {
            0x00E3 => Some(2..=4),
            0x0200 => Some(3..=4),
            _ => None,
        }
    }

    fn covered(scopes: &[Scope]) -> (Covered, Vec<u16>) {
        let covered = Covered::of(scopes, buses_behind);
        let all = (0..=u16::MAX).filter(|id| covered.contains(*id)).collect();
        (covered, all)
    }

    #[test]
    fn paths_are_followed_from_bridge_to_bridge() {
        let endpoint = |path: &[(u8, u8)]| covered(&[scope(ScopeKind::Endpoint, 0, path)]).1;
        assert_eq!(endpoint(&[(0x1D, 7)]), [0x00EF]);
        assert_eq!(endpoint(&[(0x1C, 3), (5, 1)]), [0x0229]);
        assert_eq!(endpoint(&[(0x1C, 3), (0, 0), (31, 2)]), [0x03FA]);
        // No bridge there; no path at all.
        assert_eq!(endpoint(&[(0x1C, 4), (5, 1)]), []);
        assert_eq!(endpoint(&[]), []);
        assert_eq!(covered(&[scope(ScopeKind::Endpoint, 2, &[(0, 0), (0, 0)])]).1, [0x0300]);
    }

    #[test]
    fn a_bridge_means_all_behind_it_and_other_kinds_nothing() {
        let (_, all) = covered(&[scope(ScopeKind::Bridge, 0, &[(0x1C, 3)])]);
        assert_eq!(all, (0x0200..0x0500).collect::<Vec<_>>());
        let others =
            [ScopeKind::IoApic, ScopeKind::Hpet, ScopeKind::Namespace, ScopeKind::Other(9)];
        for kind in others {
            assert_eq!(covered(&[scope(kind, 0, &[(0x1C, 3)])]).1, []);
        }
    }

    #[test]
    fn they_are_named() {
        let scopes = [
            scope(ScopeKind::Endpoint, 0, &[(0x1D, 7)]),
            scope(ScopeKind::Endpoint, 0x12, &[(2, 0)]),
            scope(ScopeKind::Bridge, 0, &[(0x1C, 3)]),
        ];
        let text = covered(&scopes).0.to_string();
        assert_eq!(text, "device 00:1d.7, device 12:02.0, devices on buses 0x2 to 0x4");
        assert_eq!(covered(&[]).0.to_string(), "devices that aren't there");
    }
}
