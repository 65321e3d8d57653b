//! Interrupts by the guest's entries, of both sizes.

use super::super::at::{CONTROL, ENABLE, FETCHES, LOGS, WIDE_ENTRIES, X2APIC};
use super::super::*;
use super::machine::*;
use crate::tests::model::{ENDPOINTS, LOW};
use crate::unit::{Blocked, Remapped};

const REMAP: u64 = 2 << 60;
const ON: u64 = ENABLE | LOGS | FETCHES;

/// The half of a device's entry that is of interrupts.
fn set_interrupts(machine: &Machine, id: u16, word: u64) {
    machine.put(DEVICES + 32 * u64::from(id) + 16, word);
}

fn of(machine: &Machine, data: u32) -> Result<Option<Remapped>, Blocked> {
    let source = ENDPOINTS[0] as u16;
    machine.unit.remapping().of_msi(&machine.window(), source, (0xFEE0_0000, data))
}

fn by_32_bits(control: u64) -> Machine {
    let (mut machine, _) = Machine::on(4096);
    machine.write64(CONTROL, ON | control);
    machine.run();
    // IV, 32 entries.
    set_interrupts(&machine, ENDPOINTS[0] as u16, 1 | 5 << 1 | ENTRIES | REMAP);
    machine
}

#[test]
fn entries_of_32_bits() {
    let machine = by_32_bits(X2APIC);
    // RemapEn, lowest priority, logical, to 0x5A, vector 0x41; and one beside it.
    machine.put(ENTRIES + 8, 1 | 1 << 2 | 1 << 6 | 0x5A << 8 | 0x41 << 16);
    machine.put(ENTRIES + 16, 0x33_FF01 << 32 | 0x52_1200);
    let wanted =
        Remapped { data: 0x141, logical: true, hint: false, destination: 0x5A, posted: None };
    assert_eq!(of(&machine, 2), Ok(Some(wanted)));
    assert_eq!(of(&machine, 3), Err(Blocked::NotPresent(3)), "0");
    assert_eq!(of(&machine, 4), Err(Blocked::NotPresent(4)), "RemapEn is clear");
    let odd = Remapped { data: 0x33, logical: false, hint: false, destination: 0xFF, posted: None };
    assert_eq!(of(&machine, 5), Ok(Some(odd)));
    assert_eq!(of(&machine, 31), Err(Blocked::NotPresent(31)));
    assert_eq!(of(&machine, 32), Err(Blocked::NoEntry(32)));
    // The index has 11 bits; level is the message's own.
    let level = Remapped { data: 0x8141, ..wanted };
    assert_eq!(of(&machine, 2 | 0xC000_8000), Ok(Some(level)));
    assert_eq!(of(&machine, 2 | 1 << 10), Err(Blocked::NoEntry(0x402)));
    // GuestMode.
    machine.put(ENTRIES + 8, 1 | 1 << 7 | 0x41 << 16);
    assert_eq!(of(&machine, 2), Err(Blocked::NotPresent(2)));
}

#[test]
fn entries_of_128_bits() {
    let machine = by_32_bits(WIDE_ENTRIES | X2APIC);
    let put = |index: u64, low: u64, high: u64| {
        machine.put(ENTRIES + 16 * index, low);
        machine.put(ENTRIES + 16 * index + 8, high);
    };
    put(3, 1 | 1 << 6 | 0x34_5678 << 8, 0x41 | 0x12 << 56);
    let wanted =
        Remapped { data: 0x41, logical: true, hint: false, destination: 0x1234_5678, posted: None };
    assert_eq!(of(&machine, 3), Ok(Some(wanted)));
    put(31, 1 | 1 << 2 | 7 << 8, 0x42);
    let last = Remapped { data: 0x142, logical: false, hint: false, destination: 7, posted: None };
    assert_eq!(of(&machine, 31), Ok(Some(last)));
    assert_eq!(of(&machine, 32), Err(Blocked::NoEntry(32)));
    put(3, 0x34_5678 << 8, 0x41);
    assert_eq!(of(&machine, 3), Err(Blocked::NotPresent(3)));
    put(3, 1 | 1 << 7, 0x41);
    assert_eq!(of(&machine, 3), Err(Blocked::NotPresent(3)), "GuestMode");
    // Without XTEn a destination has 8 bits.
    let machine = by_32_bits(WIDE_ENTRIES);
    machine.put(ENTRIES, 1 | 0x34_5678 << 8);
    machine.put(ENTRIES + 8, 0x41 | 0x12 << 56);
    let narrow =
        Remapped { data: 0x41, logical: false, hint: false, destination: 0x78, posted: None };
    assert_eq!(of(&machine, 0), Ok(Some(narrow)));
}

