//! An interrupt that waits for its hypervisor, and what that does meanwhile which has nothing to do
//! with it: VMRUN that fails, INT n of the same vector, other interrupts in service, and those that
//! another CPU sends at any moment.

use super::block::{self, Guest, exit};
use super::guarded::{
    CLASS, HIGH, LOW, NOT_PRESENT, Situation, UNSERVED, come_in, failed, keeps_flag, taken, told,
};
use super::{PROTECTION, inside, smp};
use crate::counters::{Policy, policy};
use crate::random::Random;
use crate::{console::check, cpu, idt, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::attempt;

/// Of the highest class but one; its handler doesn't complete it.
const OPEN_ENDED: u8 = 0xE1;
const TASK_PRIORITY: u32 = 0x808;
const EFER: u32 = 0xC000_0080;

/// All of them.
pub const SITUATIONS: [(&str, Situation); 9] = [
    ("VMRUN is refused", refused),
    ("VMRUN of no page", no_page),
    ("INT n of its vector", software),
    ("INT n of its vector, whose gate isn't present", software_absent),
    ("the task priority rises by WRMSR, and the guest is run", priority),
    ("a higher one is in service, and the guest is run", in_service),
    ("it is sent once more", sent_again),
    ("the flag goes up and down", flag_moves),
    ("a higher one, and the guest is run again", higher_again),
];

pub fn prepare() {
    idt::on(OPEN_ENDED, |_| {});
}

/// A guest that goes on as if nothing waited.
fn goes_on(guest: &mut Guest) -> bool {
    guest.restart(inside::cpuids());
    guest.enter_open();
    let code = guest.code();
    guest.restart(inside::spins());
    code == exit::CPUID
}

fn refused(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let asid = guest.block().get(block::ASID);
    guest.block().put(block::ASID, 0);
    guest.enter_open();
    let code = guest.code();
    guest.block().put(block::ASID, asid);
    first && code == exit::INVALID && taken() == LOW.into()
}

fn no_page(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let before = idt::count(PROTECTION);
    // Behind VMRUN.
    idt::on(PROTECTION, |frame| frame.rip += 3);
    let odd = block::Block::address() + 8;
    let none = attempt!(odd, "mov rax, {v}", "vmrun rax").is_none();
    idt::on(PROTECTION, failed);
    let faults = idt::count(PROTECTION) - before;
    first && none && faults == 1 && taken() == LOW.into()
}

fn software(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    let before = idt::count(LOW);
    idt::software_interrupt(LOW);
    let once = idt::count(LOW) == before + 1;
    let came = taken();
    // Its handler completes what it didn't begin.
    UNSERVED.store(0, SeqCst);
    first && once && came == u64::from_be_bytes([0, 0, 0, 0, 0, 0, LOW, LOW])
}

/// The fault is the instruction's.
fn software_absent(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    idt::write_gate(idt::arena(0), LOW, idt::gate(LOW, false));
    let before = idt::count(NOT_PRESENT);
    idt::on(NOT_PRESENT, |frame| {
        idt::write_gate(idt::arena(0), LOW, idt::gate(LOW, true));
        // Behind INT n.
        frame.rip += 2;
    });
    idt::software_interrupt(LOW);
    idt::on(NOT_PRESENT, failed);
    let faults = idt::count(NOT_PRESENT) - before;
    first && faults == 1 && taken() == LOW.into()
}

fn priority(guest: &mut Guest) -> bool {
    if policy() == Policy::Bare || !keeps_flag() {
        // QEMU isn't right (`in_service`), and the host holds it back by that very priority.
        return true;
    }
    let first = told(guest, LOW);
    cpu::wrmsr(TASK_PRIORITY, CLASS << 4);
    let masked = goes_on(guest);
    let waits = taken() == 0;
    cpu::wrmsr(TASK_PRIORITY, 0);
    first && masked && waits && come_in() == LOW.into()
}

/// With one that waits so QEMU's own SVM doesn't get through this.
fn in_service(guest: &mut Guest) -> bool {
    if policy() == Policy::Bare {
        return true;
    }
    let first = told(guest, LOW);
    x2apic::self_ipi(OPEN_ENDED);
    let higher = taken() == 0 && x2apic::in_service(OPEN_ENDED);
    let masked = goes_on(guest) && goes_on(guest);
    let waits = taken() == 0;
    x2apic::complete();
    first && higher && masked && waits && come_in() == LOW.into()
}

/// Once, or twice if it was in service already.
fn sent_again(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    x2apic::self_ipi(LOW);
    let came = taken();
    let twice = u64::from_be_bytes([0, 0, 0, 0, 0, 0, LOW, LOW]);
    first && (came == LOW.into() || policy() != Policy::Bare && came == twice)
}

/// IF is clear all the time.
fn flag_moves(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    for _ in 0..3 {
        block::let_in();
        block::hold();
    }
    first && taken() == LOW.into()
}

/// It is told again, and both come in their order.
fn higher_again(guest: &mut Guest) -> bool {
    let first = told(guest, LOW);
    x2apic::self_ipi(HIGH);
    guest.enter_open();
    let again = guest.code() == exit::INTR;
    first && again && taken() == u64::from_be_bytes([0, 0, 0, 0, 0, 0, HIGH, LOW])
}

/// What another CPU sends, one after the other: of several classes, more than one of some.
const SENT: [u8; 5] = [0x53, 0x58, 0x61, 0x9F, 0xE2];
const TIMES: u64 = 600;

static INSIDE: AtomicU64 = AtomicU64::new(0);
static CAME: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicU64 = AtomicU64::new(0);

/// Runs a guest, and anything between; takes what ends it, sooner or later.
fn run(_: usize) {
    smp::turn_on();
    cpu::disable_interrupts();
    let mut random = Random::new(0x5EED);
    let mut guest = Guest::new(inside::spins());
    INSIDE.store(1, SeqCst);
    while OVER.load(SeqCst) == 0 {
        let n = random.number();
        // CPUID ends it, too.
        guest.restart(if n & 1 == 0 { inside::cpuids() } else { inside::hypercall() });
        guest.enter_open();
        for step in 0..n >> 8 & 3 {
            match n >> (16 + 4 * step) & 7 {
                0 => block::let_in(),
                1 => block::hold(),
                2 => cpu::enable_interrupts(),
                3 => cpu::disable_interrupts(),
                4 => cpu::set_cr8(n >> 40 & 15),
                5 => guest.enter_open(),
                6 => x2apic::send(x2apic::id(), x2apic::command::NMI),
                _ => {
                    block::let_in();
                    cpu::enable_interrupts();
                }
            }
        }
        cpu::set_cr8(0);
        if n >> 48 & 3 == 0 {
            block::let_in();
            cpu::enable_interrupts();
            cpu::disable_interrupts();
        }
    }
    block::let_in();
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !super::SVME);
}

/// Each comes once, whatever the other CPU does meanwhile.
pub fn sent(test: &str) {
    for vector in SENT {
        idt::on(vector, |_| {
            CAME.fetch_add(1, SeqCst);
            x2apic::complete();
        });
    }
    INSIDE.store(0, SeqCst);
    let mut sent = 0;
    let ended = machine::smp::others(2, run, || {
        let all = wait::patiently(|| INSIDE.load(SeqCst) == 1)
            && (0..TIMES).all(|n| {
                let first = SENT[n as usize % SENT.len()];
                // Two at a time, every other time.
                let second = (n & 1 == 0).then_some(SENT[(n / 2) as usize % SENT.len()]);
                for vector in [Some(first), second.filter(|v| *v != first)].into_iter().flatten() {
                    x2apic::send(1, vector.into());
                    sent += 1;
                }
                wait::patiently(|| CAME.load(SeqCst) >= sent)
            });
        OVER.store(1, SeqCst);
        all
    });
    let came = CAME.load(SeqCst);
    check!(test, ended && came == sent, "{came} of {sent} interrupts of another CPU's came");
}
