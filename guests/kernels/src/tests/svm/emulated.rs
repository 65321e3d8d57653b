//! The guest's accesses to registers that the host has for this kernel, and INS and OUTS: through
//! the guest's page tables, and then this kernel's.

use super::block::{self, Guest, exit};
use super::inside;
use super::open::{PAGE_FAULT, intercept};
use super::paging::{self, ALL, AREA};
use super::registers::{Came, access};
use crate::counters::{Policy, policy};
use crate::{console::check, cpu};
use core::sync::atomic::Ordering::SeqCst;

const PAGE: u64 = 4096;
const CR2: usize = 0x640;
/// A register of the I/O APIC's that keeps a byte.
const SELECT: u64 = 0xFEC0_0000;
/// A page of the guest's addresses that leads there, and one that leads nowhere at first.
const DEVICE: u64 = 100;
const ABSENT: u64 = 101;
/// A register of the serial port that does nothing.
const SCRATCH: u16 = 0x3FF;
/// Of EXITINFO1: a store.
const WRITE: u64 = 2;

/// All of it.
pub fn emulated(test: &str, guest: &mut Guest) {
    registers(test, guest);
    elements(test, guest);
    gone(test, guest);
    ports(test, guest);
    let seen = own_addresses(&mut Guest::new(inside::touches()));
    check!(test, seen, "registers, without nested tables");
}

/// What the guest does to a device's register that the host has for this kernel.
fn registers(test: &str, guest: &mut Guest) {
    let address = AREA + DEVICE * PAGE;
    paging::map_at(DEVICE, SELECT, ALL);
    paging::flush(guest);
    cpu::mmio_write(SELECT, 0x21);
    let loaded = access(guest, inside::touches(), address, 0);
    paging::flushed(guest);
    check!(test, loaded == Came::Done(0x21), "a register: {loaded:x?}");
    let stored = access(guest, inside::stores(), address, 0x32);
    let own = cpu::mmio_read(SELECT);
    check!(test, stored == Came::Done(0) && own == 0x32, "stored: {stored:x?}, {own:#x}");
    let added = access(guest, inside::adds(), address, 0x11);
    check!(test, added == Came::Done(0x43), "LOCK ADD: {added:x?}");

    over_the_end(test, guest, address);

    paging::map_at(DEVICE, SELECT, ALL & !2);
    paging::flush(guest);
    let loaded = access(guest, inside::touches(), address, 0);
    paging::flushed(guest);
    let stored = access(guest, inside::stores(), address, 0x54);
    let own = cpu::mmio_read(SELECT);
    let right = loaded == Came::Done(0x43) && stored == Came::Told(exit::NPF) && own == 0x43;
    check!(test, right, "read-only here: {loaded:x?}, {stored:x?}, {own:#x}");
    let fetched = match policy() {
        Policy::Bare => Came::Refused,
        _ => access(guest, inside::jumps(), address, 0),
    };
    check!(test, fetched == Came::Refused, "code there: {fetched:x?}");
    paging::map_at(DEVICE, SELECT, ALL);
    paging::flush(guest);
    access(guest, inside::touches(), AREA, 0);
    paging::flushed(guest);
}

/// Eight bytes of which the last four are in the guest's next page, which is elsewhere here; and
/// ten that nobody emulates.
fn over_the_end(test: &str, guest: &mut Guest, address: u64) {
    paging::map(DEVICE + 1, 11, ALL);
    paging::flush(guest);
    access(guest, inside::touches(), address, 0);
    paging::flushed(guest);
    access(guest, inside::touches(), address + PAGE - 4, 0);
    let (code, upper) = (guest.code(), guest.registers.rcx >> 32);
    check!(test, code == exit::VMMCALL && upper == 0xB0B, "in two pages: {code:#x}, {upper:#x}");
    if policy() != Policy::Bare {
        for (name, code) in [("FLD", inside::odd()), ("LMSW", inside::loads_status())] {
            let odd = access(guest, code, address, 0);
            check!(test, odd == Came::Refused, "{name}, which isn't emulated there: {odd:x?}");
        }
    }
    paging::map_at(DEVICE + 1, 0, 0);
}

/// Code of the guest's whose page this kernel takes away, and flushes nothing: it may be known
/// still, and then it isn't.
fn gone(test: &str, guest: &mut Guest) {
    const CODE: u64 = 12;
    /// MOV CR0, RDI; VMMCALL.
    const LOADS: u64 = u64::from_le_bytes([0x0F, 0x22, 0xC7, 0x0F, 0x01, 0xD9, 0x90, 0x90]);
    let own = cpu::cr0();
    paging::map(CODE, CODE, ALL);
    paging::word(CODE).store(LOADS, SeqCst);
    let loads = |guest: &mut Guest| {
        guest.restart(AREA + CODE * PAGE);
        guest.registers.rdi = own ^ 1 << 18;
        guest.run();
        guest.code()
    };
    let first = loads(guest);
    guest.block().put(block::CR0, own);
    paging::map_at(CODE, 0, 0);
    let then = loads(guest);
    let at = guest.block().get(block::EXIT_INFO_2);
    let right = (first, then) == (exit::VMMCALL, exit::NPF) && at == AREA + CODE * PAGE;
    check!(test, right, "code that is gone: {first:#x}, {then:#x} at {at:#x}");
    guest.block().put(block::CR0, own);
    paging::map(CODE, CODE, ALL);
    paging::word(CODE).store(0xB00 + CODE, SeqCst);
}

