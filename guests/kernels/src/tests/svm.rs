//! This kernel as a hypervisor: guests of a few instructions, by SVM, bare or as a guest itself.
//!
//! The same must come of each on QEMU's own SVM and on what Exitless makes of it for its guests.

mod ahead;
mod avic;
mod block;
mod cost;
mod delivered;
mod disturbed;
mod emulated;
mod endless;
mod gif;
mod guarded;
mod hostile;
mod init_storms;
mod inits;
mod inside;
mod intercepts;
mod interrupts;
mod levels;
mod open;
mod paging;
mod posted;
mod prices;
mod registers;
mod rewritten;
mod smp;
mod turns;
mod waiting;

use crate::counters::{Policy, Window, policy};
use crate::{acpi, boot::Boot, console::check, console::println, cpu};
use block::{Block, Guest, exit};
use ledger::Reason;
use machine::attempt;

const EFER: u32 = 0xC000_0080;
const SVME: u64 = 1 << 12;
const VM_CR: u32 = 0xC001_0114;
const VM_HSAVE_PA: u32 = 0xC001_0117;
const UNDEFINED: u8 = 6;
const PROTECTION: u8 = 13;
/// Nobody's memory.
const NOWHERE: u64 = 0x9000_0000;

/// Turns SVM on; false: it isn't there.
fn begin(test: &str) -> bool {
    let offered = cpu::cpuid(0x8000_0001).ecx >> 2 & 1 == 1;
    check!(test, offered, "CPUID 8000_0001 ECX says SVM");
    let leaf = cpu::cpuid(0x8000_000A);
    check!(test, leaf.edx & 1 == 1 && leaf.ebx > 1, "nested paging, {} ASIDs", leaf.ebx);
    check!(test, cpu::rdmsr(VM_CR) & 0x10 == 0, "VM_CR: it isn't disabled");
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) | SVME);
    check!(test, cpu::rdmsr(EFER) & SVME != 0, "EFER.SVME is set");
    cpu::wrmsr(VM_HSAVE_PA, block::host_save());
    check!(test, cpu::rdmsr(VM_HSAVE_PA) == block::host_save(), "VM_HSAVE_PA is kept");
    offered
}

/// Turns it off again.
fn end() {
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !SVME);
}

/// What isn't SVM's yet, or is wrong from the start.
fn refused(test: &str) {
    let fault = attempt!(Block::address(), "mov rax, {v}", "vmrun rax").map(|f| f.vector);
    check!(test, fault == Some(UNDEFINED), "VMRUN without EFER.SVME: {fault:?}");
    let fault = attempt!(0u64, "mov rax, {v}", "clgi").map(|f| f.vector);
    check!(test, fault == Some(UNDEFINED), "CLGI without it: {fault:?}");
    if !begin(test) {
        return;
    }
    let odd = Block::address() + 8;
    for (name, fault) in [
        ("VMRUN", attempt!(odd, "mov rax, {v}", "vmrun rax")),
        ("VMLOAD", attempt!(odd, "mov rax, {v}", "vmload rax")),
        ("VMSAVE", attempt!(odd, "mov rax, {v}", "vmsave rax")),
    ] {
        let vector = fault.map(|f| f.vector);
        check!(test, vector == Some(PROTECTION), "{name} of no page: {vector:?}");
    }
    if policy() != Policy::Bare {
        // Nothing is there.
        let fault = attempt!(0x9000_0000u64, "mov rax, {v}", "vmrun rax").map(|f| f.vector);
        check!(test, fault == Some(PROTECTION), "VMRUN where no memory is: {fault:?}");
        for round in 0..2 {
            for (name, fault) in [
                ("VMLOAD", attempt!(0x9000_0000u64, "mov rax, {v}", "vmload rax")),
                ("VMSAVE", attempt!(0x9000_0000u64, "mov rax, {v}", "vmsave rax")),
            ] {
                let vector = fault.map(|f| f.vector);
                check!(test, vector == Some(PROTECTION), "{name} there, {round}: {vector:?}");
            }
        }
    }
}

