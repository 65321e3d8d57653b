//! Nested paging: the guest's physical addresses by tables of this kernel's.

use super::block::{self, Frame, Guest, exit};
use super::{begin, end, inside};
use crate::counters::{Policy, Window, policy};
use crate::{boot::Boot, console::check, cpu};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

/// Linear, and by this kernel's page tables guest-physical: no memory of anybody's need be there.
pub const AREA: u64 = 0x1_0000_0000 - 0x20_0000;
/// As much below it, in one page.
pub const LARGE_AREA: u64 = AREA - 0x20_0000;
/// As many pages there have a frame.
pub const PAGES: u64 = 64;
/// Present, writable, user's.
pub const ALL: u64 = 7;
pub(super) const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const NXE: u64 = 1 << 11;

/// Bits of EXITINFO1.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const FETCH: u64 = 16;

pub(super) static ROOT: Frame = Frame::new();
pub(super) static OTHER_ROOT: Frame = Frame::new();
static THIRD: Frame = Frame::new();
pub(super) static SECOND: [Frame; 2] = [const { Frame::new() }; 2];
pub(super) static FIRST: Frame = Frame::new();
static BACKING: [Frame; PAGES as usize] = [const { Frame::new() }; PAGES as usize];

/// The first GiB as it is, and a table for the area.
fn tables() -> u64 {
    ROOT.0[0].store(THIRD.address() | ALL, SeqCst);
    THIRD.0[0].store(SECOND[0].address() | ALL, SeqCst);
    THIRD.0[3].store(SECOND[1].address() | ALL, SeqCst);
    for (n, entry) in SECOND[0].0.iter().enumerate() {
        entry.store((n as u64) << 21 | LARGE | ALL, SeqCst);
    }
    SECOND[1].0[511].store(FIRST.address() | ALL, SeqCst);
    FIRST.0.iter().for_each(|entry| entry.store(0, SeqCst));
    for (n, frame) in BACKING.iter().enumerate() {
        frame.0[0].store(0xB00 + n as u64, SeqCst);
    }
    ROOT.address()
}

/// A guest with these tables.
pub fn guest() -> Guest {
    let guest = Guest::new(inside::touches());
    guest.block().put(block::NESTED, 1);
    guest.block().put(block::NESTED_CR3, tables());
    guest
}

/// What it is told of an access to a page: the code, EXITINFO1, EXITINFO2.
pub(super) fn access(guest: &mut Guest, code: u64, page: u64, value: u64) -> (u64, u64, u64) {
    guest.restart(code);
    (guest.registers.rsi, guest.registers.rdi) = (AREA + (page << 12), value);
    guest.run();
    let block = guest.block();
    (guest.code(), block.get(block::EXIT_INFO_1), block.get(block::EXIT_INFO_2))
}

/// Maps a page to a frame.
pub fn map(page: u64, frame: u64, bits: u64) {
    FIRST.0[page as usize].store(BACKING[frame as usize].address() | bits, SeqCst);
}

/// Where a frame is.
pub fn frame(n: u64) -> u64 {
    BACKING[n as usize].address()
}

/// A word of one, and its first.
pub fn nth(frame: u64, word: usize) -> &'static AtomicU64 {
    &BACKING[frame as usize].0[word]
}

pub fn word(frame: u64) -> &'static AtomicU64 {
    nth(frame, 0)
}

/// Maps a page to what this kernel has at `address`.
pub fn map_at(page: u64, address: u64, bits: u64) {
    FIRST.0[page as usize].store(address | bits, SeqCst);
}

/// Maps [`LARGE_AREA`] to the 2 MiB that this kernel has at `address`.
pub fn map_large(address: u64) {
    SECOND[1].0[510].store(address | LARGE | ALL, SeqCst);
}

/// TLB_CONTROL: all of it.
pub fn flush(guest: &Guest) {
    guest.block().put(block::ASID, 1 | 1 << 32);
}

/// No flush from here on.
pub fn flushed(guest: &Guest) {
    guest.block().put(block::ASID, 1);
}

