//! What a CPU holds besides general registers is a guest's own: while the host answers its exits,
//! and while another guest has the core, whose values are others (`own=N` makes them).

use crate::counters::{Slices, shared};
use crate::state::{self, State};
use crate::{boot::Boot, console::check, cpu, edu::Edu, idt, pci, random::Random, wait};

/// How often everything gets other values.
const ROUNDS: u64 = 40;
/// Ticks of the TSC after which no other guest wants the core: many slices.
const ALONE: u64 = 1 << 30;

/// Interrupts off, device interrupts aimed at it: under `eli` it would take them itself.
pub fn state(test: &str, boot: &Boot) {
    let own = boot.option("own").and_then(|n| n.parse().ok()).unwrap_or(1u64);
    if let Some(edu) = Edu::find() {
        edu.aim_handled(0x40);
        cpu::enable_interrupts();
        let n = edu.raise_and_wait(0x40, 1);
        cpu::disable_interrupts();
        check!(test, n == 1, "a device's interrupt came");
    }
    // Guests differ in XCR0, too.
    state::prepare(own % 2 == 1);
    let mut random = Random::new(0x57A7_E000 + own);
    let mut lost = None;
    let mut away = true;
    for _ in 0..ROUNDS {
        let mine = State::random(&mut random);
        mine.load();
        away &= something_else();
        let now = State::now();
        lost = mine.unlike(&now).next();
        if lost.is_some() || !away {
            break;
        }
    }
    cpu::set_cr8(0);
    check!(test, away, "others had the core {ROUNDS} times");
    check!(test, lost.is_none(), "what it held is there again: {}", lost.unwrap_or("all of it"));
    check!(test, idt::count(0x40) <= 1, "no interrupt came unasked for");
    if shared() {
        give_others_time();
    }
}

/// Who is done goes on having its share of the core, until another has been away from it as often
/// as this one, or nobody else is there: an absence that comes while values are made isn't counted,
/// so the other may be behind.
fn give_others_time() {
    let mut seen = Slices::so_far();
    for _ in 0..ROUNDS {
        let start = cpu::tsc();
        while Slices::so_far() == seen {
            if cpu::tsc().wrapping_sub(start) > ALONE {
                return;
            }
            cpu::pause();
        }
        seen = Slices::so_far();
    }
}

/// Another guest has the core, or on a core of its own the host has some exits; false: never.
pub fn something_else() -> bool {
    if shared() {
        let before = Slices::so_far();
        return wait::patiently(|| Slices::so_far() > before);
    }
    cpu::cpuid(0);
    cpu::inb(0x80);
    let _ = cpu::try_rdmsr(0xFFFF_FFFF);
    pci::Function { device: 0, function: 0 }.read(0);
    true
}
