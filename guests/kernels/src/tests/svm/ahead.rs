//! What a hypervisor does between a fault that it is told and the VMRUN that follows, which looks
//! at its tables ahead of its guest: whatever it puts there, its guest has what is there at VMRUN,
//! and nothing that isn't the hypervisor's own.

use super::block::{self, Block, Guest, exit};
use super::paging::{self, ALL, AREA, FIRST, LARGE_AREA, PAGES, ROOT, SECOND, access, map, map_at};
use super::registers::{self, Came, NOTHING};
use super::{inside, smp::turn_on};
use crate::nvme::Nvme;
use crate::random::Random;
use crate::{console::check, cpu, wait};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGE: u64 = 4096;
const EFER: u32 = 0xC000_0080;
/// Where no memory is.
const NOWHERE: u64 = 0x9000_0000;
/// Wider than any address.
const TOO_WIDE: u64 = 0xF_FFFF_FFFF_F000;
/// Of EXITINFO1: reserved bits.
const RESERVED: u64 = 8;
/// A page of the guest's that is told.
const TOLD: u64 = 120;
const ROUNDS: u64 = 3000;

static EDITING: AtomicU64 = AtomicU64::new(0);

/// A fault at this page is told, and nothing is there.
fn told(guest: &mut Guest, page: u64) -> bool {
    map_at(page, 0, 0);
    paging::flush(guest);
    let (code, ..) = access(guest, inside::touches(), page, 0);
    paging::flushed(guest);
    code == exit::NPF
}

/// Tables in places where nobody has them.
pub fn tables(test: &str, guest: &mut Guest) {
    let first = told(guest, 40);
    map_at(40, TOO_WIDE, ALL);
    let (code, info, _) = access(guest, inside::touches(), 40, 0);
    let right = first && code == exit::NPF && info & RESERVED != 0;
    check!(test, right, "too wide an address: {code:#x}, {info:#x}");

    // Bits of CR3 that aren't its address, and a block that is a table: its word for CR3 is the
    // entry of this page, and leads to the root as a page.
    const AS_ENTRY: u64 = (block::NESTED_CR3 / 8) as u64;
    let first = told(guest, AS_ENTRY);
    guest.block().put(block::NESTED_CR3, ROOT.address() | ALL);
    SECOND[1].0[511].store(Block::address() | ALL, SeqCst);
    paging::flush(guest);
    let (code, ..) = access(guest, inside::touches(), AS_ENTRY, 0);
    let (seen, root) = (guest.registers.rcx, ROOT.0[0].load(SeqCst));
    let right = first && code == exit::VMMCALL && seen == root;
    check!(test, right, "the block as a table: {code:#x}, {seen:#x} of {root:#x}");
    SECOND[1].0[511].store(FIRST.address() | ALL, SeqCst);
    guest.block().put(block::NESTED_CR3, ROOT.address());

    // The guest writes the table by which it runs.
    let first = told(guest, 41);
    map_at(42, FIRST.address(), ALL);
    let entry = paging::frame(41) | ALL;
    guest.restart(inside::stores());
    (guest.registers.rsi, guest.registers.rdi) = (AREA + 42 * PAGE + 41 * 8, entry);
    guest.run();
    let (code, ..) = access(guest, inside::touches(), 41, 0);
    let seen = guest.registers.rcx;
    let right = first && code == exit::VMMCALL && seen == 0xB00 + 41;
    check!(test, right, "a table in a page of the guest's: {code:#x}, {seen:#x}");
    for page in 40..43 {
        map(page, page, ALL);
    }
    map(AS_ENTRY, AS_ENTRY, ALL);
    paging::flush(guest);
    access(guest, inside::touches(), 0, 0);
    paging::flushed(guest);
}

