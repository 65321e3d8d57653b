//! What a device tries and isn't let, its guest is told by its own IOMMU with registers, whichever
//! vendor's: what it was, and by an interrupt.

use super::edu;
use super::unit::{AT, DOMAIN, started};
use super::unit_interrupts::VECTOR;
use super::viommu::endpoint;
use crate::edu::Edu;
use crate::unit::{Ask, Place, READ, Told, Unit, Why};
use crate::{boot::Boot, console::check, cpu, idt, wait};

const PAGE: u64 = 4096;

/// All of it, and what this vendor's unit does where there is no room for more.
pub fn faults<U: Unit>(test: &str, boot: &Boot, no_room: impl FnOnce(&U, &Edu)) {
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let (id, memory) = (endpoint(edu.function), unit.memory_behind());
    let (root, source) = (unit.table(), id as u16);
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");
    cpu::enable_interrupts();
    check!(test, unit.aim_faults(VECTOR), "its interrupt is aimed");
    let count = || idt::total(VECTOR);
    let told = |is_read, address, why| {
        Some(Told { source, is_read, address, code: U::code(why, is_read) })
    };
    // Clears what there is, and all of it is cleared.
    let taken = || {
        let (first, _) = unit.take_told();
        (first, wait::until(|| !unit.has_told()))
    };
    let before = count();
    let ended = edu.dma_to_memory(AT, PAGE);
    let came = ended && wait::until(|| count() > before);
    check!(test, came && unit.has_told(), "written where nothing is mapped: an interrupt");
    let (first, cleared) = taken();
    check!(
        test,
        first == told(false, AT, Why::Absent(DOMAIN)) && cleared,
        "it was {first:x?}, and no more"
    );
    let before = count();
    let ended = edu.dma_from_memory(AT + PAGE, PAGE);
    let came = ended && wait::until(|| count() > before);
    let (first, cleared) = taken();
    let right = first == told(true, AT + PAGE, Why::Absent(DOMAIN));
    check!(test, came && right && cleared, "read: an interrupt again, by {first:x?}");
    let mapped = unit.map_page(root, DOMAIN, AT, Some((memory, READ)));
    // Nothing is read there first: QEMU's unit tells of nothing that its own cache refuses.
    let ended = edu.dma_to_memory(AT, PAGE);
    let came = mapped && ended && wait::until(|| unit.has_told());
    let (first, cleared) = taken();
    let right = first == told(false, AT, Why::Right(DOMAIN));
    check!(test, came && right && cleared, "mapped to be read, and written: {first:x?}");

    let masked = unit.mask_faults(true);
    let before = count();
    let ended = masked && edu.dma_to_memory(AT, PAGE) && wait::until(|| unit.has_told());
    wait::settle();
    check!(test, ended && count() == before, "masked: a record, and no interrupt");
    let passes = unit.mask_faults(false);
    check!(
        test,
        passes && wait::until(|| count() > before),
        "it comes when it isn't masked any more"
    );
    check!(test, taken().1, "and what it is for is cleared");

    unit.lead(id, Place::Nowhere);
    let ended = unit.ask(&[Ask::Device(id)]) && edu.dma_from_memory(AT, PAGE);
    let came = ended && wait::until(|| unit.has_told());
    let (first, cleared) = taken();
    let right = first == told(true, AT, Why::Nowhere);
    check!(test, came && right && cleared, "in no domain: {first:x?}");
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.ask(&[Ask::Device(id)]), "in its domain again");
    no_room(&unit, &edu);
    check!(test, unit.translate(false), "it translates no more");
}
