//! Two sets of nested tables in turns, each in an address space of its own.
//!
//! What is known of one stays while the other one is used, and goes when it is flushed: with all,
//! with its space, by INVLPGA. A flush doesn't make of a page one that was accessed.

use super::block::{self, Guest, exit};
use super::inside;
use super::paging::{ACCESSED, ALL, AREA, FIRST, OTHER_ROOT, ROOT, access, map};
use crate::counters::{Policy, Window, policy};
use crate::{console::check, cpu};
use core::arch::asm;
use core::sync::atomic::Ordering::SeqCst;
use ledger::Reason;

/// Pages that both have.
const PAGES: core::ops::Range<u64> = 30..38;
const ROUNDS: u64 = 5;
/// TLB_CONTROL.
pub(super) const NOTHING: u64 = 0;
const EVERYTHING: u64 = 1;
const ITS_OWN: u64 = 3;

/// Runs by the first tables, or the second ones.
pub(super) fn by(guest: &Guest, second: bool, flush: u64) {
    let (root, space) = if second { (&OTHER_ROOT, 2) } else { (&ROOT, 1) };
    guest.block().put(block::NESTED_CR3, root.address());
    guest.block().put(block::ASID, space | flush << 32);
}

/// What the guest finds at a page.
fn found(guest: &mut Guest, page: u64) -> Option<u64> {
    let (code, ..) = access(guest, inside::touches(), page, 0);
    (code == exit::VMMCALL).then_some(guest.registers.rcx)
}

fn calls(guest: &mut Guest) {
    guest.restart(inside::hypercall());
    guest.run();
}

/// All of it; the first tables are used at the end.
pub fn turns(test: &str, guest: &mut Guest) {
    OTHER_ROOT.0[0].store(ROOT.0[0].load(SeqCst), SeqCst);
    PAGES.for_each(|page| map(page, page, ALL));
    for second in [false, true] {
        for page in PAGES {
            by(guest, second, if page == PAGES.start { EVERYTHING } else { NOTHING });
            found(guest, page);
        }
    }
    let mut right = 0;
    let window = Window::open();
    for _ in 0..ROUNDS {
        for second in [false, true] {
            by(guest, second, NOTHING);
            right += PAGES.filter(|page| found(guest, *page) == Some(0xB00 + page)).count() as u64;
        }
    }
    let filled = window.close().of(Reason::NestedFill);
    let all = 2 * ROUNDS * (PAGES.end - PAGES.start);
    check!(test, right == all, "in turns: {right} of {all} pages are there");
    let kept = policy() == Policy::Bare || filled == 0;
    check!(test, kept, "{filled} translations were put in again");

    let page = PAGES.start;
    map(page, 9, ALL);
    by(guest, true, EVERYTHING);
    calls(guest);
    by(guest, false, NOTHING);
    let seen = found(guest, page);
    check!(test, seen == Some(0xB09), "all was flushed in the other's turn: {seen:x?}");
    if cpu::cpuid(0x8000_000A).edx >> 6 & 1 == 1 {
        map(page, 10, ALL);
        let seen = [false, true].map(|second| {
            by(guest, second, ITS_OWN);
            found(guest, page)
        });
        check!(test, seen == [Some(0xB0A); 2], "each flushed its own space: {seen:x?}");
    }
    by(guest, false, NOTHING);
    map(page, 11, ALL);
    // SAFETY: forgets what is known of an address of the guest's.
    unsafe { asm!("invlpga rax, ecx", in("rax") AREA + (page << 12), in("ecx") 1) }
    let seen = found(guest, page);
    check!(test, seen == Some(0xB0B), "INVLPGA: {seen:x?}");

    let entry = &FIRST.0[page as usize];
    entry.fetch_and(!ACCESSED, SeqCst);
    by(guest, false, EVERYTHING);
    calls(guest);
    let unmarked = entry.load(SeqCst) & ACCESSED == 0;
    by(guest, false, NOTHING);
    let seen = found(guest, page);
    let marked = entry.load(SeqCst) & ACCESSED != 0;
    let right = unmarked && marked && seen == Some(0xB0B);
    check!(test, right, "accessed by the access alone: {unmarked}, {marked}, {seen:x?}");
    PAGES.for_each(|page| map(page, page, ALL));
    by(guest, false, EVERYTHING);
    calls(guest);
    by(guest, false, NOTHING);
}
