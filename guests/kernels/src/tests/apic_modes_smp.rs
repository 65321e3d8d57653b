//! xAPIC mode on several CPUs: interrupts from CPU to CPU by each kind of destination, counted at
//! both ends, among CPUs in one mode and in both; and CPUs that are started from it.

use crate::x2apic::command::{ALL, LOGICAL, LOWEST_PRIORITY, NMI, OTHERS, SELF};
use crate::{boot::Boot, console::check, cpu, idt, smp, wait, x2apic, xapic};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

const TIMES: u64 = 5;
const VECTOR: u8 = 0x58;
const EVERYBODY: u32 = 0xFF;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);

/// The model and each CPU's logical id: a bit each; two to a cluster.
fn choose(cluster: bool) {
    let cpu = smp::index() as u32;
    let logical = if cluster { (cpu / 2) << 4 | 1 << (cpu % 2) } else { 1 << cpu };
    xapic::write(xapic::FORMAT, if cluster { 0x0FFF_FFFF } else { u32::MAX });
    xapic::write(xapic::LOGICAL_DESTINATION, logical << 24);
}

/// Every kind from every CPU, all in xAPIC mode; then with some in x2APIC mode.
pub fn kinds(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    COUNT.store(count, SeqCst);
    idt::on(VECTOR, |_| x2apic::complete());
    let verdict = |what: &str, sent: fn(usize)| {
        let mut came = true;
        for sender in 0..count {
            came &= one(sender, sent);
        }
        let (sent, wrong) = (SENT.swap(0, SeqCst), WRONG.swap(0, SeqCst));
        check!(test, came && sent > 0 && wrong == 0, "{what}: {sent} sent, wrong by {wrong:#x}");
    };
    let all = |job: fn(usize)| (0..count).all(|cpu| one(cpu, job));
    check!(test, all(|_| xapic::enter()), "all are in xAPIC mode");
    verdict("physical ids and shorthands", physical);
    all(|_| choose(false));
    verdict("flat model", flat);
    all(|_| choose(true));
    verdict("cluster model", clusters);
    all(|cpu| {
        if cpu % 2 == 1 {
            xapic::leave()
        }
    });
    verdict("physical ids, the odd ones in x2APIC mode", physical);
    all(|_| {
        if xapic::is_on() {
            xapic::leave()
        }
    });
    verdict("all in x2APIC mode again", physical);
}

fn one(cpu: usize, job: fn(usize)) -> bool {
    cpu::enable_interrupts();
    if cpu == smp::index() {
        job(cpu);
        return true;
    }
    let number = smp::give(cpu, job);
    wait::patiently(|| smp::finished(cpu, number))
}

fn physical(sender: usize) {
    let (count, me) = (COUNT.load(SeqCst), 1 << sender);
    let all = (1u64 << count) - 1;
    for target in 0..count {
        deliver(target as u32, 0, 1 << target);
    }
    deliver(0, SELF, me);
    deliver(0, ALL, all);
    deliver(0, OTHERS, all & !me);
    deliver(EVERYBODY, OTHERS, all & !me);
    if xapic::is_on() {
        deliver(EVERYBODY, 0, all);
        deliver(EVERYBODY, LOGICAL, all);
        // Nobody has this id.
        deliver(0x40, 0, 0);
    }
}

fn flat(_: usize) {
    let all = (1u64 << COUNT.load(SeqCst)) - 1;
    for set in 1..=all {
        deliver(set as u32, LOGICAL, set);
        deliver_one(set as u32, LOGICAL | LOWEST_PRIORITY, set);
    }
    deliver(0x80, LOGICAL, 0);
}

fn clusters(_: usize) {
    let count = COUNT.load(SeqCst);
    for cluster in 0..count.div_ceil(2) as u64 {
        for members in 1..4u64 {
            let set = members << (2 * cluster) & ((1 << count) - 1);
            deliver((cluster << 4 | members) as u32, LOGICAL, set);
        }
    }
    deliver(0xE3, LOGICAL, 0);
}

fn deliver(destination: u32, what: u64, mask: u64) {
    for _ in 0..TIMES {
        let before = counts();
        x2apic::send(destination, what | u64::from(VECTOR));
        let wanted = |cpu: usize| before[cpu] + (mask >> cpu & 1);
        wait::until(|| counts().iter().enumerate().all(|(cpu, n)| *n >= wanted(cpu)));
        note(destination, what, (0..smp::MAX).all(|cpu| counts()[cpu] == wanted(cpu)));
    }
}

/// One of the set gets it, whichever.
fn deliver_one(destination: u32, what: u64, mask: u64) {
    let before = counts();
    let total = || counts().iter().sum::<u64>() - before.iter().sum::<u64>();
    x2apic::send(destination, what | u64::from(VECTOR));
    wait::until(|| total() >= 1);
    let outside = (0..smp::MAX).any(|cpu| mask >> cpu & 1 == 0 && counts()[cpu] != before[cpu]);
    note(destination, what, total() == 1 && !outside);
}

fn note(destination: u32, what: u64, right: bool) {
    SENT.fetch_add(1, SeqCst);
    if !right {
        WRONG.store(u64::from(destination) << 32 | what | 1, SeqCst);
    }
}

fn counts() -> [u64; smp::MAX] {
    core::array::from_fn(|cpu| idt::count_on(cpu, VECTOR))
}

/// INIT, start-up and NMI sent by the page; INIT leaves the mode as it is; a CPU whose APIC is off
/// hears of nothing.
pub fn start(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    idt::on(2, |_| {});
    xapic::enter();
    for target in 1..count {
        check!(test, smp::start(target), "CPU {target} starts by xAPIC commands");
        let left = smp::left_over(target);
        check!(test, left == 0, "and finds its APIC reset: {left:#x}");
        let before = idt::count_on(target, 2);
        x2apic::send(target as u32, NMI);
        let came = wait::until(|| idt::count_on(target, 2) == before + 1);
        check!(test, came, "CPU {target} takes an NMI");
    }
    one(1, |_| xapic::enter());
    check!(test, smp::start(1), "CPU 1 starts again in xAPIC mode");
    check!(test, smp::start_mode(1) == xapic::Mode::Xapic as u64, "INIT leaves it there");
    one(1, off_for_a_while);
    let (nmis, number) = (idt::count_on(1, 2), smp::give_silently(1, |_| x2apic::init_cpu()));
    let before = smp::starts(1);
    x2apic::send(1, NMI);
    x2apic::send(1, crate::x2apic::command::INIT);
    wait::settle();
    let deaf = idt::count_on(1, 2) == nmis && smp::starts(1) == before;
    check!(test, deaf && !smp::finished(1, number), "without an APIC neither NMI nor INIT arrive");
    xapic::leave();
}

fn off_for_a_while(_: usize) {
    let _ = xapic::try_mode(xapic::Mode::Off);
}
