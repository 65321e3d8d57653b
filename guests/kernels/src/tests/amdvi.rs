//! The guest's own AMD-Vi unit: what it has that no other vendor's has (AMD IOMMU spec 48882).

use super::edu;
use super::unit::{self, AT, DOMAIN, started};
use super::unit_faults;
use super::unit_interrupts::{self, VECTOR};
use super::viommu::{endpoint, fill, is_marked, mark, same, through};
use crate::acpi::Tables;
use crate::amdvi::formats::{BY_TABLE, ENTRIES, REMAPS, RIGHTS, VALID, entry};
use crate::amdvi::registers::{FEATURES, WIDE};
use crate::amdvi::{AmdVi, function};
use crate::cpu::mmio_read64;
use crate::edu::Edu;
use crate::unit::{Ask, BASE, BOTH, Place, READ, Told, Unit};
use crate::virtqueue::put;
use crate::{boot::Boot, console::check, cpu, edu as device, idt, wait};

const PAGE: u64 = 4096;
/// Of an entry for interrupts: RemapEn, and GuestMode.
const PRESENT: u64 = 1;
const GUEST_MODE: u64 = 1 << 7;
/// Events: ILLEGAL_DEV_TABLE_ENTRY, ILLEGAL_COMMAND_ERROR.
const ILLEGAL_DEVICE: u32 = 1;
const ILLEGAL_COMMAND: u64 = 5;
/// Of an entry of the device table: version 2, which isn't offered.
const GUEST_TABLES: u64 = 1 << 55;

/// Where it is found, map and unmap, and what its tables have.
pub fn translated(test: &str, boot: &Boot) {
    found(test, boot);
    unit::translated::<AmdVi>(test, boot);
    let (Some(edu), Some(unit)) = (edu(test), started::<AmdVi>(test, boot)) else { return };
    let id = endpoint(edu.function);
    unit.lead(id, Place::Nowhere);
    check!(test, unit.begin(id), "it translates again");
    tables(test, &unit, &edu);
    check!(test, unit.translate(false), "it translates no more");
}

/// The function, the IVRS and the registers say the same of it.
fn found(test: &str, boot: &Boot) {
    let wrong = function().err();
    check!(test, wrong.is_none(), "the unit's function is 00:00.2: {wrong:?}");
    let Some(ivrs) = Tables::find(boot.rsdp).and_then(|tables| tables.get(b"IVRS")) else {
        return check!(test, false, "there is an IVRS");
    };
    // Its first block: of type 11h, with function, base and features.
    let said = [(48, 1), (52, 2), (56, 8), (72, 8)].map(|(at, bytes)| ivrs.number(at, bytes));
    let right = said == [0x11, 2, BASE, mmio_read64(BASE + FEATURES)];
    check!(test, right, "the IVRS has it: {said:#x?}");
}

