//! The registers as MSRs: what is read is in the backing page, what is written is there and told,
//! and what isn't there is #GP.

use super::super::block::{self, exit};
use super::inside::{
    self, AVIC, Came, IRR, ISR, Inner, MSR_BYTES, Op, PAGE, X2AVIC, put, register,
};
use super::{EOI, ICR, INCOMPLETE, SELF_IPI, TPR, UNACCELERATED, WRITE};
use crate::counters::{Policy, policy};
use crate::{console::check, cpu};
use core::sync::atomic::Ordering::SeqCst;
use ledger::Reason;

const ID: u32 = 0x802;
const PPR: u32 = 0x80A;
const LDR: u32 = 0x80D;
const SPURIOUS: u32 = 0x80F;
const INITIAL_COUNT: u32 = 0x838;
const CURRENT_COUNT: u32 = 0x839;

/// All of it.
pub fn all(test: &str, inner: &mut Inner) {
    read(test, inner);
    command(test, inner);
    written(test, inner);
    count(test, inner);
    refused(test, inner);
    closed(test, inner);
    own(test, inner);
}

const fn offset(msr: u32) -> usize {
    (msr as usize & 0xFF) << 4
}

/// From the page, with an exit of the host's alone.
fn read(test: &str, inner: &mut Inner) {
    inner.fresh();
    let registers = [ID, 0x803, TPR, LDR, SPURIOUS, 0x813, 0x817, 0x818, 0x820, 0x827, 0x828];
    for (n, msr) in registers.into_iter().enumerate() {
        // Nothing that is let in.
        put(offset(msr), 0x40 + n as u32);
    }
    put(offset(TPR), 0xE7);
    put(offset(0x832), 0x1_00EF);
    let all = [0x832, INITIAL_COUNT, 0x83E];
    let script = registers.map(Op::Read);
    inner.prepare(&script);
    let (came, counted) = inner.count();
    for (n, msr) in registers.into_iter().enumerate() {
        let (seen, wanted) = (inner.read(n), register(offset(msr)).into());
        check!(test, came == Came::Ended && seen == wanted, "MSR {msr:#x}: {seen:#x}, {came:x?}");
    }
    let (exits, reads) = (counted.own(), counted.of(Reason::MsrRead));
    let of = registers.len() as u64;
    let right = policy() == Policy::Bare || (exits, reads) == (of + 2, of);
    check!(test, right, "{exits} exits, {reads} to read {of}");
    put(offset(INITIAL_COUNT), 0xFFFF_FFFF);
    put(offset(0x83E), 0xB);
    let came = inner.start(&all.map(Op::Read));
    let seen = [0, 1, 2].map(|n| inner.read(n));
    let right = came == Came::Ended && seen == [0x1_00EF, 0xFFFF_FFFF, 0xB];
    check!(test, right, "the timer's: {came:x?}, {seen:x?}");

    inner.fresh();
    inner.priority(0x35);
    let ppr = |inner: &mut Inner| (inner.start(&[Op::Read(PPR)]), inner.read(0));
    let came = ppr(inner);
    check!(test, came == (Came::Ended, 0x35), "PPR by the task: {came:x?}");
    inside::set(ISR, 0x47);
    let came = ppr(inner);
    check!(test, came == (Came::Ended, 0x40), "by what is in service: {came:x?}");
    inner.priority(0x48);
    let came = ppr(inner);
    check!(test, came == (Came::Ended, 0x48), "by both: {came:x?}");
    inner.fresh();
}

/// ICR is told, done.
fn command(test: &str, inner: &mut Inner) {
    inner.fresh();
    let behind = inside::writes() + MSR_BYTES;
    for value in [0x2_000C_0041, 0x0000_0001_0000_0841, 0xFFFF_FFFF_0000_4500, 0x4_40FE] {
        let came = inner.start(&[Op::Write(ICR, value), Op::Read(ICR)]);
        let right = matches!(came, Came::Exit(INCOMPLETE, info, id, rip)
            if info == value && id == 0 && rip == behind);
        check!(test, right, "ICR {value:#x}: {came:x?}");
        let halves = [register(0x310), register(0x300)].map(u64::from);
        let kept = halves[0] << 32 | halves[1];
        check!(test, kept == value, "its halves: {halves:x?}");
        let (came, seen) = (inner.run(), inner.read(1));
        check!(test, came == Came::Ended && seen == value, "read: {came:x?}, {seen:#x}");
    }
    let nothing = inside::is(IRR, &[]);
    check!(test, nothing, "nothing is sent by the host");
}

