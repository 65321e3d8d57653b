//! Further CPUs start, agree about who they are, and can be taken off and on again.

use crate::counters::{Policy, policy};
use crate::x2apic::command;
use crate::{acpi::Tables, boot::Boot, console::check, cpu, idt, smp, state, wait, x2apic};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Times each CPU is taken off and on again.
const RESTARTS: u64 = 50;
/// Leaf with the levels of the topology; its subleaf 1 counts the logical processors.
const TOPOLOGY: u32 = 0x0B;

/// Bits of what a CPU says of itself, right when all are set.
static RIGHT: [AtomicU64; smp::MAX] = [const { AtomicU64::new(0) }; smp::MAX];
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static LEAVE: AtomicU64 = AtomicU64::new(0);

/// First start, by one start-up IPI after which others are ignored.
pub fn start(test: &str, boot: &Boot) {
    let count = smp::listed(boot).count();
    let listed = Tables::find(boot.rsdp).map_or(0, |t| t.processors().count());
    check!(test, count > 1 && count == listed, "the MADT lists {listed} CPUs, {count} usable");
    check!(test, x2apic::is_first() && x2apic::id() == 0, "this is the first CPU, id 0");
    let counted = core::arch::x86_64::__cpuid_count(TOPOLOGY, 1).ebx as usize;
    check!(test, counted == count, "CPUID counts {counted} logical processors");
    smp::prepare();
    for cpu in smp::listed(boot).filter(|cpu| *cpu != 0) {
        if !started(test, cpu) {
            return;
        }
    }
    wait::settle();
    let once = (1..count).all(|cpu| smp::starts(cpu) == 1 && smp::start_page(cpu) == 8);
    check!(test, once, "each once, at the page of the first start-up IPI");
    identities(test, count);
    running(test, count);
}

/// A start-up IPI that comes before INIT is ignored, then the first one counts.
fn started(test: &str, cpu: usize) -> bool {
    let [first, second] = smp::START_PAGES;
    smp::stop(cpu);
    wait::ticks(1_000_000);
    smp::start_up(cpu, first);
    let came = wait::until(|| smp::starts(cpu) == 1);
    smp::start_up(cpu, second);
    smp::start_up(cpu, second);
    check!(test, came, "CPU {cpu} starts");
    came
}

fn identities(test: &str, count: usize) {
    let told = smp::all(count, |index| {
        let id = x2apic::id();
        let [leaf1, leaf_b] = [1, TOPOLOGY].map(cpu::cpuid);
        let right = [
            id as usize == index,
            leaf1.ebx >> 24 == id,
            leaf_b.edx == id,
            x2apic::logical_id() == id >> 4 << 16 | 1 << (id & 15),
            x2apic::is_first() == (index == 0),
            crate::counters::page_is_sane(),
        ];
        let bits = right.iter().enumerate().map(|(i, good)| u64::from(*good) << i).sum();
        RIGHT[index].store(bits, SeqCst);
    });
    for (cpu, right) in RIGHT.iter().enumerate().take(count) {
        let right = right.load(SeqCst);
        check!(
            test,
            told && right == 0x3F,
            "CPU {cpu}: id, CPUID, logical id, BSP flag, ledger page: {right:#x}"
        );
    }
}

/// Start-up IPIs to CPUs at work.
fn running(test: &str, count: usize) {
    ROUNDS.store(0, SeqCst);
    LEAVE.store(0, SeqCst);
    let job = |_| {
        while LEAVE.load(SeqCst) == 0 {
            ROUNDS.fetch_add(1, SeqCst);
            cpu::pause();
        }
    };
    let came = smp::others(count, job, || {
        let working = wait::until(|| ROUNDS.load(SeqCst) > 0);
        for cpu in (1..count).cycle().take(100) {
            smp::start_up(cpu, smp::START_PAGES[1]);
        }
        wait::settle();
        LEAVE.store(1, SeqCst);
        working
    });
    let once = (1..count).all(|cpu| smp::starts(cpu) == 1);
    check!(test, came && once, "start-up IPIs to CPUs at work are ignored");
}

