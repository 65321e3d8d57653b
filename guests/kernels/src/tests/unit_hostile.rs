//! A guest that does with its own IOMMU with registers, whichever vendor's, what no driver does:
//! tables that lead anywhere and to themselves, more than fits. Whatever is asked, what the device
//! reaches stays within this guest's memory; that the rest of the machine is whole is judged from
//! outside: a neighbour goes on, the audit finds nothing.

use super::edu;
use super::unit::{AT, DOMAIN, started};
use super::viommu::{endpoint, fill, mark, same, through};
use crate::edu::Edu;
use crate::unit::{Ask, BASE, BOTH, Place, Unit};
use crate::{boot::Boot, console::check, cpu};

const PAGE: u64 = 4096;
/// Mappings, each in a table of its own, until there is no room; the guest's unit has pages for
/// more tables.
const MOST: u64 = 1_900;
const APART: u64 = 2 << 20;

/// Memory of others, and what is no memory, by the tables from `root` on.
pub fn others<U: Unit>(test: &str, boot: &Boot, unit: &U, edu: &Edu, root: u64) {
    let (memory, end) = (unit.memory_behind(), boot.memory_end());
    let outside = [end, end + (1 << 20), 0xFEE0_0000, BASE, 1 << 32, 1 << 40, 1 << 51];
    for (n, to) in (0..).zip(outside) {
        unit.map(root, AT + n * PAGE, false, Some((to, BOTH)));
    }
    unit.map(root, 0xFEE0_0000, false, Some((memory, BOTH)));
    check!(test, unit.ask(&[Ask::Domain(DOMAIN)]), "pages of others' are asked for");
    fill(memory, 3);
    for n in 0..outside.len() as u64 {
        edu.dma_from_memory(AT + n * PAGE, PAGE);
        edu.dma_to_memory(AT + n * PAGE, PAGE);
    }
}

/// A device in a domain in which each level leads to the same table, and the last one to this
/// guest's memory; and more tables from `root` on than there is room for.
pub fn too_much<U: Unit>(test: &str, unit: &U, id: u32, root: u64) {
    unit.lead(id, Place::Domain(DOMAIN + 1, unit.looping()));
    let walked = unit.ask(&[Ask::Device(id)]);
    check!(test, walked, "tables that lead to themselves are walked, and left");
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.ask(&[Ask::Device(id), Ask::All]), "and others again");
    for n in 0..MOST {
        unit.map(root, (1 << 34) + n * APART, false, Some((unit.memory_behind(), BOTH)));
    }
    check!(test, unit.ask(&[Ask::All]), "more tables than there is room for");
    let again = [Ask::Pages(DOMAIN, 0, 36), Ask::Domain(DOMAIN), Ask::All];
    check!(test, unit.ask(&again), "again");
}

/// What a driver does works as at first.
pub fn as_at_first<U: Unit>(test: &str, boot: &Boot, id: u32, edu: &Edu) {
    let Some(unit) = U::start_anew(boot) else {
        return check!(test, false, "all that stood there is done or refused, and it starts again");
    };
    let (root, source) = (unit.table(), unit.memory_behind());
    let target = source + PAGE;
    fill(source, 9);
    mark(target);
    unit.lead(id, Place::Domain(DOMAIN, root));
    let mapped = unit.begin(id)
        && unit.map_page(root, DOMAIN, AT, Some((source, BOTH)))
        && unit.map_page(root, DOMAIN, AT + PAGE, Some((target, BOTH)));
    let moved = through(edu, AT, AT + PAGE);
    check!(test, mapped && moved && same(source, target), "DMA goes where it is mapped");
}

/// Has whoever serves the unit be at it all the time, while its device does what it may not.
pub fn held<U: Unit>(test: &str, boot: &Boot) {
    const TICKS: u64 = 8_000_000_000;
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let id = endpoint(edu.function);
    unit.lead(id, Place::Domain(DOMAIN, unit.looping()));
    check!(test, unit.begin(id), "it translates");
    let start = cpu::tsc();
    let mut rounds = 0;
    while cpu::tsc().wrapping_sub(start) < TICKS {
        edu.start_from_memory(AT, PAGE);
        unit.flood(&[Ask::All; 100]);
        rounds += 1;
    }
    check!(test, rounds > 0, "{rounds} rounds");
}
