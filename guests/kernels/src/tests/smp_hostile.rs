//! What a broken or hostile guest does with its CPUs. It may lose its own; it goes on, or
//! ends alone.

use super::hostile;
use crate::counters::{Policy, policy};
use crate::x2apic::command::{self, BROADCAST, OTHERS};
use crate::{
    acpi::Tables, boot::Boot, console::check, cpu, idt, power, random::Random, smp, wait, x2apic,
};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const SEED: u64 = 0x1C2_0000_5701;
/// INITs and start-ups close to each other.
const NEAR: u64 = 10_000;
const STORM: u64 = 3000;
/// Delivery mode of a command.
const MODE: u64 = 7 << 8;

/// Every bit of the command register, at random. INIT, start-up and, on the bare machine,
/// SMI are left out: they could rightly stop this test; so are exceptions' vectors.
pub fn icr_storm(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    check!(test, true, "seed {SEED:#x}");
    x2apic::spare_spurious(boot.option("spurious") == Some("spared"));
    idt::on(2, |_| {});
    cpu::enable_interrupts();
    let done = smp::all(count, storm);
    check!(test, done, "all {count} CPUs come through");
    all_work(test, count);
}

fn storm(index: usize) {
    let mut random = Random::new(SEED + index as u64);
    let bare = policy() == Policy::Bare;
    for _ in 0..STORM {
        let r = random.number();
        let mut value = random.number();
        // Mostly destinations that exist, few reserved bits: they get further than noise.
        match r % 4 {
            0 => {}
            1 => value &= 0xFFFF_FFFF_000C_CFFF,
            2 => value = value & 0xC_0FFF | (r >> 32 & 0xF) << 32,
            _ => value = value & 0xC_0FFF | u64::from(BROADCAST) << 32,
        }
        let refused_here = |mode: u64| mode == 5 || mode == 6 || bare && mode != 0;
        if refused_here((value & MODE) >> 8) {
            value &= !MODE;
        }
        if (value & 0xFF) < 32 && ((value & 0xFF) >= 16 || bare) {
            value |= 0x40;
        }
        // A wake-up for which nobody waits is no harm; a job only comes with its cell.
        let _ = cpu::try_wrmsr(x2apic::ICR, x2apic::sendable(value));
    }
}

/// Jobs reach all CPUs, and interrupts from all to all.
fn all_work(test: &str, count: usize) {
    static PINGS: AtomicU64 = AtomicU64::new(0);
    PINGS.store(0, SeqCst);
    cpu::wrmsr(x2apic::TPR, 0);
    let done = smp::all(count, |_| {
        PINGS.fetch_add(1, SeqCst);
    });
    let pings = PINGS.load(SeqCst);
    check!(test, done && pings == count as u64, "{pings} of {count} CPUs work afterwards");
    wait::settle();
    let before = idt::total(0x47);
    x2apic::send(0, command::ALL | 0x47);
    let came = wait::until(|| idt::total(0x47) >= before + count as u64);
    wait::settle();
    let n = idt::total(0x47) - before;
    check!(test, came && n == count as u64, "an interrupt to all: {n} of {count}");
}

