//! What waits in the backing page is taken by the inner guest as its flags and priorities let it,
//! and is nobody else's.

use super::super::block::{self, exit};
use super::super::open::intercept;
use super::inside::{
    self, AVIC, Came, IRR, ISR, Inner, MSR_BYTES, Op, TAKEN, TMR, X2AVIC, clear, is, put, register,
    set,
};
use super::{EOI, SELF_IPI, TPR, UNACCELERATED, WRITE};
use crate::counters::{Policy, policy};
use crate::{console::check, cpu, idt, wait, x2apic};
use core::sync::atomic::Ordering::SeqCst;
use ledger::Reason;

const LOW: u8 = 0x51;
const SAME_CLASS: u8 = 0x5E;
const MIDDLE: u8 = 0x61;
const HIGH: u8 = 0xF1;
/// This kernel's own.
const OWN: u8 = 0x53;
const COMPLETE: Op = Op::Write(EOI, 0);
/// The task priority's and the processor priority's offsets.
const TASK: usize = 0x80;
const PROCESSOR: usize = 0xA0;

/// All of it.
pub fn all(test: &str, inner: &mut Inner) {
    waiting(test, inner);
    closed(test, inner);
    task_priority(test, inner);
    control_register(test, inner);
    stepped(test, inner);
    in_service(test, inner);
    nested(test, inner);
    again(test, inner);
    level(test, inner);
    itself(test, inner);
    virtual_interrupt(test, inner);
    apart(test, inner);
}

fn taken(vector: u8) -> Came {
    Came::Taken(vector.into())
}

/// One that is there at VMRUN is taken, completed with one exit of the host's, and none else.
fn waiting(test: &str, inner: &mut Inner) {
    for vector in [LOW, 0x10, 0x2F, 0x80, 0xFF] {
        inner.fresh();
        set(IRR, vector);
        let came = inner.start(&[Op::Open]);
        let moved = is(IRR, &[]) && is(ISR, &[vector]);
        check!(test, came == taken(vector) && moved, "{vector:#x} waits: {came:x?}, {moved}");
        let priority = register(PROCESSOR);
        check!(test, priority == u32::from(vector & 0xF0), "the priority is {priority:#x}");
        let came = inner.handle(&[COMPLETE]);
        let right = came == Came::Ended && is(ISR, &[]) && is(IRR, &[]);
        check!(test, right, "and is completed: {came:x?}");
    }
    inner.fresh();
    set(IRR, LOW);
    inner.start(&[Op::Open]);
    inner.prepare_handler(&[COMPLETE]);
    let (came, counted) = inner.count();
    let all = counted.own();
    let [runs, told, msrs] =
        [Reason::Nesting, Reason::NestedReflected, Reason::MsrWrite].map(|r| counted.of(r));
    let right = policy() == Policy::Bare || (all, runs, told, msrs) == (3, 1, 1, 1);
    check!(test, came == Came::Ended && right, "{all} exits: {runs}, {told} told, {msrs} EOI");
}

/// Not while IF is clear.
fn closed(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(IRR, LOW);
    let came = inner.start(&[Op::Read(0x802), Op::Tell, Op::Open]);
    let waits = is(IRR, &[LOW]) && is(ISR, &[]);
    check!(test, came == Came::Told && waits, "with IF clear it waits: {came:x?}, {waits}");
    let came = inner.go_on();
    check!(test, came == taken(LOW), "and is taken behind STI: {came:x?}");
    set(IRR, HIGH);
    let came = inner.handle(&[Op::Read(0x802), Op::Tell, COMPLETE]);
    let waits = is(IRR, &[HIGH]) && is(ISR, &[LOW]);
    check!(test, came == Came::Told && waits, "a higher one waits in the handler: {came:x?}");
    let came = inner.go_on();
    check!(test, came == taken(HIGH) && is(ISR, &[HIGH]), "until IRET: {came:x?}");
    let came = inner.handle(&[COMPLETE]);
    check!(test, came == Came::Ended, "{came:x?}");
}

