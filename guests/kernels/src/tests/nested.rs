//! Events whose delivery itself meets a fault: traps, faults and interrupts that push onto the page
//! of the IDT, which a host may have replaced by a shadow that takes no stores, and interrupts
//! whose own gate isn't present.

use super::edu;
use crate::{boot::Boot, console::check, cpu, edu, idt, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::attempt;

// Each scene raises an event on the stack that RDI points to. `nested_NAME_at` is where the
// interrupted code goes on by what the event pushes.
core::arch::global_asm!(
    r#"
.macro scene name
.global nested_\name, nested_\name\()_at
nested_\name:
    movq %rsp, nested_home(%rip)
.endm

scene step                      # a trap behind the instruction that follows POPF
    pushfq
    orq $0x100, (%rsp)
    popfq
    movq %rdi, %rsp
nested_step_at:
    nop
    jmp nested_over

scene watch                     # a trap behind the store
    movq %rdi, %rsp
    movq %rdi, nested_watched(%rip)
nested_watch_at:
    nop
    jmp nested_over

scene breakpoint
    movq %rdi, %rsp
    int3
nested_breakpoint_at:
    jmp nested_over

scene undefined
    movq %rdi, %rsp
nested_undefined_at:
    ud2

scene protection                # no canonical address
    movabsq $0x8000000000000000, %rax
    movq %rdi, %rsp
nested_protection_at:
    movq (%rax), %rax
    jmp nested_over

scene page                      # beyond the identity map
    movabsq $0x1234567000, %rax
    movq %rdi, %rsp
nested_page_at:
    movq (%rax), %rax
    jmp nested_over

scene interrupt                 # what waits comes now, if it does
    movl $100000000, %eax
    movq %rdi, %rsp
    sti
nested_interrupt_at:
    decl %eax
    jnz nested_interrupt_at
    jmp nested_over

nested_over:
    cli
    movq nested_home(%rip), %rsp
    retq

# Handlers, without an error code and with one: note what came and end the scene.
.global nested_plain, nested_code
nested_plain:
    pushq $0
nested_code:
    pushq %rax
    movq 8(%rsp), %rax
    movq %rax, nested_error(%rip)
    movq 16(%rsp), %rax
    movq %rax, nested_rip(%rip)
    lock incq nested_count(%rip)
    leaq nested_over(%rip), %rax
    movq %rax, 16(%rsp)
    andq $~0x300, 32(%rsp)      # no single step, no interrupts
    popq %rax
    addq $8, %rsp
    iretq

.section .bss.nested, "aw", @nobits
.balign 8
.global nested_home, nested_watched, nested_error, nested_rip, nested_count
nested_home: .skip 8
nested_watched: .skip 8
nested_error: .skip 8
nested_rip: .skip 8
nested_count: .skip 8
.text
"#,
    options(att_syntax)
);

unsafe extern "C" {
    fn nested_step(stack: u64);
    fn nested_watch(stack: u64);
    fn nested_breakpoint(stack: u64);
    fn nested_undefined(stack: u64);
    fn nested_protection(stack: u64);
    fn nested_page(stack: u64);
    fn nested_interrupt(stack: u64);
    static nested_step_at: u8;
    static nested_watch_at: u8;
    static nested_breakpoint_at: u8;
    static nested_undefined_at: u8;
    static nested_protection_at: u8;
    static nested_page_at: u8;
    static nested_plain: u8;
    static nested_code: u8;
    static nested_watched: AtomicU64;
    static nested_error: AtomicU64;
    static nested_rip: AtomicU64;
    static nested_count: AtomicU64;
}

type Scene = unsafe extern "C" fn(u64);

const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;
const UNDEFINED: u8 = 6;
const NOT_PRESENT: u8 = 11;
pub(super) const PROTECTION: u8 = 13;
pub(super) const PAGE_FAULT: u8 = 14;
pub(super) const DEVICE: u8 = 0x40;
/// Interrupts at an exception's vectors: at none of QEMU's, and at #XM's.
const LOW: [u8; 2] = [0x1F, 0x13];

/// A stack that ends with the page of the first table: what is pushed takes the place of the last
/// gates, which nothing uses.
fn table_stack() -> u64 {
    idt::arena(idt::TABLE_BYTES)
}

/// A page of the arena that no table is in.
fn plain_stack() -> u64 {
    idt::arena(2 * idt::TABLE_BYTES)
}

/// Does an exception push an error code?
fn has_code(vector: u8) -> bool {
    // #TS, #NP, #SS, #GP and #PF.
    matches!(vector, 10..=14)
}

/// Leads a vector to the handlers above.
pub(super) fn catch(vector: u8) {
    let handler = match has_code(vector) {
        true => &raw const nested_code,
        false => &raw const nested_plain,
    };
    idt::write_gate(idt::arena(0), vector, idt::gate_to(handler as u64));
}

pub(super) fn restore(vector: u8) {
    idt::write_gate(idt::arena(0), vector, idt::gate(vector, true));
}

/// What came in a scene.
pub(super) struct Came {
    /// How often.
    pub times: u64,
    /// Where the interrupted code goes on.
    rip: u64,
    /// The error code.
    pub error: u64,
}

/// Plays a scene on a stack.
fn play(scene: Scene, stack: u64) -> Came {
    // SAFETY: cells of the scenes; each scene leaves all registers that are kept, and the stack, as
    // they were; what it pushes is below `stack`, in the arena.
    unsafe {
        nested_count.store(0, SeqCst);
        scene(stack);
        let [times, rip, error] =
            [&raw const nested_count, &raw const nested_rip, &raw const nested_error]
                .map(|cell| (*cell).load(SeqCst));
        Came { times, rip, error }
    }
}

/// Lets what waits come, on a stack that can take it.
pub(super) fn interrupt() -> Came {
    play(nested_interrupt, plain_stack())
}

/// Lets the host make a shadow of the table, if it does: an interrupt comes and is over.
pub(super) fn settle(edu: &edu::Edu) {
    cpu::enable_interrupts();
    edu.raise_and_wait(DEVICE, 2);
    cpu::disable_interrupts();
}

/// Everything that a CPU delivers, onto the page of the table.
pub fn stacked(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(DEVICE);
    let scenes: [(&str, Scene, u8, u64); 6] = [
        ("a single step", nested_step, DEBUG, (&raw const nested_step_at) as u64),
        ("a data breakpoint", nested_watch, DEBUG, (&raw const nested_watch_at) as u64),
        ("INT3", nested_breakpoint, BREAKPOINT, (&raw const nested_breakpoint_at) as u64),
        ("UD2", nested_undefined, UNDEFINED, (&raw const nested_undefined_at) as u64),
        ("#GP", nested_protection, PROTECTION, (&raw const nested_protection_at) as u64),
        ("#PF", nested_page, PAGE_FAULT, (&raw const nested_page_at) as u64),
    ];
    for (what, scene, vector, at) in scenes {
        catch(vector);
        settle(&edu);
        watch(vector == DEBUG && what != "a single step");
        let came = play(scene, table_stack());
        watch(false);
        restore(vector);
        let right = came.times == 1 && came.rip == at && came.error == 0;
        check!(
            test,
            right,
            "{what}: {} time(s), at {:#x} for {at:#x}, error code {:#x}",
            came.times,
            came.rip,
            came.error
        );
        if vector == PAGE_FAULT {
            check!(test, cpu::cr2() == 0x12_3456_7000, "#PF: CR2 {:#x}", cpu::cr2());
        }
    }
    for (what, vector) in [("a device's interrupt", DEVICE), ("a low vector", LOW[0])] {
        interrupted(test, what, &edu, vector);
    }
    absent(test, "a device's gate not present", &edu, DEVICE, table_stack());
    edu.silence();
}

/// Interrupts at vectors of exceptions, whose gate isn't present.
pub fn low_gates(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(DEVICE);
    for vector in LOW {
        idt::on(vector, |_| x2apic::complete());
        absent(test, "its gate not present", &edu, vector, plain_stack());
        absent(test, "the same, onto the table's page", &edu, vector, table_stack());
    }
    edu.silence();
}

/// Breakpoint 0 on the watched cell, for stores of eight bytes.
fn watch(on: bool) {
    const STORES: u64 = 0x0009_0401;
    let at = (&raw const nested_watched) as u64;
    let _ = attempt!(if on { at } else { 0 }, "mov dr0, {v}");
    let _ = attempt!(if on { STORES } else { 0x400 }, "mov dr7, {v}");
}

/// Comes by a host, if there is one, so that it sees what was done to the table.
pub(super) fn exit() {
    for _ in 0..4 {
        cpu::cpuid(0);
    }
}

/// Makes `vector` wait: the device's own, or one sent to itself.
pub(super) fn request(edu: &edu::Edu, vector: u8) {
    if vector == DEVICE {
        edu::raise();
    } else {
        x2apic::self_ipi(vector);
    }
    let waits = crate::wait::until(|| x2apic::requested(vector));
    if !waits {
        edu.silence();
    }
}

/// An interrupt onto the page of the table: taken once, in service until it is completed.
fn interrupted(test: &str, what: &str, edu: &edu::Edu, vector: u8) {
    settle(edu);
    catch(vector);
    exit();
    request(edu, vector);
    let came = play(nested_interrupt, table_stack());
    let served = x2apic::in_service(vector);
    edu::acknowledge();
    x2apic::complete();
    let right = came.times == 1 && served && !x2apic::in_service(vector);
    check!(test, right, "{what} at {vector:#x}: {} time(s), in service {served}", came.times);
    restore(vector);
    never_again(test, what, vector);
}

/// An interrupt whose gate isn't present is #NP, in service until it is completed, and gone then.
fn absent(test: &str, what: &str, edu: &edu::Edu, vector: u8, stack: u64) {
    settle(edu);
    idt::write_gate(idt::arena(0), vector, idt::gate(vector, false));
    catch(NOT_PRESENT);
    exit();
    request(edu, vector);
    let came = play(nested_interrupt, stack);
    let served = x2apic::in_service(vector);
    edu::acknowledge();
    x2apic::complete();
    // QEMU leaves the EXT bit out, hardware sets it.
    let right = came.times == 1 && came.error | 1 == u64::from(vector) * 8 + 3;
    check!(
        test,
        right,
        "{what}, {vector:#x}: #NP {} time(s), error code {:#x}",
        came.times,
        came.error
    );
    let over = !x2apic::in_service(vector);
    check!(test, served && over, "{what}, {vector:#x}: in service {served}, then completed {over}");
    restore(vector);
    restore(NOT_PRESENT);
    never_again(test, what, vector);
}

/// Nothing of it is left to come.
pub(super) fn never_again(test: &str, what: &str, vector: u8) {
    let before = idt::count(vector);
    cpu::enable_interrupts();
    crate::wait::settle();
    cpu::disable_interrupts();
    let n = idt::count(vector) - before;
    check!(test, n == 0, "{what}, {vector:#x}: it came {n} time(s) more");
}
