//! A guest whose exceptions have no end: what its hypervisor is told meanwhile. By the manual such a
//! guest shuts down where a double fault can't be delivered; here its gate is on a page that isn't
//! there, which is found anew each time.

use super::block::{self, Guest, exit};
use super::{NOWHERE, inside, smp as other};
use crate::tests::cpus;
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const NMI: u64 = 0x61;
const INIT: u64 = 0x63;
const NMI_VECTOR: u8 = 2;
const VECTOR: u8 = 0x52;
/// Among the intercepts of word 3.
const NMI_WANTED: u64 = 1 << 33;
const INIT_WANTED: u64 = 1 << 35;

static READY: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Each delivery of an exception needs a page that is nobody's.
fn raises(wanted: u64) {
    other::turn_on();
    let mut guest = Guest::new(inside::undefined());
    let block = guest.block();
    block.put(block::IDTR + 8, NOWHERE);
    block.put(block::EXCEPTIONS, block.get(block::EXCEPTIONS) | wanted);
    READY.fetch_add(1, SeqCst);
    guest.enter_open();
    while guest.code() == exit::INTR && wanted != 0 {
        block::let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
        guest.enter_open();
    }
    TOLD.store(guest.code(), SeqCst);
    block::let_in();
    loop {
        cpu::pause();
    }
}

fn raises_for_nmi(_: usize) {
    raises(NMI_WANTED);
}

fn raises_for_init(_: usize) {
    raises(INIT_WANTED);
}

fn raises_for_interrupt(_: usize) {
    raises(0);
}

/// A guest whose exceptions have no end, and what its hypervisor is told.
pub fn endless(test: &str, boot: &Boot) {
    if cpus(test, boot).is_none() {
        return;
    }
    idt::on(NMI_VECTOR, |_| {});
    idt::on(VECTOR, |_| x2apic::complete());
    for (name, job, command, wanted) in [
        ("an interrupt", raises_for_interrupt as fn(usize), u64::from(VECTOR), exit::INTR),
        ("NMI", raises_for_nmi, x2apic::command::NMI, NMI),
        ("INIT", raises_for_init, x2apic::command::INIT, INIT),
    ] {
        READY.store(0, SeqCst);
        TOLD.store(0, SeqCst);
        smp::give(1, job);
        let ready = wait::patiently(|| READY.load(SeqCst) == 1);
        wait::settle();
        let before = TOLD.load(SeqCst);
        // A processor finds no gate there, and shuts down.
        if before == exit::SHUTDOWN {
            println!("  it shut down");
        } else {
            x2apic::send(1, command);
            let told = wait::until(|| TOLD.load(SeqCst) != 0);
            let code = TOLD.load(SeqCst);
            check!(test, ready && told && code == wanted, "{name} is told: {code:#x}");
            if !told {
                x2apic::send(1, u64::from(VECTOR));
                let then = wait::until(|| TOLD.load(SeqCst) != 0);
                println!("  behind an interrupt: {then}, {:#x}", TOLD.load(SeqCst));
            }
        }
        println!("  started again: {}", smp::start(1));
    }
}
