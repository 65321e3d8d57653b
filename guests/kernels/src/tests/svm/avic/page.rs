//! The registers in memory, where the block says (xAPIC mode): loads and stores of the inner
//! guest's, by its own page tables and this kernel's nested ones.

use super::super::paging::{self, ALL, AREA, LARGE_AREA};
use super::super::{block, inside as inside_of_kernel};
use super::inside::{
    self, AVIC, BAR, Came, IRR, ISR, Inner, Op, TMR, X2AVIC, clear, is, put, register, set,
};
use super::{INCOMPLETE, UNACCELERATED, WRITE};
use crate::console::check;
use crate::counters::{Policy, policy};
use core::sync::atomic::Ordering::SeqCst;

/// Pages of the area: the registers', and the frame that is behind them; another.
const AT: u64 = AREA + (30 << 12);
const PAGE: u64 = 30;
const OTHER: u64 = AREA + (31 << 12);
const LOW: u8 = 0x51;
const MIDDLE: u8 = 0x61;

/// All of it.
pub fn all(test: &str, inner: &mut Inner) {
    paging::map(PAGE, PAGE, ALL);
    paging::map(PAGE + 1, PAGE + 1, ALL);
    inner.guest.block().put(BAR, AT);
    inner.control(AVIC);
    read(test, inner);
    interrupts(test, inner);
    command(test, inner);
    written(test, inner);
    strings(test, inner);
    elsewhere(test, inner);
    large(test, inner);
    off(test, inner);
    inner.control(AVIC | X2AVIC);
}

const fn load(offset: u64) -> Op {
    Op::Load(AT + offset)
}

const fn store(offset: u64, value: u32) -> Op {
    Op::Store(AT + offset, value)
}

const COMPLETE: Op = store(0xB0, 0);

/// From the backing page, not from what is mapped there.
fn read(test: &str, inner: &mut Inner) {
    inner.fresh();
    put(0x20, 0x0700_0000);
    put(0xE0, 0xFFFF_FFFF);
    inner.priority(0x35);
    let offsets = [0x20, 0x30, 0x80, 0xA0, 0xD0, 0xE0, 0xF0, 0x300, 0x310, 0x320, 0x380];
    let script = offsets.map(load);
    // The first takes the translations of the rest of this kernel's memory.
    inner.start(&script);
    inner.prepare(&script);
    let (came, counted) = inner.count();
    for (n, offset) in offsets.into_iter().enumerate() {
        let (seen, wanted) = (inner.read(n), register(offset as usize).into());
        let right = came == Came::Ended && seen == wanted;
        check!(test, right, "a load of {offset:#x}: {seen:#x} of {wanted:#x}, {came:x?}");
    }
    let (exits, of) = (counted.own(), offsets.len() as u64);
    let right = policy() == Policy::Bare || exits == of + 2;
    check!(test, right, "{exits} exits for {of}");
    let came = inner.start(&[load(0), load(0x90), load(0xB0), load(0x3F0), load(0xFF0)]);
    let seen = core::array::from_fn::<_, 5, _>(|n| inner.read(n));
    check!(test, came == Came::Ended && seen == [0; 5], "where none are: {came:x?}, {seen:x?}");
    put(0x390, 7);
    let came = inner.start(&[load(0x390)]);
    let right = came == Came::Exit(UNACCELERATED, 0x390, 0, inside::loads());
    check!(test, right, "the current count: {came:x?}");
    // MSRs there are none in this mode, and they aren't this kernel's either.
    let came = inner.start(&[Op::Read(0x802)]);
    check!(test, came == Came::Refused, "RDMSR of the id: {came:x?}");
    let came = inner.start(&[Op::Write(0x80B, 0)]);
    check!(test, came == Came::Refused, "WRMSR of EOI: {came:x?}");
}

