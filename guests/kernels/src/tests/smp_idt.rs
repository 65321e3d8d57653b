//! One interrupt descriptor table for all CPUs, changed by one while the others take
//! interrupts through it.

use super::edu;
use crate::{boot::Boot, console::check, cpu, edu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Interrupts each other CPU takes.
const TAKEN: u64 = 300;
/// How often one CPU writes the table of another.
const ROUNDS: u64 = 20;
/// The gate that changes, and the stub it leads to every second time.
const GATE: u8 = 0x42;
const ALSO: u8 = 0x62;
const WHOLE: u16 = (idt::TABLE_BYTES - 1) as u16;

static WRONG: AtomicU64 = AtomicU64::new(0);
static WORKING: AtomicUsize = AtomicUsize::new(0);

/// Gates are rewritten, tables loaded, and no interrupt is lost.
pub fn shared(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    let Some(count) = super::cpus(test, boot) else { return };
    let (table, copy) = (idt::arena(0), idt::arena(0x1000));
    for vector in 0..=255 {
        idt::write_gate(copy, vector, idt::gate(vector, true));
    }
    WRONG.store(0, SeqCst);
    WORKING.store(count - 1, SeqCst);
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let (mut raised, mut writes) = (0, 0);
    let came = smp::others(count, take, || {
        while WORKING.load(SeqCst) > 0 {
            // The two gates differ in their low halves alone: one store changes it.
            for stub in [ALSO, GATE] {
                idt::write_gate(table, GATE, idt::gate(stub, true));
                writes += 1;
            }
            for base in [copy, table] {
                cpu::load_idt(base, WHOLE);
                edu::raise();
                raised += 1;
                if !wait::patiently(|| idt::count(0x40) == raised) {
                    return false;
                }
            }
        }
        true
    });
    cpu::load_idt(table, WHOLE);
    idt::write_gate(table, GATE, idt::gate(GATE, true));
    let n = idt::count(0x40);
    check!(test, came && n == raised, "{n} of {raised} device interrupts beside {writes} stores");
    let others: u64 = (1..count).map(taken).sum();
    let (wrong, wanted) = (WRONG.load(SeqCst), (count as u64 - 1) * TAKEN);
    check!(
        test,
        others == wanted && wrong == 0,
        "{others} of {wanted} on other CPUs, {wrong} wrong"
    );
    edu.silence();
}

/// One CPU takes a device's interrupts, and then its timer's, through a table whose page another
/// has written in between.
pub fn written(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    if super::cpus(test, boot).is_none() {
        return;
    }
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let (mut devices, mut ticks) = (0, 0);
    for round in 1..=ROUNDS {
        devices += edu.raise_and_wait(0x40, 1) - (round - 1);
        let number = smp::give(1, |_| {
            idt::write_gate(idt::arena(0), GATE, idt::gate(GATE, true));
        });
        let done = wait::patiently(|| smp::finished(1, number));
        x2apic::start_timer(0x50, false, 1_000_000);
        if !done || !wait::until(|| idt::count(0x50) == round) {
            break;
        }
        ticks += 1;
    }
    check!(test, devices == ROUNDS, "{devices} of {ROUNDS} device interrupts");
    check!(test, ticks == ROUNDS, "{ticks} of {ROUNDS} ticks behind another CPU's store");
    edu.silence();
}

fn taken(cpu: usize) -> u64 {
    idt::count_on(cpu, GATE) + idt::count_on(cpu, ALSO)
}

fn take(index: usize) {
    for i in 1..=TAKEN {
        if index.is_multiple_of(2) && i.is_multiple_of(8) {
            let base = idt::arena(if i.is_multiple_of(16) { 0x1000 } else { 0 });
            cpu::load_idt(base, WHOLE);
        }
        x2apic::send(index as u32, u64::from(GATE));
        let came = wait::patiently(|| taken(index) >= i);
        WRONG.fetch_add(u64::from(!came || taken(index) != i), SeqCst);
    }
    idt::load();
    WORKING.fetch_sub(1, SeqCst);
}
