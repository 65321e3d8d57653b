//! The IVRS: AMD's IOMMUs and the memory firmware reserved for devices (AMD IOMMU chapter 5).
//!
//! An entry of a type that isn't known is skipped by the length that its type says. What can't be
//! skipped, or would leave it open which devices are meant, is refused.

use super::table::{Read, Stop, Table};
use crate::ivrs::ALL_IDS;
use crate::{
    DeviceEntry, Error, HardwareDefinition, HardwareSettings, Ivrs, MemoryAccess, MemoryDefinition,
    Passing, SpecialDevice, SpecialKind,
};
use alloc::vec::Vec;
use core::cmp::Ordering;

const BLOCKS: u32 = 48;
/// More than any board has: bounds the search for blocks that belong together.
const MAX_UNITS: usize = 256;
/// Of the whole table. Each route of an interrupt looks for its device among them.
const MAX_ENTRIES: usize = 8192;
/// A unit's registers begin at a multiple of this.
const REGISTERS: u64 = 16 << 10;

/// Types of IVHD block, where their device entries begin, and their attributes, if they have them.
const HARDWARE: [(u8, u32, Option<u32>); 3] =
    [(0x10, 24, None), (0x11, 40, Some(20)), (0x40, 40, Some(20))];
/// In the attributes: host address translation is disabled.
const HAT_DISABLED: u32 = 1 << 0;
const MEMORY_ALL: u8 = 0x20;
const MEMORY_SELECT: u8 = 0x21;
const MEMORY_RANGE: u8 = 0x22;

const ALL: u8 = 1;
const SELECT: u8 = 2;
const RANGE: u8 = 3;
const RANGE_END: u8 = 4;
const ALIAS_SELECT: u8 = 0x42;
const ALIAS_RANGE: u8 = 0x43;
const EXTENDED_SELECT: u8 = 0x46;
const EXTENDED_RANGE: u8 = 0x47;
const SPECIAL: u8 = 0x48;
const NAMESPACE: u8 = 0xF0;
/// Bytes of a [`NAMESPACE`] entry before its unique id; the last of them is that id's length.
const NAMESPACE_HEAD: u32 = 22;

const EVERY_END: &str = "an end for every range, and nothing between";

pub fn parse(table: &Table<'_>) -> Read<Ivrs> {
    let mut units: Vec<(u8, HardwareDefinition)> = Vec::new();
    let mut memory = Vec::new();
    let mut entries = 0;
    let mut offset = BLOCKS;
    while offset < table.length() {
        let head = table.part(offset, 4, 4)?;
        let kind = head.u8(0)?;
        let length = u32::from(head.u16(2)?);
        let block = table.part(offset, length, 4)?;
        if let Some((_, first, attributes)) = HARDWARE.into_iter().find(|h| h.0 == kind) {
            let unit = hardware(&block, first, attributes)?;
            entries += unit.devices.len() + unit.special.len();
            if entries > MAX_ENTRIES {
                return Err(block.stop(too_many("device entries", MAX_ENTRIES)));
            }
            add(table, &mut units, kind, unit, offset)?;
        } else if let MEMORY_ALL..=MEMORY_RANGE = kind {
            memory.push(reserved(&block, kind)?);
        }
        offset = offset.saturating_add(length);
    }
    let hardware: Vec<_> = units.into_iter().map(|(_, unit)| unit).collect();
    let shared = |(i, unit): (usize, &HardwareDefinition)| {
        hardware[..i].iter().any(|other| other.base == unit.base)
    };
    if hardware.iter().enumerate().any(shared) {
        return Err(inconsistent(table, 0, "a register base of its own for each unit"));
    }
    Ok(Ivrs { hardware, memory })
}

fn too_many(what: &'static str, most: usize) -> Error {
    Error::TooMany { table: "IVRS", what, most }
}

fn inconsistent(of: &Table<'_>, offset: u32, needed: &'static str) -> Stop {
    of.stop(Error::Inconsistent { table: "IVRS", offset, needed })
}

/// Of several blocks of one unit the newest type counts (5.2.2).
fn add(
    table: &Table<'_>,
    units: &mut Vec<(u8, HardwareDefinition)>,
    kind: u8,
    unit: HardwareDefinition,
    offset: u32,
) -> Read<()> {
    let same = |(_, known): &(u8, HardwareDefinition)| {
        (known.segment, known.function) == (unit.segment, unit.function)
    };
    let Some(place) = units.iter().position(same) else {
        if units.len() == MAX_UNITS {
            return Err(table.stop(too_many("IOMMUs", MAX_UNITS)));
        }
        units.push((kind, unit));
        return Ok(());
    };
    match units[place].0.cmp(&kind) {
        Ordering::Less => units[place] = (kind, unit),
        Ordering::Equal => {
            return Err(inconsistent(table, offset, "one block of a type for each unit"));
        }
        Ordering::Greater => {}
    }
    Ok(())
}

