//! The guest's own IOMMU: DMA of an `edu` and of an NVMe controller behind it, which passes where
//! something is mapped, and nowhere else, from the answer on.

use super::edu;
use crate::counters::Window;
use crate::edu::Edu;
use crate::nvme::Nvme;
use crate::random::Random;
use crate::viommu::{READ, Viommu, WRITES, status};
use crate::virtqueue::{get, put};
use crate::{boot::Boot, console::check, pci::Function, wait};

const PAGE: u64 = 4096;
/// Within the 28 bits that an `edu` can say, and in no memory of a small VM.
const AT: u64 = 0xA00_0000;
const MARK: u64 = 0x1111_1111_1111_1111;
const BOTH: u32 = READ | WRITES;
/// Pairs of map and unmap that are counted.
const PAIRS: u64 = 1000;

/// The IOMMU, started; or a failed check.
fn started(test: &str, boot: &Boot) -> Option<Viommu> {
    let found = Viommu::start(boot);
    check!(test, found.is_some(), "a virtio-iommu (1AF4:1057) runs");
    found
}

/// A function's id as an endpoint.
pub fn endpoint(function: Function) -> u32 {
    u32::from(function.device) << 3 | u32::from(function.function)
}

/// Asks, and says what for if that isn't answered so.
macro_rules! answers {
    ($test:expr, $what:expr, $answer:ident) => {{
        let (found, right) = ($what, status::$answer);
        check!($test, found == Some(right), "{}: {found:?}, {right} wanted", stringify!($what));
    }};
}

/// Bytes from `at` to the device and back to `to`, each by the device's addresses.
pub fn through(edu: &Edu, at: u64, to: u64) -> bool {
    edu.dma_from_memory(at, PAGE) && edu.dma_to_memory(to, PAGE)
}

pub fn fill(page: u64, seed: u64) {
    let mut random = Random::new(seed);
    (0..PAGE / 8).for_each(|i| put(page + 8 * i, random.number()));
}

pub fn mark(page: u64) {
    (0..PAGE / 8).for_each(|i| put(page + 8 * i, MARK));
}

pub fn same(one: u64, other: u64) -> bool {
    (0..PAGE / 8).all(|i| get::<u64>(one + 8 * i) == get::<u64>(other + 8 * i))
}

pub fn is_marked(page: u64) -> bool {
    (0..PAGE / 8).all(|i| get::<u64>(page + 8 * i) == MARK)
}

/// Attach, map, DMA inside, unmap, no DMA: by a device with its own buffer.
pub fn translated(test: &str, boot: &Boot) {
    let (Some(edu), Some(iommu)) = (edu(test), started(test, boot)) else { return };
    let id = endpoint(edu.function);
    let source = iommu.memory_behind();
    let (target, other) = (source + PAGE, source + 2 * PAGE);
    fill(source, 1);
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "at first: its memory");

    answers!(test, iommu.attach(1, id, 0), OK);
    mark(target);
    let ended = through(&edu, source, target);
    check!(test, ended && is_marked(target), "attached, with nothing mapped: nothing is reached");
    let (first, second) = ((AT, AT + PAGE - 1), (AT + PAGE, AT + 2 * PAGE - 1));
    answers!(test, iommu.map(1, first, source, READ), OK);
    answers!(test, iommu.map(1, second, target, WRITES), OK);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, target), "mapped: from one page to the other");
    // A read leaves the buffer as it was where nothing may be read.
    fill(target, 2);
    mark(other);
    answers!(test, iommu.map(1, (AT + 2 * PAGE, AT + 3 * PAGE - 1), other, BOTH), OK);
    let ended = edu.dma_from_memory(AT + PAGE, PAGE) && edu.dma_to_memory(AT, PAGE);
    check!(test, ended && !same(source, target), "not the other way: neither may that");
    let ended = edu.dma_to_memory(AT + 2 * PAGE, PAGE);
    check!(test, ended && !same(other, target), "what may only be written was not read");

    answers!(test, iommu.map(1, first, other, BOTH), INVALID);
    answers!(test, iommu.unmap(1, second), OK);
    mark(target);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && is_marked(target), "unmapped: nothing arrives from the answer on");
    answers!(test, iommu.map(1, second, other, WRITES), OK);
    mark(other);
    let ended = through(&edu, AT, AT + PAGE);
    check!(test, ended && same(source, other) && is_marked(target), "mapped to another page");

    // Detached it goes by the register, which says the guest's memory at first.
    answers!(test, iommu.detach(1, id), OK);
    answers!(test, iommu.map(1, first, source, READ), NO_ENTRY);
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "detached: its memory");
    iommu.set_bypass(false);
    mark(target);
    let ended = through(&edu, source, target);
    check!(test, ended && is_marked(target), "with bypass off: nothing");
    answers!(test, iommu.attach(9, id, 1), OK);
    answers!(test, iommu.map(9, first, source, READ), INVALID);
    mark(target);
    // Its buffer is as before, or was filled with the word of a read that is refused: nobody else's
    // memory was read instead.
    let ended = edu.dma_to_memory(target, PAGE);
    let nothing = (0..PAGE / 8).all(|i| get::<u64>(target + 8 * i) == get(target));
    check!(test, ended && (nothing || same(source, target)), "with bypass off: nothing was read");
    mark(target);
    let ended = through(&edu, source, target);
    check!(test, ended && same(source, target), "in a bypass domain: its memory");
    iommu.set_bypass(true);
    check!(test, iommu.virtio.reset(), "the device is reset");
    mark(target);
    check!(test, through(&edu, source, target) && same(source, target), "after that: its memory");
}