/// What isn't memory, put where a fault was told.
pub fn devices(test: &str, guest: &mut Guest, nvme: &mut Nvme, ledger: u64) {
    let (home, own) = (nvme.base(), Came::Done(cpu::mmio_read(nvme.base())));
    let (_, table) = nvme.table().unwrap_or_default();
    let address = AREA + TOLD * PAGE;
    let touch =
        |guest: &mut Guest| [0, 1].map(|_| registers::access(guest, inside::touches(), address, 0));
    for (what, at) in [
        ("the table of its interrupts", table & !(PAGE - 1)),
        ("the host's counters", ledger),
        ("nothing", NOWHERE),
        ("the local APIC", 0xFEE0_0000),
    ] {
        // The host's counters are no device's.
        let own = if at == ledger { NOTHING } else { Came::Done(cpu::mmio_read(at)) };
        let first = told(guest, TOLD);
        map_at(TOLD, at, ALL);
        let came = touch(guest);
        let right = first && came.iter().all(|came| *came == own);
        check!(test, right, "ahead, {what}: {came:x?}");
        // All of what is around it as one page.
        let large = at & !((2 << 20) - 1);
        SECOND[1].0[510].store(0, SeqCst);
        paging::flush(guest);
        let inside = LARGE_AREA + (at - large);
        registers::access(guest, inside::touches(), inside, 0);
        paging::flushed(guest);
        paging::map_large(large);
        let came = registers::access(guest, inside::touches(), inside, 0);
        check!(test, came == own, "ahead, in a large page, {what}: {came:x?}");
    }
    let first = told(guest, TOLD);
    map_at(TOLD, home, ALL);
    let came = touch(guest);
    let right = first && came.iter().all(|came| *came == own);
    check!(test, right, "ahead, registers: {came:x?}");
    // The host knows them now. They go before VMRUN, and another page is where they were.
    let first = told(guest, TOLD);
    map_at(TOLD, home, ALL);
    nvme.move_to(registers::ELSEWHERE);
    let came = touch(guest);
    let right = first && came.iter().all(|came| *came == NOTHING);
    check!(test, right, "ahead, registers that moved away: {came:x?}");
    nvme.move_to(home as u32);
    let back = touch(guest);
    check!(test, back.iter().all(|came| *came == own), "and back: {back:x?}");
}

/// Writes entries of the tables, and what the block says of them, until it is to end.
fn edit(_: usize) {
    turn_on();
    let mut random = Random::new(0xED17);
    EDITING.store(1, SeqCst);
    while EDITING.load(SeqCst) == 1 {
        let n = random.number();
        let page = n % PAGES;
        match n >> 8 & 7 {
            0 => map_at(page, 0, 0),
            1 => map_at(page, [NOWHERE, TOO_WIDE, 0xFEE0_0000][(n >> 16) as usize % 3], ALL),
            2 => Block.put(block::CLEAN, random.number()),
            3 => Block.put(block::ASID, (1 + (n >> 16 & 3)) | (n >> 24 & 1) << 32),
            4 => {
                // The table of all of them is nobody's memory for a moment.
                SECOND[1].0[511].store(NOWHERE | ALL, SeqCst);
                SECOND[1].0[511].store(FIRST.address() | ALL, SeqCst);
            }
            _ => map(page, (n >> 16) % PAGES, ALL),
        }
    }
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !super::SVME);
}

/// Another CPU edits tables and block while the guest runs by them: it sees frames that some entry
/// had, or none, and in the end what is there.
pub fn edited(test: &str) {
    turn_on();
    let mut guest = paging::guest();
    let (mut done, mut faults, mut other) = (0, 0, 0);
    let ended = machine::smp::others(2, edit, || {
        let began = wait::patiently(|| EDITING.load(SeqCst) == 1);
        let mut random = Random::new(0x10AD);
        for _ in 0..ROUNDS {
            let n = random.number();
            let at = AREA + n % PAGES * PAGE;
            match registers::access(&mut guest, inside::touches(), at, 0) {
                Came::Done(seen) if (0xB00..0xB00 + PAGES).contains(&seen.into()) => done += 1,
                NOTHING | Came::Refused | Came::Told(exit::NPF) => faults += 1,
                _ => other += 1,
            }
        }
        EDITING.store(2, SeqCst);
        began
    });
    let all = ended && other == 0 && done > 100 && faults > 100;
    check!(test, all, "edited meanwhile: {done} loads, {faults} faults, {other} else");
    (0..PAGES).for_each(|page| map(page, page, ALL));
    guest.block().put(block::CLEAN, 0);
    let mut right = 0;
    paging::flush(&guest);
    for page in 0..PAGES {
        let (code, ..) = access(&mut guest, inside::touches(), page, 0);
        right += u64::from(code == exit::VMMCALL && guest.registers.rcx == 0xB00 + page);
    }
    paging::flushed(&guest);
    check!(test, right == PAGES, "{right} of {PAGES} as they are in the end");
}
