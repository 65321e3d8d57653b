//! What this kernel lets its guest do, and what has an exit of the host's all the same: it is done
//! as if this kernel had done it, with the guest's registers and the guest's memory.
//!
//! On the bare machine the CPU does it. What QEMU's gets wrong there isn't asked: it raises no #GP
//! for an MSR that isn't, for bits of EFER that aren't, nor for paging without protection; RDMSR of
//! the TSC gives nothing; and it executes what a device's registers give.

use super::block::{self, Guest, exit};
use super::paging::{self, ALL, AREA};
use super::registers::{Came, access, prepare};
use super::{begin, emulated, end, inside};
use crate::counters::{Policy, Window, policy};
use crate::{boot::Boot, console::check, cpu, idt, x2apic};
use core::sync::atomic::Ordering::SeqCst;

const VECTOR: u8 = 0x53;
/// Exceptions by their exit codes.
const DEBUG: u64 = 0x41;
const UNDEFINED: u64 = 0x46;
const PROTECTION: u64 = 0x4D;
pub(super) const PAGE_FAULT: u64 = 0x4E;
const RAX: usize = block::RAX;

/// All of it.
pub fn open(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    let mut guest = paging::guest();
    msrs(test, &mut guest);
    efer(test, &mut guest);
    interrupt(test, &mut guest);
    control(test, &mut guest);
    states(test, &mut guest);
    prefixes(test, &mut guest);
    stepped(test, &mut guest);
    blocks(test, &mut guest);
    emulated::emulated(test, &mut guest);
    end();
}

/// On the bare machine, or as the host counts: one exit for the instruction, two for the call.
fn is_own(exits: u64) -> bool {
    policy() == Policy::Bare || exits == 3
}

/// Has the guest exit for these exceptions, too.
pub(super) fn intercept(guest: &Guest, exceptions: &[u64]) {
    let bits = exceptions.iter().fold(0, |bits, code| bits | 1 << (code - 0x40));
    let before = guest.block().get(block::EXCEPTIONS);
    guest.block().put(block::EXCEPTIONS, before & !0xFFFF_FFFF | bits);
}

/// RDMSR.
fn read(guest: &mut Guest, msr: u32) -> (u64, u64, u64) {
    guest.restart(inside::reads_msr());
    guest.registers.rcx = msr.into();
    let window = Window::open();
    guest.enter();
    let exits = window.close().own();
    block::let_in();
    let low = guest.block().get(RAX) & 0xFFFF_FFFF;
    (guest.code(), guest.registers.rdx << 32 | low, exits)
}

/// WRMSR, and RDMSR of the same. Gives the exit's code, and what was read.
fn write(guest: &mut Guest, msr: u32, value: u64) -> (u64, u64) {
    guest.restart(inside::writes_msr());
    (guest.registers.rcx, guest.registers.rdx) = (msr.into(), value >> 32);
    guest.block().put(RAX, value & 0xFFFF_FFFF);
    guest.run();
    let low = guest.block().get(RAX) & 0xFFFF_FFFF;
    (guest.code(), guest.registers.rdx << 32 | low)
}

/// Registers that the host has for this kernel are its guest's.
fn msrs(test: &str, guest: &mut Guest) {
    const APIC_BASE: u32 = 0x1B;
    const APIC_ID: u32 = 0x802;
    const MEMORY_TYPES: u32 = 0x2FF;
    const FIXED: u64 = 1 << 10;
    const HOST_SAVE: u32 = 0xC001_0117;
    for msr in [APIC_BASE, APIC_ID, MEMORY_TYPES, HOST_SAVE] {
        let (code, ..) = read(guest, msr);
        check!(test, code == exit::MSR, "MSR {msr:#x}, closed: {code:#x}");
        block::let_msr(msr, true, true);
        let (own, (code, seen, exits)) = (cpu::rdmsr(msr), read(guest, msr));
        let right = code == exit::VMMCALL && seen == own && is_own(exits);
        check!(test, right, "open: {code:#x}, {seen:#x} of {own:#x}, {exits} exits");
    }
    let before = cpu::rdmsr(MEMORY_TYPES);
    let (code, _) = write(guest, MEMORY_TYPES, before ^ FIXED);
    let after = cpu::rdmsr(MEMORY_TYPES);
    cpu::wrmsr(MEMORY_TYPES, before);
    let right = code == exit::VMMCALL && after == before ^ FIXED;
    check!(test, right, "written, and this kernel finds it: {code:#x}, {after:#x}");
    block::let_msr(MEMORY_TYPES, true, false);
    let (code, _) = write(guest, MEMORY_TYPES, before);
    check!(test, code == exit::MSR, "open to be read alone: {code:#x}");
    if policy() != Policy::Bare {
        counter(test, guest);
        nobodys(test, guest);
    }
}