/// Levels that are skipped, tables of fewer and of more, pages of more than one entry, rights of
/// each level.
fn tables(test: &str, unit: &AmdVi, edu: &Edu) {
    /// Its address bits above the last level's are 0.
    const LOW: u64 = 0x15_0000;
    let id = endpoint(edu.function);
    let memory = unit.memory_behind().next_multiple_of(16 * PAGE);
    let (source, target) = (memory, memory + 16 * PAGE);
    let (root, leaves) = (unit.table(), unit.table());
    let at =
        |table: u64, address: u64, level: u64| table + address / (PAGE << (9 * level)) % 512 * 8;
    // What a root of so many levels says, and what the device's entry allows.
    let lead = |root: u64, levels: u64, rights: u64| {
        unit.put_device(id, [entry(root, levels, rights) | VALID, DOMAIN.into()]);
        unit.ask(&[Ask::Device(id), Ask::Domain(DOMAIN)])
    };
    let arrives = |at: u64| {
        fill(source, at);
        mark(target);
        through(edu, at, at + PAGE) && same(source, target)
    };
    let nothing = |at: u64| {
        fill(source, at);
        mark(target);
        through(edu, at, at + PAGE) && is_marked(target)
    };
    for (page, to) in [(LOW, source), (LOW + PAGE, target), (AT, source), (AT + PAGE, target)] {
        put(at(leaves, page, 0), entry(to, 0, BOTH));
    }
    put(at(root, LOW, 3), entry(leaves, 1, BOTH));
    check!(test, lead(root, 4, BOTH) && arrives(LOW), "from level 4 to level 1: it arrives");
    check!(test, nothing(AT), "and nothing at an address that a level between would translate");
    check!(test, lead(leaves, 1, BOTH) && arrives(LOW), "tables of one level: it arrives");
    check!(test, nothing(AT), "and nothing at an address beyond them");
    put(at(root, AT, 1), entry(leaves, 1, BOTH));
    check!(test, lead(root, 2, BOTH) && arrives(AT), "of two levels: it arrives");
    let six = unit.table();
    put(six, entry(root, 2, BOTH));
    check!(test, lead(six, 6, BOTH) && arrives(AT), "of six levels, four skipped: it arrives");
    check!(test, lead(root, 2, READ) && nothing(AT), "read only by the device's entry");
    put(at(root, AT, 1), entry(leaves, 1, READ));
    check!(test, lead(root, 2, BOTH) && nothing(AT), "read only by the table above");
    // A level that isn't below its own.
    put(at(root, AT, 1), entry(leaves, 2, BOTH));
    check!(test, lead(root, 2, BOTH) && nothing(AT), "a level that leads to itself");
    // The lowest bit that is clear says how many.
    put(at(root, AT, 1), entry(leaves, 1, BOTH));
    for n in 0..16 {
        put(at(leaves, AT + n * PAGE, 0), entry(memory | 0x7000, 7, BOTH));
    }
    fill(memory + 9 * PAGE, 5);
    mark(memory + 3 * PAGE);
    let moved = lead(root, 2, BOTH) && through(edu, AT + 9 * PAGE, AT + 3 * PAGE);
    let right = moved && same(memory + 9 * PAGE, memory + 3 * PAGE);
    check!(test, right, "16 pages by as many entries of one size");
    // V isn't set.
    fill(source, 6);
    mark(target);
    unit.put_device(id, [0, 0]);
    let moved = unit.ask(&[Ask::Device(id)]) && through(edu, source, target);
    check!(test, moved && same(source, target), "an entry that isn't valid: its memory");
}

/// What a device tries and isn't let, and what else is wrong.
pub fn faults(test: &str, boot: &Boot) {
    unit_faults::faults::<AmdVi>(test, boot, |unit, edu| {
        overflow(test, unit, edu);
        illegal(test, unit, edu);
    });
}

/// A log with room for two events, and a third.
fn overflow(test: &str, unit: &AmdVi, edu: &Edu) {
    let first = unit.leave_room(2);
    let before = idt::total(VECTOR);
    let flooded = wait::until(|| edu.dma_to_memory(AT, PAGE) && unit.overflows());
    check!(test, flooded && !unit.logs(), "the log is full, and doesn't run");
    check!(test, wait::until(|| idt::total(VECTOR) > before), "an interrupt says so");
    unit.begin_log(first);
    let (told, found) = unit.take_told();
    let right = matches!(told, Some(Told { is_read: false, address: AT, .. })) && found == 2;
    check!(test, right, "{found} events are in it: {told:x?}");
    check!(test, unit.ask(&[]) && unit.logs(), "it goes on when the overflow is cleared");
    let again = wait::until(|| edu.dma_to_memory(AT, PAGE) && unit.has_told());
    let (told, _) = unit.take_told();
    let right = matches!(told, Some(Told { is_read: false, address: AT, .. }));
    check!(test, again && right, "and tells of what is tried then: {told:x?}");
}