/// The task priority by its MSR.
fn task_priority(test: &str, inner: &mut Inner) {
    for (held, lets) in [(0x60, 0x4F), (0x50, 0x40), (0x5F, 0)] {
        inner.fresh();
        inner.priority(held);
        set(IRR, LOW);
        let came = inner.start(&[
            Op::Open,
            Op::Read(0x80A),
            Op::Tell,
            Op::Write(TPR, 0x5A),
            Op::Read(TPR),
            Op::Read(0x80A),
            Op::Cr8,
            Op::Tell,
            Op::Write(TPR, lets.into()),
        ]);
        let waits = is(IRR, &[LOW]) && is(ISR, &[]);
        check!(test, came == Came::Told && waits, "held by {held:#x}: {came:x?}");
        let (seen, told) = (inner.read(1), inner.told_priority());
        let right = seen == held.into() && told == u64::from(held >> 4);
        check!(test, right, "PPR {seen:#x}, V_TPR {told:#x}");
        let came = inner.go_on();
        let seen = [4, 5, 6].map(|n| inner.read(n));
        let right = came == Came::Told && is(IRR, &[LOW]) && seen == [0x5A, 0x5A, 5];
        check!(test, right, "and by its own class: {came:x?}, TPR, PPR, CR8 {seen:x?}");
        let told = (inner.told_priority(), register(TASK));
        check!(test, told == (5, 0x5A), "V_TPR and TPR: {told:x?}");
        let came = inner.go_on();
        check!(test, came == taken(LOW), "let in by {lets:#x}: {came:x?}");
        let told = (inner.told_priority(), register(TASK));
        check!(test, told == (u64::from(lets >> 4), lets), "V_TPR and TPR: {told:x?}");
        inner.handle(&[COMPLETE]);
    }
}

/// The same by CR8.
fn control_register(test: &str, inner: &mut Inner) {
    inner.fresh();
    inner.priority(0x60);
    set(IRR, LOW);
    let script = [
        Op::Open,
        Op::Cr8,
        Op::Tell,
        Op::SetCr8(5),
        Op::Cr8,
        Op::Tell,
        Op::SetCr8(4),
        Op::Tell,
        Op::SetCr8(9),
        Op::Read(TPR),
    ];
    let (came, seen) = (inner.start(&script), inner.read(1));
    check!(test, came == Came::Told && seen == 6, "CR8 is {seen:#x}: {came:x?}");
    let (came, seen) = (inner.go_on(), inner.read(4));
    let told = (inner.told_priority(), register(TASK), register(PROCESSOR));
    let right = came == Came::Told && seen == 5 && told == (5, 0x50, 0x50) && is(IRR, &[LOW]);
    check!(test, right, "set to its class: {came:x?}, {seen:#x}, {told:x?}");
    let came = inner.go_on();
    let right = came == taken(LOW) && is(IRR, &[]) && is(ISR, &[LOW]);
    check!(test, right, "and below, it is taken: {came:x?}");
    let told = (inner.told_priority(), register(TASK));
    check!(test, told == (4, 0x40), "V_TPR and TPR: {told:x?}");
    let came = inner.handle(&[COMPLETE]);
    check!(test, came == Came::Told, "{came:x?}");
    let (came, seen) = (inner.go_on(), inner.read(9));
    let told = (inner.told_priority(), register(TASK));
    let right = came == Came::Ended && seen == 0x90 && told == (9, 0x90);
    check!(test, right, "set higher: {came:x?}, {seen:#x}, {told:x?}");
}

/// A single step over what writes it: L1 is told at once, and finds it.
fn stepped(test: &str, inner: &mut Inner) {
    const DEBUG: u64 = 0x41;
    const TRAP: u64 = 1 << 8;
    let behind = inside::writes() + MSR_BYTES;
    intercept(&inner.guest, &[DEBUG]);
    inner.fresh();
    // To the instruction, and over it.
    block::let_msr(TPR, true, false);
    let came = inner.start(&[Op::Write(TPR, 0x5A)]);
    block::let_msr(TPR, true, true);
    check!(test, matches!(came, Came::Exit(exit::MSR, ..)), "at WRMSR: {came:x?}");
    inner.guest.block().put(block::RFLAGS, 2 | TRAP);
    let came = inner.run();
    let (told, kept) = (inner.told_priority(), register(TASK));
    let right = matches!(came, Came::Exit(DEBUG, _, _, rip) if rip == behind);
    check!(test, right && (told, kept) == (5, 0x5A), "a step: {came:x?}, {told:#x}, {kept:#x}");
    intercept(&inner.guest, &[]);
    inner.guest.block().put(block::DR6, 0xFFFF_0FF0);
}

