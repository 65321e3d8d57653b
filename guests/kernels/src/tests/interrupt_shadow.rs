//! Between STI, or MOV to SS, and the instruction behind it no interrupt comes (APM vol. 2,
//! 15.21.5; SDM 3A, 6.8.3): also when that instruction exits, whether a host carries it out or has
//! it executed again. It comes right behind that instruction.

use super::edu;
use super::nested::{DEVICE, request, settle};
use crate::{boot::Boot, console::check, cpu, edu, idt, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

// Each scene begins with interrupts off and one waiting, and ends with interrupts off. RDI points
// to the cell, RSI to whatever the scene needs. `shadow_NAME_behind` is where an interrupt may come
// at the earliest.
core::arch::global_asm!(
    r#"
.macro shadow name
.global shadow_\name, shadow_\name\()_behind
shadow_\name:
.endm

shadow inc
    sti
    incq (%rdi)
shadow_inc_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow cpuid
    pushq %rbx
    xorl %eax, %eax
    xorl %ecx, %ecx
    sti
    cpuid
shadow_cpuid_behind:
    incq (%rdi)
    nop
    cli
    popq %rbx
    retq

shadow port                     # one that nobody has
    sti
    outb %al, $0x80
shadow_port_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow msr                      # IA32_APIC_BASE
    movl $0x1B, %ecx
    sti
    rdmsr
shadow_msr_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow load
    sti
    movl (%rsi), %eax
shadow_load_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow store                    # of what is there already
    movq (%rsi), %rax
    sti
    movq %rax, (%rsi)
shadow_store_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow lidt                     # of what is loaded already
    subq $16, %rsp
    sidt (%rsp)
    sti
    lidt (%rsp)
shadow_lidt_behind:
    incq (%rdi)
    nop
    cli
    addq $16, %rsp
    retq

shadow hlt
    sti
    hlt
shadow_hlt_behind:
    incq (%rdi)
    nop
    cli
    retq

shadow cli                      # nothing comes at all
    sti
    cli
shadow_cli_behind:
    incq (%rdi)
    nop
    retq

# MOV to SS with interrupts on, until the cell at RSI, which the handler counts in, is at RDX, or
# the one at RDI, which the scene counts in, at RCX. Not right behind STI: of several that hold
# interrupts back one after the other only the first is sure to.
shadow ss
    movl %ss, %r8d
    sti
    nop
1:  movl %r8d, %ss
.global shadow_ss_in
shadow_ss_in:
    incq (%rdi)
shadow_ss_behind:
    cmpq %rcx, (%rdi)
    jae 2f
    cmpq %rdx, (%rsi)
    jb 1b
2:  cli
    retq

shadow ss_cpuid
    pushq %rbx
    movl %ss, %r8d
    movq %rcx, %r9
    movq %rdx, %r10
    sti
    nop
1:  xorl %eax, %eax
    xorl %ecx, %ecx
    movl %r8d, %ss
.global shadow_ss_cpuid_in
shadow_ss_cpuid_in:
    cpuid
shadow_ss_cpuid_behind:
    incq (%rdi)
    cmpq %r9, (%rdi)
    jae 2f
    cmpq %r10, (%rsi)
    jb 1b
2:  cli
    popq %rbx
    retq
"#,
    options(att_syntax)
);

type Scene = unsafe extern "C" fn(&AtomicU64, u64);
type Loop = unsafe extern "C" fn(&AtomicU64, &AtomicU64, u64, u64);

macro_rules! scenes {
    ($($scene:ident, $behind:ident;)+) => {
        unsafe extern "C" {
            $(fn $scene(cell: &AtomicU64, at: u64); static $behind: u8;)+
        }
    };
}

scenes! {
    shadow_inc, shadow_inc_behind;
    shadow_cpuid, shadow_cpuid_behind;
    shadow_port, shadow_port_behind;
    shadow_msr, shadow_msr_behind;
    shadow_load, shadow_load_behind;
    shadow_store, shadow_store_behind;
    shadow_lidt, shadow_lidt_behind;
    shadow_hlt, shadow_hlt_behind;
}

unsafe extern "C" {
    fn shadow_cli(cell: &AtomicU64, at: u64);
    fn shadow_ss(rounds: &AtomicU64, came: &AtomicU64, wanted: u64, most: u64);
    fn shadow_ss_cpuid(rounds: &AtomicU64, came: &AtomicU64, wanted: u64, most: u64);
    static shadow_ss_in: u8;
    static shadow_ss_behind: u8;
    static shadow_ss_cpuid_in: u8;
    static shadow_ss_cpuid_behind: u8;
}

const FROM_SELF: u8 = 0x45;
const TICK: u8 = 0x51;
/// Ticks of QEMU's timer between two interrupts: about a millisecond.
const SHORT: u32 = 1_000_000;
/// How many must come to the loops, and after how many rounds those give up: seconds.
const TICKS: u64 = 100;
const ROUNDS: u64 = 400_000_000;
const IOAPIC: u64 = 0xFEC0_0000;
/// Its gate is written and leads nowhere else.
const UNUSED: u64 = 0x66;

/// What the scenes count in.
static CELL: AtomicU64 = AtomicU64::new(0);
/// What the handler saw: the cell, and where the interrupted code goes on.
static SEEN: AtomicU64 = AtomicU64::new(0);
static RIP: AtomicU64 = AtomicU64::new(0);

/// STI in front of all kinds of instructions, then MOV to SS. `device=none`: with interrupts to
/// itself alone.
pub fn interrupt_shadow(test: &str, boot: &Boot) {
    let edu = match boot.option("device") {
        Some("none") => None,
        _ => match edu(test) {
            Some(edu) => Some(edu),
            None => return,
        },
    };
    if let Some(edu) = &edu {
        edu.aim_handled(DEVICE);
    }
    let edu = edu.as_ref();
    let vectors = || [FROM_SELF].into_iter().chain(edu.map(|_| DEVICE));
    for vector in vectors() {
        idt::on(vector, note);
    }
    let table = idt::arena(0) + UNUSED * 16;
    // The name, the scene, where it may be interrupted, what it needs, what the handler finds in
    // the cell.
    let scenes: [(&str, Scene, *const u8, u64, u64); 8] = [
        ("INC", shadow_inc, &raw const shadow_inc_behind, 0, 1),
        ("CPUID", shadow_cpuid, &raw const shadow_cpuid_behind, 0, 0),
        ("OUT", shadow_port, &raw const shadow_port_behind, 0, 0),
        ("RDMSR", shadow_msr, &raw const shadow_msr_behind, 0, 0),
        ("a load of a device's", shadow_load, &raw const shadow_load_behind, IOAPIC, 0),
        ("a store to the table", shadow_store, &raw const shadow_store_behind, table, 0),
        ("LIDT", shadow_lidt, &raw const shadow_lidt_behind, 0, 0),
        ("HLT", shadow_hlt, &raw const shadow_hlt_behind, 0, 0),
    ];
    for (what, scene, behind, at, wanted) in scenes {
        for vector in vectors() {
            let n = play(edu, vector, scene, at);
            let (rip, seen) = (RIP.load(SeqCst), SEEN.load(SeqCst));
            let right = (n, rip, seen) == (1, behind as u64, wanted);
            check!(
                test,
                right,
                "STI and {what}, {vector:#x}: {n} time(s), {} bytes behind it, {seen} in the cell",
                rip.wrapping_sub(behind as u64) as i64
            );
        }
    }
    for vector in vectors() {
        let n = play(edu, vector, shadow_cli, 0);
        let waits = x2apic::requested(vector);
        check!(test, n == 0 && waits, "STI and CLI, {vector:#x}: {n} time(s), it waits {waits}");
        let before = idt::count(vector);
        cpu::enable_interrupts();
        wait::until(|| idt::count(vector) > before);
        cpu::disable_interrupts();
    }
    if let Some(edu) = edu {
        edu.silence();
    }
    let inside = [&raw const shadow_ss_in, &raw const shadow_ss_behind];
    stack_segment(test, "INC", shadow_ss, inside.map(|at| at as u64));
    let inside = [&raw const shadow_ss_cpuid_in, &raw const shadow_ss_cpuid_behind];
    stack_segment(test, "CPUID", shadow_ss_cpuid, inside.map(|at| at as u64));
}

fn note(frame: &mut idt::Frame) {
    SEEN.store(CELL.load(SeqCst), SeqCst);
    RIP.store(frame.rip, SeqCst);
    edu::handler(frame);
}

/// Plays a scene while `vector` waits; how often it came.
fn play(edu: Option<&edu::Edu>, vector: u8, scene: Scene, at: u64) -> u64 {
    match edu {
        Some(edu) => {
            settle(edu);
            request(edu, vector);
        }
        None => {
            x2apic::self_ipi(vector);
            wait::until(|| x2apic::requested(vector));
        }
    }
    let before = idt::count(vector);
    [&CELL, &SEEN, &RIP].iter().for_each(|cell| cell.store(0, SeqCst));
    // SAFETY: the scenes change nothing but the cell, and keep stack and registers as they must.
    unsafe { scene(&CELL, at) };
    idt::count(vector) - before
}

/// Where ticks mustn't come, and right behind that; how many came there, and at all.
static PLACES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static THERE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static CAME: AtomicU64 = AtomicU64::new(0);

/// MOV to SS again and again while the timer ticks: what waits already would come in front of it.
fn stack_segment(test: &str, what: &str, scene: Loop, inside: [u64; 2]) {
    idt::on(TICK, |frame| {
        for (place, there) in PLACES.iter().zip(&THERE) {
            there.fetch_add(u64::from(frame.rip == place.load(SeqCst)), SeqCst);
        }
        CAME.fetch_add(1, SeqCst);
        x2apic::complete();
    });
    PLACES.iter().zip(inside).for_each(|(place, at)| place.store(at, SeqCst));
    [&CELL, &CAME, &THERE[0], &THERE[1]].iter().for_each(|cell| cell.store(0, SeqCst));
    x2apic::start_timer(TICK, true, SHORT);
    // SAFETY: SS is loaded with what it holds; else as above.
    unsafe { scene(&CELL, &CAME, TICKS, ROUNDS) };
    x2apic::stop_timer();
    let [came, between, behind] = [&CAME, &THERE[0], &THERE[1]].map(|cell| cell.load(SeqCst));
    check!(
        test,
        came >= TICKS && between == 0,
        "MOV to SS and {what}: {between} of {came} ticks came between them, {behind} right behind"
    );
}
