//! A neighbour: beats by its timer and watches its memory, while another VM
//! attacks. `beats=N` on the command line says how long; without it, until a byte is typed,
//! which says that the others have ended, and a little longer. With `busy=1` it never sleeps.

use crate::{
    boot::Boot,
    console::{check, println, typed},
    cpu, idt,
    random::Random,
    x2apic,
};
use core::ops::Range;

/// A twentieth of a second, in ticks of QEMU's timer.
const PERIOD: u32 = 50_000_000;
/// Beats after the byte.
const AFTER: u64 = 5;
/// Bytes of memory watched.
const WATCHED: u64 = 8 << 20;
/// Parts of it, of which each beat looks at one.
const PARTS: u64 = 16;

/// Beats and watches.
pub fn heartbeat(test: &str, boot: &Boot) {
    let mut last = boot.option("beats").and_then(|n| n.parse::<u64>().ok());
    let free = boot.free_memory();
    let words = (free.end - free.start).min(WATCHED) / 8 / PARTS * PARTS;
    let first = free.start as *mut u64;
    // What a word is, without those before it.
    let seeded = |i: u64| Random::new(i + 1).number();
    for i in 0..words {
        // SAFETY: inside memory the loader says is free.
        unsafe { first.add(i as usize).write_volatile(seeded(i)) }
    }
    // SAFETY: as above.
    let word = |i: u64| unsafe { first.add(i as usize).read_volatile() };
    let damaged = |part: Range<u64>| part.filter(|i| word(*i) != seeded(*i)).count();
    x2apic::start_timer(0x50, true, PERIOD);
    let mut beat = 0;
    while last.is_none_or(|last| beat < last) {
        beat += 1;
        while idt::count(0x50) < beat {
            if boot.option("busy").is_some() {
                cpu::enable_interrupts();
                cpu::pause();
                cpu::disable_interrupts();
            } else {
                cpu::halt_until_interrupt();
            }
        }
        println!("heartbeat {beat}");
        let part = words / PARTS * (beat % PARTS);
        if damaged(part..part + words / PARTS) != 0 {
            break;
        }
        if last.is_none() && typed().is_some() {
            last = Some(beat + AFTER);
        }
    }
    x2apic::stop_timer();
    let damaged = damaged(0..words);
    check!(test, damaged == 0, "{damaged} of {words} words of memory changed");
    let n = idt::count(0x50);
    check!(test, last.is_some_and(|last| n >= last), "{n} beats, {last:?} wanted");
}