/// The TSC is what RDTSC gives the guest, and this kernel's if it is set.
fn counter(test: &str, guest: &mut Guest) {
    const TSC: u32 = 0x10;
    const OFFSET: usize = 0x50;
    const AHEAD: u64 = 1 << 40;
    const SOON: u64 = 1 << 38;
    block::let_msr(TSC, true, true);
    guest.block().put(OFFSET, AHEAD);
    let (before, (code, seen, _)) = (cpu::tsc(), read(guest, TSC));
    let right = code == exit::VMMCALL && seen.wrapping_sub(before + AHEAD) < SOON;
    check!(test, right, "the TSC: {code:#x}, {seen:#x}, of this kernel {before:#x}");
    let (code, seen) = write(guest, TSC, before + 2 * AHEAD);
    let own = cpu::tsc();
    let is_own = own.wrapping_sub(before + 2 * AHEAD) < SOON;
    let right = code == exit::VMMCALL && is_own && seen.wrapping_sub(before + 3 * AHEAD) < SOON;
    check!(test, right, "set: {code:#x}, {own:#x} here, {seen:#x} there");
    guest.block().put(OFFSET, 0);
    block::let_msr(TSC, false, false);
}

/// #GP, which is the guest's, or this kernel's.
fn nobodys(test: &str, guest: &mut Guest) {
    const NOTHING: u32 = 0x1FF0;
    block::let_msr(NOTHING, true, true);
    prepare(guest, inside::reads_msr(), 0, 0);
    guest.registers.rcx = NOTHING.into();
    guest.run();
    let refused = guest.registers.rdx == inside::REFUSED;
    check!(test, refused, "an MSR that isn't there: {:#x}", guest.code());
    intercept(guest, &[PROTECTION]);
    let (code, ..) = read(guest, NOTHING);
    let (error, at) = (guest.block().get(block::EXIT_INFO_1), guest.block().get(block::RIP));
    let right = code == PROTECTION && error == 0 && at == inside::reads_msr();
    check!(test, right, "its #GP is told: {code:#x}, {error:#x} at {at:#x}");
    intercept(guest, &[UNDEFINED, PROTECTION]);
    // What this kernel hasn't either.
    for (name, code, wanted) in
        [("RDPMC", inside::counts(), PROTECTION), ("MONITOR", inside::monitors(), UNDEFINED)]
    {
        guest.restart(code);
        guest.run();
        let (told, at) = (guest.code(), guest.block().get(block::RIP));
        check!(test, told == wanted && at == code, "{name}: {told:#x} at {at:#x}");
    }
    intercept(guest, &[]);
}