/// Exits of every kind that needs no device, each told as the manual has it.
pub fn exits(test: &str, boot: &Boot) {
    refused(test);
    let mut guest = Guest::new(inside::cpuids());
    const ROUNDS: u64 = 200;
    // Into the caches of the host's. The global interrupt flag stays clear.
    guest.enter();
    guest.skip(2);
    let (mut right, mut after) = (0, 0);
    let window = Window::open();
    for round in 0..ROUNDS {
        guest.registers.rdx = round;
        guest.enter();
        right += u64::from(guest.code() == exit::CPUID);
        after += u64::from(guest.registers.rcx == round + 1);
        guest.skip(2);
    }
    let counted = window.close();
    block::let_in();
    check!(test, right == ROUNDS, "CPUID exited {right} times of {ROUNDS}");
    check!(test, after >= ROUNDS - 1, "its registers came through {after} times");
    if policy() != Policy::Bare {
        let [runs, told] = [Reason::Nesting, Reason::NestedReflected].map(|r| counted.of(r));
        let all = counted.own();
        check!(test, all == 2 * ROUNDS, "{all} exits: {runs} for VMRUN, {told} told");
        check!(test, runs == ROUNDS && told == ROUNDS, "two each");
    }

    for (name, at, code, bytes) in [
        ("VMMCALL", inside::hypercall(), exit::VMMCALL, 3),
        ("HLT", inside::halt(), exit::HLT, 1),
        ("RDMSR", inside::reads_msr(), exit::MSR, 2),
        ("OUT", inside::writes_port(), exit::IOIO, 1),
        ("CPUID again", inside::cpuids(), exit::CPUID, 2),
    ] {
        guest.restart(at);
        guest.run();
        let told = guest.code();
        check!(test, told == code, "{name}: exit code {told:#x}");
        guest.skip(bytes);
    }
    maps(test, &mut guest);
    timer(test, boot, &mut guest);
    let_do(test, &mut guest);
    triple_fault(test, &mut guest);
    injected(test, &mut guest);
    flags(test, &mut guest);
    end();
}

/// The permission maps: what L1 opens doesn't exit, if the host lets L1 itself have it.
fn maps(test: &str, guest: &mut Guest) {
    const MSR: u64 = 0xC000_0102;
    guest.restart(inside::reads_msr());
    guest.registers.rcx = MSR;
    cpu::wrmsr(MSR as u32, 0x1234_5678);
    guest.run();
    let (code, write) = (guest.code(), guest.block().get(block::EXIT_INFO_1));
    check!(test, code == exit::MSR && write == 0, "RDMSR, closed: {code:#x}, {write}");
    block::let_msr(MSR as u32, true, false);
    guest.restart(inside::reads_msr());
    guest.registers.rcx = MSR;
    guest.run();
    let (code, value) = (guest.code(), guest.block().get(block::RAX) & 0xFFFF_FFFF);
    check!(test, code == exit::VMMCALL && value == 0x1234_5678, "open: {code:#x}, {value:#x}");
    guest.restart(inside::reads_msr());
    guest.registers.rcx = MSR;
    let window = Window::open();
    guest.enter();
    let exits = window.close().own();
    block::let_in();
    let right = policy() == Policy::Bare || exits == 2;
    check!(test, right, "and the next time: {exits} exits");
    block::let_msr(MSR as u32, false, false);
    guest.restart(inside::reads_msr());
    guest.registers.rcx = MSR;
    guest.run();
    check!(test, guest.code() == exit::MSR, "closed again without a word: {:#x}", guest.code());
    cpu::wrmsr(MSR as u32, 0);

    guest.restart(inside::writes_port());
    guest.run();
    let info = guest.block().get(block::EXIT_INFO_1);
    check!(test, info >> 16 == 0x80 && info & 1 == 0, "OUT: port {:#x}", info >> 16);
    ports(test, guest);
}