/// Pages that come, move, become others' and go.
pub fn paging(test: &str, _: &Boot) {
    cpu::wrmsr(0xC000_0080, cpu::rdmsr(0xC000_0080) | NXE);
    if !begin(test) {
        return;
    }
    let mut guest = guest();
    absent(test, &mut guest);
    first_touch(test, &mut guest);
    ahead(test, &mut guest);
    super::ahead::tables(test, &mut guest);
    rights(test, &mut guest);
    moved(test, &mut guest);
    other_tables(test, &mut guest);
    super::turns::turns(test, &mut guest);
    loads_inside(test, &mut guest);
    injected(test, &mut guest);
    end();
}

/// Runs a guest that touches its first page; whether it did.
pub fn touched(test: &str) -> bool {
    if !begin(test) {
        return false;
    }
    let mut guest = guest();
    map(0, 0, ALL);
    let (code, ..) = access(&mut guest, inside::touches(), 0, 0);
    check!(test, code == exit::VMMCALL, "a page of its guest's: {code:#x}");
    code == exit::VMMCALL
}

/// A page that isn't there is told, with the address and the access.
fn absent(test: &str, guest: &mut Guest) {
    let (code, info, at) = access(guest, inside::touches(), 5, 0);
    let right = code == exit::NPF && info & (PRESENT | WRITE | FETCH) == 0 && at == AREA + 0x5000;
    check!(test, right, "a load from nowhere: {code:#x}, {info:#x}, {at:#x}");
    let (code, info, at) = access(guest, inside::stores(), 6, 1);
    let right = code == exit::NPF && info & (PRESENT | WRITE) == WRITE && at == AREA + 0x6000;
    check!(test, right, "a store to nowhere: {code:#x}, {info:#x}, {at:#x}");
}

/// Each page is touched, told, mapped and touched again.
fn first_touch(test: &str, guest: &mut Guest) {
    let mut right = 0;
    let window = Window::open();
    for page in 0..PAGES {
        let (code, _, at) = access(guest, inside::touches(), page, 0);
        map(page, page, ALL);
        guest.run();
        let seen = guest.registers.rcx == 0xB00 + page;
        let told = code == exit::NPF && at == AREA + (page << 12);
        right += u64::from(told && seen && guest.code() == exit::VMMCALL);
    }
    let counted = window.close();
    check!(test, right == PAGES, "{right} of {PAGES} pages came when they were touched");
    let marked = FIRST.0.iter().filter(|entry| entry.load(SeqCst) & (ACCESSED | DIRTY) == ACCESSED);
    let marked = marked.count() as u64;
    check!(test, marked == PAGES, "{marked} are accessed and not dirty");
    if policy() != Policy::Bare {
        let [runs, told, filled] = [Reason::Nesting, Reason::NestedReflected, Reason::NestedFill]
            .map(|reason| counted.of(reason));
        // VMRUN and STGI, twice: with IF clear the host holds interrupts back.
        check!(test, runs == 4 * PAGES, "{runs} exits for instructions");
        check!(test, told == 2 * PAGES, "{told} faults and calls told");
        // What was told is put in by the VMRUN that follows.
        check!(test, filled == 0, "{filled} translations put in by exits of their own");
    }
    let (code, ..) = access(guest, inside::stores(), 3, 0xC0FFEE);
    let stored = BACKING[3].0[0].load(SeqCst);
    check!(test, code == exit::VMMCALL && stored == 0xC0FFEE, "a store: {code:#x}, {stored:#x}");
    let dirty = FIRST.0[3].load(SeqCst) & DIRTY != 0;
    check!(test, dirty, "it is dirty");
}