/// EFER is the guest's own.
fn efer(test: &str, guest: &mut Guest) {
    const EFER: u32 = 0xC000_0080;
    const SYSCALL: u64 = 1;
    const NOTHING: u64 = 1 << 20;
    block::let_msr(EFER, true, true);
    let own = cpu::rdmsr(EFER);
    guest.block().put(block::EFER, own ^ SYSCALL);
    let (code, seen, exits) = read(guest, EFER);
    let right = code == exit::VMMCALL && seen == own ^ SYSCALL && is_own(exits);
    check!(test, right, "EFER of the guest: {code:#x}, {seen:#x}, {exits} exits");
    let (code, _) = write(guest, EFER, own);
    let (now, kept) = (guest.block().get(block::EFER), cpu::rdmsr(EFER));
    let right = code == exit::VMMCALL && now == own && kept == own;
    check!(test, right, "written: {code:#x}, {now:#x}, and here {kept:#x}");
    if policy() != Policy::Bare {
        intercept(guest, &[PROTECTION]);
        let (code, _) = write(guest, EFER, own | NOTHING);
        check!(test, code == PROTECTION, "a bit that isn't: {code:#x}");
        intercept(guest, &[]);
        // A guest without SVM would be none: it is this kernel that has it.
        let (code, _) = write(guest, EFER, own & !super::SVME);
        let (again, _) = write(guest, EFER, own);
        let right = (code, again) == (exit::VMMCALL, exit::VMMCALL);
        check!(test, right && cpu::rdmsr(EFER) == own, "without SVME: {code:#x}, {again:#x}");
    }
    block::let_msr(EFER, false, false);
}

/// An interrupt that the guest sends is this kernel's.
fn interrupt(test: &str, guest: &mut Guest) {
    const COMMAND: u32 = 0x830;
    idt::on(VECTOR, |_| x2apic::complete());
    let before = idt::count(VECTOR);
    block::let_msr(COMMAND, false, true);
    guest.restart(inside::sends());
    (guest.registers.rcx, guest.registers.rdx) = (COMMAND.into(), x2apic::id().into());
    guest.block().put(RAX, VECTOR.into());
    guest.enter_open();
    let (code, early) = (guest.code(), idt::count(VECTOR) - before);
    block::let_in();
    cpu::enable_interrupts();
    cpu::disable_interrupts();
    let came = idt::count(VECTOR) - before;
    let right = code == exit::INTR && early == 0 && came == 1;
    check!(test, right, "sent by it: {code:#x}, {early} and then {came} came");
    block::let_msr(COMMAND, false, false);
}

/// MOV to CR0, and LMSW.
fn control(test: &str, guest: &mut Guest) {
    const ALIGNMENT: u64 = 1 << 18;
    const SWITCHED: u64 = 1 << 3;
    let own = cpu::cr0();
    let loads = |guest: &mut Guest, value| {
        guest.block().put(block::CR0, own);
        guest.restart(inside::loads_cr0());
        guest.registers.rdi = value;
        guest.run();
        (guest.code(), guest.registers.rcx, guest.block().get(block::CR0))
    };
    let (code, seen, kept) = loads(guest, own ^ ALIGNMENT);
    let right = code == exit::VMMCALL && seen == own ^ ALIGNMENT && kept == seen;
    check!(test, right && cpu::cr0() == own, "MOV to CR0: {code:#x}, {seen:#x}, {kept:#x}");
    if policy() != Policy::Bare {
        intercept(guest, &[PROTECTION]);
        let (code, ..) = loads(guest, own & !1);
        check!(test, code == PROTECTION, "paging without protection: {code:#x}");
        intercept(guest, &[]);
    }
    // The operand is in a page that this kernel has elsewhere.
    paging::map(3, 4, ALL);
    paging::word(4).store(own & 0xF | SWITCHED, SeqCst);
    paging::flush(guest);
    guest.block().put(block::CR0, own);
    guest.restart(inside::loads_status());
    guest.registers.rsi = AREA + (3 << 12);
    guest.run();
    paging::flushed(guest);
    let (code, seen) = (guest.code(), guest.registers.rcx);
    let right = code == exit::VMMCALL && seen == own | SWITCHED;
    check!(test, right, "LMSW: {code:#x}, {seen:#x}");
    guest.block().put(block::CR0, own);
    paging::word(4).store(0xB04, SeqCst);
}

