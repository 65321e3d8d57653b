//! A guest that does with its own VT-d unit what no driver does: besides what `unit_hostile` has,
//! registers, entries and descriptors of any words.

use super::edu;
use super::unit::{DOMAIN, started};
use super::unit_hostile::{as_at_first, others, too_much};
use super::viommu::endpoint;
use crate::cpu::{mmio_write, mmio_write64};
use crate::random::Random;
use crate::unit::{Ask, BASE, Place, Unit};
use crate::virtqueue::put;
use crate::vtd::{ALL, CONTEXTS, INTERRUPTS, Vtd, descriptor};
use crate::{boot::Boot, console::check};

const PAGE: u64 = 4096;
/// Words that are written anywhere, and every how many the device is made use of.
const RANDOM: u64 = 3_000;
const EVERY: u64 = 500;

/// All of it.
pub fn hostile(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started::<Vtd>(test, boot)) else { return };
    let id = endpoint(edu.function);
    let mut random = Random::new(boot.option("seed").and_then(|n| n.parse().ok()).unwrap_or(1));
    let root = unit.table();
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");

    others(test, boot, &unit, &edu, root);
    too_much(test, &unit, id, root);
    let mut stopped = 0;
    for n in 0..RANDOM {
        let word = random.number();
        match random.number() % 8 {
            0 => mmio_write(BASE + word % 64 * 4, (word >> 32) as u32),
            1 => mmio_write64(BASE + word % 32 * 8, random.number()),
            2 => put(root + word % 512 * 8, random.number() & 0x3FF_F0FF),
            3 => unit.put_context(id, [word & 0xFFF_F00F, random.number() & 0x3_FF07]),
            4 => unit.put([word & 0xFFFF_FFFF_FFFF, random.number()]),
            5 => unit.put(
                [CONTEXTS, ALL, INTERRUPTS, descriptor(Ask::Domain(DOMAIN))][(word % 4) as usize],
            ),
            _ => unit.tell(),
        }
        stopped += u64::from(unit.is_wrong());
        if n % EVERY == 0 {
            // Wherever that leads. It only reads: this kernel may be there.
            edu.dma_from_memory(random.number() & 0xFFF_F000, PAGE);
        }
    }
    check!(test, stopped > 0, "some of that was an error");
    as_at_first::<Vtd>(test, boot, id, &edu);
}