/// Taken, held by the priority, completed.
fn interrupts(test: &str, inner: &mut Inner) {
    inner.fresh();
    inner.priority(0x60);
    set(IRR, LOW);
    let came = inner.start(&[Op::Open, store(0x80, 0x5A), load(0xA0), Op::Tell, store(0x80, 0)]);
    let seen = (inner.read(2), register(0x80), inner.told_priority());
    let right = came == Came::Told && is(IRR, &[LOW]) && seen == (0x5A, 0x5A, 5);
    check!(test, right, "the priority, stored: {came:x?}, {seen:x?}");
    let came = inner.go_on();
    let right = came == Came::Taken(LOW.into()) && is(ISR, &[LOW]);
    check!(test, right, "and it is taken: {came:x?}");
    set(IRR, MIDDLE);
    let came = inner.handle(&[Op::Open, COMPLETE]);
    check!(test, came == Came::Taken(MIDDLE.into()) && is(ISR, &[LOW, MIDDLE]), "{came:x?}");
    inner.prepare_handler(&[COMPLETE, Op::Tell]);
    let (came, counted) = inner.count();
    let exits = counted.own();
    let right = came == Came::Told && is(ISR, &[LOW]);
    check!(test, right, "EOI: {came:x?}");
    check!(test, policy() == Policy::Bare || exits == 3, "{exits} exits");
    let came = inner.go_on();
    check!(test, came == Came::Ended && is(ISR, &[]), "of both: {came:x?}");
    set(TMR, LOW);
    set(IRR, LOW);
    inner.start(&[Op::Open]);
    let came = inner.handle(&[COMPLETE]);
    let told = matches!(came, Came::Exit(UNACCELERATED, info, vector, rip)
        if info == 0xB0 | WRITE && vector == LOW.into() && rip == inside::stores() + 2);
    check!(test, told && is(ISR, &[LOW]), "EOI of a level-triggered one: {came:x?}");
    clear(ISR, LOW);
    let came = inner.run();
    check!(test, came == Came::Ended, "and it goes on: {came:x?}");
}

/// ICR with its high half, which is told with the low one.
fn command(test: &str, inner: &mut Inner) {
    inner.fresh();
    let came = inner.start(&[store(0x310, 0x300_0000), Op::Tell, store(0x300, 0x4041)]);
    let kept = (register(0x310), register(0x300));
    check!(test, came == Came::Told && kept == (0x300_0000, 0), "the high half: {came:x?}");
    let came = inner.go_on();
    let wanted = Came::Exit(INCOMPLETE, 0x300_0000 << 32 | 0x4041, 0, inside::stores() + 2);
    check!(test, came == wanted && register(0x300) == 0x4041, "ICR: {came:x?}");
    let came = inner.run();
    check!(test, came == Came::Ended, "and it goes on: {came:x?}");
}

/// Told, done; and those that can't be written.
fn written(test: &str, inner: &mut Inner) {
    inner.fresh();
    for offset in [0x20, 0xD0, 0xE0, 0xF0, 0x280, 0x320, 0x350, 0x370, 0x380, 0x3E0] {
        let value = 0x0100_0000 | offset as u32;
        let came = inner.start(&[store(offset, value)]);
        let wanted = Came::Exit(UNACCELERATED, offset | WRITE, 0, inside::stores() + 2);
        let kept = register(offset as usize);
        check!(test, came == wanted && kept == value, "a store to {offset:#x}: {came:x?}");
    }
    let read_only = [0x30, 0xA0, 0x100, 0x180, 0x200, 0x390, 0x3F0, 0x400];
    let before = read_only.map(|offset| register(offset as usize));
    let came = inner.start(&read_only.map(|offset| store(offset, 0x55)));
    let after = read_only.map(|offset| register(offset as usize));
    check!(test, came == Came::Ended && before == after, "to others: {came:x?}, {after:x?}");
    let behind = paging::nth(PAGE, 0xF0 / 8).load(SeqCst);
    check!(test, behind == 0, "what is mapped there is as it was: {behind:#x}");
}

/// By string instructions: told of the very element.
fn strings(test: &str, inner: &mut Inner) {
    const LEFT: u64 = 5;
    inner.fresh();
    let behind_cld = inside_of_kernel::moves() + 1;
    put(0x390, 7);
    let to = paging::frame(32);
    paging::word(32).store(0xB20, SeqCst);
    let guest = &mut inner.guest;
    guest.restart(inside_of_kernel::moves());
    (guest.registers.rsi, guest.registers.rdi) = (AT + 0x390, to);
    let came = inner.run();
    let (rdi, kept) = (inner.guest.registers.rdi, paging::word(32).load(SeqCst));
    let right = came == Came::Exit(UNACCELERATED, 0x390, 0, behind_cld) && rdi == to;
    check!(test, right && kept == 0xB20, "MOVS of the count: {came:x?}, {kept:#x}");
    paging::word(32).store(0x40FE, SeqCst);
    let guest = &mut inner.guest;
    guest.restart(inside_of_kernel::moves());
    (guest.registers.rsi, guest.registers.rdi) = (to, AT + 0x300);
    let came = inner.run();
    let right = came == Came::Exit(INCOMPLETE, 0x40FE, 0, behind_cld + 1);
    check!(test, right && register(0x300) == 0x40FE, "MOVS to ICR: {came:x?}");
    let guest = &mut inner.guest;
    guest.restart(inside::repeats());
    (guest.registers.rcx, guest.registers.rdi) = (LEFT, AT + 0x300);
    guest.block().put(block::RAX, 0x4101);
    let came = inner.run();
    let left = (inner.guest.registers.rcx, inner.guest.registers.rdi - AT);
    let right = came == Came::Exit(INCOMPLETE, 0x4101, 0, inside::repeats());
    check!(test, right && left == (LEFT - 1, 0x304), "REP STOS: {came:x?}, {left:x?}");
    inner.guest.run();
    let (code, rcx) = (inner.guest.code(), inner.guest.registers.rcx);
    check!(test, code == block::exit::VMMCALL && rcx == 0, "and on: {code:#x}, {rcx} left");
}