/// XSETBV.
fn states(test: &str, guest: &mut Guest) {
    const OS_XSAVE: u64 = 1 << 18;
    if cpu::cpuid(1).ecx >> 26 & 1 == 0 {
        return;
    }
    let before = guest.block().get(block::CR4);
    let sets = |guest: &mut Guest, cr4, states| {
        guest.block().put(block::CR4, cr4);
        guest.restart(inside::sets_states());
        guest.block().put(RAX, states);
        guest.run();
        (guest.code(), guest.registers.rcx)
    };
    intercept(guest, &[UNDEFINED, PROTECTION]);
    let (code, _) = sets(guest, before & !OS_XSAVE, 1);
    check!(test, code == UNDEFINED, "XSETBV without OSXSAVE: {code:#x}");
    for states in [3, 1] {
        let (code, seen) = sets(guest, before | OS_XSAVE, states);
        let right = code == exit::VMMCALL && seen == states;
        check!(test, right, "XSETBV: {code:#x}, {seen:#x}");
    }
    let (code, _) = sets(guest, before | OS_XSAVE, 2);
    check!(test, code == PROTECTION, "XSETBV of what isn't: {code:#x}");
    intercept(guest, &[]);
    guest.block().put(block::CR4, before);
}

/// CPUID, with a prefix that means nothing.
fn prefixes(test: &str, guest: &mut Guest) {
    /// Above the word of exceptions.
    const CPUID: u64 = 1 << (32 + 18);
    let wanted = guest.block().get(block::EXCEPTIONS);
    guest.block().put(block::EXCEPTIONS, wanted & !CPUID);
    guest.restart(inside::prefixed());
    guest.block().put(RAX, 0);
    guest.run();
    let (code, own) = (guest.code(), u64::from(cpu::cpuid(0).ecx));
    let right = code == exit::VMMCALL && guest.registers.rcx == own;
    check!(test, right, "CPUID with a prefix: {code:#x}, {:#x}", guest.registers.rcx);
    guest.block().put(block::EXCEPTIONS, wanted);
}

/// A single step over what the host does.
fn stepped(test: &str, guest: &mut Guest) {
    const TRAP: u64 = 1 << 8;
    const STEP: u64 = 1 << 14;
    intercept(guest, &[DEBUG]);
    guest.restart(inside::identifies());
    guest.block().put(block::RFLAGS, 2 | TRAP);
    guest.run();
    let (code, dr6) = (guest.code(), guest.block().get(block::DR6));
    let behind = guest.block().get(block::RIP) - inside::identifies();
    let right = code == DEBUG && behind == 2 && dr6 & STEP != 0;
    check!(test, right, "a step over WBINVD: {code:#x}, {behind} behind, DR6 {dr6:#x}");
    intercept(guest, &[]);
    guest.block().put(block::DR6, 0xFFFF_0FF0);
}

/// VMSAVE and VMLOAD, which the CPU doesn't translate for: this kernel's addresses count.
fn blocks(test: &str, guest: &mut Guest) {
    const STAR: u32 = 0xC000_0081;
    let wanted = guest.block().get(block::MISC2);
    guest.block().put(block::MISC2, wanted & !0xC);
    cpu::wrmsr(STAR, 0x10_0008_0000_5678);
    let at = paging::frame(10);
    let saved = access(guest, inside::saves(), at, 0);
    let star = paging::nth(10, 0x600 / 8).load(SeqCst);
    let right = saved == Came::Done(0) && star == 0x10_0008_0000_5678;
    check!(test, right, "VMSAVE: {saved:x?}, {star:#x}");
    paging::nth(10, 0x600 / 8).store(0x10_0008_0000_8765, SeqCst);
    let loaded = access(guest, inside::loads(), at, 0);
    let star = cpu::rdmsr(STAR);
    let right = loaded == Came::Done(0) && star == 0x10_0008_0000_8765;
    check!(test, right, "VMLOAD: {loaded:x?}, {star:#x}");
    let refused = access(guest, inside::loads(), at + 8, 0);
    check!(test, refused == Came::Refused, "VMLOAD of no page: {refused:x?}");
    cpu::wrmsr(STAR, 0);
    guest.block().put(block::MISC2, wanted);
}
