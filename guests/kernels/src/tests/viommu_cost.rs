//! What a mapping and its unmapping cost the host that serves the guest's own IOMMU by exits:
//! windows for the counting plugin.

use super::edu;
use super::unit::started;
use super::viommu::endpoint;
use crate::unit::{BOTH, Place, Unit};
use crate::viommu::{READ, Viommu, WRITES, status};
use crate::{boot::Boot, console::check};

const PAGE: u64 = 4096;
const AT: u64 = 0xA00_0000;
/// Pairs in the window; the harness knows the number.
const PAIRS: u64 = 1000;

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! marker {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

/// Pairs of one page in a domain that has nothing else, in a window; behind two that make its
/// tables.
fn measured(test: &str, mut pair: impl FnMut() -> bool) {
    let first = pair() && pair();
    let mut done = 0;
    marker!("0x45580001");
    for _ in 0..PAIRS {
        done += u64::from(pair());
    }
    marker!("0x45580002");
    check!(test, first && done == PAIRS, "{done} of {PAIRS} pairs were done");
}

/// By virtio.
pub fn virtio(test: &str, boot: &Boot) {
    let (Some(edu), Some(iommu)) = (edu(test), Viommu::start(boot)) else {
        return check!(test, false, "there are a device and a virtio-iommu");
    };
    let id = endpoint(edu.function);
    check!(test, iommu.attach(1, id, 0) == Some(status::OK), "attached");
    let (memory, page) = (iommu.memory_behind(), (AT, AT + PAGE - 1));
    measured(test, || {
        iommu.map(1, page, memory, READ | WRITES) == Some(status::OK)
            && iommu.unmap(1, page) == Some(status::OK)
    });
    check!(test, iommu.detach(1, id) == Some(status::OK), "detached");
}

/// By a unit with registers.
pub fn unit<U: Unit>(test: &str, boot: &Boot) {
    const DOMAIN: u16 = 3;
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let (id, root, memory) = (endpoint(edu.function), unit.table(), unit.memory_behind());
    unit.lead(id, Place::Domain(DOMAIN, root));
    check!(test, unit.begin(id), "it translates");
    measured(test, || {
        unit.map_page(root, DOMAIN, AT, Some((memory, BOTH)))
            && unit.map_page(root, DOMAIN, AT, None)
    });
    check!(test, unit.translate(false), "it translates no more");
}
