//! What only a broken or hostile guest does. Each ends this VM, or is refused.

use crate::counters::{self, Policy, policy};
use crate::{
    boot::Boot,
    console::{check, println},
    cpu, idt,
    random::Random,
};
use core::arch::asm;
use ledger::Reason;
use machine::attempt;

const UNDEFINED: u8 = 6;
const PROTECTION: u8 = 13;
const EFER: u32 = 0xC000_0080;
const OSXSAVE: u64 = 1 << 18;
/// No memory, no device: beyond any test VM's memory, below every window.
const NOWHERE: u64 = 0x9000_0000;

/// XSAVES of all states saves those of XCR0 and none of a supervisor's, whatever ran on the CPU
/// before the host: IA32_XSS is the CPU's own while a guest runs.
fn supervisor_states(test: &str) {
    const XSAVES: u32 = 1 << 3;
    /// Which states are in the area, and that it is compact.
    const STATES_AT: usize = 520 / 8;
    #[repr(C, align(64))]
    struct Area([u64; 2048]);
    if core::arch::x86_64::__cpuid_count(0xD, 1).eax & XSAVES == 0 {
        return check!(test, true, "no XSAVES here");
    }
    let mut area = Area([0; 2048]);
    let at = (&raw mut area) as u64;
    let fault = attempt!(at, "mov eax, -1", "mov edx, -1", "xsaves64 [{v}]");
    let states = area.0[STATES_AT];
    check!(test, fault.is_none() && states == 1 << 63 | 7, "XSAVES saves {states:#x}: {fault:x?}");
}

/// Takes away the IDT, then faults.
pub fn triple_fault(_: &str, _: &Boot) {
    println!("triple fault now");
    triple_fault_now(0);
}

/// The same on whichever CPU this is.
pub fn triple_fault_now(_: usize) {
    cpu::load_idt(0, 0);
    // SAFETY: never returns; that is the test.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// The same, and again until the host has counted three: it starts the VM again each time.
pub fn triple_fault_again(test: &str, _: &Boot) {
    let faults = counters::ever().of(Reason::Shutdown);
    println!("{faults} triple faults so far");
    if faults < 3 {
        triple_fault_now(0);
    }
    check!(test, faults == 3, "the VM began again after {faults}");
}

/// Waits for answers from a port and a register that aren't there, longer than a second for each.
pub fn poll_nothing(test: &str, _: &Boot) {
    const TICKS: u64 = 8_000_000_000;
    let poll = |access: fn()| {
        let start = cpu::tsc();
        while cpu::tsc().wrapping_sub(start) < TICKS {
            access();
        }
    };
    poll(|| {
        cpu::inb(0x64);
    });
    poll(|| cpu::mmio_write(NOWHERE, 0));
    check!(test, true, "nothing answered; the host's log says so");
}

/// Loads from memory that isn't there.
pub fn wild_load(test: &str, _: &Boot) {
    println!("load from {NOWHERE:#x} now");
    let value = cpu::mmio_read(NOWHERE);
    check!(test, value == 0 || value == !0, "survived, and read {value:#x}");
}

/// Stores to memory that isn't there.
pub fn wild_store(test: &str, _: &Boot) {
    println!("store to {NOWHERE:#x} now");
    cpu::mmio_write(NOWHERE, 0x0BAD_CAFE);
    let value = cpu::mmio_read(NOWHERE);
    check!(test, value == 0 || value == !0, "survived, and read back {value:#x}");
}

/// Jumps there.
pub fn wild_jump(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: QEMU can't");
    }
    println!("jump to {NOWHERE:#x} now");
    idt::expect_fault();
    // SAFETY: a fault resumes after the call; nothing there returns.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "mov {s}, rsp", "call {a}", "2:", "mov rsp, {s}",
             t = out(reg) _, r = in(reg) idt::recovery(), a = in(reg) NOWHERE, s = out(reg) _)
    }
    check!(test, idt::take_fault().is_some(), "survived with a fault");
}

