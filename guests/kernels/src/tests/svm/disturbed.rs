//! A hypervisor that does anything between the interrupt that ends its guest and its own taking it:
//! whatever that comes to, it harms nobody, and leaves nothing behind that the hypervisor can't put
//! in order again.

use super::block::{self, Guest, exit};
use super::inside;
use crate::random::Random;
use crate::{console::check, cpu, idt, x2apic};

const VECTOR: u8 = 0x52;
const NMI: u8 = 2;
const NOT_PRESENT: u8 = 11;
/// The first vector that is sent.
const FIRST: u8 = 0x40;
const ROUNDS: u64 = 1500;
/// A table without its gate.
const SHORT: u16 = VECTOR as u16 * 16 - 1;
const EFER: u32 = 0xC000_0080;
const TASK_PRIORITY: u32 = 0x808;

/// What a hypervisor may do before it takes what ended its guest, and what it had better not.
fn disturb(random: &mut Random) {
    let n = random.number();
    let vector = FIRST + (n >> 8) as u8 % (u8::MAX - FIRST);
    match n % 13 {
        0 => x2apic::complete(),
        1 => x2apic::self_ipi(vector),
        2 => cpu::set_cr8(n >> 16 & 15),
        3 => cpu::wrmsr(TASK_PRIORITY, n >> 16 & 0xFF),
        4 => block::let_in(),
        5 => block::hold(),
        6 => cpu::enable_interrupts(),
        7 => cpu::disable_interrupts(),
        8 => x2apic::send(x2apic::id(), x2apic::command::NMI),
        9 => cpu::load_idt(idt::arena(0), SHORT),
        10 => idt::load(),
        11 => idt::write_gate(idt::arena(0), VECTOR, idt::gate(VECTOR, n >> 16 & 1 == 0)),
        _ => {
            cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !super::SVME);
            cpu::wrmsr(EFER, cpu::rdmsr(EFER) | super::SVME);
        }
    }
}

/// As it was before, and nothing is in service or pending any more.
fn calm() {
    idt::load();
    idt::write_gate(idt::arena(0), VECTOR, idt::gate(VECTOR, true));
    cpu::set_cr8(0);
    cpu::wrmsr(TASK_PRIORITY, 0);
    // More than can be nested.
    (0..16).for_each(|_| x2apic::complete());
    block::let_in();
    cpu::enable_interrupts();
    cpu::disable_interrupts();
}

/// Interrupts that end a guest, and anything before they are taken.
pub fn disturbed(test: &str, random: &mut Random) {
    for vector in FIRST..=u8::MAX {
        idt::on(vector, |_| x2apic::complete());
    }
    idt::on(NMI, |_| {});
    // Of a delivery: the interrupt was taken.
    for fault in [NOT_PRESENT, super::PROTECTION] {
        idt::on(fault, |_| {
            idt::load();
            idt::write_gate(idt::arena(0), VECTOR, idt::gate(VECTOR, true));
            x2apic::complete();
        });
    }
    let mut guest = Guest::new(inside::spins());
    let (mut told, mut right) = (0, 0);
    for _ in 0..ROUNDS {
        x2apic::self_ipi(VECTOR);
        guest.enter_open();
        told += u64::from(guest.code() == exit::INTR);
        (0..random.number() % 6).for_each(|_| disturb(random));
        calm();
        let before = idt::count(VECTOR);
        x2apic::self_ipi(VECTOR);
        calm();
        right += u64::from(idt::count(VECTOR) > before && !x2apic::in_service(VECTOR));
    }
    check!(test, told == ROUNDS, "{told} interrupts ended a guest");
    check!(test, right == ROUNDS, "whatever came before, the next one came: {right}");
}
