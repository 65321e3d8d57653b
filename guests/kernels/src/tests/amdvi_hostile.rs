//! A guest that does with its own AMD-Vi unit what no driver does: besides what `unit_hostile` has,
//! tables of any levels, buffers, tables and logs at odd places, registers, entries and commands of
//! any words.

use super::edu;
use super::unit::{AT, DOMAIN, started};
use super::unit_hostile::{as_at_first, others, too_much};
use super::viommu::endpoint;
use crate::amdvi::formats::{VALID, command, entry};
use crate::amdvi::registers::{COMMAND_TAIL, COMMANDS, DEVICES, LENGTH, LOG, LOG_HEAD};
use crate::amdvi::{AmdVi, registers::FETCHES};
use crate::cpu::{mmio_read64, mmio_write, mmio_write64};
use crate::edu::Edu;
use crate::random::Random;
use crate::unit::{Ask, BASE, BOTH, Place, Unit};
use crate::virtqueue::put;
use crate::{boot::Boot, console::check, wait};

const PAGE: u64 = 4096;
/// Words that are written anywhere, and every how many the device is made use of.
const RANDOM: u64 = 3_000;
const EVERY: u64 = 500;

/// All of it.
pub fn hostile(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started::<AmdVi>(test, boot)) else { return };
    let id = endpoint(edu.function);
    let root = unit.table();
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");
    others(test, boot, &unit, &edu, root);
    levels(test, &unit, &edu);
    too_much(test, &unit, id, root);
    let end = boot.memory_end();
    let outside = [end, 0xFEE0_0000, BASE, 1 << 32, 1 << 40, 1 << 51, 0x000F_FFFF_FFFF_F000];
    commands(test, &unit, &outside);
    device_tables(test, &unit, &edu, &outside);
    logs(test, &unit, &edu, (root, &outside));
    let mut random = Random::new(boot.option("seed").and_then(|n| n.parse().ok()).unwrap_or(1));
    words(test, &unit, &edu, (root, &mut random));
    as_at_first::<AmdVi>(test, boot, id, &edu);
}

/// A page that is the table of each level, with entries that lead to any, and pages of any size; as
/// root of tables of 0 to 7 levels.
fn levels(test: &str, unit: &AmdVi, edu: &Edu) {
    let (id, table) = (endpoint(edu.function), unit.table());
    for n in 0..512 {
        // Of the last kind the lowest bits say the size.
        let size = if n % 8 == 7 { (1 << (n / 8 % 32)) - 1 } else { 0 };
        put(table + 8 * n, entry(table | size << 12, n % 8, BOTH));
    }
    let mut done = 0;
    for levels in 0..8 {
        unit.put_device(id, [entry(table, levels, BOTH) | VALID, u64::from(DOMAIN) + 2 + levels]);
        done += u64::from(unit.ask(&[Ask::Device(id), Ask::All]));
        edu.dma_from_memory(AT, PAGE);
    }
    check!(test, done == 8, "tables that lead to themselves, {done} times");
}

/// Buffers of commands that nothing can be read from, or whose lengths or pointers are none; and
/// waits for words that can't be written. Each stops it, and it goes on from where it is told.
fn commands(test: &str, unit: &AmdVi, outside: &[u64]) {
    let stops = || {
        let stopped = wait::until(|| unit.is_wrong());
        stopped && unit.restart_commands()
    };
    let elsewhere = |register: u64, tail: u32| {
        unit.set(FETCHES, false);
        mmio_write64(BASE + COMMANDS, register);
        mmio_write(BASE + COMMAND_TAIL, tail);
        unit.set(FETCHES, true);
        stops()
    };
    let done = outside.iter().filter(|at| elsewhere(**at | LENGTH, 0x700)).count();
    check!(test, done == outside.len(), "{done} buffers outside of memory");
    // There are commands, which aren't what it stops for.
    let asks = command(Ask::Interrupts(0));
    (0..PAGE / 8).for_each(|n| put(unit.memory_behind() + 8 * n, asks[(n % 2) as usize]));
    let lengths = (0..8).filter(|n| elsewhere(unit.memory_behind() | n << 56, 0x700)).count();
    check!(test, lengths == 8, "{lengths} lengths that are none");
    let tail = elsewhere(unit.memory_behind() | LENGTH, 0x7_FFF0);
    check!(test, tail, "a tail beyond the end");
    let stored = |at: &&u64| {
        unit.put([1 << 60 | **at | 1, 0x5555]);
        unit.tell();
        stops()
    };
    let done = outside.iter().filter(stored).count();
    check!(test, done == outside.len(), "words that are waited for outside of memory: {done}");
}