/// Puts the page tables and the IDT where no memory is.
pub fn wild_tables(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: it would only stop");
    }
    println!("page tables to {NOWHERE:#x} now");
    // SAFETY: no instruction can be fetched after it; that is the test.
    unsafe { asm!("mov cr3, {}", "ud2", in(reg) NOWHERE, options(noreturn)) }
}

fn refused(test: &str, what: &str, fault: Option<idt::Fault>) {
    let good = fault == Some(idt::Fault { vector: PROTECTION, error: 0 });
    check!(test, good, "{what} is refused: {fault:x?}");
}

/// Bits of EFER that no guest may set.
pub fn bad_efer(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: it has these bits");
    }
    let before = cpu::rdmsr(EFER);
    refused(test, "EFER with bit 63", cpu::try_wrmsr(EFER, 1 << 63 | before).err());
    let _ = cpu::try_wrmsr(EFER, before | 1 << 12);
    let svme = cpu::rdmsr(EFER) >> 12 & 1;
    check!(test, svme == 0, "EFER.SVME can't be set");
}

/// Reserved bits in CR4. A CPU refuses them by #GP; QEMU makes them an exit, on its bare machine
/// to nowhere.
pub fn bad_cr4(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: QEMU goes astray");
    }
    println!("CR4 with bit 63 now");
    refused(test, "CR4 with bit 63", attempt!(1u64 << 63 | 0x20, "mov cr4, {v}"));
}

/// The same with CR3.
pub fn bad_cr3(test: &str, _: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: QEMU goes astray");
    }
    println!("CR3 with bit 51 now");
    refused(test, "CR3 with bit 51", attempt!(1u64 << 51, "mov cr3, {v}"));
}

/// CR0, DR6 and DR7: what a CPU refuses, and QEMU takes, and what both take.
pub fn bad_control(test: &str, _: &Boot) {
    const NW: u64 = 1 << 29;
    const PG: u64 = 1 << 31;
    const EM: u64 = 1 << 2;
    if policy() == Policy::Bare {
        return check!(test, true, "not on the bare machine: QEMU refuses nothing");
    }
    let home = cpu::cr0();
    // QEMU drops the upper half where nothing else changes.
    let _ = attempt!(home | 1 << 32, "mov cr0, {v}");
    check!(test, cpu::cr0() == home, "CR0 with bit 32: as it was");
    for (what, value) in [
        ("every bit", !0),
        ("NW without CD", home | NW),
        ("paging without protection", home & !1),
        ("no paging, in 64-bit code", home & !PG),
    ] {
        let fault = attempt!(value, "mov cr0, {v}");
        cpu::cpuid(0);
        let kept = cpu::cr0() == home;
        check!(test, kept, "CR0 with {what}: as it was");
        refused(test, what, fault);
    }
    for (what, value) in [
        ("EM", home | EM),
        ("caches off", home | 1 << 30),
        ("write protection off", home & !(1 << 16)),
        ("as it was", home),
    ] {
        let fault = attempt!(value, "mov cr0, {v}");
        let now = cpu::cr0();
        check!(test, fault.is_none() && now == value, "CR0 with {what} is taken: {now:#x}");
    }
    let word = EM as u16;
    let fault = attempt!(&raw const word, "lmsw word ptr [{v}]");
    let now = cpu::cr0();
    let right = fault.is_none() && now == home & !0xE | EM;
    check!(test, right, "LMSW from memory with EM alone leaves PE: {now:#x}");
    let fault = attempt!(home & 0xF, "lmsw {v:x}");
    check!(test, fault.is_none() && cpu::cr0() == home, "LMSW from a register");

    for (what, value) in [("bit 32", 1u64 << 32 | 0x400), ("every bit", !0)] {
        let fault = attempt!(value, "mov dr7, {v}");
        cpu::cpuid(0);
        refused(test, what, fault);
        let fault = attempt!(value, "mov dr6, {v}");
        cpu::cpuid(0);
        refused(test, what, fault);
    }
    // Two in a row, with no exit between them but their own.
    let fault = attempt!(1u64 << 32, "mov dr7, {v}", "mov dr7, {v}");
    refused(test, "DR7, twice", fault);
    let fault = attempt!(0x401u64, "mov dr7, {v}", "mov rax, dr7");
    check!(test, fault.is_none(), "DR7 with a breakpoint is taken");
    let fault = attempt!(0x400u64, "mov dr7, {v}");
    check!(test, fault.is_none(), "and without");
    // The second comes while the first has the CPU's leave; what QEMU takes then is cut off.
    let fault = attempt!(0x400u64, "mov dr7, {v}", "mov eax, 1", "shl rax, 32", "mov dr6, rax");
    cpu::cpuid(0);
    check!(test, true, "DR6 with bit 32 behind a good DR7: {fault:x?}, and the VM goes on");
}

