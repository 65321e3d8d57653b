//! What several CPUs do to each other and to what they share.

use crate::{
    fixture::{self, VECTOR},
    tables,
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use ledger::Reason;
use machine::{
    alias,
    boot::Boot,
    console::{check, println},
    counters::{self, Policy, policy},
    cpu, edu, idt, pci, power,
    random::Random,
    smp, wait,
    x2apic::{self, command},
};

const STORM: u64 = 3000;
const SEED: u64 = 0xC9;
const WHOLE: u16 = (idt::TABLE_BYTES - 1) as u16;

/// Starts all: how many there are, or a failed check when they aren't two at least.
pub fn all(test: &str, boot: &Boot) -> Option<usize> {
    let count = smp::start_all(boot).filter(|n| *n > 1);
    if count.is_none() {
        check!(test, false, "no second CPU");
    }
    count
}

/// Interrupt commands from all at once: every bit but those that reset.
pub fn commands(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    cpu::enable_interrupts();
    let done = smp::all(count, |index| {
        let mut random = Random::new(SEED + index as u64);
        for _ in 0..STORM {
            let value = random.number() & 0x1F_000C_CFFF;
            let resets = matches!(value >> 8 & 7, 5 | 6);
            let value = if resets { value & !0x700 } else { value } | 0x20;
            let _ = cpu::try_wrmsr(x2apic::ICR, x2apic::sendable(value));
        }
    });
    check!(test, done, "all {count} come through");
}

/// INIT and start-up IPIs without end, to all but itself.
pub fn starts(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    for i in 0..300u32 {
        x2apic::send(0, command::OTHERS | command::INIT);
        for _ in 0..i % 4 {
            x2apic::send(0, command::OTHERS | command::START_UP | u64::from(smp::START_PAGES[0]));
        }
        if i % 16 == 0 {
            wait::ticks(1_000_000);
        }
    }
    let up = (1..count).all(smp::start);
    check!(test, up, "all can be started afterwards");
}

static GO_ON: AtomicBool = AtomicBool::new(false);
/// Interrupts of [`rewritten`] at the least, and at the most.
const REWRITTEN: u32 = 2_000;
const MOST_REWRITTEN: u32 = 100_000;

/// The table that one CPU takes interrupts through is rewritten by the other, every gate, all the
/// time.
pub fn rewritten(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    for vector in [8, 11, 13] {
        idt::on(vector, |frame| {
            // SAFETY: the address of code that was about to run.
            if unsafe { (frame.rip as *const u8).read() } == 0xCD {
                frame.rip += 2;
            } else {
                x2apic::complete();
            }
        });
    }
    GO_ON.store(true, SeqCst);
    cpu::enable_interrupts();
    // Where the host takes such an exception, it has one at the least; the other CPU may stand
    // still for as long as it likes.
    let exceptions = || counters::ever().of(Reason::Exception);
    let (before, nobodys) = (exceptions(), counters::shared() || policy() == Policy::Direct);
    let done = smp::others(count, rewrite, || {
        for i in 0..MOST_REWRITTEN {
            if i >= REWRITTEN && (nobodys || exceptions() > before) {
                break;
            }
            edu::raise();
            if i % 8 == 0 {
                cpu::load_idt(idt::arena(0), WHOLE);
            }
        }
        GO_ON.store(false, SeqCst);
        true
    });
    check!(test, done, "all come through");
}

fn rewrite(_: usize) {
    let mut random = Random::new(SEED);
    while GO_ON.load(SeqCst) {
        let vector = [VECTOR, 0xF1, 0xF2, 0xFB][random.number() as usize % 4];
        // The wake-up's gate stays: a job could never be given again.
        let present = vector == 0xFB || random.number() & 3 != 0;
        idt::write_gate(idt::arena(0), vector, idt::gate(vector, present));
    }
    for vector in [VECTOR, 0xF1, 0xF2] {
        idt::write_gate(idt::arena(0), vector, idt::gate(vector, true));
    }
}

static SEEN: AtomicU64 = AtomicU64::new(0);

/// The device's registers are moved about while the other CPU reads them.
pub fn bars(test: &str, boot: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    let Some(count) = all(test, boot) else { return };
    let home = device.base() as u32;
    GO_ON.store(true, SeqCst);
    let done = smp::others(
        count,
        |_| {
            while GO_ON.load(SeqCst) {
                for at in [0xD000_0000u64, 0xD100_0000, 0xD200_0000] {
                    SEEN.fetch_add(u64::from(cpu::mmio_read(at)), SeqCst);
                }
            }
        },
        || {
            for i in 0..300 {
                device.function.write(pci::BAR0, [0xD000_0000, 0xD100_0000, 0, home][i % 4]);
            }
            GO_ON.store(false, SeqCst);
            true
        },
    );
    device.move_to(home);
    check!(test, done, "all come through");
}

/// What ends the first CPU's sleep.
const ALARM: u8 = 0x45;

/// The first CPU sleeps with interrupts off while the other gives it interrupts and moves what both
/// have mapped: on a shared core that is another's time.
pub fn asleep(test: &str, boot: &Boot) {
    let Some(device) = fixture::needed_device(test) else { return };
    let Some(count) = all(test, boot) else { return };
    let home = device.base() as u32;
    idt::on(ALARM, |_| x2apic::complete());
    GO_ON.store(true, SeqCst);
    let done = smp::others(
        count,
        |_| {
            let Some(device) = fixture::needed_device("asleep") else { return };
            for i in 0..2000u32 {
                device.function.write(pci::BAR0, [0xD000_0000, 0xD100_0000][i as usize % 2]);
                x2apic::send(0, u64::from(ALARM));
            }
            // It may be about to halt.
            while GO_ON.load(SeqCst) {
                x2apic::send(0, command::NMI);
                wait::ticks(1_000_000);
            }
        },
        || {
            let before = idt::count(2);
            while idt::count(2) == before {
                cpu::halt();
            }
            GO_ON.store(false, SeqCst);
            true
        },
    );
    device.move_to(home);
    check!(test, done, "all come through");
}

/// Rounds of [`low_nmis`] at the least, and how many NMIs must find the guest running meanwhile.
const SWITCHES: u32 = 400;
const NMIS: u64 = 50;
/// IA32_APIC_BASE, and the bit without which the local APIC is off.
const APIC_BASE: u32 = 0x1B;
const APIC_ON: u64 = 1 << 11 | 1 << 10;

/// One CPU leaves an interrupt of vector 2 behind, which QEMU takes from it, and switches its local
/// APIC off, while the other sends it NMIs all the time: to the host both have the same vector.
pub fn low_nmis(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    GO_ON.store(true, SeqCst);
    let done = smp::others(
        count,
        |_| {
            while GO_ON.load(SeqCst) {
                x2apic::send(0, command::NMI);
            }
        },
        || {
            cpu::disable_interrupts();
            let kicks = || counters::ever().of(Reason::Kick);
            // The other one may stand still for as long as it likes.
            let (mut switches, enough) = (0, kicks() + NMIS);
            while switches < SWITCHES || (kicks() < enough && !counters::shared()) {
                x2apic::self_ipi(2);
                let base = cpu::rdmsr(APIC_BASE);
                cpu::wrmsr(APIC_BASE, base & !APIC_ON);
                x2apic::init_cpu();
                switches += 1;
            }
            GO_ON.store(false, SeqCst);
            true
        },
    );
    check!(test, done, "all come through");
}

/// The page behind the address of the table that one CPU takes interrupts through is exchanged by
/// the other, and nobody tells.
pub fn remapped(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    let pages = [idt::arena(0x1000), idt::arena(0x2000)];
    pages.into_iter().for_each(tables::fill);
    tables::forgive_all();
    alias::map_alias(pages[0]);
    GO_ON.store(true, SeqCst);
    cpu::load_idt(alias::ALIAS, WHOLE);
    cpu::enable_interrupts();
    let done = smp::others(
        count,
        |_| {
            while GO_ON.load(SeqCst) {
                alias::map_alias(idt::arena(0x2000));
                alias::map_alias(idt::arena(0x1000));
            }
        },
        || {
            for i in 0..2000u32 {
                edu::raise();
                if i % 16 == 0 {
                    cpu::invalidate_page(alias::ALIAS);
                    cpu::load_idt(alias::ALIAS, WHOLE);
                }
            }
            GO_ON.store(false, SeqCst);
            true
        },
    );
    cpu::disable_interrupts();
    idt::load();
    check!(test, done, "all come through");
}

/// A table whose first page ends with the exceptions' gates, so that only interrupts need the
/// second.
const HALVED: u64 = alias::ALIAS + 0x1000 - 32 * 16;
const SECOND: u64 = alias::ALIAS + 0x1000;
const PAGE_FAULT: u8 = 14;
/// Interrupts that are raised at the least, and page faults that there must be.
const RAISES: u64 = 2000;
const MISSES: u64 = 20;

/// The page of one CPU's table that has all gates but those of exceptions is unmapped and mapped
/// again by the other, again and again: an interrupt that finds it gone is a page fault, in service
/// until that completes it.
pub fn unmapped(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    tables::fill(idt::arena(0x1000) + HALVED - alias::ALIAS);
    tables::forgive_all();
    idt::on(PAGE_FAULT, |_| {
        if cpu::cr2() & !0xFFF != SECOND {
            println!("FAIL unmapped: a page fault at {:#x}", cpu::cr2());
            power::debug_exit(power::FAILED);
        }
        edu::acknowledge();
        x2apic::complete();
    });
    alias::map_alias(idt::arena(0x1000));
    alias::map_alias_page(1, idt::arena(0x2000));
    GO_ON.store(true, SeqCst);
    cpu::load_idt(HALVED, WHOLE);
    cpu::enable_interrupts();
    let misses = || idt::count_on(0, PAGE_FAULT);
    let done = smp::others(
        count,
        |_| {
            while GO_ON.load(SeqCst) {
                alias::map_alias_page(1, 0);
                alias::map_alias_page(1, idt::arena(0x2000));
            }
        },
        || {
            let mut raised = 0;
            let done = wait::patiently(|| {
                edu::raise();
                cpu::invalidate_page(SECOND);
                raised += 1;
                if raised % 16 == 0 {
                    cpu::load_idt(HALVED, WHOLE);
                }
                raised >= RAISES && misses() >= MISSES
            });
            GO_ON.store(false, SeqCst);
            done
        },
    );
    cpu::disable_interrupts();
    idt::load();
    check!(test, done, "all come through, with {} page faults", misses());
}

/// Interrupts that the table serves before it is gone, and how many there were before.
const SERVED: u64 = 200;
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// All of the table that one CPU takes interrupts through is unmapped by the other, in the middle
/// of them: no fault has a gate any more, which is the end.
pub fn unmapped_whole(test: &str, boot: &Boot) {
    let Some(count) = all(test, boot) else { return };
    tables::fill(idt::arena(0x1000));
    alias::map_alias(idt::arena(0x1000));
    cpu::load_idt(alias::ALIAS, WHOLE);
    cpu::enable_interrupts();
    BEFORE.store(idt::count_on(0, VECTOR), SeqCst);
    smp::others(
        count,
        |_| {
            wait::patiently(|| idt::count_on(0, VECTOR) >= BEFORE.load(SeqCst) + SERVED);
            alias::map_alias(0);
        },
        || {
            wait::patiently(|| {
                edu::raise();
                cpu::invalidate_page(alias::ALIAS);
                false
            })
        },
    );
}