/// A port that L1 opens is L1's own.
fn ports(test: &str, guest: &mut Guest) {
    /// A register of the serial port that does nothing.
    const SCRATCH: u16 = 0x3FF;
    let uses = |guest: &mut Guest, byte| {
        guest.restart(inside::uses_port());
        let registers = &mut guest.registers;
        (registers.rdx, registers.rsi, registers.rdi) =
            (SCRATCH.into(), byte, 0x1234_5678_9ABC_DE00);
        let window = Window::open();
        guest.enter();
        let exits = window.close().own();
        block::let_in();
        exits
    };
    cpu::outb(SCRATCH, 0x11);
    uses(guest, 0x22);
    let (code, kept) = (guest.code(), cpu::inb(SCRATCH));
    check!(test, code == exit::IOIO && kept == 0x11, "OUT, closed: {code:#x}, {kept:#x}");
    block::open_port(SCRATCH, true);
    for byte in [0x33, 0x44] {
        let exits = uses(guest, byte);
        let (code, read) = (guest.code(), guest.registers.rcx);
        let right = code == exit::VMMCALL && read == 0x1234_5678_9ABC_DE00 | byte;
        check!(test, right, "OUT and IN, open: {code:#x}, {read:#x}");
        let own = u64::from(cpu::inb(SCRATCH));
        check!(test, own == byte, "and L1 finds it: {own:#x}");
        let right = policy() == Policy::Bare || exits == 4;
        check!(test, right, "each is the host's alone: {exits} exits");
    }
    block::open_port(SCRATCH, false);
    uses(guest, 0x55);
    check!(test, guest.code() == exit::IOIO, "closed again without a word: {:#x}", guest.code());
}

/// A port that L1 opens and that L1 itself has without an exit.
fn timer(test: &str, boot: &Boot, guest: &mut Guest) {
    let Some(fadt) = acpi::Tables::find(boot.rsdp).and_then(|tables| tables.fadt()) else {
        check!(test, false, "there is a FADT");
        return;
    };
    let port = fadt.timer_port;
    let reads = |guest: &mut Guest| {
        guest.restart(inside::times());
        guest.registers.rdx = port.into();
        let window = Window::open();
        guest.enter();
        let exits = window.close().own();
        block::let_in();
        exits
    };
    let open = |open| (port..port + 4).for_each(|port| block::open_port(port, open));
    for round in 0..2 {
        open(true);
        for (when, wanted) in [("first", 3), ("and then", 2)] {
            let exits = reads(guest);
            let (code, then) = (guest.code(), guest.registers.rcx);
            let went = guest.block().get(block::RAX).wrapping_sub(then) & 0xFF_FFFF;
            let right = code == exit::VMMCALL && went < 1 << 22 && then >> 24 == 0;
            check!(test, right, "the PM timer, {round}: {code:#x}, {then:#x}, {went:#x} later");
            let right = policy() == Policy::Bare || exits == wanted;
            check!(test, right, "{when} {exits} exits for two reads, and for VMMCALL and VMRUN");
        }
        open(false);
        reads(guest);
        let code = guest.code();
        check!(test, code == exit::IOIO, "closed without a word: {code:#x}");
        // One port of four.
        block::open_port(port, true);
        reads(guest);
        let code = guest.code();
        check!(test, code == exit::IOIO, "open in part: {code:#x}");
    }
    open(false);
}

