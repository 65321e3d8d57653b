//! A guest's own global interrupt flag, which the CPU keeps for it (V_GIF), and each kind of
//! interrupt: virtual ones it holds, from whoever clears it on. What is physical leaves the guest
//! whatever it is, and what is injected comes (APM vol. 2, 15.21.4 and 15.33.2).

use super::block::{self, Guest, exit, hold, let_in};
use super::{begin, end, inside};
use crate::{boot::Boot, console::check, cpu, idt, x2apic};

const VECTOR: u8 = 0x62;
/// What arrives for this kernel.
const OWN: u8 = 0x54;
const NMI: u8 = 2;
/// In word 60h: V_IRQ, a priority of 6, the vector.
const OFFER: u64 = V_IRQ | 6 << 16 | (VECTOR as u64) << 32;
const V_IRQ: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
/// Of the second word of intercepts.
const VINTR_WANTED: u64 = 1 << 36;
const VINTR: u64 = 0x64;
/// Of the third one: STGI and CLGI.
const FLAG_WANTED: u64 = 0x30;
const STGI_WANTED: u64 = 0x10;
/// Bytes of VMMCALL, and of STGI.
const CALL: u64 = 3;
const INTERRUPT_COMMAND: u32 = 0x830;

/// Why the guest was left, its flag, whether the offer waits, and how many came to it.
type Seen = (u64, bool, bool, u64);

/// All of it.
pub fn gif(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    let kept = cpu::cpuid(0x8000_000A).edx >> 16 & 1 == 1;
    check!(test, kept, "a flag that the CPU keeps for guests");
    idt::on(OWN, |_| x2apic::complete());
    idt::on(NMI, |_| {});
    virtual_interrupt(test);
    opened(test);
    window(test);
    injected(test);
    physical(test);
    sent(test);
    end();
}

/// One that executes CLGI and STGI itself, with IF, its flag, and an interrupt on offer.
fn guest(rip: u64, flag: u64) -> Guest {
    let guest = Guest::new(rip);
    let block = guest.block();
    block.put(block::MISC2, block.get(block::MISC2) & !FLAG_WANTED);
    block.put(block::INT_CTL, block::MASKING | block::FLAG_KEPT | flag | OFFER);
    block.put(block::RFLAGS, 2 | RFLAGS_IF);
    guest.count_interrupts();
    guest
}

fn want(guest: &Guest, at: usize, bits: u64, on: bool) {
    let others = guest.block().get(at) & !bits;
    guest.block().put(at, if on { others | bits } else { others });
}

fn seen(guest: &Guest) -> Seen {
    let word = guest.block().get(block::INT_CTL);
    (guest.code(), word & block::FLAG != 0, word & V_IRQ != 0, guest.registers.rdi)
}

/// To its next exit, which it goes on behind if it was its call.
fn next(guest: &mut Guest) -> Seen {
    guest.run();
    if guest.code() == exit::VMMCALL {
        guest.skip(CALL);
    }
    seen(guest)
}

/// It waits while the flag is clear, and comes behind STGI.
fn virtual_interrupt(test: &str) {
    let mut held = guest(inside::gates(), 0);
    let stops = [0; 3].map(|_| next(&mut held));
    let wanted = [
        (exit::VMMCALL, false, true, 0),
        (exit::VMMCALL, false, true, 0),
        (exit::VMMCALL, true, false, 1),
    ];
    check!(test, stops == wanted, "the flag clear, and its own CLGI and STGI: {stops:x?}");
    let mut open = guest(inside::gates(), block::FLAG);
    let first = next(&mut open);
    let right = first == (exit::VMMCALL, true, false, 1);
    check!(test, right, "the flag set: {first:x?}");
    // With IF clear up to its CLGI there is another one.
    want(&open, block::INT_CTL, V_IRQ, true);
    open.block().put(block::RFLAGS, 2);
    let stops = [0; 2].map(|_| next(&mut open));
    let wanted = [(exit::VMMCALL, false, true, 1), (exit::VMMCALL, true, false, 2)];
    check!(test, stops == wanted, "then its own CLGI and STGI: {stops:x?}");
}

/// This kernel is told of STGI, and sets the flag itself, as KVM does.
fn opened(test: &str) {
    let mut guest = guest(inside::gates(), 0);
    want(&guest, block::MISC2, STGI_WANTED, true);
    let stops = [0; 3].map(|_| next(&mut guest));
    let right = stops[2] == (exit::STGI, false, true, 0);
    check!(test, right, "STGI told, and nothing came: {stops:x?}");
    want(&guest, block::INT_CTL, block::FLAG, true);
    guest.skip(CALL);
    let last = next(&mut guest);
    let right = last == (exit::VMMCALL, true, false, 1);
    check!(test, right, "it comes by the flag that this kernel sets: {last:x?}");
}