/// The same by a controller whose queues are translated, too.
pub fn controller(test: &str, boot: &Boot) {
    let (Some(mut nvme), Some(iommu)) = (Nvme::find(), started(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let id = endpoint(nvme.function);
    let target = iommu.memory_behind();
    let queues = nvme.queues();
    answers!(test, iommu.attach(1, id, 0), OK);
    let page = |at: u64| (at, at + PAGE - 1);
    let (submission, completion, data) = (1 << 40, (1 << 40) + PAGE, 0x12_3456_7000);
    answers!(test, iommu.map(1, page(submission), queues.0, READ), OK);
    answers!(test, iommu.map(1, page(completion), queues.1, BOTH), OK);
    answers!(test, iommu.map(1, page(data), target, BOTH), OK);
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    mark(target);
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "its identity arrives: {told:?}");
    answers!(test, iommu.unmap(1, page(data)), OK);
    mark(target);
    let told = nvme.identify_to(data);
    // QEMU's controller tells nothing of that.
    check!(test, is_marked(target), "unmapped it doesn't: {told:?}");
    answers!(test, iommu.map(1, page(data), target, BOTH), OK);
    let told = nvme.identify_to(data);
    check!(test, told == Some(0) && !is_marked(target), "mapped again it does: {told:?}");
    nvme.stop();
    answers!(test, iommu.detach(1, id), OK);
}

/// What is unmapped stays for a while, if nothing else is mapped there, and not for longer.
pub fn optimistic(test: &str, boot: &Boot) {
    const ATTEMPTS: u32 = 100;
    let (Some(mut nvme), Some(iommu)) = (Nvme::find(), started(test, boot)) else {
        return check!(test, false, "there is an NVMe controller, and an IOMMU");
    };
    let (id, target) = (endpoint(nvme.function), iommu.memory_behind());
    let (other, queues) = (target + PAGE, nvme.queues());
    let page = |at: u64| (at, at + PAGE - 1);
    let (submission, completion, data) = (1 << 40, (1 << 40) + PAGE, 0x12_3456_7000);
    answers!(test, iommu.attach(1, id, 0), OK);
    answers!(test, iommu.map(1, page(submission), queues.0, READ), OK);
    answers!(test, iommu.map(1, page(completion), queues.1, BOTH), OK);
    answers!(test, iommu.map(1, page(data), target, BOTH), OK);
    check!(test, nvme.start_at(submission, completion), "it starts with its queues up there");
    let mut answered = 0;
    for _ in 0..PAIRS {
        let unmapped = iommu.unmap(1, page(data)) == Some(status::OK);
        let mapped = iommu.map(1, page(data), target, BOTH) == Some(status::OK);
        answered += u64::from(unmapped && mapped);
    }
    check!(test, answered == PAIRS, "{answered} of {PAIRS} pairs were answered well");
    let mut arrives = |at: u64| {
        mark(target);
        nvme.identify_to(at);
        !is_marked(target)
    };
    check!(test, arrives(data), "what came back is there");
    // One that comes too late says nothing.
    let inside = (0..ATTEMPTS).any(|_| {
        let unmapped = iommu.unmap(1, page(data)) == Some(status::OK);
        let arrived = unmapped && arrives(data);
        iommu.map(1, page(data), target, BOTH) == Some(status::OK) && arrived
    });
    check!(test, inside, "unmapped, it arrives for a while");
    answers!(test, iommu.unmap(1, page(data)), OK);
    answers!(test, iommu.map(1, page(data), other, BOTH), OK);
    mark(other);
    check!(test, !arrives(data) && !is_marked(other), "mapped to another page, it is there alone");
    answers!(test, iommu.unmap(1, page(data)), OK);
    answers!(test, iommu.map(1, page(data), target, BOTH), OK);
    answers!(test, iommu.unmap(1, page(data)), OK);
    check!(test, wait::until(|| !arrives(data)), "and then nothing arrives any more");
    check!(test, !arrives(data), "nor later");
    nvme.stop();
    answers!(test, iommu.detach(1, id), OK);
}

/// How many exits pairs of map and unmap have: none with a sidecore (`exits=0`), else one for each.
pub fn exits(test: &str, boot: &Boot) {
    let (Some(edu), Some(iommu)) = (edu(test), started(test, boot)) else { return };
    let each = boot.option("exits").and_then(|n| n.parse().ok()).unwrap_or(0);
    answers!(test, iommu.attach(1, endpoint(edu.function), 0), OK);
    let memory = iommu.memory_behind();
    let page = (AT, AT + PAGE - 1);
    let mut done = 0;
    let window = Window::open();
    for _ in 0..PAIRS {
        let mapped = iommu.map(1, page, memory, BOTH) == Some(status::OK);
        let unmapped = iommu.unmap(1, page) == Some(status::OK);
        done += u64::from(mapped && unmapped);
    }
    let counted = window.close();
    check!(test, done == PAIRS, "{done} of {PAIRS} pairs were answered well");
    let (n, wanted) = (counted.own(), 2 * each * PAIRS);
    check!(test, n == wanted, "{n} exits for {PAIRS} pairs, {wanted} wanted");
    if n != wanted {
        counted.print();
    }
    answers!(test, iommu.detach(1, endpoint(edu.function)), OK);
}