/// One that is in service holds back its class and what is below.
fn in_service(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(ISR, MIDDLE);
    set(IRR, LOW);
    let came = inner.start(&[Op::Open, Op::Read(0x80A), Op::Tell, COMPLETE]);
    let (waits, seen) = (is(IRR, &[LOW]) && is(ISR, &[MIDDLE]), inner.read(1));
    let right = came == Came::Told && waits && seen == 0x60;
    check!(test, right, "one in service holds it back: {came:x?}, PPR {seen:#x}");
    let came = inner.go_on();
    check!(test, came == taken(LOW) && is(ISR, &[LOW]), "until EOI: {came:x?}");
    inner.handle(&[COMPLETE]);
}

/// Two classes, one in the other's handler.
fn nested(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(IRR, LOW);
    let came = inner.start(&[Op::Open]);
    check!(test, came == taken(LOW), "{came:x?}");
    set(IRR, SAME_CLASS);
    let came = inner.handle(&[Op::Open, Op::Tell, COMPLETE, Op::Tell]);
    let waits = is(IRR, &[SAME_CLASS]) && is(ISR, &[LOW]);
    check!(test, came == Came::Told && waits, "one of the same class waits: {came:x?}");
    set(IRR, HIGH);
    let came = inner.go_on();
    let both = is(IRR, &[SAME_CLASS]) && is(ISR, &[LOW, HIGH]);
    check!(test, came == taken(HIGH) && both, "one of a higher class comes: {came:x?}, {both}");
    let seen = register(PROCESSOR);
    check!(test, seen == 0xF0, "PPR {seen:#x}");
    let came = inner.handle(&[Op::Tell, COMPLETE]);
    check!(test, came == Came::Told, "{came:x?}");
    let came = inner.go_on();
    let right = came == taken(SAME_CLASS) && is(ISR, &[SAME_CLASS]) && is(IRR, &[]);
    check!(test, right, "and each EOI is of the highest: {came:x?}");
    let came = inner.handle(&[COMPLETE]);
    check!(test, came == Came::Told && is(ISR, &[]), "the first goes on: {came:x?}");
    let came = inner.go_on();
    check!(test, came == Came::Ended, "to its end: {came:x?}");
}

/// One that comes again while it is handled, without an exit in between, comes twice.
fn again(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(IRR, LOW);
    let (at, bits) = inside::bit(IRR, LOW);
    // The second time it posts nothing.
    let handler = [Op::Or(at, bits), Op::Store(inside::word_of_handler(0), 0), COMPLETE];
    let came = inner.start_with(&[Op::Open, Op::Read(0x802)], &handler);
    let times = TAKEN.load(SeqCst);
    let right = came == Came::Ended && times == 2 && is(IRR, &[]) && is(ISR, &[]);
    check!(test, right, "it comes again: {came:x?}, {times} times");
}

/// The EOI of a level-triggered one is told, and not done.
fn level(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(TMR, LOW);
    set(IRR, LOW);
    inner.start(&[Op::Open]);
    let came = inner.handle(&[COMPLETE]);
    let behind = inside::writes() + MSR_BYTES;
    let right = came == Came::Exit(UNACCELERATED, 0xB0 | WRITE, LOW.into(), behind);
    check!(test, right && is(ISR, &[LOW]), "EOI of a level-triggered one: {came:x?}");
    clear(ISR, LOW);
    let came = inner.run();
    check!(test, came == Came::Ended, "and it goes on: {came:x?}");
    // The TMR of another doesn't matter.
    inner.fresh();
    set(TMR, HIGH);
    set(TMR, LOW + 1);
    set(IRR, LOW);
    inner.start(&[Op::Open]);
    let came = inner.handle(&[COMPLETE]);
    check!(test, came == Came::Ended && is(ISR, &[]), "of an edge-triggered one: {came:x?}");
}

