//! The host's interrupt descriptor table and its handlers.
//!
//! Guarantees: every vector has a gate; an interrupt is noted and completed before its handler
//! returns, but for one that is to stay in service (`acknowledge`); an NMI is only noted, at any
//! instruction; neither lets a core fall asleep that was about to; an exception is a bug and ends
//! in a panic that shows the registers. Handlers neither lock, nor log, nor allocate.

use super::{
    SPURIOUS, TIMER, WAKE,
    acknowledge::stays,
    arrived::{note, take, tell_core_0},
    nmi,
    sleep::{disable, past_halt, sleep},
};
use crate::{
    cpu::{
        again,
        descriptors::{CODE, IST_DOUBLE_FAULT, IST_MACHINE_CHECK, IST_NMI},
        machine_check, this, x2apic,
    },
    panic,
};
use core::{
    arch::{asm, global_asm},
    fmt,
    mem::size_of,
};
use spin::Once;

global_asm!(
    include_str!("stubs.s"),
    include_str!("common.s"),
    include_str!("tolerant.s"),
    ".text",
    handle = sym handle,
    options(att_syntax)
);

unsafe extern "C" {
    /// 256 pieces of code, 16 bytes each.
    static interrupt_stubs: [[u8; 16]; 256];
    /// As many for the vectors below 32, 64 bytes each.
    static interrupt_tolerant_stubs: [[u8; 64]; 32];
}

const NMI: u64 = 2;
/// The tolerant table's stub pushes this for vector 2: an NMI, or a guest's interrupt.
const TOLERANT_NMI: u64 = 256;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: u64 = 14;
const MACHINE_CHECK: u64 = 18;
const RFLAGS_IF: u64 = 1 << 9;

/// An interrupt gate (APM 2 4.8.4).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    offset_low: u16,
    selector: u16,
    ist: u8,
    kind: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

/// Present, DPL 0, 64-bit interrupt gate.
const INTERRUPT_GATE: u8 = 0x8E;

impl Gate {
    /// To `handler`, on the stack `ist` of the TSS or, if that is 0, on the current one.
    fn new(handler: u64, ist: u8) -> Self {
        Gate {
            offset_low: handler as u16,
            selector: CODE,
            ist,
            kind: INTERRUPT_GATE,
            offset_middle: (handler >> 16) as u16,
            offset_high: (handler >> 32) as u32,
            reserved: 0,
        }
    }
}

#[repr(C, align(16))]
struct Idt([Gate; 256]);

static TABLE: Once<Idt> = Once::new();

impl Idt {
    fn new() -> Idt {
        Idt(core::array::from_fn(|vector| {
            // SAFETY: only the address is taken, inside of the array.
            let stub = unsafe { &raw const interrupt_stubs[vector] } as u64;
            let stack = match vector {
                2 => IST_NMI,
                DOUBLE_FAULT => IST_DOUBLE_FAULT,
                v if v == MACHINE_CHECK as usize => IST_MACHINE_CHECK,
                _ => 0,
            };
            Gate::new(stub, stack)
        }))
    }
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Makes the host's table that of the core this runs on.
/// Vectors 16 to 31 are exceptions in it, as in every CPU's.
pub fn load() {
    load_table(TABLE.call_once(Idt::new));
}

fn load_table(table: &'static Idt) {
    let pointer =
        Pointer { limit: (size_of::<Idt>() - 1) as u16, base: core::ptr::from_ref(table) as u64 };
    // SAFETY: the table is static, and its gates lead to the stubs.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
}

/// The interrupted code's registers, as `stubs.s`, `common.s` and the CPU push them.
#[repr(C)]
pub struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rbp: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rbx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

extern "C" fn handle(frame: &mut Frame) {
    frame.rip = past_halt(frame.rip);
    match frame.vector {
        NMI => {
            frame.rip = again(frame.rip);
            panic::halt_if_stopping();
            nmi::arrived(this());
        }
        // A guest's interrupt of vector 2 doesn't hold NMIs back. So an NMI may have come while its
        // handler began, found the vector in service, and completed it here. The interrupt then
        // finds nothing in service and counts as the NMI: each of the two is counted once.
        TOLERANT_NMI if x2apic::in_service(NMI as u8) => {
            panic::halt_if_stopping();
            x2apic::eoi();
            nmi::look(this());
        }
        TOLERANT_NMI => {
            panic::halt_if_stopping();
            nmi::arrived(this());
        }
        MACHINE_CHECK if is_interrupt() => x2apic::eoi(),
        MACHINE_CHECK => match machine_check::take() {
            Some(report) => panic!("{report}\n{frame}"),
            None => panic!("{frame}"),
        },
        0..32 => panic!("{frame}"),
        vector => {
            let vector = vector as u8;
            if !is_spurious(vector) && stays(this(), vector) {
                frame.rflags &= !RFLAGS_IF;
                return;
            }
            arrived(vector);
        }
    }
}

/// A true spurious interrupt isn't in service and is nobody's; a device may have the same vector.
fn is_spurious(vector: u8) -> bool {
    vector == SPURIOUS && !x2apic::in_service(SPURIOUS)
}

/// An interrupt was taken from this core's local APIC, by a gate or by an exit.
pub fn arrived(vector: u8) {
    if !is_spurious(vector) {
        note(vector);
        x2apic::eoi();
        if matches!(vector, TIMER | WAKE) {
            tell_core_0(this(), vector == TIMER);
        }
    }
}

/// Is the machine check's vector here for an interrupt that a guest had left ([`load_tolerant`])?
fn is_interrupt() -> bool {
    x2apic::in_service(MACHINE_CHECK as u8) && !machine_check::in_progress()
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "exception {} with error code {:#x} at {:#x}",
            self.vector, self.error, self.rip
        )?;
        // A double fault is most often a push to the page below the stack: CR2 tells.
        if [PAGE_FAULT, DOUBLE_FAULT as u64].contains(&self.vector) {
            write!(f, ", address {:#x}", x86_64::registers::control::Cr2::read_raw())?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "  rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}",
            self.rax, self.rbx, self.rcx, self.rdx
        )?;
        writeln!(
            f,
            "  rsi {:016x} rdi {:016x} rbp {:016x} rsp {:016x}",
            self.rsi, self.rdi, self.rbp, self.rsp
        )?;
        writeln!(
            f,
            "  r8  {:016x} r9  {:016x} r10 {:016x} r11 {:016x}",
            self.r8, self.r9, self.r10, self.r11
        )?;
        writeln!(
            f,
            "  r12 {:016x} r13 {:016x} r14 {:016x} r15 {:016x}",
            self.r12, self.r13, self.r14, self.r15
        )?;
        write!(f, "  cs {:#x} ss {:#x} rflags {:#x}", self.cs, self.ss, self.rflags)
    }
}

