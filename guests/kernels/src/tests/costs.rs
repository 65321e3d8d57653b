//! What an interrupt with its completion costs, and a tick, in exits by reason: said in lines of
//! which `exitless demo --machine bochs` makes a table. And what an exit takes, in instructions,
//! where the machine counts them.
//!
//! Guarantees: nothing is looked for here but that all of them come.

use super::executed::{self, Executed};
use crate::counters::{Counted, Window};
use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt, smp, wait, x2apic,
};
use core::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// How often each thing is done.
const TIMES: u64 = 1000;
const TICKS: u64 = 100;
const VECTOR: u8 = 0x51;
const TIMER: u8 = 0x52;
/// A short time and a longer one, in ticks of the timer.
const SHORT: u32 = 20_000;
const PERIOD: u32 = 200_000;

/// The reasons that occurred, with their counts, in a line.
struct Reasons(Counted);

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.each().try_for_each(|(reason, n)| write!(f, " {}={n}", reason.label()))
    }
}

/// Says what a window has of `times` of these.
fn say(what: &str, times: u64, window: Window) {
    let reasons = Reasons(window.close());
    println!("cost {what} {times}{reasons}");
}

fn came(vector: u8, count: u64) -> bool {
    wait::until(|| idt::count_on(0, vector) >= count)
}

/// Instructions that the second CPU's commands took, if they are to be counted.
static SENDING: AtomicU64 = AtomicU64::new(0);
static COUNTS: AtomicBool = AtomicBool::new(false);

/// The second CPU: interrupts the first, one after the other.
fn sends(_: usize) {
    let before = idt::count_on(0, VECTOR);
    let executed = COUNTS.load(Relaxed).then(Executed::on_this);
    let send = || x2apic::send(0, u64::from(VECTOR));
    (1..=TIMES).for_each(|n| {
        match executed {
            Some(executed) => _ = SENDING.fetch_add(executed.of(send), Relaxed),
            None => send(),
        }
        came(VECTOR, before + n);
    });
}

/// From another CPU, from itself, by a timer that is set each time, and by one that goes on.
pub fn costs(test: &str, boot: &Boot) {
    if super::cpus(test, boot).is_none() {
        return;
    }
    [VECTOR, TIMER].into_iter().for_each(|vector| idt::on(vector, |_| x2apic::complete()));
    cpu::enable_interrupts();
    let executed = Executed::here(boot);
    COUNTS.store(executed.is_some(), Relaxed);
    let window = Window::open();
    let number = smp::give(1, sends);
    let mut all = wait::patiently(|| smp::finished(1, number));
    // The sender was told by an interrupt, which exits here.
    say("sent", TIMES, window);
    if let Some(executed) = executed {
        executed::say("sent", TIMES, SENDING.load(Relaxed));
        let cpuid = || _ = cpu::cpuid(0);
        executed::say("cpuid", TIMES, (0..TIMES).map(|_| executed.of(cpuid)).sum());
    }
    let window = Window::open();
    let before = idt::count_on(0, VECTOR);
    all &= (1..=TIMES).all(|n| {
        x2apic::self_ipi(VECTOR);
        came(VECTOR, before + n)
    });
    say("own", TIMES, window);
    x2apic::start_timer(TIMER, false, SHORT);
    all &= came(TIMER, 1);
    let window = Window::open();
    all &= (1..=TICKS).all(|n| {
        cpu::wrmsr(x2apic::INITIAL_COUNT, u64::from(SHORT));
        came(TIMER, 1 + n)
    });
    say("set", TICKS, window);
    x2apic::start_timer(TIMER, true, PERIOD);
    let before = idt::count_on(0, TIMER);
    all &= came(TIMER, before + 1);
    let window = Window::open();
    all &= came(TIMER, before + 1 + TICKS);
    say("goes-on", TICKS, window);
    x2apic::stop_timer();
    check!(test, all, "all interrupts and ticks came");
}
