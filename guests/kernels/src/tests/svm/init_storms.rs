//! INIT, NMI, interrupts and start-ups for a hypervisor at any moment, while its flag goes up and
//! down and its guests come and go; and resets of the machine while an INIT is held back.

use super::block::{self, Guest, INIT_WANTED, NMI_WANTED};
use super::{inside, smp as other};
use crate::random::{self, Random};
use crate::tests::cpus;
use crate::tests::restart::{lives, reset};
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const NMI_VECTOR: u8 = 2;
const VECTOR: u8 = 0x52;
const STORMS: u64 = 150;
const SEED: u64 = 0x1A17_0BAD;

static READY: AtomicU64 = AtomicU64::new(0);
/// The seed of what the other CPU does.
static STREAM: AtomicU64 = AtomicU64::new(0);

/// The flag goes up and down, guests come and go.
fn toggles(_: usize) {
    other::turn_on();
    let mut random = Random::new(STREAM.load(SeqCst));
    let mut guest = Guest::new(inside::spins());
    READY.fetch_add(1, SeqCst);
    loop {
        let n = random.number();
        match n % 8 {
            0 | 1 => block::hold(),
            2 | 3 => block::let_in(),
            4 => x2apic::self_ipi(VECTOR),
            5 => {
                cpu::enable_interrupts();
                cpu::disable_interrupts();
            }
            6 => x2apic::send(1, x2apic::command::NMI),
            _ => {
                let block = guest.block();
                let wanted = block.get(block::EXCEPTIONS) & !(INIT_WANTED | NMI_WANTED);
                let more = n >> 8 & (INIT_WANTED | NMI_WANTED);
                block.put(block::EXCEPTIONS, wanted | more);
                let stays = n >> 56 & 7 == 0;
                let code = [inside::hypercall(), inside::halt()][(n >> 60 & 1) as usize];
                guest.restart(if stays { inside::spins() } else { code });
                x2apic::self_ipi(VECTOR);
                if n >> 61 & 1 == 0 { guest.enter_open() } else { guest.enter() }
            }
        }
        if n >> 62 == 0 {
            block::let_in();
        }
    }
}

/// INIT at any moment.
pub fn storm(test: &str, boot: &Boot) {
    if cpus(test, boot).is_none() {
        return;
    }
    idt::on(NMI_VECTOR, |_| {});
    idt::on(VECTOR, |_| x2apic::complete());
    READY.store(0, SeqCst);
    let seed = random::seed(boot).unwrap_or(SEED);
    let mut random = Random::new(seed);
    let (mut started, mut clean) = (0, 0);
    for round in 1..=STORMS {
        STREAM.store(random.number() | 1, SeqCst);
        smp::give(1, toggles);
        if !wait::patiently(|| READY.load(SeqCst) == round) {
            break;
        }
        wait::ticks(random.number() % 400_000);
        let starts = smp::starts(1);
        for _ in 0..random.number() % 4 {
            match random.number() % 3 {
                0 => x2apic::send(1, x2apic::command::NMI),
                1 => x2apic::send(1, u64::from(VECTOR)),
                _ => smp::stop(1),
            }
        }
        smp::stop(1);
        if random.number() & 1 == 0 {
            x2apic::send(1, x2apic::command::NMI);
        }
        wait::ticks(random.number() % 40_000);
        smp::start_up(1, smp::START_PAGES[0]);
        started += u64::from(wait::patiently(|| smp::starts(1) > starts));
        clean += u64::from(smp::left_over(1) == 0);
        if started < round {
            println!("  round {round}: another INIT: {}", smp::start(1));
            break;
        }
    }
    check!(test, started == STORMS, "seed {seed:#x}: {started} of {STORMS} INITs came");
    check!(test, clean == started, "and left {clean} clean local APICs");
}

/// INIT waits for a flag that nobody sets, and the CPU goes on or sleeps.
fn keeps(sleeps: bool) -> ! {
    other::turn_on();
    cpu::disable_interrupts();
    block::hold_again();
    x2apic::self_ipi(VECTOR);
    READY.fetch_add(1, SeqCst);
    loop {
        if sleeps {
            cpu::halt_until_interrupt();
        }
        cpu::pause();
    }
}

fn keeps_on(_: usize) {
    keeps(false);
}

fn sleeps_on(_: usize) {
    keeps(true);
}

/// Resets of the machine, and its end, while one waits.
pub fn restarted(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    if cpus(test, boot).is_none() {
        return;
    }
    let left = (x2apic::left_over_at_start(), smp::left_over(1));
    check!(test, left == (0, 0), "life {life}: nothing was left in the local APICs: {left:x?}");
    READY.store(0, SeqCst);
    let starts = smp::starts(1);
    smp::give(1, if life == 1 { keeps_on } else { sleeps_on });
    let ready = wait::patiently(|| READY.load(SeqCst) == 1);
    wait::settle();
    smp::stop(1);
    x2apic::send(1, x2apic::command::NMI);
    wait::settle();
    smp::start_up(1, smp::START_PAGES[0]);
    wait::settle();
    let held = ready && smp::starts(1) == starts;
    check!(test, held, "life {life}: INIT waits");
    if life < 2 {
        reset();
    }
}
