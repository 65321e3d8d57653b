//! What a guest does with the interrupts that it takes itself.

use crate::fixture::VECTOR;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{
    boot::Boot,
    cpu, edu, idt, wait,
    x2apic::{self, command},
};

/// How often the device raises its interrupt at deaf ears.
const RAISES: u32 = 1000;
/// Between two, in TSC ticks: some seconds in all.
const PAUSE: u64 = 2_000_000;
const STORM: u32 = 100_000;
/// Interrupts without an end to each, so that one comes in the middle of another.
const DEEPEST: u64 = 14;

fn raise_for_a_while(times: u32) {
    for _ in 0..times {
        edu::raise();
        wait::ticks(PAUSE);
    }
}

/// Interrupts off for seconds, while the device raises them.
pub fn off(_: &str, _: &Boot) {
    cpu::disable_interrupts();
    raise_for_a_while(RAISES);
    // All of them are one by now.
    cpu::enable_interrupts();
    wait::settle();
}

/// Handlers that never complete, each interrupted by one of the next class, until all are in
/// service.
pub fn no_eoi(_: &str, _: &Boot) {
    static DEPTH: AtomicU64 = AtomicU64::new(0);
    DEPTH.store(2, SeqCst);
    for vector in 0x20..=0xFF {
        idt::on(vector, |_| {
            let class = DEPTH.fetch_add(1, SeqCst) + 1;
            if class <= DEEPEST {
                cpu::enable_interrupts();
                x2apic::self_ipi((class as u8) << 4 | 1);
                wait::ticks(PAUSE);
                cpu::disable_interrupts();
            }
        });
    }
    cpu::enable_interrupts();
    x2apic::self_ipi(0x21);
    wait::ticks(PAUSE);
    raise_for_a_while(100);
}

/// Completions of nothing.
pub fn eoi_storm(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    (0..STORM).for_each(|_| x2apic::complete());
}

/// Completions, again and again, of what is in service and of what isn't.
pub fn eoi_twice(_: &str, _: &Boot) {
    idt::on(VECTOR, |_| {
        edu::acknowledge();
        (0..20).for_each(|_| x2apic::complete());
    });
    cpu::enable_interrupts();
    raise_for_a_while(300);
}

/// The task priority at its highest, with interrupts pending, then up and down.
pub fn priority(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    cpu::wrmsr(x2apic::TPR, 0xFF);
    raise_for_a_while(500);
    for i in 0..2000 {
        x2apic::self_ipi(0x20 + (i % 0xD0) as u8);
        cpu::wrmsr(x2apic::TPR, (i * 7) & 0xFF);
    }
    cpu::wrmsr(x2apic::TPR, 0);
}

/// The same through CR8.
pub fn cr8(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    cpu::set_cr8(15);
    raise_for_a_while(500);
    for i in 0..20_000 {
        x2apic::self_ipi(0x20 + (i % 0xD0) as u8);
        cpu::set_cr8(i & 15);
    }
    cpu::set_cr8(0);
}

/// INT n for every n, the host's vectors among them, on and off a gate of its own.
pub fn software(_: &str, _: &Boot) {
    idt::no_completion(true);
    for _ in 0..20 {
        for vector in (0..=255u8).filter(|v| !WITH_ERROR_CODE.contains(v)) {
            idt::on(vector, |_| {});
            idt::software_interrupt(vector);
        }
    }
}

/// INT n pushes none, the stubs expect one.
const WITH_ERROR_CODE: [u8; 8] = [8, 10, 11, 12, 13, 14, 17, 21];

/// Every vector to itself, with interrupts off and on.
pub fn self_storm(_: &str, _: &Boot) {
    for round in 0..20 {
        if round % 2 == 0 {
            cpu::disable_interrupts()
        } else {
            cpu::enable_interrupts()
        }
        (0x20..=0xFE).for_each(x2apic::self_ipi);
    }
    cpu::enable_interrupts();
    wait::settle();
}

/// NMIs to itself, faster than it handles them.
pub fn nmi_storm(_: &str, _: &Boot) {
    idt::on(2, |_| wait::ticks(10_000));
    for _ in 0..1000 {
        x2apic::send(0, command::SELF | command::NMI);
        x2apic::send(x2apic::id(), command::NMI);
    }
}

/// The device's interrupt as fast as it can be raised, handled or not.
pub fn device_storm(_: &str, _: &Boot) {
    for round in 0..20_000 {
        if round % 64 == 0 {
            cpu::enable_interrupts();
        } else if round % 64 == 32 {
            cpu::disable_interrupts();
        }
        edu::raise();
    }
}

/// STI and CLI back to back, so that the interrupt shadow is always the last moment.
pub fn shadow(_: &str, _: &Boot) {
    for _ in 0..2000 {
        edu::raise();
        // SAFETY: every vector has a gate.
        unsafe { asm!("sti", "cli", "sti", "nop", "cli", options(nostack)) }
    }
}

/// A periodic timer with the smallest count, and divider: QEMU's main loop would do nothing else.
pub fn timer_storm(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    x2apic::start_timer(0x51, true, 1);
    wait::patiently(|| idt::count(0x51) >= 1000);
    // While it is periodic, the count and the divider are no way around either.
    for count in [2, 100, 1000] {
        cpu::wrmsr(x2apic::INITIAL_COUNT, count);
        cpu::wrmsr(x2apic::DIVIDE, 0xB);
    }
    let before = idt::count(0x51);
    wait::patiently(|| idt::count(0x51) >= before + 100);
    x2apic::stop_timer();
}

/// Timers set and stopped without end.
pub fn timer_program(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    for i in 0..5000u32 {
        x2apic::start_timer(0x20 | i as u8, i % 3 == 0, 0xFFFF_FFFF >> (i % 16));
        x2apic::stop_timer();
    }
}
