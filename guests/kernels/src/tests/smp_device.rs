//! A device's interrupt goes where the guest sends it, also while it is being sent there.

use super::edu;
use crate::x2apic::command;
use crate::{
    boot::Boot, console::check, cpu, edu, edu::Edu, idt, random::Random, smp, wait, x2apic,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Interrupts raised while the target moves.
const RAISED: u64 = 600;
const VECTORS: [u8; 4] = [0x41, 0x63, 0x85, 0xA7];
const SEED: u64 = 0xAFF1;
/// How often a CPU is left alone.
const LEFT: usize = 5;

static LEAVE: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ROUTED: AtomicU64 = AtomicU64::new(0);

fn handled() -> u64 {
    VECTORS.into_iter().map(idt::total).sum()
}

/// Raised on one CPU without a break, re-targeted by another at random CPUs and vectors.
pub fn affinity(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    let Some(count) = super::cpus(test, boot) else { return };
    check!(test, true, "seed {SEED:#x}");
    VECTORS.into_iter().for_each(|v| idt::on(v, |_| x2apic::complete()));
    edu.aim(VECTORS[0]);
    LEAVE.store(0, SeqCst);
    ROUTED.store(0, SeqCst);
    COUNT.store(count, SeqCst);
    cpu::enable_interrupts();
    let mut raised = 0;
    let came = smp::others(2, route_about, || {
        while raised < RAISED {
            // At least one change between two interrupts, and more while each is under way.
            let routed = ROUTED.load(SeqCst);
            let moving = wait::patiently(|| ROUTED.load(SeqCst) > routed);
            edu::raise();
            raised += 1;
            if !moving || !wait::patiently(|| handled() >= raised) {
                break;
            }
        }
        LEAVE.store(1, SeqCst);
        true
    });
    wait::settle();
    let (handled, routed) = (handled(), ROUTED.load(SeqCst));
    check!(
        test,
        came && handled == raised && raised == RAISED,
        "{handled} handled of {raised} raised, re-targeted {routed} times"
    );
    let shares: [u64; smp::MAX] =
        core::array::from_fn(|cpu| VECTORS.into_iter().map(|v| idt::count_on(cpu, v)).sum());
    check!(test, shares[..count].iter().all(|n| *n > 0), "by CPU: {:?}", &shares[..count]);
    stays(test, &edu, count);
    edu.silence();
}

fn route_about(_: usize) {
    let Some(edu) = Edu::find() else { return };
    let mut random = Random::new(SEED);
    while LEAVE.load(SeqCst) == 0 {
        let r = random.number();
        if r & 1 == 0 {
            edu.route((r >> 8) as usize % COUNT.load(SeqCst));
        } else {
            edu.set_vector(VECTORS[(r >> 8) as usize % VECTORS.len()]);
        }
        ROUTED.fetch_add(1, SeqCst);
    }
}

/// When the guest has moved it, it comes to the new CPU alone, at the new vector alone.
fn stays(test: &str, edu: &Edu, count: usize) {
    let mut right = 0;
    let mut wanted = 0;
    for (i, vector) in VECTORS.into_iter().cycle().take(3 * count).enumerate() {
        let target = i % count;
        edu.set_vector(vector);
        edu.route(target);
        let before = (idt::count_on(target, vector), handled());
        for n in 1..=5 {
            edu::raise();
            wait::until(|| handled() >= before.1 + n);
        }
        wanted += 5;
        let there = idt::count_on(target, vector) - before.0;
        right += if handled() == before.1 + 5 { there } else { 0 };
    }
    check!(test, right == wanted, "{right} of {wanted} where they were sent");
}

/// Routed to a CPU that is off: nobody else gets it, and the CPU comes on again as ever.
pub fn offline(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    let Some(count) = super::cpus(test, boot) else { return };
    cpu::enable_interrupts();
    let target = count - 1;
    edu.aim_handled(0x41);
    edu.route(target);
    edu::raise();
    let came = wait::until(|| idt::count_on(target, 0x41) == 1);
    check!(test, came, "it comes to CPU {target} while that is on");
    let mut right = 0;
    for _ in 0..10 {
        smp::stop(target);
        let before = idt::total(0x41);
        for _ in 0..5 {
            edu::raise();
        }
        wait::ticks(5_000_000);
        let elsewhere = idt::total(0x41) - before;
        edu.route(0);
        let here = idt::count(0x41);
        edu::raise();
        let came = wait::until(|| idt::count(0x41) == here + 1);
        edu.route(target);
        edu::raise();
        let up = smp::start(target);
        wait::ticks(5_000_000);
        let before = idt::count_on(target, 0x41);
        edu::raise();
        let again = wait::until(|| idt::count_on(target, 0x41) == before + 1);
        right += u64::from(elsewhere == 0 && came && up && again);
    }
    check!(test, right == 10, "off with its interrupts still coming, on again: {right} of 10");
    let up = left_alone(&edu, boot, count);
    check!(test, up, "awake by a device, on a core that all others have left; they come on again");
    edu.silence();
}

/// The others go while this CPU sleeps: a core that they share is nobody's when the device is done,
/// a tenth of a second later. Hangs if that is lost.
fn left_alone(edu: &Edu, boot: &Boot, count: usize) -> bool {
    edu.route(0);
    let mut up = true;
    for _ in 0..LEFT {
        (2..count).for_each(smp::stop);
        LEAVE.store(0, SeqCst);
        ROUTED.store(0, SeqCst);
        smp::give(1, |cpu| {
            ROUTED.store(1, SeqCst);
            while LEAVE.load(SeqCst) == 0 {
                cpu::pause();
            }
            x2apic::send(cpu as u32, command::INIT);
            cpu::halt_forever()
        });
        up &= wait::patiently(|| ROUTED.load(SeqCst) == 1);
        cpu::disable_interrupts();
        let before = idt::count(0x41);
        edu.start_and_tell(boot.free_memory().start, 64);
        LEAVE.store(1, SeqCst);
        while idt::count(0x41) == before {
            cpu::halt_until_interrupt();
        }
        cpu::enable_interrupts();
        up &= (1..count).all(smp::start);
    }
    up
}