/// What L1 lets it do, and what has an exit of the host's all the same.
fn let_do(test: &str, guest: &mut Guest) {
    /// In the upper half of the word of exceptions.
    const CPUID: u64 = 1 << (32 + 18);
    let wanted = guest.block().get(block::EXCEPTIONS);
    guest.block().put(block::EXCEPTIONS, wanted & !CPUID);
    for leaf in [0, 0x8000_000A] {
        guest.restart(inside::identifies());
        guest.block().put(block::RAX, leaf);
        guest.run();
        let (code, eax) = (guest.code(), guest.block().get(block::RAX));
        let own = cpu::cpuid(leaf as u32);
        let found = (eax, guest.registers.rcx, guest.registers.rdx);
        let right = found == (own.eax.into(), own.ecx.into(), own.edx.into());
        check!(test, code == exit::VMMCALL && right, "CPUID {leaf:#x}: {code:#x}, {found:x?}");
    }
    guest.block().put(block::EXCEPTIONS, wanted);
}

/// It has no table of interrupts, and executes what is undefined.
fn triple_fault(test: &str, guest: &mut Guest) {
    guest.restart(inside::undefined());
    guest.block().put(block::IDTR, 0);
    guest.run();
    check!(test, guest.code() == exit::SHUTDOWN, "a triple fault: {:#x}", guest.code());
    guest.restart(inside::cpuids());
    guest.run();
    check!(test, guest.code() == exit::CPUID, "and it runs again: {:#x}", guest.code());
}

/// An exception that L1 injects, and one that it intercepts.
fn injected(test: &str, guest: &mut Guest) {
    guest.restart(inside::cpuids());
    guest.block().put(block::EXCEPTIONS, 1 << UNDEFINED | guest.block().get(block::EXCEPTIONS));
    guest.restart(inside::undefined());
    guest.run();
    check!(test, guest.code() == 0x40 + u64::from(UNDEFINED), "#UD: {:#x}", guest.code());
    guest.block().put(block::EXCEPTIONS, !(1 << UNDEFINED) & guest.block().get(block::EXCEPTIONS));
    // With no table for it, this comes to nothing but a triple fault.
    guest.restart(inside::cpuids());
    guest.block().put(block::IDTR, 0);
    guest.block().put(block::EVENT_INJ, 1 << 31 | 3 << 8 | u64::from(UNDEFINED));
    guest.run();
    check!(test, guest.code() == exit::SHUTDOWN, "#UD injected: {:#x}", guest.code());
    let left = guest.block().get(block::EVENT_INJ) >> 31 & 1;
    check!(test, left == 0, "nothing is left to inject");
}

/// CLGI and STGI of the guest's, on a flag that the CPU keeps for it.
fn flags(test: &str, guest: &mut Guest) {
    if cpu::cpuid(0x8000_000A).edx >> 16 & 1 == 0 {
        return;
    }
    let wanted = guest.block().get(block::MISC2);
    guest.restart(inside::flags());
    guest.block().put(block::MISC2, wanted & !0x30);
    guest.block().put(block::INT_CTL, block::MASKING | block::FLAG_KEPT | block::FLAG);
    let flag = |guest: &Guest| guest.block().get(block::INT_CTL) & block::FLAG != 0;
    for (name, set) in [("CLGI", false), ("STGI", true)] {
        guest.run();
        let (code, is) = (guest.code(), flag(guest));
        check!(test, code == exit::VMMCALL && is == set, "{name} inside: {code:#x}, {is}");
        guest.skip(3);
    }
    // One that is intercepted exits.
    guest.block().put(block::MISC2, wanted & !0x20);
    guest.restart(inside::flags());
    guest.run();
    guest.skip(3);
    guest.run();
    let code = guest.code();
    check!(test, code == exit::STGI && !flag(guest), "STGI, intercepted: {code:#x}");
    guest.block().put(block::MISC2, wanted);
    guest.block().put(block::INT_CTL, block::MASKING);
}

