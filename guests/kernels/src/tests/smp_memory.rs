//! What one CPU changes in its page tables or a device's BAR is so for all others as soon
//! as it can rely on it.

use super::{device::INSIDE, edu};
use crate::x2apic::command::OTHERS;
use crate::{boot::Boot, console::check, cpu, edu, idt, pci, random::Random, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::alias::{ALIAS, map_alias};

/// Times a page is remapped.
const REMAPS: u64 = 60;
/// Times the BAR is moved.
const MOVES: u64 = 60;
/// Times a CPU is started beside that.
const STARTS: u64 = 1_500;
const SEED: u64 = 0xF1_0054;
const SHOOT: u8 = 0xF8;
const GOOD: u64 = 0x600D;
const POISON: u64 = 0x0BAD;

#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);
static PAGES: [Page; 2] = [const { Page([const { AtomicU64::new(GOOD) }; 512]) }; 2];

static LEAVE: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicU64 = AtomicU64::new(0);
static STRANGE: AtomicU64 = AtomicU64::new(0);
static LOOKS: [AtomicU64; smp::MAX] = [const { AtomicU64::new(0) }; smp::MAX];

/// A BAR goes and comes again while a CPU is being started that never gives the host a reason to
/// look.
pub fn start_flush(test: &str, boot: &Boot) {
    let (Some(_), Some(edu)) = (super::cpus(test, boot), edu(test)) else { return };
    // CLI, and a jump to itself.
    const FOR_EVER: u32 = 0xFE_EBFA;
    let page = smp::START_PAGES[1];
    let mut random = Random::new(SEED);
    let mut pause = || wait::ticks(random.number() >> 16 & 0x7_FFFF);
    cpu::mmio_write(u64::from(page) << 12, FOR_EVER);
    for _ in 0..STARTS {
        smp::stop(1);
        pause();
        smp::start_up(1, page);
        pause();
        edu.function.write(pci::COMMAND, 0);
        edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    }
    smp::prepare();
    check!(test, smp::start(1), "after {STARTS} times the BAR is there, and the CPU starts");
}

/// A page is mapped elsewhere, all others are told, and none uses the old page any more.
pub fn shootdown(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    for cell in [&LEAVE, &STALE, &STRANGE] {
        cell.store(0, SeqCst);
    }
    let address = |page: usize| PAGES[page].0.as_ptr() as u64;
    idt::on(SHOOT, |_| {
        cpu::invalidate_page(ALIAS);
        x2apic::complete();
    });
    map_alias(address(0));
    cpu::enable_interrupts();
    let mut rounds = 0;
    let came = smp::others(count, look, || {
        for round in 1..=REMAPS {
            let (old, new) = ((round as usize + 1) % 2, round as usize % 2);
            map_alias(address(new));
            x2apic::send(0, OTHERS | u64::from(SHOOT));
            let told = || (1..count).all(|cpu| idt::count_on(cpu, SHOOT) >= round);
            if !wait::patiently(told) {
                break;
            }
            PAGES[old].0[0].store(POISON, SeqCst);
            let before: [u64; smp::MAX] = core::array::from_fn(|cpu| LOOKS[cpu].load(SeqCst));
            wait::patiently(|| (1..count).all(|cpu| LOOKS[cpu].load(SeqCst) > before[cpu] + 1));
            PAGES[old].0[0].store(GOOD, SeqCst);
            rounds = round;
        }
        LEAVE.store(1, SeqCst);
        true
    });
    let exact = (1..count).all(|cpu| idt::count_on(cpu, SHOOT) == rounds);
    check!(test, came && rounds == REMAPS && exact, "{rounds} of {REMAPS}, each told once");
    let (stale, strange) = (STALE.load(SeqCst), STRANGE.load(SeqCst));
    check!(test, stale == 0 && strange == 0, "{stale} reads through a stale translation");
}

fn look(index: usize) {
    while LEAVE.load(SeqCst) == 0 {
        for _ in 0..100 {
            // SAFETY: mapped by the first CPU before it gave this job.
            match unsafe { (ALIAS as *const u64).read_volatile() } {
                GOOD => {}
                POISON => {
                    STALE.fetch_add(1, SeqCst);
                }
                _ => {
                    STRANGE.fetch_add(1, SeqCst);
                }
            }
        }
        LOOKS[index].fetch_add(1, SeqCst);
        cpu::pause();
    }
}

/// Odd while the BAR moves.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static OLD: AtomicU64 = AtomicU64::new(0);
static NEW: AtomicU64 = AtomicU64::new(0);
static MISSING: AtomicU64 = AtomicU64::new(0);

/// One CPU moves a BAR while the others read through it: once the move is complete, the
/// device is at the new address for all, and at the old one for none.
pub fn bar_move(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    let Some(count) = super::cpus(test, boot) else { return };
    let home = edu.base() as u32;
    for cell in [&LEAVE, &STALE, &MISSING, &GENERATION] {
        cell.store(0, SeqCst);
    }
    OLD.store(u64::from(INSIDE), SeqCst);
    NEW.store(u64::from(home), SeqCst);
    let mut moves = 0;
    let came = smp::others(count, watch, || {
        for i in 1..=MOVES {
            let target = [home, INSIDE, INSIDE + 0x100_0000][i as usize % 3];
            GENERATION.fetch_add(1, SeqCst);
            OLD.store(NEW.load(SeqCst), SeqCst);
            NEW.store(u64::from(target), SeqCst);
            edu.move_to(target);
            GENERATION.fetch_add(1, SeqCst);
            moves += u64::from(edu.base() == u64::from(target));
            let before: [u64; smp::MAX] = core::array::from_fn(|cpu| LOOKS[cpu].load(SeqCst));
            wait::patiently(|| (1..count).all(|cpu| LOOKS[cpu].load(SeqCst) > before[cpu] + 1));
        }
        LEAVE.store(1, SeqCst);
        true
    });
    edu.move_to(home);
    check!(test, came && moves == MOVES, "{moves} of {MOVES} moves read back");
    let (stale, missing) = (STALE.load(SeqCst), MISSING.load(SeqCst));
    check!(test, stale == 0, "{stale} reads reached the device where it had been");
    check!(test, missing == 0, "{missing} reads missed it where it was");
}

fn watch(index: usize) {
    while LEAVE.load(SeqCst) == 0 {
        let generation = GENERATION.load(SeqCst);
        let (old, new) = (OLD.load(SeqCst), NEW.load(SeqCst));
        // QEMU's CPUs learn of a change at the end of a run of instructions, as here.
        cpu::pause();
        let (at_old, at_new) = (cpu::mmio_read(old), cpu::mmio_read(new));
        if generation.is_multiple_of(2) && GENERATION.load(SeqCst) == generation {
            STALE.fetch_add(u64::from(at_old == edu::IDENTIFICATION), SeqCst);
            MISSING.fetch_add(u64::from(at_new != edu::IDENTIFICATION), SeqCst);
            LOOKS[index].fetch_add(1, SeqCst);
        }
    }
}