/// Nonsense for XCR0: what the host would choke on if it passed it to its own XSETBV.
pub fn bad_xcr(test: &str, _: &Boot) {
    if cpu::cpuid(1).ecx >> 26 & 1 == 0 {
        return check!(test, true, "no XSAVE here");
    }
    check!(test, attempt!(OSXSAVE | 0x20, "mov cr4, {v}").is_none(), "CR4.OSXSAVE is set");
    for (what, value) in [
        ("XCR0 without x87", 2u64),
        ("XCR0 with AVX and no SSE", 5),
        ("XCR0 with every bit", !0),
        ("XCR0 with bit 63", 1 << 63 | 1),
    ] {
        let set = cpu::try_xcr0(value);
        refused(test, what, set);
    }
    refused(test, "XCR1", attempt!(1u64, "mov rax, {v}", "xor edx, edx", "mov ecx, 1", "xsetbv"));
    let set = cpu::try_xcr0(7);
    check!(test, set.is_none(), "XCR0 with x87, SSE and AVX is taken");
    supervisor_states(test);
    let _ = attempt!(0x20u64, "mov cr4, {v}");
    let off = cpu::try_xcr0(1);
    let undefined = off.is_some_and(|f| f.vector == UNDEFINED);
    check!(test, undefined, "XSETBV with CR4.OSXSAVE clear is undefined: {off:x?}");
}

/// Instructions of a hypervisor, executed by a guest, and CPUID of anything.
pub fn bad_instruction(test: &str, _: &Boot) {
    macro_rules! undefined {
        ($($name:literal $bytes:literal),+ $(,)?) => { $({
            // RAX points at no structure of ours.
            let fault = attempt!(0x20_0000u64, "mov rax, {v}", "xor ecx, ecx", $bytes);
            let good = fault.is_some_and(|f| f.vector == UNDEFINED || f.vector == PROTECTION);
            check!(test, good, "{} is refused: {fault:x?}", $name);
        })+ };
    }
    undefined!(
        "VMRUN" ".byte 0x0F, 0x01, 0xD8",
        "VMLOAD" ".byte 0x0F, 0x01, 0xDA",
        "VMSAVE" ".byte 0x0F, 0x01, 0xDB",
        "STGI" ".byte 0x0F, 0x01, 0xDC",
        "CLGI" ".byte 0x0F, 0x01, 0xDD",
        "INVLPGA" ".byte 0x0F, 0x01, 0xDF",
        "VMXOFF" ".byte 0x0F, 0x01, 0xC4",
        "RSM" ".byte 0x0F, 0xAA",
    );
    // Whether there is a hypercall is the host's affair; that the guest goes on isn't.
    let fault = attempt!(0u64, "mov rax, {v}", ".byte 0x0F, 0x01, 0xD9");
    check!(test, true, "VMMCALL: {fault:x?}");
    let mut random = Random::new(3);
    for _ in 0..1000 {
        let r = random.number();
        let base = [0, 0x4000_0000, 0x8000_0000, r as u32][(r >> 62) as usize];
        cpu::cpuid(base.wrapping_add((r >> 32) as u32 & 0x3F));
    }
    check!(test, true, "CPUID of 1000 leaves");
}
