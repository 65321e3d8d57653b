//! Interrupt descriptor tables and the 256 stubs behind them.
//!
//! Guarantees: every vector that arrives is counted, for the CPU it came to, with its error
//! code; what comes to the first CPU is logged in order, with the moment its handler ended,
//! before and after its handler runs; an exception nobody expects ends the test as failed
//! and says where it was. Tables and handlers are the same for all CPUs.

use crate::{console::println, cpu, power, smp, x2apic};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

core::arch::global_asm!(
    r#"
.balign 16
.global interrupt_stubs
interrupt_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21)
        pushq $0
    .endif
    pushq $vector
    jmp interrupt_common
    .set vector, vector + 1
.endr
"#,
    include_str!("../../../hypervisor/src/interrupts/common.s"),
    r#"
# INT n for every n, four bytes apart.
.balign 16
.global software_interrupts
software_interrupts:
.set vector, 0
.rept 256
    .byte 0xCD, vector, 0xC3, 0x90
    .set vector, vector + 1
.endr
"#,
    handle = sym interrupt_entry,
    options(att_syntax)
);

unsafe extern "C" {
    static interrupt_stubs: u8;
    static software_interrupts: u8;
}

/// What the stubs save, lowest address first.
#[repr(C)]
pub struct Frame {
    registers: [u64; 15],
    /// The vector.
    pub vector: u64,
    /// The error code, or zero.
    pub error: u64,
    /// Where the interrupted code goes on.
    pub rip: u64,
    cs: u64,
    /// Its flags.
    pub rflags: u64,
    rsp: u64,
    ss: u64,
}

impl Frame {
    /// Whether the interrupted code was about to return from an interrupt.
    pub fn at_return(&self) -> bool {
        // SAFETY: interrupted code is mapped; all of this kernel's is readable.
        unsafe { core::ptr::read_unaligned(self.rip as *const [u8; 2]) == [0x48, 0xCF] }
    }
}

/// A fault that was expected to be possible and came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The exception's vector.
    pub vector: u8,
    /// Its error code.
    pub error: u32,
}

/// Bytes of a table with all 256 gates.
pub const TABLE_BYTES: usize = 4096;

#[repr(C, align(4096))]
struct Arena([AtomicU64; 4 * TABLE_BYTES / 8]);
static ARENA: Arena = Arena([const { AtomicU64::new(0) }; 4 * TABLE_BYTES / 8]);

static HANDLERS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
static SILENT: AtomicBool = AtomicBool::new(false);

/// What is each CPU's own, in lines of its own.
#[repr(align(128))]
struct OfCpu {
    counts: [AtomicU64; 256],
    errors: [AtomicU64; 256],
    recovery: AtomicU64,
    fault: AtomicU64,
}

static CPUS: [OfCpu; smp::MAX] = [const {
    OfCpu {
        counts: [const { AtomicU64::new(0) }; 256],
        errors: [const { AtomicU64::new(0) }; 256],
        recovery: AtomicU64::new(0),
        fault: AtomicU64::new(0),
    }
}; smp::MAX];

fn this() -> &'static OfCpu {
    &CPUS[smp::index()]
}

const LOG_SLOTS: usize = 64;
static LOG: [AtomicU32; LOG_SLOTS] = [const { AtomicU32::new(0) }; LOG_SLOTS];
static LOGGED: AtomicUsize = AtomicUsize::new(0);

/// An entry of the log: a vector's handler began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The handler of this vector was entered.
    Enter(u8),
    /// It is about to return.
    Leave(u8),
}

/// Fills the first table of the arena and loads it.
pub fn init() {
    let base = arena(0);
    for vector in 0..=255 {
        write_gate(base, vector, gate(vector, true));
    }
    load();
}

/// Loads the first table of the arena.
pub fn load() {
    cpu::load_idt(arena(0), (TABLE_BYTES - 1) as u16);
}

/// The address `offset` bytes into four pages kept for tables, page-aligned at 0.
pub fn arena(offset: usize) -> u64 {
    ARENA.0.as_ptr() as u64 + offset as u64
}

/// The two halves of a 64-bit interrupt gate to the stub of `vector`.
pub fn gate(vector: u8, present: bool) -> [u64; 2] {
    const PRESENT: u64 = 1 << 47;
    let [low, high] = gate_to((&raw const interrupt_stubs) as u64 + u64::from(vector) * 16);
    [if present { low } else { low & !PRESENT }, high]
}

/// The two halves of a 64-bit interrupt gate to code that returns by IRET.
pub fn gate_to(code: u64) -> [u64; 2] {
    [code & 0xFFFF | 0x08 << 16 | 0x8E << 40 | (code >> 16 & 0xFFFF) << 48, code >> 32]
}

/// Stores a gate with two plain eight-byte stores, aligned or not.
pub fn write_gate(base: u64, vector: u8, gate: [u64; 2]) {
    let address = base + u64::from(vector) * 16;
    // SAFETY: tables lie in the arena or in an alias of it.
    unsafe {
        core::arch::asm!("mov [{a}], {l}", "mov [{a} + 8], {h}", a = in(reg) address,
                         l = in(reg) gate[0], h = in(reg) gate[1], options(nostack));
    }
}

/// Loads a gate back.
pub fn read_gate(base: u64, vector: u8) -> [u64; 2] {
    let address = base + u64::from(vector) * 16;
    let (low, high);
    // SAFETY: tables lie in the arena or in an alias of it.
    unsafe {
        core::arch::asm!("mov {l}, [{a}]", "mov {h}, [{a} + 8]", a = in(reg) address,
                         l = out(reg) low, h = out(reg) high, options(nostack, readonly));
    }
    [low, high]
}

