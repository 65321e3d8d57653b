//! Interrupts a CPU sends itself.

use super::delivery::verdict_of_log;
use crate::counters::{Policy, Window, policy};
use crate::idt::Step::{Enter, Leave};
use crate::{boot::Boot, console::check, cpu, edu::Edu, idt, wait, x2apic};

const LOGICAL_DESTINATION: u32 = 0x80D;
const LOGICAL: u64 = 1 << 11;
const LOWEST_PRIORITY: u64 = 1 << 8;
const NMI: u64 = 4 << 8;
const SELF: u64 = 1 << 18;
const ALL: u64 = 2 << 18;
const OTHERS: u64 = 3 << 18;

/// Fixed vectors, by every way that reaches oneself.
pub fn fixed(test: &str, _: &Boot) {
    let id = u64::from(x2apic::id()) << 32;
    let logical = (cpu::rdmsr(LOGICAL_DESTINATION) & 0xFFFF_FFFF) << 32 | LOGICAL;
    cpu::enable_interrupts();
    x2apic::self_ipi(0x31);
    check!(test, came(0x31), "SELF IPI");
    let ways = [
        ("self shorthand", SELF | 0x32, 0x32),
        ("own id", id | 0x33, 0x33),
        ("own logical id", logical | 0x34, 0x34),
        ("own id, lowest priority", id | LOWEST_PRIORITY | 0x35, 0x35),
        ("all shorthand", ALL | 0x36, 0x36),
        ("broadcast id", 0xFFFF_FFFF << 32 | 0x37, 0x37),
    ];
    for (way, command, vector) in ways {
        cpu::wrmsr(x2apic::ICR, command);
        check!(test, came(vector), "ICR, {way}");
    }
    without_exits(test);
    cpu::wrmsr(x2apic::ICR, OTHERS | 0x38);
    cpu::wrmsr(x2apic::ICR, 0x77 << 32 | 0x39);
    wait::settle();
    let strays = idt::count(0x38) + idt::count(0x39);
    check!(test, strays == 0, "to others and to nobody: nothing comes");

    cpu::disable_interrupts();
    idt::clear_log();
    for vector in [0x45, 0xE5, 0x65, 0x45, 0xE5] {
        x2apic::self_ipi(vector);
    }
    wait::settle();
    let waits = [0x45, 0x65, 0xE5].map(x2apic::requested);
    check!(test, waits == [true; 3] && idt::count(0x45) == 0, "with IF=0 three wait");
    cpu::enable_interrupts();
    came(0x45);
    cpu::disable_interrupts();
    let steps = [Enter(0xE5), Leave(0xE5), Enter(0x65), Leave(0x65), Enter(0x45), Leave(0x45)];
    verdict_of_log(test, &steps, "they come highest first, each once though sent twice");

    cpu::enable_interrupts();
    check!(test, each_once(), "every vector from 0x20 to 0xFE comes once");
    // And where a device's interrupts come by the CPU's own table, which may hide some of them.
    let Some(edu) = Edu::find() else { return };
    edu.aim_handled(0x40);
    let before = idt::count(0x40);
    let came = edu.raise_and_wait(0x40, 5) - before;
    check!(test, came == 5 && each_once(), "they do beside a device's interrupts, too");
    edu.silence();
}

/// Where the register for them is open, none of them costs anything, nor does its completion.
fn without_exits(test: &str) {
    if !matches!(policy(), Policy::Direct | Policy::Posted) {
        return;
    }
    let window = Window::open();
    let came = (1..=100).all(|n| {
        x2apic::self_ipi(0x31);
        wait::until(|| idt::count(0x31) == 1 + n)
    });
    let exits = window.close().own();
    check!(test, came && exits == 0, "a hundred by SELF IPI: {exits} exits");
}

fn each_once() -> bool {
    (0x20..=0xFE).rev().all(|vector| {
        let before = idt::count(vector);
        x2apic::self_ipi(vector);
        wait::until(|| idt::count(vector) == before + 1)
    })
}

fn came(vector: u8) -> bool {
    wait::until(|| idt::count(vector) == 1)
}

/// NMI to oneself.
pub fn nmi(test: &str, _: &Boot) {
    idt::on(2, |_| {});
    cpu::wrmsr(x2apic::ICR, u64::from(x2apic::id()) << 32 | NMI);
    let came = wait::until(|| idt::count(2) == 1);
    wait::settle();
    let n = idt::count(2);
    check!(test, came && n == 1, "an NMI comes once, with IF=0 too: {n}");
}