/// The registers move, and what was under them is memory.
fn elsewhere(test: &str, inner: &mut Inner) {
    inner.fresh();
    put(0x20, 0x0700_0000);
    let script = [Op::Load(AT + 0x20), Op::Load(OTHER + 0x20)];
    for frame in [PAGE, PAGE + 1] {
        paging::nth(frame, 0x20 / 8).store(0xB00 + frame, SeqCst);
    }
    for (bar, wanted) in [
        (AT, [0x0700_0000, 0xB00 + PAGE + 1]),
        (OTHER, [0xB00 + PAGE, 0x0700_0000]),
        (AT, [0x0700_0000, 0xB00 + PAGE + 1]),
    ] {
        inner.guest.block().put(BAR, bar);
        let came = inner.start(&script);
        let seen = [0, 1].map(|n| inner.read(n));
        check!(test, came == Came::Ended && seen == wanted, "at {bar:#x}: {came:x?}, {seen:x?}");
    }
}

/// In a large page of this kernel's tables, other bytes of which were used before.
fn large(test: &str, inner: &mut Inner) {
    const MEMORY: u64 = 2 << 20;
    let bar = LARGE_AREA + 0x5000;
    let (first, last) = (LARGE_AREA + 0x4000, LARGE_AREA + 0x6000);
    paging::map_large(MEMORY);
    inner.fresh();
    put(0x20, 0x0700_0000);
    inner.guest.block().put(BAR, bar);
    paging::flush(&inner.guest);
    for _ in 0..2 {
        let script = [Op::Load(first), Op::Load(bar + 0x20), Op::Load(last), Op::Load(bar + 0x20)];
        let (came, seen) = (inner.start(&script), [1, 3].map(|n| inner.read(n)));
        paging::flushed(&inner.guest);
        let right = came == Came::Ended && seen == [0x0700_0000; 2];
        check!(test, right, "in a large page: {came:x?}, {seen:x?}");
    }
    // The whole page is known before the registers are in it.
    inner.control(0);
    let came = inner.start(&[Op::Load(first), Op::Load(bar + 0x20)]);
    check!(test, came == Came::Ended, "{came:x?}");
    inner.control(AVIC);
    let (came, seen) = (inner.start(&[Op::Load(bar + 0x20)]), inner.read(0));
    let right = came == Came::Ended && seen == 0x0700_0000;
    check!(test, right, "in one that is known: {came:x?}, {seen:#x}");
    inner.guest.block().put(BAR, AT);
}

/// Without AVIC it is memory, and with it again it isn't.
fn off(test: &str, inner: &mut Inner) {
    inner.fresh();
    put(0x20, 0x0700_0000);
    put(0xF0, 0x1FF);
    let script = [load(0x20), store(0xF0, 0xABC)];
    for round in 0..3 {
        paging::nth(PAGE, 0xF0 / 8).store(0, SeqCst);
        inner.control(0);
        paging::flush(&inner.guest);
        let (came, seen) = (inner.start(&script), inner.read(0));
        paging::flushed(&inner.guest);
        let stored = paging::nth(PAGE, 0xF0 / 8).load(SeqCst);
        let right = came == Came::Ended && seen == 0xB00 + PAGE && stored == 0xABC;
        check!(test, right, "off, {round}: {came:x?}, {seen:#x}, {stored:#x}");
        check!(test, register(0xF0) == 0x1FF, "the backing page is as it was");
        inner.control(AVIC);
        let (came, seen) = (inner.start(&[load(0x20)]), inner.read(0));
        let right = came == Came::Ended && seen == 0x0700_0000;
        check!(test, right, "on: {came:x?}, {seen:#x}");
    }
    inner.guest.block().put(block::INT_CTL, block::MASKING);
}
