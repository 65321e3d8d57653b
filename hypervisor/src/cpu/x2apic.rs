//! The local APIC in x2APIC mode, by MSR (APM 2 chapter 16; SDM 3A chapter 12).
//! Each function acts on the core it runs on.

use super::msr;
use core::arch::asm;

const VERSION: u32 = 0x803;
const TPR: u32 = 0x808;
const PPR: u32 = 0x80A;
const EOI: u32 = 0x80B;
const SVR: u32 = 0x80F;
const ISR: u32 = 0x810;
const IRR: u32 = 0x820;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const LVT_LINT1: u32 = 0x836;
const TIMER_INITIAL: u32 = 0x838;
const TIMER_CURRENT: u32 = 0x839;
const TIMER_DIVIDE: u32 = 0x83E;
const SELF_IPI: u32 = 0x83F;
const EXTENDED_FEATURES: u32 = 0x840;

/// APIC_BASE: the APIC is on, and in x2APIC mode.
const ENABLE: u64 = 1 << 11;
const EXTENDED: u64 = 1 << 10;
/// SVR: accept interrupts.
const SOFTWARE_ENABLE: u64 = 1 << 8;
/// LVT: no delivery.
const MASKED: u64 = 1 << 16;

const FIXED: u64 = 0 << 8;
const NMI: u64 = 4 << 8;
const INIT: u64 = 5 << 8;
const STARTUP: u64 = 6 << 8;
const ASSERT: u64 = 1 << 14;
const ALL_BUT_SELF: u64 = 3 << 18;

/// How long a message is on its way to a local APIC at most, in microseconds: some hundred
/// nanoseconds by what is known, and no manual names a bound.
pub const MESSAGE_US: u64 = 20;

/// How the timer behaves at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerMode {
    /// Stops.
    OneShot = 0,
    /// Starts again.
    Periodic = 1,
}

/// Switches to x2APIC mode, accepting interrupts, every local source masked.
/// The CPU has x2APIC mode: `control::check` refuses one that hasn't.
pub fn enable() {
    // SAFETY: the register and the mode exist; interrupts are off and no xAPIC
    // register is used afterwards.
    unsafe {
        msr::write(msr::APIC_BASE, msr::read(msr::APIC_BASE) | ENABLE);
        msr::write(msr::APIC_BASE, msr::read(msr::APIC_BASE) | EXTENDED);
    }
    local_sources().for_each(|(register, _)| write(register, MASKED));
    write(TPR, 0);
    write(SVR, SOFTWARE_ENABLE | u64::from(crate::interrupts::SPURIOUS));
}

/// The entries of this core's local vector table: their MSRs, and what they are.
pub fn local_sources() -> impl Iterator<Item = (u32, u32)> {
    let extended = || read(EXTENDED_FEATURES) as u32;
    let registers = delivery::local_sources(read(VERSION) as u32, extended);
    registers.map(|register| (register, read(register) as u32))
}

/// In the image of the audit's tests: an entry that nobody expects, of the error source.
#[cfg(feature = "plant")]
pub fn plant_source() {
    const LVT_ERROR: u32 = 0x837;
    write(LVT_ERROR, 0x20);
}

/// In the image of tests: the next core that is parked finds interrupts of a guest's on it that
/// were late, and an exception of the host's own may follow.
#[cfg(feature = "plant")]
pub mod late {
    use core::sync::atomic::{AtomicU8, Ordering};

    /// As [`expect`] takes it; 0 is nothing.
    static EXPECTED: AtomicU8 = AtomicU8::new(0);
    const INTERRUPTS: u8 = 1;
    const EXCEPTION: u8 = 2;

    /// From here on; `exception`, too?
    pub fn expect(exception: bool) {
        EXPECTED.store(if exception { EXCEPTION } else { INTERRUPTS }, Ordering::Release);
    }

    /// On a core that was just parked: all vectors that are exceptions to the host and legal for a
    /// guest.
    pub fn arrive() {
        /// In x2APIC mode the register of a destination alone is no MSR.
        const NO_MSR: u32 = 0x831;
        let expected = EXPECTED.swap(0, Ordering::AcqRel);
        if expected != 0 {
            (16..32).for_each(super::self_ipi);
        }
        if expected == EXCEPTION {
            super::write(NO_MSR, 0);
        }
    }
}

/// Lets in the NMIs of the platform on this core: it sends them to LINT1 of all.
pub fn let_platform_nmis_in() {
    write(LVT_LINT1, NMI);
}

/// Completes the interrupt of the highest priority in service.
#[inline]
pub fn eoi() {
    write(EOI, 0);
}

/// Sends an interrupt to the core with this APIC id.
pub fn send_ipi(destination: u32, vector: u8) {
    command(destination, FIXED | ASSERT | u64::from(vector));
}