/// There is no window for one while the flag is clear.
fn window(test: &str) {
    let mut held = guest(inside::gates(), 0);
    want(&held, block::EXCEPTIONS, VINTR_WANTED, true);
    let stops = [0; 3].map(|_| next(&mut held));
    let wanted =
        [(exit::VMMCALL, false, true, 0), (exit::VMMCALL, false, true, 0), (VINTR, true, true, 0)];
    check!(test, stops == wanted, "a window is told behind STGI: {stops:x?}");
    want(&held, block::EXCEPTIONS, VINTR_WANTED, false);
    let last = next(&mut held);
    let right = last == (exit::VMMCALL, true, false, 1);
    check!(test, right, "and it comes when nobody asks: {last:x?}");
    let mut open = guest(inside::gates(), block::FLAG);
    want(&open, block::EXCEPTIONS, VINTR_WANTED, true);
    let first = next(&mut open);
    let right = first == (VINTR, true, true, 0) && open.block().get(block::RIP) == inside::gates();
    check!(test, right, "at once with the flag set: {first:x?}");
}

/// What is injected comes, before what is on offer.
fn injected(test: &str) {
    for (name, event) in [
        ("an interrupt", u64::from(VECTOR)),
        ("an NMI", 2 << 8 | u64::from(NMI)),
        ("an exception", 3 << 8 | 6),
    ] {
        for flag in [0, block::FLAG] {
            let is_set = flag != 0;
            let mut guest = guest(inside::gates(), flag);
            guest.block().put(block::EVENT_INJ, 1 << 31 | event);
            let first = next(&mut guest);
            let came = 1 + u64::from(is_set);
            let right = first == (exit::VMMCALL, is_set, !is_set, came);
            check!(test, right, "{name} injected, the flag {is_set}: {first:x?}");
            let stops = [0; 2].map(|_| next(&mut guest));
            let right = stops[1] == (exit::VMMCALL, true, false, 2);
            check!(test, right, "and behind STGI: {stops:x?}");
        }
    }
}

/// How many of this kernel's came.
fn came(vector: u8) -> u64 {
    idt::count(vector)
}

/// What is physical: the exit, its vector, how it is sent.
const PHYSICAL: [(&str, u64, u8, u64); 2] = [
    ("an interrupt", exit::INTR, OWN, OWN as u64),
    ("an NMI", exit::NMI, NMI, x2apic::command::NMI),
];

/// This kernel has it, which left a guest for it.
fn taken(vector: u8, before: u64) -> (u64, u64) {
    let early = came(vector) - before;
    let_in();
    cpu::enable_interrupts();
    cpu::disable_interrupts();
    (early, came(vector) - before)
}

/// One that waits at VMRUN leaves the guest in front of its first instruction.
fn physical(test: &str) {
    for (name, code, vector, command) in PHYSICAL {
        for flag in [0, block::FLAG] {
            let is_set = flag != 0;
            let mut guest = guest(inside::gates(), flag);
            want(&guest, block::EXCEPTIONS, block::NMI_WANTED, true);
            let before = came(vector);
            hold();
            x2apic::send(x2apic::id(), command);
            guest.enter_open();
            let (first, at) = (seen(&guest), guest.block().get(block::RIP));
            let taken = taken(vector, before);
            let right = first == (code, is_set, true, 0) && at == inside::gates();
            check!(
                test,
                right && taken == (0, 1),
                "{name}, the flag {is_set}: {first:x?} {taken:?}"
            );
            let next = next(&mut guest);
            let right = next == (exit::VMMCALL, is_set, !is_set, u64::from(is_set));
            check!(test, right, "and it goes on: {next:x?}");
        }
    }
}

/// So does one that the guest sends behind its own CLGI or STGI.
fn sent(test: &str) {
    for (name, code, vector, command) in PHYSICAL {
        for (rip, flag, is_set) in
            [(inside::closes(), block::FLAG, false), (inside::lets(), 0, true)]
        {
            let mut guest = guest(rip, flag);
            want(&guest, block::EXCEPTIONS, block::NMI_WANTED, true);
            block::let_msr(INTERRUPT_COMMAND, false, true);
            guest.block().put(block::RFLAGS, 2);
            guest.block().put(block::RAX, command);
            guest.registers.rcx = INTERRUPT_COMMAND.into();
            guest.registers.rdx = x2apic::id().into();
            let before = came(vector);
            guest.enter_open();
            let last = seen(&guest);
            let taken = taken(vector, before);
            let right = last == (code, is_set, !is_set, u64::from(is_set));
            check!(
                test,
                right && taken == (0, 1),
                "{name} sent, the flag {is_set}: {last:x?} {taken:?}"
            );
        }
    }
}