/// MOVS from a register to where the guest has memory, to where this kernel has none for it, and to
/// where the guest itself has none.
fn elements(test: &str, guest: &mut Guest) {
    const BEYOND: u64 = 0x7000_0000_0000;
    let (from, to) = (AREA + DEVICE * PAGE, AREA + ABSENT * PAGE);
    let moves = |guest: &mut Guest, to| {
        guest.restart(inside::moves());
        (guest.registers.rsi, guest.registers.rdi, guest.registers.rcx) = (from, to, 3);
    };
    cpu::mmio_write(SELECT, 0x65);
    // A page behind the first: the elements lie in both.
    paging::map(5, 6, ALL);
    moves(guest, AREA + 5 * PAGE + 8);
    guest.run();
    let (code, seen) = (guest.code(), paging::nth(6, 1).load(SeqCst));
    let right = code == exit::VMMCALL && seen & 0xFFFF_FFFF == 0x65;
    check!(test, right, "moved to memory: {code:#x}, {seen:#x}");

    moves(guest, to);
    guest.run();
    let block = guest.block();
    let (code, info) = (guest.code(), block.get(block::EXIT_INFO_1));
    let at = block.get(block::EXIT_INFO_2);
    let right = code == exit::NPF && info & WRITE != 0 && at == to;
    check!(test, right, "to a page that isn't: {code:#x}, {info:#x}, {at:#x}");
    paging::map(ABSENT, 7, ALL);
    guest.run();
    let (code, seen) = (guest.code(), paging::nth(7, 0).load(SeqCst));
    let right = code == exit::VMMCALL && seen & 0xFFFF_FFFF == 0x65;
    check!(test, right, "and now is: {code:#x}, {seen:#x}");
    paging::map(ABSENT, 7, ALL & !2);
    paging::flush(guest);
    moves(guest, to);
    guest.run();
    paging::flushed(guest);
    let (code, info) = (guest.code(), guest.block().get(block::EXIT_INFO_1));
    check!(test, code == exit::NPF && info & 3 == 3, "to a read-only one: {code:#x}, {info:#x}");

    intercept(guest, &[PAGE_FAULT]);
    guest.block().put(CR2, 0x1234);
    moves(guest, BEYOND);
    guest.run();
    let block = guest.block();
    let (code, error) = (guest.code(), block.get(block::EXIT_INFO_1));
    let (at, cr2) = (block.get(block::EXIT_INFO_2), block.get(CR2));
    let right = code == PAGE_FAULT && error == WRITE && at == BEYOND && cr2 == 0x1234;
    check!(test, right, "to nowhere: {code:#x}, {error:#x}, {at:#x}, CR2 {cr2:#x}");
    intercept(guest, &[]);
    for page in [5, 6, 7] {
        paging::map(page, page, ALL);
        paging::word(page).store(0xB00 + page, SeqCst);
    }
    paging::map_at(ABSENT, 0, 0);
}

/// OUTS and INS.
fn ports(test: &str, guest: &mut Guest) {
    let memory = AREA + 8 * PAGE;
    paging::map(8, 9, ALL);
    paging::flush(guest);
    access(guest, inside::touches(), memory, 0);
    paging::flushed(guest);
    let string = |guest: &mut Guest, code, memory| {
        guest.restart(code);
        let registers = &mut guest.registers;
        (registers.rdx, registers.rcx) = (SCRATCH.into(), 3);
        (registers.rsi, registers.rdi) = (memory, memory);
        guest.run();
        (guest.code(), guest.registers.rcx)
    };
    paging::word(9).store(0x77_6655, SeqCst);
    let (code, _) = string(guest, inside::writes_string(), memory);
    check!(test, code == exit::IOIO, "OUTS, closed: {code:#x}");
    block::open_port(SCRATCH, true);
    let (code, left) = string(guest, inside::writes_string(), memory);
    let own = cpu::inb(SCRATCH);
    let right = code == exit::VMMCALL && left == 0 && own == 0x77;
    check!(test, right, "OUTS: {code:#x}, {left} left, {own:#x}");
    let (code, left) = string(guest, inside::reads_string(), memory);
    let seen = paging::word(9).load(SeqCst);
    let right = code == exit::VMMCALL && left == 0 && seen == 0x77_7777;
    check!(test, right, "INS: {code:#x}, {left} left, {seen:#x}");
    let (code, left) = string(guest, inside::reads_string(), AREA + ABSENT * PAGE);
    let at = guest.block().get(block::EXIT_INFO_2);
    let right = code == exit::NPF && left == 3 && at == AREA + ABSENT * PAGE;
    check!(test, right, "INS to a page that isn't: {code:#x}, {left} left, {at:#x}");
    block::open_port(SCRATCH, false);
    paging::map(8, 8, ALL);
    paging::word(9).store(0xB09, SeqCst);
}

/// Its addresses are this kernel's.
fn own_addresses(guest: &mut Guest) -> bool {
    cpu::mmio_write(SELECT, 0x76);
    let seen = access(guest, inside::touches(), SELECT, 0);
    cpu::mmio_write(SELECT, 0);
    seen == Came::Done(0x76)
}
