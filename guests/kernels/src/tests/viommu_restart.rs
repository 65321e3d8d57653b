//! A VM that resets while its device is in a domain: its next life finds everything as at first.

use super::edu;
use super::viommu::endpoint;
use crate::edu::Edu;
use crate::viommu::{READ, Viommu, status};
use crate::virtqueue::{get, put};
use crate::vtd::{ALL, BOTH, CONTEXTS, Unit};
use crate::{boot::Boot, console::check, console::println, cpu};
use machine::lives::{lives, reset};

const PAGE: u64 = 4096;
const VECTOR: u8 = 0x51;

/// In both lives the device reaches this memory at first; in the first it is left behind a mapping.
pub fn restart(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    let Some(edu) = edu(test) else { return };
    let Some(iommu) = Viommu::start(boot) else { return check!(test, false, "no virtio-iommu") };
    let source = iommu.memory_behind();
    reaches(test, &edu, source, life);
    let attached = iommu.attach(5, endpoint(edu.function), 0);
    let mapped = iommu.map(5, (0, PAGE - 1), source, READ);
    let right = (attached, mapped) == (Some(status::OK), Some(status::OK));
    check!(test, right, "life {life}: {attached:?}, {mapped:?}");
    iommu.set_bypass(false);
    if life == 0 {
        reset();
    }
}

/// The same behind a VT-d unit: it neither translates nor remaps in the next life.
pub fn restart_behind_vtd(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    let Some(edu) = edu(test) else { return };
    let Some(unit) = Unit::start(boot) else { return check!(test, false, "no VT-d unit") };
    let source = unit.memory_behind();
    reaches(test, &edu, source, life);
    cpu::enable_interrupts();
    edu.aim_handled(VECTOR);
    check!(test, edu.raise_and_wait(VECTOR, 1) > 0, "life {life}: its interrupts are as at first");
    let root = unit.table();
    unit.map(root, 0, false, source | BOTH);
    unit.set_context(endpoint(edu.function), 5, Some(root));
    let on = unit.ask(&[CONTEXTS, ALL]) && unit.remap(true) && unit.translate(true);
    check!(test, on && unit.late() == 0, "life {life}: it translates and remaps, and at once");
    if life == 0 {
        reset();
    }
}

/// Does the device reach the guest's memory as it is?
fn reaches(test: &str, edu: &Edu, source: u64, life: u64) {
    let target = source + PAGE;
    (0..PAGE / 8).for_each(|i| put(source + 8 * i, i ^ life));
    (0..PAGE / 8).for_each(|i| put(target + 8 * i, 0u64));
    let moved = edu.dma_from_memory(source, PAGE) && edu.dma_to_memory(target, PAGE);
    let same = (0..PAGE / 8).all(|i| get::<u64>(source + 8 * i) == get::<u64>(target + 8 * i));
    check!(test, moved && same, "life {life}: the device reaches memory at first");
}
