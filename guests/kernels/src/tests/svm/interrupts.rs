//! Interrupts of the hypervisor's while its guest runs.

use super::block::{self, Guest, exit, hold, let_in};
use super::{begin, end, inside};
use crate::counters::{Policy, Window, policy};
use crate::{boot::Boot, console::check, cpu, idt, wait, x2apic};
use ledger::Reason;

const VECTOR: u8 = 0x51;
const TIMER: u8 = 0x52;
const NMI: u8 = 2;
const ROUNDS: u64 = 50;

/// The global interrupt flag holds them, and they end a guest.
pub fn interrupts(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    idt::on(VECTOR, |_| x2apic::complete());
    idt::on(TIMER, |_| x2apic::complete());
    held(test);
    kept(test);
    held(test);
    pending(test);
    ticks(test);
    masked(test);
    behind_injected(test);
    end();
}

/// An NMI that waits ends the guest, but first that has what is injected.
fn behind_injected(test: &str) {
    idt::on(NMI, |_| {});
    let mut right = 0;
    for _ in 0..ROUNDS {
        let mut guest = Guest::new(inside::spins());
        let block = guest.block();
        guest.leave_for(block::NMI_WANTED);
        block.put(block::EVENT_INJ, 1 << 31 | u64::from(VECTOR));
        let before = idt::count(NMI);
        hold();
        x2apic::send(x2apic::id(), x2apic::command::NMI);
        guest.enter();
        let early = idt::count(NMI) - before;
        let block = guest.block();
        let is_left = block.get(block::EXIT_INT_INFO) >> 31 & 1 != 0;
        let is_in = block.get(block::RIP) != inside::spins();
        let_in();
        let came = idt::count(NMI) - before;
        let held = early == 0 && came == 1;
        right += u64::from(guest.code() == exit::NMI && !is_left && is_in && held);
    }
    check!(test, right == ROUNDS, "an NMI behind what is injected: {right} times of {ROUNDS}");
}

/// With the flag clear nothing comes, whatever IF is; then it does.
fn held(test: &str) {
    let before = idt::count(VECTOR);
    hold();
    cpu::enable_interrupts();
    x2apic::self_ipi(VECTOR);
    wait::settle();
    let early = idt::count(VECTOR) - before;
    let_in();
    wait::settle();
    let came = idt::count(VECTOR) - before;
    cpu::disable_interrupts();
    check!(test, early == 0 && came == 1, "CLGI: {early} came, STGI: {came}");
    x2apic::self_ipi(VECTOR);
    hold();
    let_in();
    cpu::enable_interrupts();
    let came = wait::until(|| idt::count(VECTOR) == before + 2);
    cpu::disable_interrupts();
    check!(test, came, "and again");
}

/// From the first CLGI on the CPU keeps the flag, where it can, until an interrupt comes.
fn kept(test: &str) {
    let before = idt::count(VECTOR);
    let window = Window::open();
    for _ in 0..ROUNDS {
        hold();
        let_in();
    }
    let first = window.close().of(Reason::Nesting);
    // With the flag set it comes as ever, and once.
    cpu::enable_interrupts();
    x2apic::self_ipi(VECTOR);
    let came = wait::until(|| idt::count(VECTOR) == before + 1);
    cpu::disable_interrupts();
    check!(test, came, "an interrupt behind STGI");
    let window = Window::open();
    hold();
    cpu::enable_interrupts();
    x2apic::self_ipi(VECTOR);
    wait::settle();
    let early = idt::count(VECTOR) - before - 1;
    // IF is clear when the flag is set: still it waits.
    cpu::disable_interrupts();
    let_in();
    wait::settle();
    let pends = x2apic::requested(VECTOR) || x2apic::in_service(VECTOR);
    let waits = idt::count(VECTOR) == before + 1 && pends;
    cpu::enable_interrupts();
    let came = wait::until(|| idt::count(VECTOR) == before + 2);
    cpu::disable_interrupts();
    let second = window.close().own();
    check!(test, early == 0 && waits && came, "{early} came, one waits: {waits}, comes: {came}");
    if policy() != Policy::Bare {
        let keeps = cpu::cpuid(0x8000_000A).edx >> 16 & 1 == 1;
        // It has been kept since `held`, where one interrupt came with the flag set.
        let exits = if keeps { 0 } else { 2 * ROUNDS };
        check!(test, first == exits, "{first} exits for {ROUNDS} times CLGI and STGI");
        // CLGI, since the second one ended that, beside the interrupt's, which is the host's.
        let exits = if keeps { 1 } else { 2 };
        check!(test, second == exits, "{second} exits where one comes while the flag is clear");
    }
}

/// One that is pending at VMRUN ends the guest, is pending still, and comes with STGI.
fn pending(test: &str) {
    let mut guest = Guest::new(inside::spins());
    let (mut told, before) = (0, idt::count(VECTOR));
    let window = Window::open();
    for _ in 0..ROUNDS {
        x2apic::self_ipi(VECTOR);
        guest.enter_open();
        told += u64::from(guest.code() == exit::INTR);
        let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
    }
    let counted = window.close();
    let came = idt::count(VECTOR) - before;
    check!(test, told == ROUNDS, "INTR was told {told} times of {ROUNDS}");
    check!(test, came == ROUNDS, "its handler ran {came} times");
    if policy() != Policy::Bare {
        // It exits behind STI, and VMRUN finds it. Without a flag that the CPU keeps CLGI, VMRUN,
        // INTR, STGI.
        let keeps = cpu::cpuid(0x8000_000A).edx >> 16 & 1 == 1;
        let exits = if keeps { 2 * ROUNDS } else { 4 * ROUNDS };
        let all = counted.all() - counted.of(Reason::Kick);
        check!(test, all == exits, "{all} exits for {ROUNDS}");
    }
}

/// A timer gets the core back from a guest that never leaves by itself.
fn ticks(test: &str) {
    let mut guest = Guest::new(inside::spins());
    let (mut told, before) = (0, idt::count(TIMER));
    for _ in 0..10 {
        x2apic::start_timer(TIMER, false, 100_000);
        guest.enter_open();
        told += u64::from(guest.code() == exit::INTR);
        let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
    }
    x2apic::stop_timer();
    let came = idt::count(TIMER) - before;
    check!(test, told == 10 && came == 10, "a tick ended it {told} times, {came} were handled");
}

/// With IF clear at VMRUN one waits, whatever the guest's own IF.
fn masked(test: &str) {
    let mut guest = Guest::new(inside::cpuids());
    let before = idt::count(VECTOR);
    x2apic::self_ipi(VECTOR);
    hold();
    guest.enter();
    let code = guest.code();
    let_in();
    check!(test, code == exit::CPUID, "with IF clear the guest goes on: {code:#x}");
    check!(test, idt::count(VECTOR) == before, "and the interrupt waits");
    cpu::enable_interrupts();
    let came = wait::until(|| idt::count(VECTOR) == before + 1);
    cpu::disable_interrupts();
    check!(test, came, "until IF is set");
}