/// An entry of the device table and a command that mean nothing.
fn illegal(test: &str, unit: &AmdVi, edu: &Edu) {
    let id = endpoint(edu.function);
    unit.put_device(id, [GUEST_TABLES | BOTH << RIGHTS | VALID, 0]);
    let asked = unit.ask(&[Ask::Device(id)]);
    wait::settle();
    unit.take_told();
    let came = asked && edu.dma_from_memory(AT, PAGE) && wait::until(|| unit.has_told());
    let (told, _) = unit.take_told();
    let right = matches!(told, Some(Told { source, address: AT, code, .. })
        if u32::from(source) == id && code >> 28 == ILLEGAL_DEVICE);
    check!(test, came && right, "an entry that means nothing: {told:x?}");
    unit.lead(id, Place::Nowhere);
    check!(test, unit.ask(&[Ask::Device(id)]), "and another");

    unit.take_told();
    let at = unit.put([9 << 60, 0]);
    unit.tell();
    check!(test, wait::until(|| unit.is_wrong()), "a command that is none: it stops");
    let event = wait::until(|| unit.has_told()).then(|| unit.event()).flatten();
    check!(test, event == Some([ILLEGAL_COMMAND << 60, at]), "it tells of it: {event:x?}");
    check!(test, unit.restart_commands(), "it goes on, from where it is told");
    unit.take_told();
}

/// Interrupts by entries, and what a device's entry of the device table says of them.
pub fn interrupts(test: &str, boot: &Boot) {
    unit_interrupts::interrupts::<AmdVi>(test, boot);
    let (Some(edu), Some(unit)) = (edu(test), started::<AmdVi>(test, boot)) else { return };
    unit.lead(endpoint(edu.function), Place::Through);
    let begun = unit.begin(endpoint(edu.function)) && unit.remap(true);
    check!(test, begun, "it translates and remaps again");
    formats(test, &unit, &edu);
    edu.silence();
    check!(test, unit.remap(false) && unit.translate(false), "it does no more");
}

/// Entries of either size, with what isn't offered; and IV, IntCtl and IntTabLen.
fn formats(test: &str, unit: &AmdVi, edu: &Edu) {
    const INDEX: u64 = 6;
    let id = endpoint(edu.function);
    let sent = || {
        let before = idt::total(VECTOR);
        device::raise();
        wait::until(|| idt::total(VECTOR) > before)
    };
    let silent = || {
        let before = idt::total(VECTOR);
        device::raise();
        wait::settle();
        device::acknowledge();
        idt::total(VECTOR) == before
    };
    let asked = || unit.ask(&[Ask::Device(id), Ask::Interrupts(id as u16)]);
    let control = |word: u64| {
        unit.put_interrupts(id, word);
        asked()
    };
    let is_set = unit.set_entry(INDEX, Some((0, VECTOR)), id as u16);
    let Some((table, _)) = unit.entries(id as u16) else { return };
    let (address, data) = AmdVi::message(INDEX);
    edu.program(address, data, true);
    check!(test, is_set && asked() && sent(), "by an entry of 128 bits");
    put(table + 16 * INDEX, GUEST_MODE | PRESENT);
    check!(test, asked() && silent(), "in guest mode, which isn't offered: blocked");
    put(table + 16 * INDEX, PRESENT);
    check!(test, asked() && sent(), "not in it: it arrives");
    // Lengths are powers of two: of 4 entries, of 8.
    let by_table = table | BY_TABLE | REMAPS;
    check!(test, control(by_table | 2 << 1) && silent(), "beyond the table's end: blocked");
    check!(test, control(by_table | 3 << 1) && sent(), "within it: it arrives");
    check!(test, control(table | ENTRIES | REMAPS) && silent(), "IntCtl 0: blocked");

    unit.set(WIDE, false);
    put(table + 4 * INDEX, u32::from(VECTOR) << 16 | 1);
    check!(test, control(unit.interrupts(id as u16)) && sent(), "by an entry of 32 bits");
    put(table + 4 * INDEX, u32::from(VECTOR) << 16);
    check!(test, asked() && silent(), "not present: blocked");
    unit.set(WIDE, true);

    edu.aim(VECTOR);
    check!(test, asked() && silent(), "what says a vector: blocked");
    let passes = table | 1 << 60 | ENTRIES | REMAPS;
    check!(test, control(passes) && sent(), "IntCtl 1: it passes as it is");
    check!(test, control(unit.interrupts(id as u16)) && silent(), "IntCtl 2: it doesn't");
    check!(test, control(0) && sent(), "IV isn't set: it passes as it is");
    cpu::disable_interrupts();
}
