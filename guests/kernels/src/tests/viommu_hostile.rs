//! Requests to the guest's own IOMMU that no driver makes, as many as it takes: whatever is asked,
//! each is answered, and what the device reaches stays within this guest's memory. That the rest of
//! the machine is whole is judged from outside: a neighbour goes on, the audit finds nothing.

use super::edu;
use super::viommu::endpoint;
use crate::edu::Edu;
use crate::random::Random;
use crate::viommu::{READ, Viommu, WRITES, status};
use crate::virtqueue::{get, put};
use crate::{boot::Boot, console::check};

const PAGE: u64 = 4096;
const BOTH: u32 = READ | WRITES;
/// Random requests, and those with random bytes.
const RANDOM: u64 = 6_000;
/// Mappings that are made one by one, each in a table of its own, until there is no room.
const MOST: u64 = 5_000;
/// What a table maps.
const APART: u64 = 2 << 20;
/// Every how many requests the device is made use of.
const EVERY: u64 = 1_500;

/// All of it.
pub fn hostile(test: &str, boot: &Boot) {
    let (Some(edu), Some(iommu)) = (edu(test), Viommu::start(boot)) else {
        return check!(test, false, "there are an edu and a virtio-iommu");
    };
    let id = endpoint(edu.function);
    let mut random = Random::new(boot.option("seed").and_then(|n| n.parse().ok()).unwrap_or(1));
    outside(test, boot, &iommu, id);
    full(test, &iommu, id);
    let mut unanswered = 0;
    for n in 0..RANDOM {
        let asked = if n % 2 == 0 { sensible(&iommu, id, &mut random) } else { None };
        let answered = asked.or_else(|| bytes(&iommu, &mut random));
        unanswered += u64::from(answered.is_none());
        if n % EVERY == 0 {
            // Wherever that leads.
            edu.dma_from_memory(random.number() & 0xFFF_F000, PAGE);
            edu.dma_to_memory(iommu.memory_behind(), PAGE);
        }
    }
    check!(test, unanswered == 0, "{unanswered} of {RANDOM} requests were not answered");
    check!(test, iommu.virtio.reset(), "it can be reset after that");
    let Some(iommu) = Viommu::start(boot) else { return check!(test, false, "it starts again") };
    as_at_first(test, &edu, &iommu, id);
}

/// Memory that isn't this guest's, ranges that wrap, what nobody has.
fn outside(test: &str, boot: &Boot, iommu: &Viommu, id: u32) {
    let page = (0x100_0000, 0x100_0000 + PAGE - 1);
    let end = boot.memory_end();
    let answers = |what: &str, answer: Option<u8>, wanted: &[u8]| {
        let right = answer.is_some_and(|answer| wanted.contains(&answer));
        check!(test, right, "{what}: {answer:?}, one of {wanted:?} wanted");
    };
    for other in [0, 8, id + 1, id + 8, id | 1 << 16, u32::MAX] {
        if other != id {
            answers("an endpoint of nobody's", iommu.attach(1, other, 0), &[status::NO_ENTRY]);
        }
    }
    answers("no domain", iommu.map(1, page, 0, BOTH), &[status::NO_ENTRY]);
    for domain in [0, 1, 0x7FFF_FFFF, 0x8000_0000, u32::MAX] {
        answers("any domain", iommu.attach(domain, id, 0), &[status::OK]);
    }
    let domain = u32::MAX;
    let refused = &[status::RANGE, status::INVALID, status::NO_MEMORY][..];
    let last = end - PAGE;
    for to in [end, end + (1 << 20), 0xFEE0_0000, 1 << 32, 1 << 40, u64::MAX - PAGE + 1, 1, 0x800] {
        answers("memory of others", iommu.map(domain, page, to, BOTH), refused);
    }
    let two = (page.0, page.0 + 2 * PAGE - 1);
    answers("the last page and one more", iommu.map(domain, two, last, BOTH), refused);
    for (first, last) in [
        (0, u64::MAX),
        (PAGE, 0),
        (PAGE, PAGE - 1),
        (u64::MAX - PAGE + 1, u64::MAX),
        (1 << 48, (1 << 48) + PAGE - 1),
        (0, PAGE - 2),
        (1, PAGE),
        (0xFEE0_0000, 0xFEE0_0FFF),
        (0xFED0_0000, 0xFEFF_FFFF),
    ] {
        answers("no such range", iommu.map(domain, (first, last), 0, BOTH), refused);
    }
    for flags in [0, 4, 8, u32::MAX] {
        answers("no such access", iommu.map(domain, page, 0, flags), &[status::INVALID]);
    }
    let all = (0, (1u64 << 39) - 1);
    answers("all of it is unmapped", iommu.unmap(domain, all), &[status::OK]);
    answers("and detached", iommu.detach(domain, id), &[status::OK]);
}

