//! Debug exceptions that exit on a CPU which hands them to the host first, and the bits of CR4 that
//! are the host's: the guest must see neither.

use crate::{boot::Boot, console::check, cpu, idt, idt::Fault, idt::Frame};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::attempt;

const DEBUG: u8 = 1;
const PROTECTION: u8 = 13;
const QUIET: u64 = 0xFFFF_0FF0;
const SINGLE_STEP: u64 = 1 << 14;
const DEBUG_ACCESS: u64 = 1 << 13;
const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;
const CR4_MCE: u64 = 1 << 6;
const CR4_VMXE: u64 = 1 << 13;

/// DR6 in the handler, and where its return leads.
static STATUS: AtomicU64 = AtomicU64::new(0);
static BEHIND: AtomicU64 = AtomicU64::new(0);
static FLAGS: AtomicU64 = AtomicU64::new(0);

fn set_status(value: u64) {
    // SAFETY: the debug status; nothing else here reads it.
    unsafe { asm!("mov dr6, {}", in(reg) value) }
}

fn note(frame: &mut Frame) {
    let status: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, dr6", out(reg) status) }
    STATUS.store(status, SeqCst);
    BEHIND.store(frame.rip, SeqCst);
}

/// The first trap is noted, and ends the steps.
fn note_step(frame: &mut Frame) {
    note(frame);
    frame.rflags &= !TF;
}

/// INT1, steps over STI and MOV SS, and both at once.
pub fn debugged(test: &str, _: &Boot) {
    idt::on(DEBUG, note);
    set_status(QUIET | SINGLE_STEP | 4);
    let behind: u64;
    // SAFETY: the handler returns.
    unsafe { asm!(".byte 0xF1", "2: lea {}, [rip + 2b]", out(reg) behind) }
    let (n, at, status) = (idt::count(DEBUG), BEHIND.load(SeqCst), STATUS.load(SeqCst));
    check!(test, n == 1 && at == behind, "INT1: {n} trap at {at:#x}, {behind:#x} wanted");
    check!(test, status == QUIET | SINGLE_STEP | 4, "it leaves DR6 alone: {status:#x}");

    idt::on(DEBUG, note_step);
    set_status(QUIET | DEBUG_ACCESS);
    // SAFETY: the handler ends the steps, of which there is one.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop", "nop") }
    let status = STATUS.load(SeqCst);
    let wanted = QUIET | DEBUG_ACCESS | SINGLE_STEP;
    check!(test, status == wanted, "a step leaves the rest of DR6: {status:#x}");

    set_status(QUIET);
    let before = idt::count(DEBUG);
    let behind: u64;
    // SAFETY: as above; no interrupt has a source here.
    unsafe {
        asm!("cli", "pushfq", "or qword ptr [rsp], 0x100", "popfq", "sti",
             "2: nop", "cli", "lea {}, [rip + 2b]", out(reg) behind)
    }
    let (n, at) = (idt::count(DEBUG) - before, BEHIND.load(SeqCst));
    check!(test, n == 1 && at == behind, "a step over STI: {n} at {at:#x}, {behind:#x} wanted");

    let before = idt::count(DEBUG);
    let behind: u64;
    // SAFETY: as above; SS is what it was. What is between is in the shadow of MOV SS.
    unsafe {
        asm!("mov {s:e}, ss", "pushfq", "or qword ptr [rsp], 0x100", "popfq", "mov ss, {s:e}",
             ".byte 0xF1", "2: nop", "lea {b}, [rip + 2b]", s = out(reg) _, b = out(reg) behind)
    }
    let (n, at) = (idt::count(DEBUG) - before, BEHIND.load(SeqCst));
    check!(test, n == 1 && at == behind, "INT1 behind MOV SS, stepped: {n} at {at:#x}");

    let before = idt::count(DEBUG);
    idt::expect_fault();
    let behind: u64;
    // SAFETY: as above; VMCALL raises #UD, and goes on at label 2.
    unsafe {
        asm!("lea {b}, [rip + 2f]", "mov [{r}], {b}", "mov {s:e}, ss", "pushfq",
             "or qword ptr [rsp], 0x100", "popfq", "mov ss, {s:e}", ".byte 0x0F, 0x01, 0xC1",
             "2: pushfq", "and qword ptr [rsp], -0x101", "popfq",
             r = in(reg) idt::recovery(), s = out(reg) _, b = out(reg) behind)
    }
    let (fault, n) = (idt::take_fault(), idt::count(DEBUG) - before);
    let undefined = fault == Some(Fault { vector: 6, error: 0 });
    check!(test, undefined, "VMCALL behind MOV SS, stepped: {fault:?}, {n} steps, {behind:#x}");

    // What a fault pushes has RF, so that an instruction breakpoint doesn't hit twice.
    idt::on(PROTECTION, |frame| {
        FLAGS.store(frame.rflags, SeqCst);
        frame.rip += 2;
        frame.rflags &= !RF;
    });
    // SAFETY: there is no such register; the handler steps over RDMSR.
    unsafe { asm!("rdmsr", in("ecx") 0x4242_4242, out("eax") _, out("edx") _) }
    let flags = FLAGS.load(SeqCst);
    check!(test, flags & RF != 0, "a fault of the host's pushes RF: {flags:#x}");
    idt::on(DEBUG, |_| {});
}

/// CR4 reads as it was written, and has no bit that CPUID doesn't show.
pub fn own_cr4(test: &str, _: &Boot) {
    let home = cpu::cr4();
    check!(test, home & (CR4_MCE | CR4_VMXE) == 0, "neither MCE nor VMXE at first: {home:#x}");
    for value in [home | CR4_MCE, home | CR4_MCE, home, home, home | CR4_MCE | 4, home] {
        let fault = attempt!(value, "mov cr4, {v}");
        let now = cpu::cr4();
        check!(test, fault.is_none() && now == value, "{value:#x} reads {now:#x}: {fault:?}");
    }
    // UMIP and what is older is the CPU's to judge. LA57, VMXE, SMXE; KL, CET, PKS, UINTR, LASS,
    // LAM_SUP, FRED, and what has no name yet.
    let unnamed = (29..64).filter(|bit| *bit != 32);
    for bit in [12u64, 13, 14, 15, 19, 23, 24, 25, 26, 27, 28, 32].into_iter().chain(unnamed) {
        let fault = attempt!(home | 1 << bit, "mov cr4, {v}");
        let refused = fault == Some(Fault { vector: PROTECTION, error: 0 });
        if !refused || cpu::cr4() != home {
            let now = cpu::cr4();
            check!(test, false, "bit {bit}: {fault:?}, CR4 is {now:#x}");
        }
    }
    check!(test, true, "no other bit is taken");
}
