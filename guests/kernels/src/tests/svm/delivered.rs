//! Events of a guest's: virtual interrupts, which its task priority and its interrupt shadow hold
//! back, and what is told of an event that was being delivered.

use super::block::{self, Guest, exit};
use super::{begin, end, inside, paging};
use crate::counters::{Policy, policy};
use crate::{boot::Boot, console::check, idt};
use core::sync::atomic::Ordering::SeqCst;

const VECTOR: u8 = 0x61;
/// In word 60h: V_IRQ, a priority of 6, the vector.
const OFFER: u64 = 1 << 8 | 6 << 16 | (VECTOR as u64) << 32;
const V_IRQ: u64 = 1 << 8;
const V_TPR: u64 = 0xF;
const SHADOW: usize = 0x68;
const RFLAGS_IF: u64 = 1 << 9;
/// Of the intercepts of control registers: MOV to CR8; and its exit.
const CR8_WRITTEN: u64 = 1 << 24;
const CR8_EXIT: u64 = 0x18;
const VINTR_WANTED: u64 = 1 << 36;
const VINTR: u64 = 0x64;
/// Bytes of VMMCALL.
const CALL: u64 = 3;
/// A page of the guest's without a frame.
const PAGE: u64 = 40;

/// All of it.
pub fn delivered(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    by_priority(test);
    shadow(test);
    window(test);
    if policy() != Policy::Bare {
        // QEMU aborts where MOV to CR8 comes with a virtual interrupt, and calls interrupted
        // interrupts exceptions.
        priority_inside(test);
        interrupted(test);
    }
    end();
}

fn offered(rip: u64, priority: u64, flag: u64) -> Guest {
    let guest = Guest::new(rip);
    let block = guest.block();
    block.put(block::INT_CTL, block::MASKING | OFFER | priority);
    block.put(block::RFLAGS, 2 | flag);
    guest.count_interrupts();
    guest
}

/// What is left of the offer, and how many came.
fn left(guest: &Guest) -> (bool, u64) {
    (guest.block().get(block::INT_CTL) & V_IRQ != 0, guest.registers.rdi)
}

/// By V_TPR and IF at VMRUN.
fn by_priority(test: &str) {
    for (priority, flag, wanted) in
        [(0, RFLAGS_IF, 1), (5, RFLAGS_IF, 1), (7, RFLAGS_IF, 0), (0, 0, 0)]
    {
        let mut guest = offered(inside::hypercall(), priority, flag);
        guest.run();
        let (waits, came) = left(&guest);
        let right = guest.code() == exit::VMMCALL && came == wanted && waits == (wanted == 0);
        check!(test, right, "task priority {priority}, IF {flag:#x}: {came} came, waits: {waits}");
    }
}

/// The instruction in the shadow comes first.
fn shadow(test: &str) {
    for (shadow, wanted) in [(1, 0), (0, 1)] {
        // CPUID is its second instruction.
        let mut guest = offered(inside::cpuids() + 4, 0, RFLAGS_IF);
        guest.block().put(SHADOW, shadow);
        guest.run();
        let (waits, came) = left(&guest);
        let right = guest.code() == exit::CPUID && came == wanted && waits == (wanted == 0);
        check!(test, right, "interrupt shadow {shadow}: {came} came, waits: {waits}");
    }
}

/// This kernel wants to hear when the guest would take one.
fn window(test: &str) {
    let mut guest = offered(inside::opens(), 0, 0);
    let word = guest.block().get(block::EXCEPTIONS);
    guest.block().put(block::EXCEPTIONS, word | VINTR_WANTED);
    guest.run();
    let (waits, came) = left(&guest);
    let right = guest.code() == VINTR && waits && came == 0;
    check!(test, right, "a window for it is told: {:#x}, waits: {waits}", guest.code());
}

/// The guest changes its task priority while one is on offer.
fn priority_inside(test: &str) {
    for priority in [0xF, 7, 5, 0] {
        let mut guest = offered(inside::prefers(), 0, 0);
        guest.registers.rcx = priority;
        guest.run();
        let (read, kept) = (guest.registers.rdx, guest.block().get(block::INT_CTL) & V_TPR);
        let (waits, came) = left(&guest);
        let right = guest.code() == exit::VMMCALL && (read, kept) == (priority, priority);
        check!(test, right, "CR8 {priority}: {read}, told {kept}: {:#x}", guest.code());
        check!(test, waits && came == 0, "it waits for IF: {waits}");
        guest.skip(CALL);
        guest.run();
        let (_, came) = left(&guest);
        let wanted = u64::from(priority < 6);
        let right = guest.code() == exit::VMMCALL && came == wanted;
        check!(test, right, "with IF {came} came: {:#x}", guest.code());
        guest.skip(CALL);
        guest.run();
        let (waits, came) = left(&guest);
        let right = guest.code() == exit::VMMCALL && !waits && came == 1;
        check!(test, right, "with CR8 0 it comes: {came}: {:#x}", guest.code());
    }
    let mut guest = offered(inside::prefers(), 0, 0);
    guest.block().put(0, CR8_WRITTEN);
    guest.run();
    check!(test, guest.code() == CR8_EXIT, "CR8 intercepted: {:#x}", guest.code());
}

/// An event whose gate is in a page that isn't there is told with the fault, and comes when it is
/// injected again.
fn interrupted(test: &str) {
    const VALID: u64 = 1 << 31;
    const CODE: u64 = 1 << 11 | 0x1234 << 32;
    let mut guest = paging::guest();
    let arrives = inside::arrives();
    for (name, event) in [
        ("an interrupt", u64::from(VECTOR)),
        ("an NMI", 2 << 8 | 2),
        ("an exception", 3 << 8 | 6),
        ("one with a code", 3 << 8 | 13 | CODE),
    ] {
        paging::map_at(PAGE, 0, 0);
        paging::flush(&guest);
        guest.restart(inside::hypercall());
        let block = guest.block();
        block.put(block::IDTR, 0xFFF << 32);
        block.put(block::IDTR + 8, paging::AREA + (PAGE << 12));
        block.put(block::EVENT_INJ, event | VALID);
        guest.run();
        let told = (guest.code(), guest.block().get(block::EXIT_INT_INFO));
        check!(test, told == (exit::NPF, event | VALID), "{name}, interrupted: {told:x?}");
        // Its gate.
        let gate = idt::gate_to(arrives);
        let at = 2 * (event & 0xFF) as usize;
        (0..2).for_each(|n| paging::nth(PAGE, at + n).store(gate[n], SeqCst));
        paging::map(PAGE, PAGE, paging::ALL);
        guest.block().put(block::EVENT_INJ, event | VALID);
        guest.run();
        let (code, at) = (guest.code(), guest.block().get(block::RIP));
        let told = guest.block().get(block::EXIT_INT_INFO) & VALID;
        let right = code == exit::VMMCALL && at != inside::hypercall() && told == 0;
        check!(test, right, "and injected again: {code:#x} at {at:#x}");
    }
}
