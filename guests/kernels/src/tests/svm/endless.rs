//! A guest whose exceptions have no end: what its hypervisor is told meanwhile. By the manual such
//! a guest shuts down where a double fault can't be delivered; here its gate is on a page that
//! isn't there, which is found anew each time.

use super::block::{self, Guest, exit};
use super::{NOWHERE, inside, smp as other};
use crate::tests::cpus;
use crate::{boot::Boot, console::check, cpu, idt, smp, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const NMI_VECTOR: u8 = 2;
const VECTOR: u8 = 0x52;

static READY: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Each delivery of an exception needs a page that is nobody's.
fn raises(enter: fn(&mut Guest), wanted: u64) {
    other::turn_on();
    let mut guest = Guest::new(inside::undefined());
    guest.block().put(block::IDTR + 8, NOWHERE);
    guest.leave_for(wanted);
    READY.fetch_add(1, SeqCst);
    enter(&mut guest);
    TOLD.store(guest.code(), SeqCst);
    block::let_in();
    loop {
        cpu::pause();
    }
}

fn raises_for_interrupt(_: usize) {
    raises(Guest::enter_open, 0);
}

fn raises_for_nmi(_: usize) {
    raises(Guest::enter_through, block::NMI_WANTED);
}

fn raises_for_init(_: usize) {
    raises(Guest::enter_through, block::INIT_WANTED);
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
        ("NMI", raises_for_nmi, x2apic::command::NMI, exit::NMI),
        ("INIT", raises_for_init, x2apic::command::INIT, exit::INIT),
    ] {
        READY.store(0, SeqCst);
        TOLD.store(0, SeqCst);
        smp::give(1, job);
        let ready = wait::patiently(|| READY.load(SeqCst) == 1);
        wait::settle();
        let early = TOLD.load(SeqCst);
        check!(test, ready && early == 0, "its exceptions have no end: {early:#x}");
        x2apic::send(1, command);
        wait::until(|| TOLD.load(SeqCst) != 0);
        let code = TOLD.load(SeqCst);
        check!(test, code == wanted, "{name} is told: {code:#x}");
        check!(test, smp::start(1), "and that CPU can be started again");
    }
}
