//! What a guest writes to its local APIC, to reach others or to get rid of it.

use crate::fixture;
use machine::{
    boot::Boot,
    counters::{Policy, policy},
    cpu, edu, idt,
    random::Random,
    wait,
    x2apic::{self, command},
    xapic,
};

const APIC_BASE: u32 = 0x1B;
const SPURIOUS: u32 = 0x80F;
const PAGE: u64 = 0xFEE0_0000;
const LVTS: core::ops::RangeInclusive<u32> = 0x832..=0x837;
const SEED: u64 = 0xA71C_0FFE;

fn send(destination: u32, what: u64) {
    let _ = cpu::try_wrmsr(x2apic::ICR, x2apic::sendable(u64::from(destination) << 32 | what));
}

/// Every delivery mode to every shorthand and to ids that are others', if anybody's; INIT and
/// start-up not to itself.
pub fn commands(_: &str, _: &Boot) {
    use command::{ALL, BROADCAST, LOGICAL, OTHERS, SELF};
    idt::on(0x10, |_| x2apic::complete());
    cpu::enable_interrupts();
    for mode in (0..8).map(|m| m << 8) {
        let resets = matches!(mode, 0x500 | 0x600);
        for vector in [0x00, 0x08, 0x10, 0x20, 0x40, 0xEF, 0xF1, 0xF2, 0xFF] {
            for shorthand in [SELF, ALL, OTHERS] {
                if !resets || shorthand == OTHERS {
                    send(0, shorthand | mode | vector);
                }
            }
            for id in (1..16).chain([0xFF, 0x100, BROADCAST]) {
                if !resets || id != BROADCAST {
                    send(id, mode | vector);
                    send(id, mode | vector | 1 << 14);
                    send(id, mode | vector | 1 << 15);
                }
                if !resets {
                    send(id, mode | vector | LOGICAL);
                    send(id << 16 | 0xFFFF, mode | vector | LOGICAL);
                }
            }
        }
    }
}

/// Reserved bits and noise.
pub fn command_noise(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    cpu::enable_interrupts();
    for _ in 0..5000 {
        let value = random.number();
        // Neither a reset of its own CPU nor an exception's vector.
        let own = matches!(value >> 8 & 7, 5 | 6);
        let value = if own { value & !0x700 } else { value } | 0x20;
        let _ = cpu::try_wrmsr(x2apic::ICR, x2apic::sendable(value));
    }
}

/// Off, back to xAPIC, elsewhere, without x2APIC: all at once and one by one.
pub fn base(_: &str, _: &Boot) {
    let home = cpu::rdmsr(APIC_BASE);
    for _ in 0..200 {
        for value in [0, 0x800, 0x400, home ^ 0x800, home ^ 0x400, home ^ 0x100, home ^ 0xC00] {
            let _ = cpu::try_wrmsr(APIC_BASE, value);
            let _ = cpu::try_wrmsr(APIC_BASE, value | PAGE);
        }
        for at in [0, 0x10_0000, 0xFEC0_0000, 0xFED9_0000, 1 << 51] {
            let _ = cpu::try_wrmsr(APIC_BASE, home & 0xFFF | at);
        }
    }
    let _ = cpu::try_wrmsr(APIC_BASE, home);
}

/// Disabled by software, with interrupts under way. While it is, none is accepted; each time it is
/// enabled again, the APIC must work.
pub fn disabled(_: &str, _: &Boot) {
    cpu::enable_interrupts();
    for i in 0..200 {
        let _ = cpu::try_wrmsr(SPURIOUS, i & 0xFF);
        edu::raise();
        x2apic::self_ipi(0x60);
        let _ = cpu::try_wrmsr(SPURIOUS, 0x100 | i & 0xFF);
        x2apic::self_ipi(0x60);
        edu::raise();
    }
}

/// Every register, read and written with noise, small and large. The timer's count not where it is
/// the guest's own.
pub fn registers(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    cpu::enable_interrupts();
    for msr in 0x800..0x900u32 {
        let _ = cpu::try_rdmsr(msr);
        if policy() == Policy::Direct && x2apic::OWN.contains(&msr) || msr == x2apic::ICR {
            continue;
        }
        for _ in 0..8 {
            // No exception's vector, where it is one.
            let value = random.number() | if msr >= 0x82F { 0x40 } else { 0 };
            let _ = cpu::try_wrmsr(msr, value);
            let _ = cpu::try_wrmsr(msr, value & 0xFFF);
            let _ = cpu::try_wrmsr(msr, value & 0x7_FFFF);
        }
    }
}

/// The local vectors with every delivery mode, the timer's and performance counters' among them,
/// while the timer fires.
pub fn local_vectors(_: &str, _: &Boot) {
    idt::on(0, |_| {});
    cpu::enable_interrupts();
    for mode in 0..8 {
        for lvt in LVTS {
            for value in [mode << 8 | 0x53, mode << 8 | 2, mode << 8 | 0x53 | 1 << 17, mode << 8] {
                let _ = cpu::try_wrmsr(lvt, value);
            }
        }
        x2apic::start_timer(0x53, false, 100_000);
        let _ = cpu::try_wrmsr(0x832, mode << 8 | 0x53);
        wait::ticks(3_000_000);
        x2apic::stop_timer();
        for lvt in LVTS {
            let _ = cpu::try_wrmsr(lvt, 1 << 16);
        }
    }
}

/// The xAPIC's page, which isn't there in x2APIC mode.
pub fn page(_: &str, _: &Boot) {
    for offset in (0..0x1000).step_by(16) {
        let _ = cpu::try_load(PAGE + offset);
    }
    // NMI, INIT and start-up to all others, and to the first few ids.
    for id in 0..8u32 {
        cpu::mmio_write(PAGE + 0x310, id << 24);
        for low in [0x400, 0x500, 0x608, 0xC_0400, 0xC_0500, 0xC_4608] {
            cpu::mmio_write(PAGE + 0x300, low);
        }
    }
    // Nor is anything above it.
    for offset in (0..0x10_0000).step_by(0x1000) {
        cpu::mmio_write(PAGE + offset, 0x40);
    }
    let _ = fixture::interrupts();
}

/// Commands of every delivery mode to ids that are others', noise in every register of the page,
/// and back to x2APIC mode now and then. No reset of its own CPU.
pub fn xapic_mode(_: &str, _: &Boot) {
    idt::on(0x10, |_| x2apic::complete());
    let mut random = Random::new(SEED);
    for _ in 0..100 {
        xapic::enter();
        cpu::enable_interrupts();
        edu::raise();
        for id in (1..8).chain([0x40, 0xFE]) {
            x2apic::send(id, random.number() & 0xFFF | 0x10);
            x2apic::send(id, 0xC_0000 | random.number() & 0xCFF | 0x10);
        }
        for _ in 0..40 {
            let (register, value) = (0x800 + random.number() as u32 % 0x40, random.number() as u32);
            match register {
                x2apic::ICR => {}
                // No exception's vector, and no period that its own core is caught in.
                0x832..=0x837 => xapic::write(register, value | 0x40),
                0x838 => xapic::write(register, value | 0x10_0000),
                _ => xapic::write(register, value),
            }
        }
        cpu::disable_interrupts();
        let _ = cpu::try_wrmsr(xapic::BASE, 0);
        x2apic::init_cpu();
    }
}