type State = (&'static str, fn(usize));

/// What a CPU may be doing when it is taken off.
const STATES: [State; 6] = [
    ("halted for good", |_| cpu::halt_forever()),
    ("spinning with interrupts on", |_| {
        loop {
            cpu::pause();
        }
    }),
    ("with an interrupt in service, one requested, its priority raised, its timer running", |_| {
        crate::idt::on(0x51, |_| {
            x2apic::self_ipi(0x41);
            cpu::wrmsr(x2apic::TPR, 0x80);
            x2apic::start_timer(0x61, true, 100_000_000);
            ROUNDS.fetch_add(1, SeqCst);
            cpu::halt_forever()
        });
        x2apic::self_ipi(0x51);
        cpu::pause();
    }),
    ("deaf, with every interrupt requested", |_| {
        cpu::disable_interrupts();
        (0x20..=0xFE).for_each(x2apic::self_ipi);
        ROUNDS.fetch_add(1, SeqCst);
        loop {
            cpu::pause();
        }
    }),
    // Not until its interrupt is requested: where the host is to take it, Bochs holds it back.
    ("deaf, with its timer's interrupt requested", |_| {
        cpu::disable_interrupts();
        x2apic::start_timer(0x61, false, 1000);
        wait::until(|| x2apic::timer_count() == 0);
        ROUNDS.fetch_add(1, SeqCst);
        loop {
            cpu::pause();
        }
    }),
    ("idle", |_| {}),
];

/// Off by INIT, on by start-up IPI, again and again, from all kinds of work.
pub fn restart(test: &str, boot: &Boot) {
    let Some(count) = super::cpus(test, boot) else { return };
    for (what, job) in STATES {
        let (mut came, mut clean) = (0, 0);
        for round in 0..RESTARTS {
            let cpu = 1 + round as usize % (count - 1);
            let rounds = ROUNDS.load(SeqCst);
            smp::give(cpu, job);
            // Half of them hit it in the middle of the job, half wherever it is.
            if round.is_multiple_of(2) {
                wait::ticks(500_000);
                if what.contains("request") {
                    wait::until(|| ROUNDS.load(SeqCst) > rounds);
                }
            }
            let before = smp::starts(cpu);
            let up = smp::start(cpu);
            came += u64::from(up && smp::starts(cpu) == before + 1);
            clean += u64::from(smp::left_over(cpu) == 0);
        }
        check!(test, came == RESTARTS, "{what}: {came} of {RESTARTS} came on again, once each");
        check!(test, clean == RESTARTS, "{what}: {clean} of {RESTARTS} with a reset local APIC");
    }
    if policy() != Policy::Bare {
        forgotten(test, count);
        kept(test);
        cleared(test);
    }
    let worked = smp::all(count, |_| {});
    check!(test, worked, "all work afterwards");
}

/// INIT leaves XCR0 as it is (SDM vol. 3, table 10-1). QEMU's own resets it.
fn kept(test: &str) {
    static FOUND: AtomicU64 = AtomicU64::new(0);
    let job: fn(usize) = |_| FOUND.store(state::prepare(true), SeqCst);
    let ran = || smp::others(2, job, || true);
    let came = ran() && smp::start(1) && ran();
    let (found, set) = (FOUND.load(SeqCst), state::enabled(true));
    check!(test, came && found == set, "XCR0 is {found:#x} after INIT, {set:#x} before");
}

/// INIT clears CR2 and the debug status (SDM vol. 3, table 10-1).
fn cleared(test: &str) {
    static FOUND: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let set: fn(usize) = |_| {
        // SAFETY: nothing here reads either.
        unsafe {
            asm!("mov cr2, {}", "mov dr6, {}", in(reg) 0x1234_5000u64, in(reg) 0xFFFF_6FF5u64)
        }
    };
    let look: fn(usize) = |_| {
        let status: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, dr6", out(reg) status) }
        FOUND[0].store(cpu::cr2(), SeqCst);
        FOUND[1].store(status, SeqCst);
    };
    let ran = |job| smp::others(2, job, || true);
    let came = ran(set) && smp::start(1) && ran(look);
    let found = [0, 1].map(|n| FOUND[n].load(SeqCst));
    check!(test, came && found == [0, 0xFFFF_0FF0], "CR2 and DR6 after INIT: {found:x?}");
}

/// An NMI that was sent before INIT isn't taken after the start-up. On a core that all share the
/// receiver hears of the three at once. A start-up that near an INIT may be lost on a bare machine.
fn forgotten(test: &str, count: usize) {
    idt::on(2, |_| {});
    smp::count_early_nmis();
    let mut came = 0;
    for round in 0..RESTARTS {
        let cpu = 1 + round as usize % (count - 1);
        let before = smp::starts(cpu);
        x2apic::send(cpu as u32, command::NMI);
        smp::stop(cpu);
        smp::start_up(cpu, smp::START_PAGES[0]);
        came += u64::from(wait::until(|| smp::starts(cpu) > before));
    }
    check!(test, came == RESTARTS, "start-up right behind an NMI and INIT: {came} of {RESTARTS}");
    let late = smp::early_nmis();
    check!(test, late == 0, "{late} of those NMIs came after the start-up");
}