/// SELF IPI.
fn itself(test: &str, inner: &mut Inner) {
    inner.fresh();
    inner.prepare(&[Op::Write(SELF_IPI, MIDDLE.into()), Op::Tell, Op::Open]);
    let (came, counted) = inner.count();
    let (all, msrs) = (counted.own(), counted.of(Reason::MsrWrite));
    let right = policy() == Policy::Bare || (all, msrs) == (3, 1);
    check!(test, came == Came::Told && is(IRR, &[MIDDLE]), "SELF IPI: {came:x?}");
    check!(test, right, "{all} exits, {msrs} for it");
    let came = inner.go_on();
    check!(test, came == taken(MIDDLE) && is(ISR, &[MIDDLE]), "it is taken: {came:x?}");
    let came = inner.handle(&[Op::Write(SELF_IPI, HIGH.into()), Op::Open, COMPLETE]);
    check!(test, came == taken(HIGH) && is(ISR, &[MIDDLE, HIGH]), "a higher one: {came:x?}");
}

/// V_IRQ and the intercept of virtual interrupts mean nothing.
fn virtual_interrupt(test: &str, inner: &mut Inner) {
    const V_IRQ: u64 = 1 << 8 | 15 << 16 | (HIGH as u64) << 32;
    const VINTR: u64 = 1 << (32 + 4);
    let wanted = inner.guest.block().get(block::EXCEPTIONS);
    inner.guest.block().put(block::EXCEPTIONS, wanted | VINTR);
    inner.fresh();
    inner.control(AVIC | X2AVIC | V_IRQ);
    let came = inner.start(&[Op::Open, Op::Read(0x802), Op::SetCr8(1)]);
    check!(test, came == Came::Ended && is(ISR, &[]), "V_IRQ with an empty page: {came:x?}");
    set(IRR, LOW);
    let came = inner.start(&[Op::Open]);
    check!(test, came == taken(LOW), "its intercept, with one that waits: {came:x?}");
    inner.handle(&[COMPLETE]);
    inner.guest.block().put(block::EXCEPTIONS, wanted);
    inner.control(AVIC | X2AVIC);
}

/// This kernel's own local APIC is out of reach, though it opens its registers.
fn apart(test: &str, inner: &mut Inner) {
    idt::on(OWN, |_| {});
    // Without AVIC they are its: those that this kernel has without an exit, it has.
    inner.control(0);
    for _ in 0..2 {
        let own = [Op::Read(TPR), Op::Write(TPR, 0), COMPLETE, Op::Write(0x838, 0)];
        let came = inner.start(&own);
        check!(test, came == Came::Ended, "without AVIC: {came:x?}");
    }
    inner.control(AVIC | X2AVIC);
    let before = idt::count(OWN);
    cpu::enable_interrupts();
    x2apic::self_ipi(OWN);
    let came = wait::until(|| idt::count(OWN) == before + 1);
    cpu::disable_interrupts();
    check!(test, came && x2apic::in_service(OWN), "this kernel has one in service");
    inner.fresh();
    set(IRR, MIDDLE);
    let came = inner.start_with(
        &[Op::Open, COMPLETE, Op::Write(TPR, 0x30), Op::Write(SELF_IPI, 0x31), Op::SetCr8(9)],
        &[COMPLETE],
    );
    check!(test, came == Came::Ended, "{came:x?}");
    let times = TAKEN.load(SeqCst);
    check!(test, times == 1 && is(IRR, &[0x31]), "{times} was its own");
    check!(test, x2apic::in_service(OWN), "EOI of its own completes none of this kernel's");
    check!(test, !x2apic::requested(0x31), "nor does it send this kernel one");
    let priority = (cpu::rdmsr(TPR), cpu::cr8());
    check!(test, priority == (0, 0), "nor is this kernel's priority its: {priority:x?}");
    x2apic::complete();
    check!(test, !x2apic::in_service(OWN), "this kernel completes its own");
    inner.fresh();
    inner.start(&[Op::Write(0x832, 0x2_0000 | u64::from(OWN))]);
    inner.run();
    let came = inner.start(&[Op::Write(0x838, 1000)]);
    let started = x2apic::timer_initial();
    let told = matches!(came, Came::Exit(UNACCELERATED, ..)) && inner.guest.code() != exit::MSR;
    check!(test, told && started == 0, "nor does its timer start this one's: {started}");
    put(TASK, 0);
}