/// No other page is put in with one that was told, none that isn't of the tables that are used, and
/// nothing is put in that a CPU can't have seen.
fn ahead(test: &str, guest: &mut Guest) {
    let gone = |page: u64| FIRST.0[page as usize].store(0, SeqCst);
    (20..24).for_each(gone);
    flush(guest);
    access(guest, inside::touches(), 20, 0);
    flushed(guest);
    let (code, ..) = access(guest, inside::touches(), 21, 0);
    check!(test, code == exit::NPF, "a page that isn't there: {code:#x}");
    map(21, 21, ALL);
    map(22, 22, ALL);
    let window = Window::open();
    let (told, ..) = access(guest, inside::touches(), 21, 0);
    let (other, ..) = access(guest, inside::touches(), 22, 0);
    let filled = window.close().of(Reason::NestedFill);
    let right = (told, other) == (exit::VMMCALL, exit::VMMCALL);
    check!(test, right, "it and the next: {told:#x}, {other:#x}");
    let counted = policy() == Policy::Bare || filled == 1;
    check!(test, counted, "{filled} of the two put in by an exit of its own");

    // A store is told, and the page is there when it comes again: the bit is set by the store.
    let (code, ..) = access(guest, inside::stores(), 23, 0xACE);
    check!(test, code == exit::NPF, "a store to a page that isn't there: {code:#x}");
    map(23, 23, ALL);
    let (code, ..) = access(guest, inside::touches(), 21, 0);
    let dirty = FIRST.0[23].load(SeqCst) & DIRTY != 0;
    check!(test, code == exit::VMMCALL && !dirty, "and isn't made: {code:#x}, dirty {dirty}");
    let (code, ..) = access(guest, inside::stores(), 23, 0xACE);
    let (stored, dirty) = (BACKING[23].0[0].load(SeqCst), FIRST.0[23].load(SeqCst) & DIRTY != 0);
    let right = code == exit::VMMCALL && stored == 0xACE && dirty;
    check!(test, right, "and is: {code:#x}, {stored:#x}, dirty {dirty}");

    // Other tables are used in between: no CPU looks at these meanwhile.
    let (code, ..) = access(guest, inside::touches(), 20, 0);
    check!(test, code == exit::NPF, "another that isn't there: {code:#x}");
    map(20, 20, ALL);
    OTHER_ROOT.0[0].store(THIRD.address() | ALL, SeqCst);
    guest.block().put(block::NESTED_CR3, OTHER_ROOT.address());
    guest.block().put(block::ASID, 2);
    guest.restart(inside::hypercall());
    guest.run();
    let code = guest.code();
    let looked = FIRST.0[20].load(SeqCst) & ACCESSED != 0;
    check!(test, code == exit::VMMCALL && !looked, "by other tables: {code:#x}, {looked}");
    map(20, 19, ALL);
    guest.block().put(block::NESTED_CR3, ROOT.address());
    flushed(guest);
    let (code, ..) = access(guest, inside::touches(), 20, 0);
    let seen = guest.registers.rcx;
    check!(test, code == exit::VMMCALL && seen == 0xB13, "moved before: {code:#x}, {seen:#x}");
    map(20, 20, ALL);
    map(23, 23, ALL);
    BACKING[23].0[0].store(0xB17, SeqCst);
    flush(guest);
    access(guest, inside::touches(), 20, 0);
    flushed(guest);
}

/// Read-only and no-execute.
fn rights(test: &str, guest: &mut Guest) {
    map(7, 7, ALL & !2);
    flush(guest);
    let (code, ..) = access(guest, inside::touches(), 7, 0);
    check!(test, code == exit::VMMCALL, "a load from a read-only page: {code:#x}");
    flushed(guest);
    let (code, info, _) = access(guest, inside::stores(), 7, 1);
    let right = code == exit::NPF && info & (PRESENT | WRITE) == PRESENT | WRITE;
    check!(test, right, "a store there: {code:#x}, {info:#x}");
    map(8, 8, ALL | NO_EXECUTE);
    flush(guest);
    let (code, info, _) = access(guest, inside::jumps(), 8, 0);
    let right = code == exit::NPF && info & (PRESENT | FETCH) == PRESENT | FETCH;
    check!(test, right, "a jump to a no-execute page: {code:#x}, {info:#x}");
    flushed(guest);
}

/// After a flush what is in the tables counts.
fn moved(test: &str, guest: &mut Guest) {
    map(1, 9, ALL);
    flush(guest);
    access(guest, inside::touches(), 1, 0);
    let seen = guest.registers.rcx;
    check!(test, seen == 0xB09, "another frame, after a flush: {seen:#x}");
    FIRST.0[1].store(0, SeqCst);
    let (code, ..) = access(guest, inside::touches(), 1, 0);
    check!(test, code == exit::NPF, "gone, after a flush: {code:#x}");
    flushed(guest);
    let (code, ..) = access(guest, inside::touches(), 2, 0);
    check!(test, code == exit::VMMCALL, "the others are there still: {code:#x}");
}