/// Blocks that no CPU runs: VMEXIT_INVALID, and L1 goes on.
pub fn invalid(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    let mut guest = Guest::new(inside::cpuids());
    guest.run();
    check!(test, guest.code() == exit::CPUID, "a sound block: {:#x}", guest.code());
    for (what, at, clear, set) in [
        ("no address space", block::ASID, 0xFFFF_FFFF, 0),
        ("VMRUN not intercepted", block::MISC2, 1, 0),
        ("EFER.SVME clear", block::EFER, SVME, 0),
        ("CR0.NW without CD", block::CR0, 1 << 30, 1 << 29),
        ("an upper bit of CR0", block::CR0, 0, 1 << 32),
        ("an upper bit of DR6", block::DR6, 0, 1 << 32),
        ("an upper bit of DR7", block::DR7, 0, 1 << 32),
        ("a bit of CR4 that isn't", block::CR4, 0, 1 << 63),
        ("long mode without PAE", block::CR4, 1 << 5, 0),
    ] {
        guest.restart(inside::cpuids());
        let before = guest.block().get(at);
        guest.block().put(at, before & !clear | set);
        guest.run();
        let code = guest.code();
        check!(test, code == exit::INVALID, "{what}: {code:#x}");
        guest.block().put(at, before);
    }
    guest.restart(inside::cpuids());
    guest.run();
    check!(test, guest.code() == exit::CPUID, "it runs again: {:#x}", guest.code());
    // Of the others the machine's CPU has whatever is there.
    let odd = [u64::MAX, !0xFFF, 1 << 52, 1 << 47, 1];
    let others =
        [NOWHERE, 0xFEE0_0000, 0xFEC0_0000].into_iter().filter(|_| policy() != Policy::Bare);
    for at in odd.into_iter().chain(others) {
        let fault = attempt!(at, "mov rax, {v}", "vmrun rax").map(|f| f.vector);
        check!(test, fault == Some(PROTECTION), "VMRUN of {at:#x}: {fault:?}");
    }
    loaded(test);
    end();
}

/// VMLOAD and VMSAVE.
fn loaded(test: &str) {
    const KERNEL_GS: u32 = 0xC000_0102;
    const STAR: u32 = 0xC000_0081;
    cpu::wrmsr(KERNEL_GS, 0x1111_2222_3333);
    cpu::wrmsr(STAR, 0x10_0008_0000_0000);
    let block = Block::new();
    block.save();
    let saved = (block.get(0x620), block.get(0x600));
    check!(test, saved == (0x1111_2222_3333, 0x10_0008_0000_0000), "VMSAVE: {saved:x?}");
    block.put(0x620, 0x4444);
    block.load();
    let loaded = cpu::rdmsr(KERNEL_GS);
    check!(test, loaded == 0x4444, "VMLOAD: {loaded:#x}");
    cpu::wrmsr(KERNEL_GS, 0);
    cpu::wrmsr(STAR, 0);
    let window = Window::open();
    (0..50).for_each(|_| block.save());
    let exits = window.close().own();
    if policy() != Policy::Bare {
        let translated = cpu::cpuid(0x8000_000A).edx >> 15 & 1 == 1;
        let right = if translated { 0 } else { 50 };
        check!(test, exits == right, "{exits} exits for 50 times VMSAVE");
    }
    println!("  loaded and saved");
}

pub use avic::{avic, doorbell};
pub use cost::instructions;
pub use delivered::delivered;
pub use endless::endless;
pub use gif::gif;
pub use guarded::guarded;
pub use hostile::hostile;
pub use init_storms::{restarted as init_restart, storm as init_storm};
pub use intercepts::intercepts;
pub use interrupts::interrupts;
pub use levels::levels;
pub use open::open;
pub use paging::{paging, touched};
pub use posted::{
    chaos as posted_chaos, hostile as posted_hostile, kept as posted_kept, moves as posted_moves,
    offline as posted_offline, others as posted_others, posted, rerouted as posted_rerouted,
    restart as posted_restart, smp as posted_smp,
};
pub use prices::prices;
pub use registers::registers;
pub use smp::{events, restart, shutdown};
