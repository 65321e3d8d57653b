//! A guest that does with its own VT-d unit what no driver does: tables that lead anywhere and to
//! themselves, registers and descriptors of any words, more than fits. Whatever is asked, what the
//! device reaches stays within this guest's memory; that the rest of the machine is whole is judged
//! from outside: a neighbour goes on, the audit finds nothing.

use super::edu;
use super::viommu::{endpoint, fill, mark, same, through};
use super::vtd::started;
use crate::cpu::{mmio_write, mmio_write64};
use crate::random::Random;
use crate::virtqueue::put;
use crate::vtd::{ALL, BASE, BOTH, CONTEXTS, INTERRUPTS, Unit, calm, domain, pages};
use crate::{boot::Boot, console::check};

const PAGE: u64 = 4096;
const DOMAIN: u16 = 3;
const AT: u64 = 0xA00_0000;
/// Words that are written anywhere, and every how many the device is made use of.
const RANDOM: u64 = 3_000;
const EVERY: u64 = 500;
/// Mappings, each in a table of its own, until there is no room; the guest's unit has pages for
/// more tables.
const MOST: u64 = 1_900;
const APART: u64 = 2 << 20;

/// All of it.
pub fn hostile(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let id = endpoint(edu.function);
    let mut random = Random::new(boot.option("seed").and_then(|n| n.parse().ok()).unwrap_or(1));
    let memory = unit.memory_behind();
    let root = unit.table();
    unit.set_context(id, DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");

    // Memory of others, and what is no memory.
    let end = boot.memory_end();
    let outside = [end, end + (1 << 20), 0xFEE0_0000, 0xFED9_0000, 1 << 32, 1 << 40, 1 << 51];
    for (n, to) in (0..).zip(outside) {
        unit.map(root, AT + n * PAGE, false, to | BOTH);
    }
    unit.map(root, 0xFEE0_0000, false, memory | BOTH);
    check!(test, unit.ask(&[domain(DOMAIN)]), "pages of others' are asked for");
    fill(memory, 3);
    for n in 0..outside.len() as u64 {
        edu.dma_from_memory(AT + n * PAGE, PAGE);
        edu.dma_to_memory(AT + n * PAGE, PAGE);
    }
    // Each level leads to the same table, and the last one to this guest's memory: more than fits.
    let loops = unit.table();
    (0..512).for_each(|n| put(loops + 8 * n, loops | BOTH));
    unit.set_context(id, DOMAIN + 1, Some(loops));
    check!(test, unit.ask(&[CONTEXTS]), "tables that lead to themselves are walked, and left");
    unit.set_context(id, DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS, ALL]), "and others again");
    for n in 0..MOST {
        unit.map(root, (1 << 34) + n * APART, false, memory | BOTH);
    }
    check!(test, unit.ask(&[ALL]), "more tables than there is room for");
    check!(test, unit.ask(&[pages(DOMAIN, 0, 36), domain(DOMAIN), ALL]), "again");

    let mut stopped = 0;
    for n in 0..RANDOM {
        let word = random.number();
        match random.number() % 8 {
            0 => mmio_write(BASE + word % 64 * 4, (word >> 32) as u32),
            1 => mmio_write64(BASE + word % 32 * 8, random.number()),
            2 => put(root + word % 512 * 8, random.number() & 0x3FF_F0FF),
            3 => unit.put_context(id, [word & 0xFFF_F00F, random.number() & 0x3_FF07]),
            4 => unit.put([word & 0xFFFF_FFFF_FFFF, random.number()]),
            5 => unit.put([CONTEXTS, ALL, INTERRUPTS, domain(DOMAIN)][(word % 4) as usize]),
            _ => unit.tell(),
        }
        stopped += u64::from(unit.is_wrong());
        if n % EVERY == 0 {
            // Wherever that leads. It only reads: this kernel may be there.
            edu.dma_from_memory(random.number() & 0xFFF_F000, PAGE);
        }
    }
    check!(test, stopped > 0, "some of that was an error");
    as_at_first(test, boot, id, &edu);
}

/// What a driver does works as at first.
fn as_at_first(test: &str, boot: &Boot, id: u32, edu: &crate::edu::Edu) {
    check!(test, calm(), "all that stood in the registers is done or refused");
    let Some(unit) = Unit::start(boot) else { return check!(test, false, "it starts again") };
    check!(test, unit.forget_errors(), "errors are forgotten");
    let (root, source) = (unit.table(), unit.memory_behind());
    let target = source + PAGE;
    fill(source, 9);
    mark(target);
    unit.set_context(id, DOMAIN, Some(root));
    let mapped = unit.ask(&[CONTEXTS, ALL])
        && unit.translate(true)
        && unit.map_page(root, DOMAIN, AT, source | BOTH)
        && unit.map_page(root, DOMAIN, AT + PAGE, target | BOTH);
    let moved = through(edu, AT, AT + PAGE);
    check!(test, mapped && moved && same(source, target), "DMA goes where it is mapped");
}

/// Has whoever serves the unit be at it all the time, while its device does what it may not.
pub fn held(test: &str, boot: &Boot) {
    const TICKS: u64 = 8_000_000_000;
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let id = endpoint(edu.function);
    let loops = unit.table();
    (0..512).for_each(|n| put(loops + 8 * n, loops | BOTH));
    unit.set_context(id, DOMAIN, Some(loops));
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    let start = crate::cpu::tsc();
    let mut rounds = 0;
    while crate::cpu::tsc().wrapping_sub(start) < TICKS {
        edu.start_from_memory(AT, PAGE);
        (0..100).for_each(|_| unit.put(ALL));
        unit.tell();
        rounds += 1;
    }
    check!(test, rounds > 0, "{rounds} rounds");
}
