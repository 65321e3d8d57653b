//! The guest's own IOMMU with registers, whichever vendor's: DMA of an `edu` behind it, and of an
//! NVMe controller, which passes where the guest's tables say, and nowhere else, from the word on
//! that it waits for.

use super::edu;
use super::viommu::{endpoint, fill, is_marked, mark, same, through};
use crate::counters::Window;
use crate::nvme::Nvme;
use crate::unit::{Ask, BASE, BOTH, Place, READ, Unit, WRITE};
use crate::{boot::Boot, console::check, wait};

const PAGE: u64 = 4096;
/// Within the 28 bits that an `edu` can say, and in no memory of a small VM.
pub const AT: u64 = 0xA00_0000;
/// Pairs of map and unmap that are counted.
const PAIRS: u64 = 1000;
/// The domain's id.
pub const DOMAIN: u16 = 3;

/// The unit, started; or a failed check.
pub fn started<U: Unit>(test: &str, boot: &Boot) -> Option<U> {
    let found = U::start(boot);
    check!(test, found.is_some(), "the unit, {}, is at {BASE:#x}, and starts", U::NAME);
    found
}

/// Map, DMA inside, unmap, no DMA: by a device with its own buffer.
pub fn translated<U: Unit>(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let id = endpoint(edu.function);
    let source = unit.memory_behind();
    let (target, other) = (source + PAGE, source + 2 * PAGE);
    fill(source, 1);
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "at first: its memory");

    let root = unit.table();
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");
    if let Some(late) = unit.late() {
        check!(test, late == 0, "until then, {late} answers weren't there at once");
    }
    mark(target);
    let ended = through(&edu, source, target);
    check!(test, ended && is_marked(target), "with nothing mapped: nothing is reached");
    let done = unit.map_page(root, DOMAIN, AT, Some((source, READ)))
        && unit.map_page(root, DOMAIN, AT + PAGE, Some((target, WRITE)));
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, done && ended && same(source, target), "mapped: from one page to the other");
    fill(target, 2);
    let ended = edu.dma_from_memory(AT + PAGE, PAGE) && edu.dma_to_memory(AT, PAGE);
    check!(test, ended && !same(source, target), "not the other way: neither may that");

    check!(test, unit.map_page(root, DOMAIN, AT + PAGE, None), "unmapped");
    mark(target);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && is_marked(target), "nothing arrives from then on");
    check!(
        test,
        unit.map_page(root, DOMAIN, AT + PAGE, Some((other, WRITE))),
        "mapped to another page"
    );
    mark(other);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other) && is_marked(target), "it arrives there alone");
    // All that is mapped.
    unit.map(root, AT + PAGE, false, Some((target, WRITE)));
    mark(other);
    let ended = unit.ask(&[Ask::All]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, target) && is_marked(other), "to the first, by all of it");
    unit.map(root, AT + PAGE, false, Some((other, WRITE)));
    mark(target);
    let ended = unit.ask(&[Ask::All]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other) && is_marked(target), "and back, by all of it");
    // Large pages, and a domain as a whole.
    let large = AT + (4 << 20);
    let memory = source.next_multiple_of(2 << 20);
    unit.map(root, large, true, Some((memory, BOTH)));
    check!(test, unit.ask(&[Ask::Domain(DOMAIN)]), "a large page, by its domain");
    fill(memory + PAGE, 7);
    let ended = through(&edu, large + PAGE, AT + PAGE);
    check!(test, ended && same(memory + PAGE, other), "it is read where it should be");
    unit.map(root, large, true, None);
    check!(test, unit.ask(&[Ask::Pages(DOMAIN, large, 9)]), "it is taken away");
    fill(other, 8);
    let ended = edu.dma_from_memory(large + PAGE, PAGE) && edu.dma_to_memory(AT + PAGE, PAGE);
    check!(test, ended && !same(memory + PAGE, other), "nothing is read there any more");

    // Into another domain, into none, through it, and without it.
    let empty = unit.table();
    unit.lead(id, Place::Domain(DOMAIN + 1, empty));
    mark(other);
    let ended = unit.ask(&[Ask::Device(id)]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && is_marked(other), "in an empty domain: nothing");
    unit.lead(id, Place::Through);
    mark(target);
    let ended = unit.ask(&[Ask::Device(id)]) && through(&edu, source, target);
    check!(test, ended && same(source, target), "passing through: its memory");
    unit.lead(id, Place::Nowhere);
    mark(target);
    let ended = unit.ask(&[Ask::Device(id)]) && through(&edu, source, target);
    check!(test, ended && is_marked(target), "in no domain: nothing");
    unit.lead(id, Place::Domain(DOMAIN, root));
    mark(other);
    let ended = unit.ask(&[Ask::Device(id)]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other), "back: all that the tables map");
    check!(test, unit.translate(false), "it translates no more");
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "its memory again");
}

