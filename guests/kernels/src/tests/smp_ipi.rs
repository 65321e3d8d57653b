//! Fixed interrupts from CPU to CPU, by every kind of destination, counted at both ends:
//! none lost, none doubled. Each sender has a vector of its own and waits for what it sent,
//! since a local APIC keeps one request a vector.

use crate::x2apic::command::{ALL, BROADCAST, LOGICAL, LOWEST_PRIORITY, OTHERS, SELF};
use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt,
    random::Random,
    smp, wait, x2apic,
};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Interrupts of each kind, in turn.
const TIMES: u64 = 10;
/// Interrupts that go round.
const HOPS: u64 = 2000;
/// Commands of each CPU when all send to all.
const SENDS: u64 = 150;
const SEED: u64 = 0x1C2_5EED;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The CPUs of a mask, as a logical destination in cluster 0.
fn cluster(mask: u64) -> u32 {
    mask as u32
}

/// Every kind from every CPU.
pub fn kinds(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    cpu::enable_interrupts();
    COUNT.store(count, SeqCst);
    for sender in 0..count {
        if sender == 0 {
            each_kind(0);
        } else if !smp_one(sender, each_kind) {
            return check!(test, false, "CPU {sender} doesn't come to the end");
        }
        let (lost, doubled) = (LOST.swap(0, SeqCst), DOUBLED.swap(0, SeqCst));
        let sent = SENT.swap(0, SeqCst);
        if lost + doubled > 0 {
            println!("  by command {:#x}", WRONG.load(SeqCst));
        }
        check!(
            test,
            sent > 0 && lost == 0 && doubled == 0,
            "CPU {sender} sends {sent}: {lost} lost, {doubled} too many"
        );
    }
}

fn smp_one(cpu: usize, job: fn(usize)) -> bool {
    let number = smp::give(cpu, job);
    wait::patiently(|| smp::finished(cpu, number))
}

static SENT: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static DOUBLED: AtomicU64 = AtomicU64::new(0);
/// The command that went wrong.
static WRONG: AtomicU64 = AtomicU64::new(0);

fn each_kind(sender: usize) {
    let count = COUNT.load(SeqCst);
    let all = (1u64 << count) - 1;
    let others = all & !(1 << sender);
    for target in 0..count {
        several_times(sender, target as u32, 0, 1 << target);
        let logical = u32::from(target as u16) >> 4 << 16 | 1 << (target & 15);
        several_times(sender, logical, LOGICAL, 1 << target);
        several_times(sender, target as u32, LOWEST_PRIORITY, 1 << target);
    }
    for mask in 1..=all {
        deliver(sender, cluster(mask), LOGICAL, mask);
    }
    several_times(sender, 0, SELF, 1 << sender);
    several_times(sender, 0, ALL, all);
    several_times(sender, 0, OTHERS, others);
    // What stands in the destination doesn't matter beside a shorthand.
    several_times(sender, BROADCAST, OTHERS, others);
    several_times(sender, BROADCAST, SELF, 1 << sender);
    several_times(sender, BROADCAST, 0, all);
    several_times(sender, BROADCAST, LOGICAL, all);
}

fn several_times(sender: usize, destination: u32, what: u64, mask: u64) {
    for _ in 0..TIMES {
        deliver(sender, destination, what, mask);
    }
}

/// Sends one command and counts what each CPU got of it against `mask`.
fn deliver(sender: usize, destination: u32, what: u64, mask: u64) {
    if LOST.load(SeqCst) > 0 {
        return; // each further one would wait as long
    }
    let count = COUNT.load(SeqCst);
    // Of a class of its own, so that priorities differ too.
    let vector = 0x40 + 0x11 * sender as u8;
    let got = || core::array::from_fn::<u64, { smp::MAX }, _>(|c| idt::count_on(c, vector));
    let before = got();
    x2apic::send(destination, what | u64::from(vector));
    let wanted = |cpu: usize| mask >> cpu & 1;
    let enough = |now: [u64; smp::MAX]| (0..count).all(|c| now[c] >= before[c] + wanted(c));
    wait::until(|| enough(got()));
    let after = got();
    for cpu in 0..count {
        let n = after[cpu] - before[cpu];
        if n != wanted(cpu) {
            WRONG.store(u64::from(destination) << 32 | what | u64::from(vector), SeqCst);
        }
        LOST.fetch_add(wanted(cpu).saturating_sub(n), SeqCst);
        DOUBLED.fetch_add(n.saturating_sub(wanted(cpu)), SeqCst);
    }
    SENT.fetch_add(mask.count_ones().into(), SeqCst);
}