/// Device tables outside of memory: nothing is reached, and nothing is stuck.
fn device_tables(test: &str, unit: &AmdVi, edu: &Edu, outside: &[u64]) {
    let own = mmio_read64(BASE + DEVICES);
    let mut done = 0;
    for at in outside {
        mmio_write64(BASE + DEVICES, *at | 0x1FF);
        done += usize::from(unit.ask(&[Ask::All, Ask::Interrupts(0)]));
        edu.dma_from_memory(AT, PAGE);
    }
    mmio_write64(BASE + DEVICES, own);
    check!(test, done == outside.len() && unit.ask(&[Ask::All]), "{done} device tables elsewhere");
}

/// Logs outside of memory, and on the unit's own tables, which overflow.
fn logs(test: &str, unit: &AmdVi, edu: &Edu, (root, outside): (u64, &[u64])) {
    const LONGEST: u64 = 15 << 56;
    let own = mmio_read64(BASE + LOG);
    let blocked = || edu.dma_from_memory(AT + (64 << 20), PAGE);
    for at in outside {
        mmio_write64(BASE + LOG, *at | LONGEST);
        blocked();
    }
    check!(test, unit.ask(&[Ask::All]), "logs outside of memory");
    mmio_write64(BASE + LOG, root | LONGEST);
    unit.take_told();
    let told = wait::until(|| blocked() && unit.has_told());
    check!(test, told && unit.ask(&[Ask::All]), "a log on a page table");
    unit.leave_room(0);
    let overflows = wait::until(|| blocked() && unit.overflows());
    check!(test, overflows && unit.ask(&[Ask::All]), "and without room");
    mmio_write64(BASE + LOG, own);
    mmio_write(BASE + LOG_HEAD, 0);
    unit.take_told();
}

/// Random words everywhere. Where the log is in memory it isn't moved: this kernel is there, too.
fn words(test: &str, unit: &AmdVi, edu: &Edu, (root, random): (u64, &mut Random)) {
    const ASKS: [Ask; 4] = [Ask::Device(0), Ask::All, Ask::Interrupts(0), Ask::Domain(DOMAIN)];
    let id = endpoint(edu.function);
    let mut stopped = 0;
    for n in 0..RANDOM {
        let (word, value) = (random.number(), random.number());
        let pointers = if word >> 32 & 1 == 0 { 0 } else { 0x2000 };
        match random.number() % 10 {
            0 if word % 64 / 2 * 8 != LOG => {
                mmio_write(BASE + pointers + word % 64 * 4, value as u32);
            }
            1 => mmio_write64(BASE + pointers + word % 64 * 8, value),
            2 => put(root + word % 512 * 8, value & 0x7000_0000_03FF_FFFF),
            3 => unit.put_device(id, [value & 0x7000_0000_03FF_FFFF, word & 0xF]),
            4 => unit.put_interrupts(id, value & 0xF000_0000_03FF_FFFF),
            5 => {
                unit.put([value, word]);
            }
            6 => {
                unit.put(command(ASKS[(word % 4) as usize]));
            }
            7 => unit.rewind(),
            _ => unit.tell(),
        }
        stopped += u64::from(unit.is_wrong());
        if n % EVERY == 0 {
            // Wherever that leads. It only reads: this kernel may be there.
            edu.dma_from_memory(random.number() & 0xFFF_F000, PAGE);
        }
    }
    check!(test, stopped > 0, "it stopped for some of that");
}