/// Sends an NMI to the core with this APIC id: [`PerCpu::kick`](super::PerCpu::kick) counts it,
/// too.
pub(super) fn send_nmi(destination: u32) {
    command(destination, NMI | ASSERT);
}

/// Sends an NMI to every core but this one.
pub(crate) fn send_nmi_to_others() {
    command(0, NMI | ASSERT | ALL_BUT_SELF);
}

/// Resets a core. Only for cores that never ran: INIT isn't held back by GIF.
pub(super) fn send_init(destination: u32) {
    command(destination, INIT | ASSERT);
}

/// Starts a core that was reset, in real mode at `page` × 4096.
pub(super) fn send_startup(destination: u32, page: u8) {
    command(destination, STARTUP | ASSERT | u64::from(page));
}

/// Makes `vector` pending on this core.
#[inline]
pub fn self_ipi(vector: u8) {
    write(SELF_IPI, u64::from(vector));
}

/// Whether `vector` was delivered and not completed.
#[inline]
pub fn in_service(vector: u8) -> bool {
    bit(ISR, vector)
}

/// Vectors delivered and not completed, 32 per element.
pub fn in_service_bitmap() -> [u32; 8] {
    core::array::from_fn(|i| read(ISR + i as u32) as u32)
}

/// Vectors pending, 32 per element.
pub fn request_bitmap() -> [u32; 8] {
    core::array::from_fn(|i| read(IRR + i as u32) as u32)
}

/// Is any vector pending?
#[inline]
pub fn is_any_requested() -> bool {
    (0..8).fold(0, |all, i| all | read(IRR + i) as u32) != 0
}

/// Of the vectors pending, 32 from 32 × `index` on.
#[inline]
pub fn requested(index: u8) -> u32 {
    read(IRR + u32::from(index & 7)) as u32
}

/// Is a vector pending that the priorities let in? Whether the CPU does is its flags' affair.
pub fn is_any_let_in() -> bool {
    let pending = (0..8u8).rev().map(|index| (index, requested(index))).find(|word| word.1 != 0);
    pending.is_some_and(|(index, word)| {
        let highest = index << 5 | word.ilog2() as u8;
        delivery::class(highest) > delivery::class(read(PPR) as u8)
    })
}

/// The task priority.
pub fn tpr() -> u8 {
    read(TPR) as u8
}

/// Sets the task priority: vectors of its class and below wait.
pub fn set_tpr(priority: u8) {
    write(TPR, u64::from(priority));
}

/// The timer's vector and mode.
pub fn timer_lvt(vector: u8, mode: TimerMode, masked: bool) {
    let mask = if masked { MASKED } else { 0 };
    write(LVT_TIMER, u64::from(vector) | (mode as u64) << 17 | mask);
}

/// The timer counts once per 2^`shift` ticks, `shift` 0 to 7 (divide configuration register).
pub fn timer_divide_shift(shift: u8) {
    // Encoding: 0 is ÷2 up to 6 for ÷128, 7 is ÷1, with its bit 2 moved to bit 3.
    let code = u64::from(shift.wrapping_sub(1) & 7);
    write(TIMER_DIVIDE, code & 3 | (code & 4) << 1);
}

/// The divide configuration register, as [`timer_divide_shift`] or the guest wrote it.
pub fn timer_divider() -> u32 {
    read(TIMER_DIVIDE) as u32
}

/// Writes it as a guest did.
pub fn timer_divide(divider: u32) {
    write(TIMER_DIVIDE, u64::from(divider));
}

/// Starts the timer from this count; 0 stops it.
#[inline]
pub fn timer_start(count: u32) {
    write(TIMER_INITIAL, u64::from(count));
}

/// The rest of the timer's count.
#[inline]
pub fn timer_count() -> u32 {
    read(TIMER_CURRENT) as u32
}

fn bit(bank: u32, vector: u8) -> bool {
    read(bank + u32::from(vector >> 5)) >> (vector & 31) & 1 != 0
}

fn command(destination: u32, low: u64) {
    // A WRMSR of the x2APIC isn't serializing: earlier stores have to be visible
    // to the receiver first (SDM 3A 12.12.3).
    // SAFETY: fences only.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    write(ICR, u64::from(destination) << 32 | low);
}

#[inline]
fn read(register: u32) -> u64 {
    // SAFETY: a register of the x2APIC, which is on before any function here is called.
    unsafe { msr::read(register) }
}

#[inline]
fn write(register: u32, value: u64) {
    // SAFETY: as read; an APIC register changes no memory of this program, and
    // every vector has a handler.
    unsafe { msr::write(register, value) };
}

/// The count that the timer last started from.
pub fn timer_initial() -> u32 {
    read(TIMER_INITIAL) as u32
}