/// Mappings until the tables are full, which is an answer; and room again when they are gone.
fn full(test: &str, iommu: &Viommu, id: u32) {
    let made = || {
        let page = |n: u64| (n * APART, n * APART + PAGE - 1);
        let mut all = (0..MOST).map(|n| iommu.map(3, page(n), 0, READ));
        all.position(|answer| answer != Some(status::OK))
    };
    let attached = iommu.attach(3, id, 0) == Some(status::OK);
    let first = made();
    let again = iommu.map(3, (MOST * APART, MOST * APART + PAGE - 1), 0, READ);
    let right = first.is_some_and(|n| n > 50) && again == Some(status::NO_MEMORY);
    check!(test, attached && right, "full after {first:?} tables: {again:?}");
    let gone = iommu.detach(3, id) == Some(status::OK);
    let back = iommu.attach(3, id, 0) == Some(status::OK);
    let second = made();
    check!(test, gone && back && second == first, "a new domain has all of it: {second:?}");
    check!(test, iommu.detach(3, id) == Some(status::OK), "and is given up");
}

/// A request with fields that may be right.
fn sensible(iommu: &Viommu, id: u32, random: &mut Random) -> Option<()> {
    let mut number = || random.number();
    let domain = (number() % 3) as u32;
    let first = number() % 512 * PAGE;
    let last = first + (number() % 64 + 1) * PAGE - 1;
    let answer = match number() % 8 {
        0 => iommu.attach(domain, id, (number() % 2) as u32),
        1 => iommu.detach(domain, id),
        2 => iommu.unmap(domain, (0, (1 << 39) - 1)),
        3 | 4 => iommu.unmap(domain, (first, last)),
        _ => iommu.map(domain, (first, last), number() % 4096 * PAGE, BOTH),
    };
    answer.map(|_| ())
}

/// Any bytes.
fn bytes(iommu: &Viommu, random: &mut Random) -> Option<()> {
    let mut all = [0u8; 48];
    for chunk in all.chunks_mut(8) {
        chunk.iter_mut().zip(random.number().to_le_bytes()).for_each(|(to, byte)| *to = byte);
    }
    all[0] = (random.number() % 7) as u8;
    let len = (random.number() % 48) as usize + 1;
    let room = (random.number() % 64) as u32 + 1;
    iommu.ask(all.get(..len)?, room, 0).map(|_| ())
}

/// A mapping works as for any driver.
fn as_at_first(test: &str, edu: &Edu, iommu: &Viommu, id: u32) {
    let source = iommu.memory_behind();
    let target = source + PAGE;
    (0..PAGE / 8).for_each(|i| put(source + 8 * i, i << 32 | 0x5EED));
    (0..PAGE / 8).for_each(|i| put(target + 8 * i, 0u64));
    let page = |n: u64| (0xA00_0000 + n * PAGE, 0xA00_0000 + (n + 1) * PAGE - 1);
    let attached = iommu.attach(7, id, 0) == Some(status::OK);
    let mapped = [(0, source, READ), (1, target, WRITES)]
        .into_iter()
        .all(|(n, to, access)| iommu.map(7, page(n), to, access) == Some(status::OK));
    let moved = edu.dma_from_memory(page(0).0, PAGE) && edu.dma_to_memory(page(1).0, PAGE);
    let same = (0..PAGE / 8).all(|i| get::<u64>(source + 8 * i) == get::<u64>(target + 8 * i));
    check!(test, attached && mapped && moved && same, "DMA goes where it is mapped, as at first");
}