/// An IVHD block, whose device entries begin at `first`, and whose attributes are there.
fn hardware(block: &Table<'_>, first: u32, attributes: Option<u32>) -> Read<HardwareDefinition> {
    let base = block.u64(8)?;
    if base == 0 || !base.is_multiple_of(REGISTERS) || base.checked_add(REGISTERS).is_none() {
        let needed =
            "a register base above 0 that is a multiple of 16 KiB and leaves room for them";
        return Err(inconsistent(block, block.offset(), needed));
    }
    // Too short for its own fields, it isn't a block without devices.
    block.part(0, first, first)?;
    let attributes = attributes.map_or(Ok(0), |at| block.u32(at))?;
    let mut unit = HardwareDefinition {
        function: block.u16(4)?,
        settings: settings(block.u8(1)?),
        no_translation: attributes & HAT_DISABLED != 0,
        base,
        segment: block.u16(16)?,
        devices: Vec::new(),
        special: Vec::new(),
    };
    // The beginning of a range, until its end is found.
    let mut open: Option<DeviceEntry> = None;
    let mut at = first;
    while at < block.length() {
        let entry = entry(block, at)?;
        match (meaning(&entry)?, open.take()) {
            (Meaning::Nothing, still) => open = still,
            (Meaning::Devices(devices), None) => unit.devices.push(devices),
            (Meaning::Begin(devices), None) => open = Some(devices),
            (Meaning::End(last), Some(begun)) => unit.devices.push(close(begun, last, &entry)?),
            (Meaning::Special(device), None) => unit.special.push(device),
            (Meaning::End(_), None) | (_, Some(_)) => {
                return Err(inconsistent(&entry, entry.offset(), EVERY_END));
            }
        }
        at = at.saturating_add(entry.length());
    }
    if open.is_some() {
        return Err(inconsistent(block, block.offset(), EVERY_END));
    }
    Ok(unit)
}

/// The flags of an IVHD that are for the control register.
fn settings(flags: u8) -> HardwareSettings {
    HardwareSettings {
        ht_tunnel: flags & 1 != 0,
        pass_posted_writes: flags & 2 != 0,
        responses_pass_posted_writes: flags & 4 != 0,
        isochronous: flags & 8 != 0,
    }
}

/// What a device entry says.
enum Meaning {
    Nothing,
    Devices(DeviceEntry),
    /// A range begins, with the id of its first device.
    Begin(DeviceEntry),
    /// It ends, with this one.
    End(u16),
    Special(SpecialDevice),
}

fn meaning(entry: &Table<'_>) -> Read<Meaning> {
    let (id, passing) = (entry.u16(1)?, Passing(entry.u8(3)?));
    let one = |alias| DeviceEntry { ids: id..=id, alias, passing };
    Ok(match entry.u8(0)? {
        ALL => Meaning::Devices(DeviceEntry { ids: ALL_IDS, ..one(None) }),
        SELECT | EXTENDED_SELECT => Meaning::Devices(one(None)),
        ALIAS_SELECT => Meaning::Devices(one(Some(entry.u16(5)?))),
        RANGE | EXTENDED_RANGE => Meaning::Begin(one(None)),
        ALIAS_RANGE => Meaning::Begin(one(Some(entry.u16(5)?))),
        RANGE_END => Meaning::End(id),
        SPECIAL => {
            let handle = entry.u8(4)?;
            let kind = match entry.u8(7)? {
                1 => SpecialKind::IoApic(handle),
                2 => SpecialKind::Hpet(handle),
                other => SpecialKind::Other(other),
            };
            Meaning::Special(SpecialDevice { kind, id: entry.u16(5)?, passing })
        }
        NAMESPACE => {
            let kind = SpecialKind::Namespace(entry.u64(4)?.to_le_bytes());
            Meaning::Special(SpecialDevice { kind, id, passing })
        }
        _ => Meaning::Nothing,
    })
}

/// The range that ends with the device `last`.
fn close(begun: DeviceEntry, last: u16, end: &Table<'_>) -> Read<DeviceEntry> {
    let first = *begun.ids.start();
    if first > last {
        return Err(inconsistent(
            end,
            end.offset(),
            "an end of the range not before its beginning",
        ));
    }
    Ok(DeviceEntry { ids: first..=last, ..begun })
}

/// The device entry at `at`, in the length that its type says (5.2.2.1, table of types).
fn entry<'a>(block: &Table<'a>, at: u32) -> Read<Table<'a>> {
    let length = match block.part(at, 1, 1)?.u8(0)? {
        0..=63 => 4,
        64..=127 => 8,
        128..=191 => 16,
        192..=239 => 32,
        NAMESPACE => {
            let head = block.part(at, NAMESPACE_HEAD, NAMESPACE_HEAD)?;
            NAMESPACE_HEAD + u32::from(head.u8(NAMESPACE_HEAD - 1)?)
        }
        241..=255 => {
            let needed = "a type of device entry whose length is known (0 to 240)";
            return Err(inconsistent(block, block.offset().saturating_add(at), needed));
        }
    };
    block.part(at, length, length)
}

/// An IVMD block.
fn reserved(block: &Table<'_>, kind: u8) -> Read<MemoryDefinition> {
    const FLAG_READ: u8 = 1 << 1;
    const FLAG_WRITE: u8 = 1 << 2;
    const FLAG_EXCLUSION: u8 = 1 << 3;
    let (base, length) = (block.u64(16)?, block.u64(24)?);
    let Some(limit) = length.checked_sub(1).and_then(|more| base.checked_add(more)) else {
        let needed = "a length of memory above 0 and an end below 2^64";
        return Err(inconsistent(block, block.offset(), needed));
    };
    let id = block.u16(4)?;
    let devices = match kind {
        MEMORY_SELECT => id..=id,
        MEMORY_RANGE => id..=block.u16(6)?,
        _ => ALL_IDS,
    };
    if devices.is_empty() {
        return Err(inconsistent(block, block.offset(), "a last device not before the first"));
    }
    let flags = block.u8(1)?;
    let access = match flags & FLAG_EXCLUSION {
        0 => MemoryAccess::Mapped { read: flags & FLAG_READ != 0, write: flags & FLAG_WRITE != 0 },
        _ => MemoryAccess::Excluded,
    };
    Ok(MemoryDefinition { base, limit, segment: block.u16(8)?, devices, access })
}