#[test]
fn a_device_s_entry_decides() {
    let machine = by_32_bits(WIDE_ENTRIES | X2APIC);
    let source = ENDPOINTS[0] as u16;
    let remaps = 1 | 5 << 1 | ENTRIES | REMAP;
    // No IV, and forwarding, pass; abort, a reserved control and length don't.
    for word in [0, remaps & !1, 1 | 1 << 60, remaps & !REMAP | 1 << 60] {
        set_interrupts(&machine, source, word);
        assert_eq!(of(&machine, 2), Ok(None), "{word:#x}");
    }
    for word in [1, remaps & !REMAP, remaps | 3 << 60, remaps | 0xC << 1] {
        set_interrupts(&machine, source, word);
        assert_eq!(of(&machine, 2), Err(Blocked::Format), "{word:#x}");
    }
    // A table of 2048 entries, one outside of memory, and one at its end.
    set_interrupts(&machine, source, remaps & !0x1E | 11 << 1);
    assert_eq!(of(&machine, 0x7FF), Err(Blocked::NotPresent(0x7FF)));
    set_interrupts(&machine, source, remaps & 0xFFF | 1 << 51 | REMAP);
    assert_eq!(of(&machine, 2), Err(Blocked::NoEntry(2)));
    set_interrupts(&machine, source, remaps & 0xFFF | (LOW.len - 64) | REMAP);
    assert_eq!(of(&machine, 3), Err(Blocked::NotPresent(3)));
    assert_eq!(of(&machine, 4), Err(Blocked::NoEntry(4)));
    // Another source, another table.
    set_interrupts(&machine, source, remaps);
    set_interrupts(&machine, source + 8, 1 | 5 << 1 | (ENTRIES + 0x800) | REMAP);
    machine.put(ENTRIES + 0x800, 1 | 3 << 8);
    machine.put(ENTRIES + 0x808, 0x61);
    let by = machine.unit.remapping();
    let there = Remapped { data: 0x61, logical: false, hint: false, destination: 3, posted: None };
    let others = by.of_msi(&machine.window(), source + 8, (0xFEE0_0000, 0));
    assert_eq!((others, of(&machine, 0)), (Ok(Some(there)), Err(Blocked::NotPresent(0))));
    // One that has no entry in the device table at all.
    let none = by.of_msi(&machine.window(), 0x4000, (0xFEE0_0000, 0));
    assert_eq!(none, Err(Blocked::Format));
}

#[test]
fn the_ioapic_has_a_table_like_a_device() {
    let machine = by_32_bits(WIDE_ENTRIES);
    machine.write64(at::DEVICE_TABLE, DEVICES | 1);
    // Its entry is in the second page.
    machine.put(DEVICES + 32 * 0xA0 + 16, 1 | 11 << 1 | ENTRIES | REMAP);
    let index = 0x1FF_u64;
    machine.put(ENTRIES + 16 * index, 1 | 2 << 8);
    machine.put(ENTRIES + 16 * index + 8, 0x77);
    let mut machine = machine;
    machine.ask(&[[5 << 60 | u64::from(IOAPIC), 0]]);
    let by = machine.unit.remapping();
    // Level, active low, a mask and a destination that don't count.
    let entry = 0xFF << 56 | 1 << 15 | 1 << 13 | 1 << 16 | index;
    let wanted =
        Remapped { data: 0x8077, logical: false, hint: false, destination: 2, posted: None };
    assert_eq!(by.of_redirection(&machine.window(), entry), Ok(Some(wanted)));
    let other = by.of_redirection(&machine.window(), 0x41);
    assert_eq!(other, Err(Blocked::NotPresent(0x41)));
}

#[test]
fn nothing_is_remapped_before_the_unit_is_on() {
    let mut machine = Machine::new(1);
    set_interrupts(&machine, ENDPOINTS[0] as u16, 1);
    machine.write64(CONTROL, WIDE_ENTRIES);
    machine.run();
    assert_eq!((of(&machine, 2), machine.reroutes), (Ok(None), 0));
    machine.write64(at::DEVICE_TABLE, DEVICES);
    machine.write64(CONTROL, ENABLE);
    machine.run();
    assert_eq!((of(&machine, 2), machine.reroutes), (Err(Blocked::Format), 1));
    machine.write64(CONTROL, 0);
    machine.run();
    assert_eq!((of(&machine, 2), machine.reroutes), (Ok(None), 2));
}

#[test]
fn the_word_of_a_wait_is_written_when_the_routes_follow() {
    for command in [[5 << 60 | 0x10, 0], device(0), device(1), [2 << 60 | 0xA0, 0], ALL] {
        let (mut machine, _) = Machine::on(4096);
        machine.push(command);
        machine.push([1 << 60 | WORD | 1, 0x79]);
        machine.write64(at::COMMAND_TAIL, machine.tail);
        while machine.step() == Step::Worked {}
        for _ in 0..3 {
            assert_eq!(machine.step(), Step::Reroute);
        }
        assert_eq!((machine.get(WORD), machine.read(at::COMMAND_HEAD)), (0, 0));
        machine.unit.rerouted();
        machine.run();
        assert_eq!((machine.get(WORD), machine.reroutes), (0x79, 0));
    }
}