const TOKEN: u8 = 0x66;
static LEFT: AtomicU64 = AtomicU64::new(0);

/// One interrupt goes round, each handler sending the next.
pub fn ring(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    COUNT.store(count, SeqCst);
    LEFT.store(HOPS - 1, SeqCst);
    idt::on(TOKEN, |_| {
        x2apic::complete();
        if LEFT.load(SeqCst) > 0 {
            LEFT.fetch_sub(1, SeqCst);
            let next = (smp::index() + 1) % COUNT.load(SeqCst);
            x2apic::send(next as u32, u64::from(TOKEN));
        }
    });
    cpu::enable_interrupts();
    x2apic::send(1, u64::from(TOKEN));
    wait::patiently(|| idt::total(TOKEN) == HOPS);
    wait::settle();
    let total = idt::total(TOKEN);
    let share = HOPS / count as u64;
    let even = (0..count).all(|cpu| idt::count_on(cpu, TOKEN).abs_diff(share) <= 1);
    check!(test, total == HOPS && even, "{total} of {HOPS} hops, the same on each CPU");
}

static EXPECTED: [[AtomicU64; smp::MAX]; smp::MAX] =
    [const { [const { AtomicU64::new(0) }; smp::MAX] }; smp::MAX];

fn storm_vector(sender: usize) -> u8 {
    0x51 + 0x12 * sender as u8
}

/// All send to all at once, with interrupts off now and then, and priorities raised.
pub fn all_to_all(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    check!(test, true, "seed {SEED:#x}");
    COUNT.store(count, SeqCst);
    EXPECTED.iter().flatten().for_each(|cell| cell.store(0, SeqCst));
    let done = smp::all(count, storm);
    check!(test, done, "all {count} CPUs come to the end");
    wait::settle();
    let (mut sent, mut lost, mut doubled) = (0, 0, 0);
    for (sender, row) in EXPECTED.iter().enumerate().take(count) {
        for (target, expected) in row.iter().enumerate().take(count) {
            let expected = expected.load(SeqCst);
            let got = idt::count_on(target, storm_vector(sender));
            sent += expected;
            lost += expected.saturating_sub(got);
            doubled += got.saturating_sub(expected);
        }
    }
    check!(test, lost == 0 && doubled == 0, "{sent} sent: {lost} lost, {doubled} too many");
}

fn storm(sender: usize) {
    let count = COUNT.load(SeqCst);
    let all = (1u64 << count) - 1;
    let vector = storm_vector(sender);
    let mut random = Random::new(SEED + sender as u64);
    for _ in 0..SENDS {
        let r = random.number();
        let someone = (r >> 32) as usize % count;
        let some = (r >> 24) & all;
        let (destination, what, mask) = match r % 8 {
            0 => (0, SELF, 1 << sender),
            1 => (0, ALL, all),
            2 | 3 => (0, OTHERS, all & !(1 << sender)),
            4 => (BROADCAST, 0, all),
            5 if some != 0 => (cluster(some), LOGICAL, some),
            _ => (someone as u32, 0, 1 << someone),
        };
        let held = held_back(&mut random);
        for (target, cell) in EXPECTED[sender].iter().enumerate() {
            cell.fetch_add(mask >> target & 1, SeqCst);
        }
        x2apic::send(destination, what | u64::from(vector));
        if held {
            wait::ticks(random.number() % 20_000);
            cpu::wrmsr(x2apic::TPR, 0);
            cpu::enable_interrupts();
        }
        let came =
            |target: usize| idt::count_on(target, vector) >= EXPECTED[sender][target].load(SeqCst);
        if !wait::patiently(|| (0..count).all(came)) {
            return;
        }
    }
}

/// Sometimes holds interrupts back on this CPU, by flag, priority or both; says whether.
fn held_back(random: &mut Random) -> bool {
    let r = random.number();
    if r & 1 == 0 {
        return false;
    }
    if r & 6 != 0 {
        cpu::wrmsr(x2apic::TPR, r >> 8 & 0xF0);
    }
    if r & 6 != 6 {
        cpu::disable_interrupts();
    }
    true
}
