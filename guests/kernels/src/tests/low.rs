//! Interrupts at vectors 16 to 31: legal for the local APIC (SDM 3A, 11.5.2), and
//! exceptions to a host that takes one in the guest's place.

use super::edu;
use crate::counters::{Policy, policy};
use crate::{boot::Boot, console::check, cpu, idt, wait, x2apic};

/// Ticks of QEMU's timer until it fires.
const SHORT: u32 = 1_000_000;
const FROM_SELF: u8 = 0x1F;
const FROM_TIMER: u8 = 0x1E;
const FROM_COMMAND: u8 = 0x1D;
/// Self shorthand of the interrupt command register.
const SELF: u64 = 1 << 18;

/// Each kind waits while the IDT is loaded anew, which takes a shadow away, and then comes
/// once. Ends with one still waiting: the host gets the core back with it.
pub fn low_vectors(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    for vector in [FROM_SELF, FROM_TIMER, FROM_COMMAND] {
        idt::on(vector, |_| x2apic::complete());
    }
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 1);
    check!(test, n == 1, "a device's interrupt at an ordinary vector: {n} of 1");
    comes_once(test, "self IPI", FROM_SELF, || x2apic::self_ipi(FROM_SELF));
    comes_once(test, "ICR to itself", FROM_COMMAND, || {
        cpu::wrmsr(x2apic::ICR, SELF | u64::from(FROM_COMMAND));
    });
    comes_once(test, "timer", FROM_TIMER, || x2apic::start_timer(FROM_TIMER, false, SHORT));
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 10);
    check!(test, n == 11, "the device at an ordinary vector again: {n} of 11");
    edu.silence();
    cpu::disable_interrupts();
    x2apic::self_ipi(FROM_SELF);
    check!(test, x2apic::requested(FROM_SELF), "one waits at the end");
}

/// Ends with vectors waiting that no local APIC should accept: QEMU takes those below 16 into
/// its request register, and delivers all but 0 to whoever has the core next.
pub fn lowest_vectors(test: &str, _: &Boot) {
    cpu::disable_interrupts();
    (0..16).for_each(x2apic::self_ipi);
    let waiting = (1..16).filter(|v| x2apic::requested(*v)).count();
    if policy() == Policy::Direct {
        return check!(
            test,
            waiting == 15,
            "{waiting} of 15 wait; the host gets the core back with them"
        );
    }
    // Where the host emulates the APIC it takes none of them, and what is legal comes all the same.
    cpu::enable_interrupts();
    wait::settle();
    let came = idt::everything();
    x2apic::self_ipi(0x20);
    let legal = wait::until(|| idt::count(0x20) == 1);
    check!(test, waiting == 0 && came == 0 && legal, "{waiting} wait, {came} came; 0x20: {legal}");
}

fn comes_once(test: &str, what: &str, vector: u8, request: impl FnOnce()) {
    cpu::disable_interrupts();
    let before = idt::count(vector);
    request();
    let waits = wait::until(|| x2apic::requested(vector)) && idt::count(vector) == before;
    let (base, limit) = cpu::stored_idt();
    cpu::load_idt(base, limit);
    cpu::enable_interrupts();
    wait::until(|| idt::count(vector) > before);
    wait::settle();
    let n = idt::count(vector) - before;
    cpu::disable_interrupts();
    let right = waits && n == 1 && !x2apic::in_service(vector);
    check!(test, right, "{what} at {vector:#x}: waits with IF=0, then comes {n} times");
}