/// Start-up IPIs in storms: to CPUs at work, and to one that waits for its first.
pub fn start_storm(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    let mut random = Random::new(SEED);
    let before: u64 = (0..count).map(smp::starts).sum();
    for _ in 0..STORM {
        // Vectors of pages without code too: nobody goes there.
        let (r, all) = (random.number(), [OTHERS, command::ALL, 0]);
        let shorthand = all[(r >> 32) as usize % 3];
        let target = if r >> 40 & 1 == 0 { BROADCAST } else { (r >> 48) as u32 % count as u32 };
        x2apic::send(target, shorthand | command::START_UP | r & 0xFF);
    }
    wait::settle();
    let starts = (0..count).map(smp::starts).sum::<u64>() - before;
    check!(test, starts == 0, "{STORM} start-up IPIs to CPUs at work: {starts} starts");
    let mut once = 0;
    for i in 0..10 {
        let cpu = 1 + i % (count - 1);
        let before = smp::starts(cpu);
        smp::stop(cpu);
        wait::ticks(1_000_000);
        for _ in 0..20 {
            smp::start_up(cpu, smp::START_PAGES[0]);
        }
        wait::until(|| smp::starts(cpu) > before);
        wait::ticks(5_000_000);
        once += u64::from(smp::starts(cpu) == before + 1);
    }
    check!(test, once == 10, "twenty to one that waits: started once, {once} of 10 times");
    let mut once = 0;
    for _ in 0..10 {
        let before: [u64; smp::MAX] = core::array::from_fn(smp::starts);
        for _ in 0..20 {
            x2apic::send(0, OTHERS | command::INIT);
        }
        wait::ticks(5_000_000);
        x2apic::send(0, OTHERS | command::START_UP | u64::from(smp::START_PAGES[1]));
        let all = || (1..count).all(|cpu| smp::starts(cpu) > before[cpu]);
        once += u64::from(wait::until(all));
    }
    check!(test, once == 10, "INIT storms and one start-up IPI to all others: {once} of 10");
    // However near the start-up comes to the moment that they fall asleep.
    for _ in 0..NEAR {
        x2apic::send(0, OTHERS | command::INIT);
        wait::ticks(random.number() >> 16 & 0x7FFF);
        x2apic::send(0, OTHERS | command::START_UP | u64::from(smp::START_PAGES[0]));
        wait::ticks(random.number() >> 16 & 0x7FFF);
    }
    let up = (1..count).filter(|cpu| smp::start(*cpu)).count();
    check!(test, up == count - 1, "after {NEAR} INITs and start-ups {up} of {} start", count - 1);
    all_work(test, count);
}

/// A CPU that sends itself INIT is off, and can be started again.
pub fn init_self(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    static AFTER: AtomicU64 = AtomicU64::new(0);
    let mut right = 0;
    for i in 0..10 {
        let cpu = 1 + i % (count - 1);
        let before = smp::starts(cpu);
        let begun = BEFORE.load(SeqCst);
        smp::give(cpu, |cpu| {
            BEFORE.fetch_add(1, SeqCst);
            x2apic::send(cpu as u32, command::INIT);
            wait::settle();
            AFTER.fetch_add(1, SeqCst);
        });
        wait::patiently(|| BEFORE.load(SeqCst) > begun);
        wait::settle();
        let waits = smp::starts(cpu) == before;
        // More than one, should the INIT still be on its way: to a CPU at work they are nothing.
        let up = wait::until(|| {
            smp::start_up(cpu, smp::START_PAGES[0]);
            wait::ticks(5_000_000);
            smp::starts(cpu) > before
        });
        right += u64::from(waits && up && smp::starts(cpu) == before + 1);
    }
    let after = AFTER.load(SeqCst);
    check!(test, right == 10 && after == 0, "{right} of 10, {after} went on after it");
    all_work(test, count);
}

/// One CPU takes away its IDT and faults; the VM ends, whatever its other CPUs do.
pub fn triple_fault(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    at_the_last(count, hostile::triple_fault_now);
    check!(test, false, "the machine is still here");
}

/// A CPU in real mode calls a BIOS, as kernels do whose loaders leave that to them.
pub fn bios_call(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    smp::stop(count - 1);
    wait::ticks(5_000_000);
    smp::start_up_in_bios(count - 1);
    wait::settle();
    check!(test, false, "the machine is still here");
}

/// Another CPU powers the machine off.
pub fn power_off(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    RSDP.store(boot.rsdp, SeqCst);
    check!(test, true, "CPU {} powers off", count - 1);
    at_the_last(count, |_| {
        if let Some(fadt) = Tables::find(RSDP.load(SeqCst)).and_then(|t| t.fadt()) {
            power::off(&fadt);
        }
    });
    check!(test, false, "the machine is still here");
}

static RSDP: AtomicU64 = AtomicU64::new(0);

/// Another CPU resets the machine.
pub fn reset(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    check!(test, true, "CPU {} resets", count - 1);
    at_the_last(count, |_| cpu::outb(0xCF9, 0x06));
    check!(test, false, "the machine is still here");
}

/// The last CPU does `job` while the others are off, halted or spinning.
fn at_the_last(count: usize, job: fn(usize)) {
    if count > 2 {
        smp::stop(1);
    }
    if count > 3 {
        smp::give(2, |_| {
            loop {
                cpu::pause();
            }
        });
    }
    smp::give(count - 1, job);
    wait::until(|| false);
}