global_asm!(
    ".global interrupt_tolerant_nmi",
    "interrupt_tolerant_nmi:",
    "push 0",
    "push {nmi}",
    "jmp interrupt_common",
    nmi = const TOLERANT_NMI,
);

unsafe extern "C" {
    /// An NMI, or the interrupt of a guest with its vector.
    safe fn interrupt_tolerant_nmi();
}

/// Loads a table for a core on which a guest's interrupts may still arrive. Among them may be
/// vectors 16 to 31, which the table of the host takes for exceptions, and on QEMU lower ones. This
/// one tells the two apart by the ISR: an interrupt below 32 is completed and forgotten, an
/// exception is the bug that it is anywhere. What is above is noted as ever. QEMU delivers a
/// guest's vector 2, too, which hardware never does; an NMI may come while that is handled, so here
/// neither has a stack of its own, where the second would overwrite the first. The core is in the
/// host: its stack is good. An exception isn't told from an interrupt of its vector that a guest
/// left in service.
pub fn load_tolerant() {
    static TOLERANT: Once<Idt> = Once::new();
    load_table(TOLERANT.call_once(|| {
        let mut table = Idt::new();
        let gates = table.0.iter_mut().enumerate().take(32);
        for (vector, gate) in gates.filter(|(v, _)| *v != MACHINE_CHECK as usize) {
            // SAFETY: only the address is taken, inside of the array.
            let stub = unsafe { &raw const interrupt_tolerant_stubs[vector] } as u64;
            *gate = Gate::new(stub, if vector == DOUBLE_FAULT { IST_DOUBLE_FAULT } else { 0 });
        }
        table.0[NMI as usize] = Gate::new(interrupt_tolerant_nmi as *const () as u64, 0);
        table
    }));
}

/// Does something while a guest's interrupts of vectors below 32 may arrive, which are completed
/// and forgotten.
pub fn tolerating<R>(f: impl FnOnce() -> R) -> R {
    load_tolerant();
    let result = f();
    load();
    result
}

/// Sleeps until [`WAKE`] arrives; what else does is completed and for `other`. The tolerant table
/// stays loaded.
pub fn sleep_until_woken(mut other: impl FnMut(u8)) {
    load_tolerant();
    let mut woken = false;
    while !woken {
        disable();
        for vector in take() {
            if vector == WAKE { woken = true } else { other(vector) }
        }
        if !woken {
            sleep();
        }
    }
}

/// Completes and forgets every interrupt that a guest left on this core, pending or in service.
/// Their sources are silent by now, or what they still send is for nobody. QEMU accepts vectors
/// below 16 too, which hardware never does, and delivers all but 0: that one is left. The tolerant
/// table stays loaded: what other cores sent may still be on its way.
pub fn drain() {
    /// Each round takes a vector at the least.
    const ROUNDS: usize = 256;
    let any = |bitmap: [u32; 8]| bitmap[0] & !1 != 0 || bitmap[1..].iter().any(|r| *r != 0);
    let complete = || {
        (0..ROUNDS).take_while(|_| any(x2apic::in_service_bitmap())).for_each(|_| x2apic::eoi());
    };
    x2apic::set_tpr(0);
    complete();
    load_tolerant();
    for _ in (0..ROUNDS).take_while(|_| any(x2apic::request_bitmap())) {
        // SAFETY: the table just loaded handles every vector; nothing in between faults.
        unsafe { asm!("sti", "nop", "cli") };
        complete();
    }
}
