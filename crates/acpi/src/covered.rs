//! Which PCI functions a table means: by the device scopes of the DMAR (VT-d 8.3.1), or by the
//! requester ids of the IVRS (AMD IOMMU 5.2.2).
//!
//! Guarantees that a scope whose path can't be followed means nothing. Functions are named by
//! their requester ids: bus, device and function in 8, 5 and 3 bits. Says nothing about whether
//! there is such a function.

use crate::{DeviceEntry, HardwareDefinition, MemoryDefinition, Scope, ScopeKind};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;

/// Functions by name, all behind bridges that are named, and all in ranges of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    named: Vec<Named>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    ids: RangeInclusive<u16>,
    /// The id that their requests carry instead of their own.
    alias: Option<u16>,
}

impl Named {
    fn own(ids: RangeInclusive<u16>) -> Self {
        Named { ids, alias: None }
    }

    fn behind(buses: &RangeInclusive<u8>) -> Self {
        Named::own(u16::from(*buses.start()) << 8..=u16::from(*buses.end()) << 8 | 0xFF)
    }
}

impl Covered {
    /// What these scopes mean. `buses_behind`: the buses behind the bridge with this requester id,
    /// nearest first.
    pub fn of(scopes: &[Scope], buses_behind: impl Fn(u16) -> Option<RangeInclusive<u8>>) -> Self {
        let mut named = Vec::new();
        for scope in scopes {
            let Some(function) = function(scope, &buses_behind) else { continue };
            match scope.kind {
                ScopeKind::Endpoint => named.push(Named::own(function..=function)),
                ScopeKind::Bridge => named.extend(buses_behind(function).iter().map(Named::behind)),
                // Not of PCI.
                ScopeKind::IoApic | ScopeKind::Hpet | ScopeKind::Namespace => {}
                ScopeKind::Other(_) => {}
            }
        }
        Covered { named }
    }

    /// Those that a unit of AMD's names. What it means when it names all is said by
    /// [`HardwareDefinition::include_all`].
    pub fn of_hardware(unit: &HardwareDefinition) -> Self {
        let entries = unit.devices.iter().filter(|entry| !entry.is_all());
        let entry = |e: &DeviceEntry| Named { ids: e.ids.clone(), alias: e.alias };
        let special = unit.special.iter().map(|device| Named::own(device.id..=device.id));
        Covered { named: entries.map(entry).chain(special).collect() }
    }

    /// This one alone.
    pub fn of_function(id: u16) -> Self {
        Covered { named: [Named::own(id..=id)].into() }
    }

    /// Those that firmware has use this memory.
    pub fn of_memory(memory: &MemoryDefinition) -> Self {
        Covered { named: [Named::own(memory.devices.clone())].into() }
    }

    /// Whether the function with this requester id is among them, or its id is one that requests
    /// of theirs carry.
    pub fn contains(&self, function: u16) -> bool {
        self.named.iter().any(|n| n.ids.contains(&function) || n.alias == Some(function))
    }

    /// The requester id that this function's requests carry: its own, or that of whoever speaks for
    /// it. That one's isn't looked up in turn: it is what the unit sees.
    pub fn requester(&self, function: u16) -> u16 {
        // Of entries that contradict each other the last counts.
        let named = self.named.iter().rev().find(|n| n.ids.contains(&function));
        named.and_then(|n| n.alias).unwrap_or(function)
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

/// A function by its requester id.
struct Id(u16);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.0 >> 8, self.0 >> 3 & 31, self.0 & 7)
    }
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for Named { ids, .. } in &self.named {
            let (first, last) = (*ids.start(), *ids.end());
            f.write_str(between)?;
            if first == last {
                write!(f, "device {}", Id(first))?;
            } else if first & 0xFF == 0 && last & 0xFF == 0xFF {
                write!(f, "devices on buses {:#x} to {:#x}", first >> 8, last >> 8)?;
            } else {
                write!(f, "devices {} to {}", Id(first), Id(last))?;
            }
            between = ", ";
        }
        if between.is_empty() { f.write_str("devices that aren't there") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HardwareSettings, MemoryAccess, Passing, PathStep, SpecialDevice, SpecialKind};

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

    fn entry(ids: RangeInclusive<u16>, alias: Option<u16>) -> DeviceEntry {
        DeviceEntry { ids, alias, passing: Passing::default() }
    }

    fn unit(devices: &[DeviceEntry]) -> HardwareDefinition {
        let special =
            SpecialDevice { kind: SpecialKind::IoApic(4), id: 0x00A0, passing: Passing::default() };
        HardwareDefinition {
            function: 2,
            no_translation: false,
            settings: HardwareSettings::default(),
            base: 0xFD20_0000,
            segment: 0,
            devices: devices.to_vec(),
            special: vec![special],
        }
    }

    #[test]
    fn a_unit_names_ids_ranges_and_what_isn_t_of_pci() {
        let unit = unit(&[entry(3..=0x0102, None), entry(0x0200..=0x0207, Some(0x00A4))]);
        let covered = Covered::of_hardware(&unit);
        let all: Vec<_> = (0..=u16::MAX).filter(|id| covered.contains(*id)).collect();
        let mut expected: Vec<_> = (3..=0x0102).chain(0x0200..=0x0207).collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert!(!unit.include_all());
        let text = "devices 00:00.3 to 01:00.2, devices 02:00.0 to 02:00.7, device 00:14.0";
        assert_eq!(covered.to_string(), text);
    }

    /// It serves what no other unit names, so it can't be asked before the others.
    #[test]
    fn who_names_all_names_nobody() {
        let everything = unit(&[entry(0..=u16::MAX, None), entry(8..=8, None)]);
        assert!(everything.include_all());
        let covered = Covered::of_hardware(&everything);
        assert!(covered.contains(8) && covered.contains(0x00A0) && !covered.contains(9));
        // Under one id they aren't the rest of the machine, but a bus.
        let bus = unit(&[entry(0..=u16::MAX, Some(9))]);
        assert!(!bus.include_all() && Covered::of_hardware(&bus).contains(0x1234));
    }

    #[test]
    fn requests_carry_the_id_of_who_speaks_for_a_function() {
        let as_seen =
            |devices: &[DeviceEntry], id| Covered::of_hardware(&unit(devices)).requester(id);
        let bus = [entry(0..=0x03FF, None), entry(0x0300..=0x030F, Some(0x00A4))];
        assert_eq!([0x0300, 0x030F].map(|id| as_seen(&bus, id)), [0x00A4; 2]);
        for own in [0x0310, 0x02FF, 0x00A4, 0x00A5, 0x7000] {
            assert_eq!(as_seen(&bus, own), own);
        }
        let chain = [entry(5..=5, Some(6)), entry(6..=6, Some(5))];
        assert_eq!((as_seen(&chain, 5), as_seen(&chain, 6)), (6, 5));
        let words = [entry(5..=5, Some(6)), entry(5..=5, None)];
        assert_eq!(as_seen(&words, 5), 5);
        assert!(Covered::of_hardware(&unit(&words)).contains(6), "all the same");
    }

    #[test]
    fn memory_names_who_uses_it() {
        let access = MemoryAccess::Excluded;
        let memory = MemoryDefinition { base: 0, limit: 9, segment: 0, devices: 3..=5, access };
        let covered = Covered::of_memory(&memory);
        let all: Vec<_> = (0..=u16::MAX).filter(|id| covered.contains(*id)).collect();
        assert_eq!(all, [3, 4, 5]);
        let one = Covered::of_function(4);
        assert_eq!((0..=9).filter(|id| one.contains(*id)).collect::<Vec<_>>(), [4]);
    }
}