/// How often a vector arrived on this CPU.
pub fn count(vector: u8) -> u64 {
    count_on(smp::index(), vector)
}

/// How often a vector arrived on a CPU.
pub fn count_on(cpu: usize, vector: u8) -> u64 {
    CPUS[cpu].counts[usize::from(vector)].load(SeqCst)
}

/// How often a vector arrived on any CPU.
pub fn total(vector: u8) -> u64 {
    (0..smp::MAX).map(|cpu| count_on(cpu, vector)).sum()
}

/// What `read` reads between two interrupts of a vector, and how often that had arrived: it is read
/// again until none came meanwhile.
pub fn between<T>(vector: u8, mut read: impl FnMut() -> T) -> (u64, T) {
    loop {
        let before = total(vector);
        let found = read();
        if total(vector) == before {
            return (before, found);
        }
    }
}

/// How often any vector arrived on any CPU.
pub fn everything() -> u64 {
    (0..=255).map(total).sum()
}

/// The error code that came last with a vector on this CPU.
pub fn last_error(vector: u8) -> u64 {
    this().errors[usize::from(vector)].load(SeqCst)
}

/// Installs a handler; it must EOI if its interrupt came from the local APIC.
pub fn on(vector: u8, handler: fn(&mut Frame)) {
    HANDLERS[usize::from(vector)].store(handler as usize, SeqCst);
}

/// Counts anew from here.
pub fn clear_counts() {
    CPUS.iter().flat_map(|cpu| &cpu.counts).for_each(|count| count.store(0, SeqCst));
}

/// Removes all handlers, counts and log entries: what a test starts from. Vectors
/// from 32 up without a handler are counted and completed.
pub fn reset() {
    clear_counts();
    HANDLERS.iter().for_each(|handler| handler.store(0, SeqCst));
    SILENT.store(false, SeqCst);
    clear_log();
}

/// Makes vectors without a handler be counted only, not completed (for INT n).
pub fn no_completion(on: bool) {
    SILENT.store(on, SeqCst);
}

/// Empties the log.
pub fn clear_log() {
    LOGGED.store(0, SeqCst);
}

/// Whether the log holds exactly these steps.
pub fn log_is(steps: &[Step]) -> bool {
    LOGGED.load(SeqCst) == steps.len() && steps.iter().enumerate().all(|(i, s)| log_at(i) == *s)
}

/// Prints the log; for failures.
pub fn print_log() {
    for i in 0..LOGGED.load(SeqCst).min(LOG_SLOTS) {
        println!("  {:x?}", log_at(i));
    }
}

fn log_at(i: usize) -> Step {
    let entry = LOG[i % LOG_SLOTS].load(SeqCst);
    if entry >> 8 == 0 { Step::Enter(entry as u8) } else { Step::Leave(entry as u8) }
}

fn log(entry: u32) {
    let i = LOGGED.fetch_add(1, SeqCst);
    if let Some(slot) = LOG.get(i) {
        slot.store(entry, SeqCst);
    }
}

/// Executes INT `vector`.
pub fn software_interrupt(vector: u8) {
    let routine = (&raw const software_interrupts) as u64 + u64::from(vector) * 4;
    // SAFETY: the routine is INT n; RET, and the stubs keep every register.
    unsafe { core::arch::asm!("call {}", in(reg) routine) }
}

/// Where a fault of this CPU's is to resume: the address of the cell.
pub fn recovery() -> *mut u64 {
    this().recovery.as_ptr()
}

/// Before an instruction that may fault: forgets the last fault.
pub fn expect_fault() {
    this().fault.store(0, SeqCst);
}

/// After the instruction: the fault, if one came.
pub fn take_fault() -> Option<Fault> {
    this().recovery.store(0, SeqCst);
    let fault = this().fault.swap(0, SeqCst);
    (fault != 0).then_some(Fault { vector: (fault >> 32) as u8, error: fault as u32 })
}

/// Called by the stubs.
extern "C" fn interrupt_entry(frame: &mut Frame) {
    let vector = frame.vector as u8;
    let slot = usize::from(vector);
    let (index, this) = (smp::index(), this());
    this.counts[slot].fetch_add(1, SeqCst);
    this.errors[slot].store(frame.error, SeqCst);
    if index == 0 {
        log(u32::from(vector));
    }
    let handler = HANDLERS[slot].load(SeqCst);
    let recovery = this.recovery.load(SeqCst);
    if handler != 0 {
        // SAFETY: the cell only ever holds what `on` stored.
        let handler: fn(&mut Frame) = unsafe { core::mem::transmute(handler) };
        handler(frame);
    } else if vector >= 32 {
        if !SILENT.load(SeqCst) {
            x2apic::complete();
        }
    } else if recovery != 0 && vector != 2 {
        this.recovery.store(0, SeqCst);
        this.fault.store(1 << 63 | u64::from(vector) << 32 | frame.error & 0xFFFF_FFFF, SeqCst);
        frame.rip = recovery;
    } else {
        println!(
            "FAIL exception: vector {vector}, error code {:#x}, at {:#x}, CR2 {:#x}, on CPU {index}",
            frame.error,
            frame.rip,
            cpu::cr2()
        );
        power::debug_exit(power::FAILED);
    }
    if index == 0 {
        log(0x100 | u32::from(vector));
    }
}
