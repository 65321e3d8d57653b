//! The local APIC (SDM 3A, 11): completion, task priority, in-service and request bits,
//! inter-processor interrupts, timer. By MSRs, unless this CPU is in xAPIC mode (`xapic`).

use crate::{
    cpu::{self, outb, rdmsr},
    xapic,
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const APIC_BASE: u32 = 0x1B;
const ID: u32 = 0x802;
/// Task priority register.
pub const TPR: u32 = 0x808;
const EOI: u32 = 0x80B;
const LOGICAL_DESTINATION: u32 = 0x80D;
const SPURIOUS: u32 = 0x80F;
const IN_SERVICE: u32 = 0x810;
const REQUEST: u32 = 0x820;
/// Interrupt command register.
pub const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const LVT_LINT0: u32 = 0x835;
/// See [`spare_spurious`].
static SPARES: AtomicBool = AtomicBool::new(false);

/// From here on [`sendable`] spares the spurious vector. Bochs' local APIC never completes an
/// interrupt with it (`receive_EOI` in its `cpu/apic.cc`), and none is delivered behind it.
pub fn spare_spurious(yes: bool) {
    SPARES.store(yes, SeqCst);
}

/// A command, or another that this machine's local APIC survives.
pub fn sendable(command: u64) -> u64 {
    let spared = SPARES.load(SeqCst) && command as u8 == SPURIOUS_VECTOR;
    if spared { command ^ 1 } else { command }
}

/// Interrupts the CPU itself.
pub const SELF_IPI: u32 = 0x83F;
/// The timer: the count that it starts from.
pub const INITIAL_COUNT: u32 = 0x838;
/// The timer's current count.
pub const CURRENT_COUNT: u32 = 0x839;
/// The timer: the divider.
pub const DIVIDE: u32 = 0x83E;

const LVT_MASKED: u64 = 1 << 16;
const LVT_PERIODIC: u64 = 1 << 17;

/// Registers whose writes never leave a core that is the guest's own: a value too many
/// there harms the guest itself, and tells nothing of the host.
pub const OWN: [u32; 5] = [TPR, EOI, INITIAL_COUNT, DIVIDE, SELF_IPI];

/// Vector of spurious interrupts.
pub const SPURIOUS_VECTOR: u8 = 0xFF;

/// Silences the 8259 and this CPU's APIC: see [`init_cpu`].
pub fn init() {
    // The 8259 first, then its way in, LINT0: the other way round QEMU keeps a request
    // that nobody makes, and takes interrupt -1 at the next STI.
    outb(0x21, 0xFF);
    outb(0xA1, 0xFF);
    init_cpu();
}

/// Switches this CPU's APIC to x2APIC mode if it isn't, enables it and silences what
/// firmware left.
pub fn init_cpu() {
    let base = rdmsr(APIC_BASE);
    if base & 0xC00 != 0xC00 {
        let home = base & 0x100 | xapic::PAGE;
        cpu::wrmsr(APIC_BASE, home | 0x800);
        cpu::wrmsr(APIC_BASE, home | 0xC00);
    }
    xapic::forget();
    init_registers();
}

/// Enables this CPU's APIC, in whatever mode it is, and silences it.
pub fn init_registers() {
    wrmsr(SPURIOUS, 0x100 | u64::from(SPURIOUS_VECTOR));
    wrmsr(TPR, 0);
    wrmsr(LVT_LINT0, LVT_MASKED);
    stop_timer();
}

/// A register of this CPU's APIC in its mode, by its MSR.
fn get(register: u32) -> u64 {
    if xapic::is_on() { xapic::read(register).into() } else { rdmsr(register) }
}

fn wrmsr(register: u32, value: u64) {
    match xapic::is_on() {
        true => xapic::write(register, value as u32),
        false => cpu::wrmsr(register, value),
    }
}

/// Whether x2APIC mode is on.
pub fn enabled() -> bool {
    rdmsr(APIC_BASE) & 0xC00 == 0xC00
}

/// This CPU's id.
pub fn id() -> u32 {
    let id = get(ID) as u32;
    if xapic::is_on() { id >> 24 } else { id }
}

/// Completes the interrupt in service (EOI).
pub fn complete() {
    wrmsr(EOI, 0);
}

/// Completes all that is in service.
pub fn complete_all() {
    let served: u32 = (0..8).map(|i| (get(IN_SERVICE + i) as u32).count_ones()).sum();
    (0..served).for_each(|_| complete());
}

/// Whether `vector` is in service.
pub fn in_service(vector: u8) -> bool {
    bit(IN_SERVICE, vector)
}

/// Whether `vector` is requested and waits.
pub fn requested(vector: u8) -> bool {
    bit(REQUEST, vector)
}

fn bit(bank: u32, vector: u8) -> bool {
    get(bank + u32::from(vector) / 32) >> (vector % 32) & 1 == 1
}

/// Whether this is the CPU that the machine started with (IA32_APIC_BASE.BSP).
pub fn is_first() -> bool {
    rdmsr(APIC_BASE) >> 8 & 1 == 1
}

/// This CPU's logical id: its cluster, and its bit in it.
pub fn logical_id() -> u32 {
    get(LOGICAL_DESTINATION) as u32
}

/// Delivery modes and flags of an interrupt command (SDM 3A, 11.6.1).
pub mod command {
    /// To the lowest-priority CPU of the destination.
    pub const LOWEST_PRIORITY: u64 = 1 << 8;
    /// System management interrupt.
    pub const SMI: u64 = 2 << 8;
    /// Reserved delivery mode.
    pub const RESERVED: u64 = 3 << 8;
    /// Non-maskable interrupt.
    pub const NMI: u64 = 4 << 8;
    /// INIT, level asserted.
    pub const INIT: u64 = 5 << 8 | 1 << 14;
    /// INIT level de-assert, which x2APIC ignores.
    pub const INIT_DEASSERT: u64 = 5 << 8 | 1 << 15;
    /// Start-up, at the page that the vector field names.
    pub const START_UP: u64 = 6 << 8;
    /// ExtINT, reserved in commands.
    pub const EXT_INT: u64 = 7 << 8;
    /// The destination is a logical one.
    pub const LOGICAL: u64 = 1 << 11;
    /// Shorthand: this CPU.
    pub const SELF: u64 = 1 << 18;
    /// Shorthand: all CPUs.
    pub const ALL: u64 = 2 << 18;
    /// Shorthand: all CPUs but this one.
    pub const OTHERS: u64 = 3 << 18;
    /// Destination: every CPU, physical or logical.
    pub const BROADCAST: u32 = 0xFFFF_FFFF;
}

/// Writes the interrupt command register: `what` to the CPU or CPUs of `destination`.
pub fn send(destination: u32, what: u64) {
    if xapic::is_on() {
        xapic::write(xapic::COMMAND_HIGH, destination << 24);
        return xapic::write(ICR, what as u32);
    }
    cpu::wrmsr(ICR, u64::from(destination) << 32 | what);
}

/// Sends `vector` to this CPU through the SELF IPI register.
pub fn self_ipi(vector: u8) {
    if xapic::is_on() {
        return xapic::write(ICR, command::SELF as u32 | u32::from(vector));
    }
    cpu::wrmsr(SELF_IPI, u64::from(vector));
}

/// What is requested, in service, masked by priority, counting down or dividing: zero after a
/// reset.
pub fn left_over() -> u64 {
    let bits = (0..8).fold(0, |all, i| all | get(IN_SERVICE + i) | get(REQUEST + i));
    bits | get(TPR) | u64::from(timer_count()) | u64::from(timer_divider())
}

/// What the first CPU found in its local APIC when this kernel began.
static AT_START: AtomicU64 = AtomicU64::new(0);

/// Notes what is left over of the time before this kernel, before it puts the APIC in order.
pub fn note_left_over() {
    if enabled() {
        AT_START.store(left_over(), SeqCst);
    }
}

/// What was left over when this kernel began: zero after a reset.
pub fn left_over_at_start() -> u64 {
    AT_START.load(SeqCst)
}

/// The timer's divide configuration register.
pub fn timer_divider() -> u32 {
    get(DIVIDE) as u32
}

/// Starts the timer with a divider of 1.
pub fn start_timer(vector: u8, periodic: bool, count: u32) {
    wrmsr(DIVIDE, 0xB);
    wrmsr(LVT_TIMER, u64::from(vector) | if periodic { LVT_PERIODIC } else { 0 });
    wrmsr(INITIAL_COUNT, u64::from(count));
}

/// Makes a timer that was started once go on with the count it had.
pub fn make_periodic(vector: u8) {
    wrmsr(LVT_TIMER, u64::from(vector) | LVT_PERIODIC);
}

/// The count that the timer starts from.
pub fn timer_initial() -> u32 {
    rdmsr(INITIAL_COUNT) as u32
}

/// What is left of the timer's count.
pub fn timer_count() -> u32 {
    get(CURRENT_COUNT) as u32
}

/// Stops and masks the timer.
pub fn stop_timer() {
    wrmsr(INITIAL_COUNT, 0);
    wrmsr(LVT_TIMER, LVT_MASKED | u64::from(SPURIOUS_VECTOR));
}

/// Clears the timer's entry but for its mask.
pub fn clear_timer() {
    wrmsr(LVT_TIMER, LVT_MASKED);
}
