//! INIT for a CPU that is told of it first, in its guest, or that holds it back by its global
//! interrupt flag (APM vol. 2, 15.13.4, 15.17 and 15.21.8). The emulated machine's own CPU does
//! neither.

use super::block::{self, Guest, exit};
use super::{inside, smp as other};
use crate::counters::{Policy, policy};
use crate::{console::check, cpu, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROUNDS: u64 = 5;
const VECTOR: u8 = 0x52;

/// What the other CPU has come to: in its guest or with its flag clear; told, and not reset;
/// beyond STGI, where it must not come.
static READY: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);
static BEYOND: AtomicU64 = AtomicU64::new(0);
/// VMRUNs that came back for one.
static TOLD: AtomicU64 = AtomicU64::new(0);
/// How often INIT was sent.
static SENT: AtomicU64 = AtomicU64::new(0);

/// With the flag clear nothing resets it, until it does `then`.
fn outlive(then: fn()) {
    wait::patiently(|| SENT.load(SeqCst) >= READY.load(SeqCst));
    wait::settle();
    HELD.fetch_add(1, SeqCst);
    then();
    BEYOND.fetch_add(1, SeqCst);
    loop {
        cpu::pause();
    }
}

/// Its guest is left for it.
fn told(_: usize) {
    other::turn_on();
    let mut guest = wanting();
    READY.fetch_add(1, SeqCst);
    guest.enter_through();
    if guest.code() == exit::INIT {
        outlive(block::let_in);
    }
}

/// It runs no guest. An interrupt of its own waits, too.
fn held(_: usize) {
    hold();
    outlive(block::let_in);
}

/// VMRUN sets the flag, too; what it enters isn't left for it.
fn entered(_: usize) {
    hold();
    outlive(|| Guest::new(inside::spins()).enter_open());
}

/// The same, and what it enters is left for it: that is told first, once.
fn told_at_once(_: usize) {
    hold();
    outlive(|| {
        let mut guest = wanting();
        guest.enter_open();
        TOLD.fetch_add(u64::from(guest.code() == exit::INIT), SeqCst);
        wait::settle();
        block::let_in();
    });
}

/// A guest that spins, and is left for INIT.
fn wanting() -> Guest {
    let guest = Guest::new(inside::spins());
    guest.leave_for(block::INIT_WANTED);
    guest
}

fn hold() {
    other::turn_on();
    block::hold_again();
    x2apic::self_ipi(VECTOR);
    READY.fetch_add(1, SeqCst);
}

/// Sends them.
pub fn sent(test: &str) {
    if policy() == Policy::Bare {
        return;
    }
    TOLD.store(0, SeqCst);
    for (job, what) in [
        (told as fn(usize), "ended a guest waited for STGI"),
        (held, "came waited for STGI"),
        (entered, "came waited for VMRUN"),
        (told_at_once, "ended a guest at once waited for STGI"),
    ] {
        for count in [&READY, &HELD, &BEYOND, &SENT] {
            count.store(0, SeqCst);
        }
        let mut started = 0;
        for round in 1..=ROUNDS {
            smp::give(1, job);
            let ready = wait::patiently(|| READY.load(SeqCst) == round);
            wait::settle();
            let starts = smp::starts(1);
            smp::stop(1);
            SENT.store(round, SeqCst);
            let held = wait::patiently(|| HELD.load(SeqCst) == round);
            // It is reset by now, or will be, by that one INIT.
            smp::start_up(1, smp::START_PAGES[0]);
            let starts_again = wait::patiently(|| smp::starts(1) > starts);
            started += u64::from(ready && held && starts_again);
        }
        let (held, beyond) = (HELD.load(SeqCst), BEYOND.load(SeqCst));
        check!(
            test,
            (started, held, beyond) == (ROUNDS, ROUNDS, 0),
            "{held} INITs that {what}, and {started} were followed by a start-up"
        );
    }
    let told = TOLD.load(SeqCst);
    check!(test, told == ROUNDS, "{told} were told as soon as a guest was entered");
    let clean = smp::left_over(1);
    check!(test, clean == 0, "nothing is left in that CPU's local APIC: {clean}");
}