/// Others are told, done.
fn written(test: &str, inner: &mut Inner) {
    inner.fresh();
    let behind = inside::writes() + MSR_BYTES;
    let entries = 0x832..=0x837;
    for msr in [SPURIOUS, INITIAL_COUNT, 0x83E].into_iter().chain(entries) {
        let value = 0x1_0000 | msr;
        let came = inner.start(&[Op::Write(msr, value.into()), Op::Read(msr)]);
        let (at, kept) = (offset(msr), register(offset(msr)));
        let right = came == Came::Exit(UNACCELERATED, at as u64 | WRITE, 0, behind);
        check!(test, right && kept == value, "MSR {msr:#x}: {came:x?}, {kept:#x}");
        let (came, seen) = (inner.run(), inner.read(1));
        let right = came == Came::Ended && seen == value.into();
        check!(test, right, "read: {came:x?}, {seen:#x}");
    }
    put(0x280, 0x80);
    let came = inner.start(&[Op::Write(0x828, 0)]);
    let right = came == Came::Exit(UNACCELERATED, 0x280 | WRITE, 0, behind);
    check!(test, right && register(0x280) == 0, "ESR: {came:x?}");
}

/// What is left of the count is told, undone.
fn count(test: &str, inner: &mut Inner) {
    inner.fresh();
    put(0x390, 0x1234);
    let came = inner.start(&[Op::Read(CURRENT_COUNT)]);
    let right = came == Came::Exit(UNACCELERATED, 0x390, 0, inside::reads());
    check!(test, right, "the current count: {came:x?}");
    inner.guest.block().put(block::RAX, 0x4321);
    inner.guest.registers.rdx = 0;
    inner.guest.skip(MSR_BYTES);
    let (came, seen) = (inner.run(), inner.read(0));
    check!(test, came == Came::Ended && seen == 0x4321, "answered: {came:x?}, {seen:#x}");
}

/// #GP, which changes nothing.
fn refused(test: &str, inner: &mut Inner) {
    inner.fresh();
    let before = core::array::from_fn::<_, 256, _>(|n| register(16 * n));
    let nobodys = [0x800, 0x801, 0x804, 0x807, 0x809, 0x80C, 0x829, 0x831, 0x840, 0x8FF];
    let unreadable = [EOI, 0x80E, SELF_IPI];
    for msr in nobodys.into_iter().chain(unreadable) {
        let came = inner.start(&[Op::Read(msr)]);
        check!(test, came == Came::Refused, "a read of {msr:#x}: {came:x?}");
    }
    let read_only = [ID, 0x803, PPR, LDR, 0x80E, 0x810, 0x817, 0x818, 0x820, 0x827, CURRENT_COUNT];
    for msr in nobodys.into_iter().chain(read_only) {
        let came = inner.start(&[Op::Write(msr, 0)]);
        check!(test, came == Came::Refused, "a write of {msr:#x}: {came:x?}");
    }
    for (msr, value) in [
        (EOI, 1),
        (0x828, 1),
        (TPR, 0x100),
        (TPR, 1 << 32),
        (SELF_IPI, 0x100),
        (SPURIOUS, 1 << 32),
        (0x832, 1 << 40),
        (INITIAL_COUNT, 1 << 32),
    ] {
        let came = inner.start(&[Op::Write(msr, value)]);
        check!(test, came == Came::Refused, "{value:#x} to {msr:#x}: {came:x?}");
    }
    let changed = (0..256).find(|n| register(16 * n) != before[*n]);
    check!(test, changed.is_none(), "the page is as it was: {changed:x?}");
}

/// What this kernel's map closes is told as ever.
fn closed(test: &str, inner: &mut Inner) {
    inner.fresh();
    for (msr, op, info) in [
        (ID, Op::Read(ID), 0),
        (TPR, Op::Write(TPR, 0x30), 1),
        (EOI, Op::Write(EOI, 0), 1),
        (ICR, Op::Write(ICR, 0x41), 1),
    ] {
        block::let_msr(msr, info != 0, info == 0);
        let came = inner.start(&[op]);
        block::let_msr(msr, true, true);
        let right = matches!(came, Came::Exit(exit::MSR, told, ..) if told == info);
        check!(test, right, "MSR {msr:#x}, closed: {came:x?}");
    }
    let kept = (register(0x80), register(0x300));
    check!(test, kept == (0, 0), "nothing was written: {kept:x?}");
}

/// Without AVIC they are this kernel's own, with it the guest's, at once.
fn own(test: &str, inner: &mut Inner) {
    inner.fresh();
    let script = [Op::Read(ID), Op::Read(LDR), Op::Read(SPURIOUS)];
    let mine = [ID, LDR, SPURIOUS].map(cpu::rdmsr);
    let inners = [0x77, 0x0003_0008, 0];
    for _ in 0..3 {
        for (control, wanted) in [(0, mine), (AVIC | X2AVIC, inners)] {
            inner.control(control);
            let (came, seen) = (inner.start(&script), [0, 1, 2].map(|n| inner.read(n)));
            let right = came == Came::Ended && seen == wanted;
            check!(test, right, "by {control:#x}: {came:x?}, {seen:x?} of {wanted:x?}");
        }
    }
    let untouched = PAGE.0[0x20 / 8].load(SeqCst);
    check!(test, untouched == 0x77, "the page is as it was");
}
