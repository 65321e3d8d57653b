//! The guest's own VT-d unit: DMA and interrupts of an `edu` behind it, and of an NVMe controller,
//! which pass where the guest's tables say, and nowhere else, from the word on that it waits for.

use super::edu;
use super::viommu::{endpoint, fill, is_marked, mark, same, through};
use crate::counters::Window;
use crate::nvme::Nvme;
use crate::vtd::{
    ALL, BASE, BOTH, CONTEXTS, INTERRUPTS, READ, Told, Unit, WRITE, domain, message_address, pages,
};
use crate::{boot::Boot, console::check, cpu, edu as device, idt, smp, wait};

const PAGE: u64 = 4096;
/// Within the 28 bits that an `edu` can say, and in no memory of a small VM.
const AT: u64 = 0xA00_0000;
/// Pairs of map and unmap that are counted.
const PAIRS: u64 = 1000;
const DOMAIN: u16 = 3;
const VECTOR: u8 = 0x51;
const OTHER_VECTOR: u8 = 0x62;
const LINE_VECTOR: u8 = 0x73;

/// The unit, started; or a failed check.
pub fn started(test: &str, boot: &Boot) -> Option<Unit> {
    let found = Unit::start(boot);
    check!(test, found.is_some(), "a VT-d unit is at {BASE:#x}, and its queue starts");
    found
}

/// Map, DMA inside, unmap, no DMA: by a device with its own buffer.
pub fn translated(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let id = endpoint(edu.function);
    let source = unit.memory_behind();
    let (target, other) = (source + PAGE, source + 2 * PAGE);
    fill(source, 1);
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "at first: its memory");

    let root = unit.table();
    unit.set_context(id, DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    // Linux has no clock yet while it sets its unit up.
    check!(test, unit.late() == 0, "until then, {} answers weren't there at once", unit.late());
    mark(target);
    let ended = through(&edu, source, target);
    check!(test, ended && is_marked(target), "with nothing mapped: nothing is reached");
    let done = unit.map_page(root, DOMAIN, AT, source | READ)
        && unit.map_page(root, DOMAIN, AT + PAGE, target | WRITE);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, done && ended && same(source, target), "mapped: from one page to the other");
    fill(target, 2);
    let ended = edu.dma_from_memory(AT + PAGE, PAGE) && edu.dma_to_memory(AT, PAGE);
    check!(test, ended && !same(source, target), "not the other way: neither may that");

    check!(test, unit.map_page(root, DOMAIN, AT + PAGE, 0), "unmapped");
    mark(target);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && is_marked(target), "nothing arrives from then on");
    check!(test, unit.map_page(root, DOMAIN, AT + PAGE, other | WRITE), "mapped to another page");
    mark(other);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other) && is_marked(target), "it arrives there alone");
    // Large pages, and a domain as a whole.
    let large = AT + (4 << 20);
    let memory = source.next_multiple_of(2 << 20);
    unit.map(root, large, true, memory | 1 << 7 | BOTH);
    check!(test, unit.ask(&[domain(DOMAIN)]), "a large page, by its domain");
    fill(memory + PAGE, 7);
    let ended = through(&edu, large + PAGE, AT + PAGE);
    check!(test, ended && same(memory + PAGE, other), "it is read where it should be");
    unit.map(root, large, true, 0);
    check!(test, unit.ask(&[pages(DOMAIN, large, 9)]), "it is taken away");
    fill(other, 8);
    let ended = edu.dma_from_memory(large + PAGE, PAGE) && edu.dma_to_memory(AT + PAGE, PAGE);
    check!(test, ended && !same(memory + PAGE, other), "nothing is read there any more");

    // Into another domain, into none, through it, and without it.
    let empty = unit.table();
    unit.set_context(id, DOMAIN + 1, Some(empty));
    mark(other);
    let ended = unit.ask(&[CONTEXTS]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && is_marked(other), "in an empty domain: nothing");
    unit.put_context(id, unit.passing_through());
    mark(target);
    let ended = unit.ask(&[CONTEXTS]) && through(&edu, source, target);
    check!(test, ended && same(source, target), "passing through: its memory");
    unit.set_context(id, DOMAIN, None);
    mark(target);
    let ended = unit.ask(&[CONTEXTS]) && through(&edu, source, target);
    check!(test, ended && is_marked(target), "in no domain: nothing");
    unit.set_context(id, DOMAIN, Some(root));
    mark(other);
    let ended = unit.ask(&[CONTEXTS]) && through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other), "back: all that the tables map");
    check!(test, unit.translate(false), "it translates no more");
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "its memory again");
}

