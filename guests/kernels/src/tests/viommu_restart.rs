//! A VM that resets while its device is in a domain: its next life finds everything as at first.

use super::edu;
use super::viommu::endpoint;
use crate::edu::Edu;
use crate::unit::{BOTH, Place, Unit};
use crate::viommu::{READ, Viommu, status};
use crate::virtqueue::{get, put};
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

/// The same behind a unit with registers: it neither translates nor remaps in the next life.
pub fn behind<U: Unit>(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    let Some(edu) = edu(test) else { return };
    // Before anything is asked of the unit.
    let source = (boot.free_memory().end & !(PAGE - 1)) - 2 * PAGE;
    reaches(test, &edu, source, life);
    let Some(unit) = U::start(boot) else { return check!(test, false, "no unit") };
    cpu::enable_interrupts();
    edu.aim_handled(VECTOR);
    check!(test, edu.raise_and_wait(VECTOR, 1) > 0, "life {life}: its interrupts are as at first");
    let root = unit.table();
    let id = endpoint(edu.function);
    unit.map(root, 0, false, Some((source, BOTH)));
    unit.lead(id, Place::Domain(5, root));
    let on = unit.remap(true) && unit.begin(id);
    check!(
        test,
        on && unit.late().unwrap_or(0) == 0,
        "life {life}: it translates and remaps, and at once"
    );
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