/// VMSAVE and VMLOAD of the guest's own, without an exit: its physical addresses count, and a page
/// that isn't there is told.
fn loads_inside(test: &str, guest: &mut Guest) {
    const STAR: u32 = 0xC000_0081;
    if cpu::cpuid(0x8000_000A).edx >> 15 & 1 == 0 {
        return;
    }
    // No intercept of VMLOAD and VMSAVE.
    let wanted = guest.block().get(block::MISC2);
    guest.block().put(block::MISC2, wanted & !0xC);
    guest.block().put(block::VIRTUAL, 2);
    cpu::wrmsr(STAR, 0x10_0008_0000_1234);
    FIRST.0[12].store(0, SeqCst);
    flush(guest);
    let (code, info, at) = access(guest, inside::saves(), 12, 0);
    let right = code == exit::NPF && info & WRITE != 0 && at & !0xFFF == AREA + 0xC000;
    check!(test, right, "VMSAVE to nowhere: {code:#x}, {info:#x}, {at:#x}");
    flushed(guest);
    map(12, 12, ALL);
    let (code, ..) = access(guest, inside::saves(), 12, 0);
    let saved = BACKING[12].0[0x600 / 8].load(SeqCst);
    let right = code == exit::VMMCALL && saved == 0x10_0008_0000_1234;
    check!(test, right, "VMSAVE: {code:#x}, {saved:#x}");
    BACKING[12].0[0x600 / 8].store(0x10_0008_0000_4321, SeqCst);
    let (code, ..) = access(guest, inside::loads(), 12, 0);
    let loaded = cpu::rdmsr(STAR);
    let right = code == exit::VMMCALL && loaded == 0x10_0008_0000_4321;
    check!(test, right, "VMLOAD: {code:#x}, {loaded:#x}");
    cpu::wrmsr(STAR, 0);
    guest.block().put(block::VIRTUAL, 0);
    guest.block().put(block::MISC2, wanted);
    let (code, ..) = access(guest, inside::loads(), 12, 0);
    check!(test, code == exit::VMLOAD, "VMLOAD, intercepted: {code:#x}");
}

/// Without nested paging the guest's addresses are this kernel's; and with it again.
fn other_tables(test: &str, guest: &mut Guest) {
    guest.block().put(block::NESTED, 0);
    guest.block().put(block::ASID, 2);
    guest.restart(inside::touches());
    guest.registers.rsi = BACKING[10].address();
    guest.run();
    let (code, seen) = (guest.code(), guest.registers.rcx);
    check!(test, code == exit::VMMCALL && seen == 0xB0A, "without: {code:#x}, {seen:#x}");
    guest.block().put(block::NESTED, 1);
    flushed(guest);
    let (code, ..) = access(guest, inside::touches(), 2, 0);
    let seen = guest.registers.rcx;
    check!(test, code == exit::VMMCALL && seen == 0xB02, "with: {code:#x}, {seen:#x}");
}

/// What is injected for an instruction that is done comes, though the table of interrupts has no
/// translation of the host's yet: it isn't executed again.
fn injected(test: &str, guest: &mut Guest) {
    const CODE_SEGMENT: u64 = 8;
    const GATE: u64 = 0x8E00;
    let (arrives, behind) = (inside::arrives(), inside::hypercall());
    for (name, page, kind, vector) in [("INT 20h", 13, 4, 0x20), ("INT3", 14, 3, 3)] {
        let table = &BACKING[page as usize].0;
        let gate =
            arrives & 0xFFFF | CODE_SEGMENT << 16 | GATE << 32 | (arrives >> 16 & 0xFFFF) << 48;
        table[2 * vector].store(gate, SeqCst);
        table[2 * vector + 1].store(arrives >> 32, SeqCst);
        map(page, page, ALL);
        guest.restart(behind);
        let block = guest.block();
        block.put(block::IDTR, 0xFFF << 32);
        block.put(block::IDTR + 8, AREA + (page << 12));
        block.put(block::EVENT_INJ, 1 << 31 | kind << 8 | vector as u64);
        block.put(block::NEXT_RIP, behind);
        guest.run();
        let (at, from) = (guest.block().get(block::RIP), guest.registers.rcx);
        let right = guest.code() == exit::VMMCALL && at != behind && from == behind;
        check!(test, right, "{name}: {:#x} at {at:#x}, from {from:#x}", guest.code());
    }
}