/// The same by a controller whose queues are translated, too.
pub fn controller(test: &str, boot: &Boot) {
    let (Some(mut nvme), Some(unit)) = (Nvme::find(), started(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let (id, target, queues) = (endpoint(nvme.function), unit.memory_behind(), nvme.queues());
    let root = unit.table();
    unit.set_context(id, DOMAIN, Some(root));
    let (submission, completion, data) = (1 << 38, (1 << 38) + PAGE, 0x12_3456_7000);
    for (at, to) in
        [(submission, queues.0 | READ), (completion, queues.1 | BOTH), (data, target | BOTH)]
    {
        unit.map(root, at, false, to);
    }
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    mark(target);
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "its identity arrives: {told:?}");
    check!(test, unit.map_page(root, DOMAIN, data, 0), "unmapped");
    mark(target);
    let told = nvme.identify_to(data);
    check!(test, is_marked(target), "it doesn't: {told:?}");
    check!(test, unit.map_page(root, DOMAIN, data, target | BOTH), "mapped again");
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "it does: {told:?}");
    nvme.stop();
    check!(test, unit.translate(false), "it translates no more");
}

/// What is unmapped stays for a while, if nothing else is mapped there, and not for longer.
pub fn optimistic(test: &str, boot: &Boot) {
    const ATTEMPTS: u32 = 100;
    let (Some(mut nvme), Some(unit)) = (Nvme::find(), started(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let (id, target, queues) = (endpoint(nvme.function), unit.memory_behind(), nvme.queues());
    let (root, other) = (unit.table(), target + PAGE);
    unit.set_context(id, DOMAIN, Some(root));
    let (submission, completion, data) = (1 << 38, (1 << 38) + PAGE, 0x12_3456_7000);
    for (at, to) in
        [(submission, queues.0 | READ), (completion, queues.1 | BOTH), (data, target | BOTH)]
    {
        unit.map(root, at, false, to);
    }
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    let unmap = || unit.map_page(root, DOMAIN, data, 0);
    let map = |to: u64| unit.map_page(root, DOMAIN, data, to | BOTH);
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

/// What a device tries and isn't let, its guest is told: by a record and an interrupt.
pub fn faults(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let (id, memory) = (endpoint(edu.function), unit.memory_behind());
    let (root, source) = (unit.table(), id as u16);
    unit.set_context(id, DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    cpu::enable_interrupts();
    unit.aim_faults(VECTOR);
    let count = || idt::total(VECTOR);
    let told = |is_read, address, reason| Told { source, is_read, address, reason };
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
    check!(test, first == Some(told(false, AT, 5)) && cleared, "it was {first:x?}, and no more");
    let before = count();
    let ended = edu.dma_from_memory(AT + PAGE, PAGE);
    let came = ended && wait::until(|| count() > before);
    let (first, cleared) = taken();
    let right = first == Some(told(true, AT + PAGE, 6));
    check!(test, came && right && cleared, "read: an interrupt again, by {first:x?}");
    let mapped = unit.map_page(root, DOMAIN, AT, memory | READ);
    // Nothing is read there first: QEMU's unit tells of nothing that its own cache refuses.
    let ended = edu.dma_to_memory(AT, PAGE);
    let came = mapped && ended && wait::until(|| unit.has_told());
    let (first, cleared) = taken();
    let right = first == Some(told(false, AT, 5));
    check!(test, came && right && cleared, "mapped to be read, and written: {first:x?}");

    unit.mask_faults(true);
    let before = count();
    let ended = edu.dma_to_memory(AT, PAGE) && wait::until(|| unit.has_told());
    wait::settle();
    check!(test, ended && count() == before, "masked: a record, and no interrupt");
    unit.mask_faults(false);
    check!(test, wait::until(|| count() > before), "it comes when it isn't masked any more");
    check!(test, taken().1, "and what it is for is cleared");

    unit.set_context(id, DOMAIN, None);
    let ended = unit.ask(&[CONTEXTS]) && edu.dma_from_memory(AT, PAGE);
    let came = ended && wait::until(|| unit.has_told());
    let (first, cleared) = taken();
    let right = first == Some(told(true, AT, 2));
    check!(test, came && right && cleared, "in no domain: {first:x?}");
    // More than there are records for, one after the other as the host looks.
    unit.set_context(id, DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS]), "in its domain again");
    let flooded = wait::until(|| edu.dma_to_memory(AT, PAGE) && unit.overflows());
    let (first, found) = unit.take_told();
    let right = first == Some(told(false, AT, 5)) && found > 1;
    check!(test, flooded && right, "{found} records, and it says that there was one more");
    // Behind the last record is an empty one, where a driver stops; the rest is told again.
    let emptied = wait::until(|| {
        unit.take_told();
        !unit.has_told()
    });
    check!(test, emptied, "all of it is cleared");
    check!(test, unit.translate(false), "it translates no more");
}

/// How many exits pairs of map and unmap have: none with a sidecore (`exits=0`), else one for each.
pub fn exits(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let each = boot.option("exits").and_then(|n| n.parse().ok()).unwrap_or(0);
    let (root, memory) = (unit.table(), unit.memory_behind());
    unit.set_context(endpoint(edu.function), DOMAIN, Some(root));
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    let mut done = 0;
    let window = Window::open();
    for _ in 0..PAIRS {
        let mapped = unit.map_page(root, DOMAIN, AT, memory | BOTH);
        let unmapped = unit.map_page(root, DOMAIN, AT, 0);
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

/// The console's line goes through the IOAPIC by an entry, too, and by its own source alone.
fn line(test: &str, unit: &Unit) {
    const IOAPIC: u64 = 0xFEC0_0000;
    /// Its id as a source, by the DMAR.
    const SOURCE: u16 = 0xFFF8;
    const UART_ENABLE: u16 = 0x3F9;
    const UART_CONTROL: u16 = 0x3FC;
    /// A PC's line goes through this.
    const OUT2: u8 = 1 << 3;
    const PIN: u32 = 4;
    const INDEX: u64 = 0xC3;
    let program = |low: u32, high: u32| {
        for (register, word) in [(0x11 + 2 * PIN, high), (0x10 + 2 * PIN, low)] {
            cpu::mmio_write(IOAPIC, register);
            cpu::mmio_write(IOAPIC + 0x10, word);
        }
    };
    // The transmitter is empty, which is an interrupt when it is allowed.
    let arrives = |vector: u8| {
        let before = idt::total(vector);
        cpu::outb(UART_ENABLE, 0);
        cpu::outb(UART_ENABLE, 2);
        let came = wait::until(|| idt::total(vector) > before);
        cpu::outb(UART_ENABLE, 0);
        came
    };
    let blocked = || {
        let before = idt::total(LINE_VECTOR);
        cpu::outb(UART_ENABLE, 2);
        wait::settle();
        cpu::outb(UART_ENABLE, 0);
        idt::total(LINE_VECTOR) == before
    };
    cpu::outb(UART_CONTROL, OUT2);
    let entry = u64::from(LINE_VECTOR) << 16 | 1;
    unit.set_entry(INDEX, entry, SOURCE);
    // In the place of the vector Linux has the pin.
    program(PIN, (INDEX as u32) << 17 | 1 << 16);
    let arrived = unit.ask(&[INTERRUPTS]) && arrives(LINE_VECTOR);
    check!(test, arrived, "the console's line, by an entry: it arrives");
    unit.set_entry(INDEX, entry, SOURCE - 8);
    check!(test, unit.ask(&[INTERRUPTS]) && blocked(), "of another source: blocked");
    program(LINE_VECTOR.into(), 0);
    check!(test, blocked(), "in compatibility format: blocked");
    program(1 << 16, 0);
    cpu::outb(UART_CONTROL, 0);
}

/// Interrupts go by the guest's entries, and by nothing else; on their way there is no exit.
pub fn interrupts(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started(test, boot)) else { return };
    let Some(count) = smp::start_all(boot) else { return check!(test, false, "CPUs start") };
    let source = endpoint(edu.function) as u16;
    let entry = |cpu: usize, vector: u8| (cpu as u64) << 32 | u64::from(vector) << 16 | 1;
    let sent = |vector: u8| {
        let before = idt::total(vector);
        device::raise();
        wait::until(|| idt::total(vector) > before)
    };
    let silent = |vector: u8| {
        let before = idt::total(vector);
        device::raise();
        wait::settle();
        idt::total(vector) == before
    };
    cpu::enable_interrupts();
    idt::on(VECTOR, device::handler);
    idt::on(OTHER_VECTOR, device::handler);
    edu.aim(VECTOR);
    check!(test, sent(VECTOR), "without remapping: as ever");
    // A sidecore polls from then on.
    unit.put_context(source.into(), unit.passing_through());
    check!(test, unit.ask(&[CONTEXTS, ALL]) && unit.translate(true), "it translates");
    check!(test, unit.remap(true), "it remaps");
    check!(test, silent(VECTOR), "in compatibility format: blocked");
    device::acknowledge();
    unit.set_entry(5, entry(0, VECTOR), source);
    edu.program(message_address(5), 0, true);
    check!(test, sent(VECTOR), "by an entry: {}", idt::total(VECTOR));
    unit.set_entry(5, entry(0, OTHER_VECTOR), source);
    check!(test, unit.ask(&[INTERRUPTS]), "the entry is another");
    check!(test, sent(OTHER_VECTOR), "by the vector that it has now");
    let last = count - 1;
    unit.set_entry(5, entry(last, VECTOR), source);
    let before = idt::count_on(last, VECTOR);
    let arrived = unit.ask(&[INTERRUPTS]) && sent(VECTOR);
    check!(test, arrived && idt::count_on(last, VECTOR) > before, "to the CPU that it has now");
    unit.set_entry(5, entry(0, VECTOR), source + 8);
    check!(test, unit.ask(&[INTERRUPTS]) && silent(VECTOR), "of another source: blocked");
    device::acknowledge();
    unit.set_entry(5, 0, source);
    check!(test, unit.ask(&[INTERRUPTS]) && silent(VECTOR), "not present: blocked");
    device::acknowledge();
    unit.set_entry(5, entry(0, VECTOR), source);
    check!(test, unit.ask(&[INTERRUPTS]) && sent(VECTOR), "present again");
    let wanted = boot.option("exits").and_then(|n| n.parse::<u64>().ok());
    if let Some(wanted) = wanted {
        let window = Window::open();
        let handled = (0..100).filter(|_| sent(VECTOR)).count();
        let counted = window.close();
        let n = counted.own();
        check!(test, handled == 100 && n == wanted, "{n} exits for {handled} interrupts");
        if n != wanted {
            counted.print();
        }
    }
    edu.silence();
    // Each has the host route every interrupt anew, some at an exit.
    let done = unit.ask(&[INTERRUPTS; 200]);
    check!(test, done, "200 invalidations of all entries");
    line(test, &unit);
    let off = unit.remap(false) && unit.translate(false);
    check!(test, off, "it remaps and translates no more");
    edu.aim(VECTOR);
    check!(test, sent(VECTOR), "as at first");
    edu.silence();
}