/// The same by a controller whose queues are translated, too.
pub fn controller<U: Unit>(test: &str, boot: &Boot) {
    let (Some(mut nvme), Some(unit)) = (Nvme::find(), started::<U>(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let (id, target, queues) = (endpoint(nvme.function), unit.memory_behind(), nvme.queues());
    let root = unit.table();
    unit.lead(id, Place::Domain(DOMAIN, root));
    let (submission, completion, data) = (1 << 38, (1 << 38) + PAGE, 0x12_3456_7000);
    for (at, to, rights) in
        [(submission, queues.0, READ), (completion, queues.1, BOTH), (data, target, BOTH)]
    {
        unit.map(root, at, false, Some((to, rights)));
    }
    check!(test, unit.begin(id), "it translates");
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    mark(target);
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "its identity arrives: {told:?}");
    check!(test, unit.map_page(root, DOMAIN, data, None), "unmapped");
    mark(target);
    let told = nvme.identify_to(data);
    check!(test, is_marked(target), "it doesn't: {told:?}");
    check!(test, unit.map_page(root, DOMAIN, data, Some((target, BOTH))), "mapped again");
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "it does: {told:?}");
    nvme.stop();
    check!(test, unit.translate(false), "it translates no more");
}

/// What is unmapped stays for a while, if nothing else is mapped there, and not for longer.
pub fn optimistic<U: Unit>(test: &str, boot: &Boot) {
    const ATTEMPTS: u32 = 100;
    let (Some(mut nvme), Some(unit)) = (Nvme::find(), started::<U>(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let (id, target, queues) = (endpoint(nvme.function), unit.memory_behind(), nvme.queues());
    let (root, other) = (unit.table(), target + PAGE);
    unit.lead(id, Place::Domain(DOMAIN, root));
    let (submission, completion, data) = (1 << 38, (1 << 38) + PAGE, 0x12_3456_7000);
    for (at, to, rights) in
        [(submission, queues.0, READ), (completion, queues.1, BOTH), (data, target, BOTH)]
    {
        unit.map(root, at, false, Some((to, rights)));
    }
    check!(test, unit.begin(id), "it translates");
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    let unmap = || unit.map_page(root, DOMAIN, data, None);
    let map = |to: u64| unit.map_page(root, DOMAIN, data, Some((to, BOTH)));
    let done = (0..PAIRS).filter(|_| unmap() && map(target)).count();
    check!(test, done as u64 == PAIRS, "{done} of {PAIRS} pairs were done");
    let mut arrives = || {
        mark(target);
        nvme.identify_to(data);
        !is_marked(target)
    };
    check!(test, arrives(), "what came back is there");
    // One that comes too late says nothing.
    let inside = (0..ATTEMPTS).any(|_| {
        let arrived = unmap() && arrives();
        map(target) && arrived
    });
    check!(test, inside, "unmapped, it arrives for a while");
    check!(test, unmap() && map(other), "mapped to another page");
    mark(other);
    check!(test, !arrives() && !is_marked(other), "it is there alone");
    check!(test, map(target) && arrives(), "and back, without an unmapping");
    check!(test, unmap() && wait::until(|| !arrives()), "and then nothing arrives any more");
    check!(test, !arrives(), "nor later");
    nvme.stop();
    check!(test, unit.translate(false), "it translates no more");
}

/// How many exits pairs of map and unmap have: none with a sidecore (`exits=0`), else one for each.
pub fn exits<U: Unit>(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let each = boot.option("exits").and_then(|n| n.parse().ok()).unwrap_or(0);
    let (id, root, memory) = (endpoint(edu.function), unit.table(), unit.memory_behind());
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");
    let mut done = 0;
    let window = Window::open();
    for _ in 0..PAIRS {
        let mapped = unit.map_page(root, DOMAIN, AT, Some((memory, BOTH)));
        let unmapped = unit.map_page(root, DOMAIN, AT, None);
        // As Linux' loop does while it waits; to read is no exit.
        done += u64::from(mapped && unmapped && !unit.is_wrong());
    }
    let counted = window.close();
    check!(test, done == PAIRS, "{done} of {PAIRS} pairs were done");
    let (n, wanted) = (counted.own(), 2 * each * PAIRS);
    check!(test, n == wanted, "{n} exits for {PAIRS} pairs, {wanted} wanted");
    if n != wanted {
        counted.print();
    }
    check!(test, unit.translate(false), "it translates no more");
}
