//! A neighbour: beats by its timer and watches its memory, while another VM
//! attacks. `beats=N` on the command line says how long.

use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt,
    random::Random,
    x2apic,
};

/// A fifth of a second, in ticks of QEMU's timer.
const PERIOD: u32 = 200_000_000;
/// Bytes of memory watched.
const WATCHED: u64 = 8 << 20;

/// Beats and watches.
pub fn heartbeat(test: &str, boot: &Boot) {
    let beats = boot.option("beats").and_then(|n| n.parse().ok()).unwrap_or(20u64);
    let free = boot.free_memory();
    let words = (free.end - free.start).min(WATCHED) / 8;
    let first = free.start as *mut u64;
    let mut random = Random::new(1);
    for i in 0..words {
        // SAFETY: inside memory the loader says is free.
        unsafe { first.add(i as usize).write_volatile(random.number()) }
    }
    let damaged = || {
        let mut random = Random::new(1);
        // SAFETY: as above.
        let word = |i| unsafe { first.add(i as usize).read_volatile() };
        (0..words).filter(|i| word(*i) != random.number()).count()
    };
    x2apic::start_timer(0x50, true, PERIOD);
    for beat in 1..=beats {
        while idt::count(0x50) < beat {
            cpu::halt_until_interrupt();
        }
        println!("heartbeat {beat}");
        if damaged() != 0 {
            break;
        }
    }
    x2apic::stop_timer();
    let damaged = damaged();
    check!(test, damaged == 0, "{damaged} of {words} words of memory changed");
    let n = idt::count(0x50);
    check!(test, n >= beats, "{n} beats, {beats} wanted");
}
