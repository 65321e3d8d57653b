//! L2's local APIC as AVIC has it (APM vol. 2, 15.29), for a CPU that has none: its registers lie
//! in the *backing page*, in L1's memory, where L1 puts interrupts for L2, too.
//!
//! Guarantees: what isn't accelerated is told to L1 as the CPU would; each word of the page is read
//! once where it decides something; no loop depends on what L1 wrote, who may write at any moment.
//!
//! Of what may be accelerated these are: reads, the task priority, completions of what is edge
//! triggered, and interrupts that L2 sends itself by the register for that. What L2 sends by ICR is
//! told as one that the CPU doesn't send.

/// What L1 wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avic {
    /// Guest-physical address of the backing page.
    pub page: u64,
    /// Where L2 has the registers, if it isn't in x2APIC mode.
    pub bar: Option<u64>,
}

/// The backing page, which L1's CPUs write meanwhile.
pub trait ApicPage {
    /// The word at this offset, a multiple of 16 below 4096.
    fn read(&self, at: u16) -> u32;
    /// Puts one there.
    fn write(&self, at: u16, value: u32);
    /// Sets bits of one, at once.
    fn set(&self, at: u16, bits: u32);
    /// Clears bits of one, at once.
    fn clear(&self, at: u16, bits: u32);
}

/// What an access comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This is read.
    Value(u64),
    /// It is done.
    Done,
    /// #GP.
    Refused,
    /// It isn't done: L1 is told, and does it.
    Fault(Told),
    /// It is done, and L1 is told.
    Trap(Told),
}

/// An exit of AVIC's: its code, EXITINFO1 and EXITINFO2.
pub type Told = (u32, u64, u64);

const INCOMPLETE_IPI: u32 = 0x401;
const UNACCELERATED: u32 = 0x402;
/// Of EXITINFO1 of the latter: a write.
const WRITE: u64 = 1 << 32;

/// Registers, by the number of their MSR, and sixteenths of their offset.
mod register {
    pub const ID: u8 = 0x02;
    pub const VERSION: u8 = 0x03;
    pub const TPR: u8 = 0x08;
    pub const PPR: u8 = 0x0A;
    pub const EOI: u8 = 0x0B;
    pub const LDR: u8 = 0x0D;
    pub const DFR: u8 = 0x0E;
    pub const SVR: u8 = 0x0F;
    pub const ISR: u8 = 0x10;
    pub const TMR: u8 = 0x18;
    pub const IRR: u8 = 0x20;
    pub const ESR: u8 = 0x28;
    pub const ICR: u8 = 0x30;
    pub const ICR_HIGH: u8 = 0x31;
    pub const LVT_FIRST: u8 = 0x32;
    pub const TIMER_INITIAL: u8 = 0x38;
    pub const TIMER_CURRENT: u8 = 0x39;
    pub const TIMER_DIVIDE: u8 = 0x3E;
    pub const SELF_IPI: u8 = 0x3F;
}
use register::*;

const fn at(register: u8) -> u16 {
    (register as u16) << 4
}

/// A vector's bit in the registers from this one on.
const fn bit(first: u8, vector: u8) -> (u16, u32) {
    (at(first + vector / 32), 1 << (vector % 32))
}

/// The highest vector in eight registers.
fn highest(page: &impl ApicPage, first: u8) -> Option<u8> {
    (0..8u8).rev().find_map(|n| {
        let word = page.read(at(first + n));
        Some(n * 32 + word.checked_ilog2()? as u8)
    })
}

/// Brings the processor priority up to date; gives it.
fn prioritize(page: &impl ApicPage) -> u8 {
    let task = page.read(at(TPR)) as u8;
    let in_service = highest(page, ISR).unwrap_or(0) & 0xF0;
    let priority = if task & 0xF0 >= in_service { task } else { in_service };
    page.write(at(PPR), priority.into());
    priority
}

/// L2's task priority (CR8).
pub fn task_priority(page: &impl ApicPage) -> u8 {
    page.read(at(TPR)) as u8 >> 4
}

/// L2 may have written CR8.
pub fn set_task_priority(page: &impl ApicPage, cr8: u8) {
    if task_priority(page) != cr8 & 0xF {
        page.write(at(TPR), u32::from(cr8 & 0xF) << 4);
        prioritize(page);
    }
}

/// What waits for L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing that L2 could take before it completes another one.
    Nothing,
    /// One that its task priority holds back.
    Held,
    /// This one is L2's to take. It doesn't wait in the page any more: if it comes again from now
    /// on, that is another one.
    Offered(u8),
}

/// L2's task priority, where nothing waits, is in service or held back by that. Linux' is 10h, so
/// that no exception's vector is an interrupt's.
pub fn quiet_priority(page: &impl ApicPage) -> Option<u8> {
    let none = |first| highest(page, first).is_none();
    let priority = task_priority(page);
    (priority <= 1 && none(IRR) && none(ISR)).then_some(priority)
}

/// This vector waits for L2; again, if it was offered and not taken.
pub fn post(page: &impl ApicPage, vector: u8) {
    let (pending, mask) = bit(IRR, vector);
    page.set(pending, mask);
}

/// Before L2 runs: what it is to be offered.
pub fn offer(page: &impl ApicPage) -> Waiting {
    let Some(vector) = highest(page, IRR) else { return Waiting::Nothing };
    let in_service = highest(page, ISR).unwrap_or(0) >> 4;
    if vector >> 4 <= in_service {
        return Waiting::Nothing;
    }
    if vector >> 4 <= task_priority(page) {
        return Waiting::Held;
    }
    let (pending, mask) = bit(IRR, vector);
    page.clear(pending, mask);
    Waiting::Offered(vector)
}

/// L2 took what it was offered, or this one by other means.
pub fn accept(page: &impl ApicPage, vector: u8) {
    let (in_service, mask) = bit(ISR, vector);
    page.set(in_service, mask);
    prioritize(page);
}

/// L2 reads a register; `by_page`: from memory, else as an MSR.
pub fn read(page: &impl ApicPage, register: u8, by_page: bool) -> Access {
    let word = |register| u64::from(page.read(at(register)));
    match register {
        // What it counts down from is L1's.
        TIMER_CURRENT => Access::Fault((UNACCELERATED, at(register).into(), 0)),
        PPR => {
            prioritize(page);
            Access::Value(word(PPR))
        }
        ICR if !by_page => Access::Value(word(ICR) | word(ICR_HIGH) << 32),
        EOI | ICR_HIGH | DFR | SELF_IPI.. if !by_page => Access::Refused,
        ID | VERSION | TPR | LDR | SVR..=ESR | ICR | LVT_FIRST..=TIMER_INITIAL | TIMER_DIVIDE => {
            Access::Value(word(register))
        }
        DFR | ICR_HIGH => Access::Value(word(register)),
        _ if by_page => Access::Value(0),
        _ => Access::Refused,
    }
}

/// L2 writes one.
pub fn write(page: &impl ApicPage, register: u8, value: u64, by_page: bool) -> Access {
    let told = |code, info1, info2| Access::Trap((code, info1, info2));
    let wide = !by_page && register != ICR && value >> 32 != 0;
    match register {
        _ if wide => Access::Refused,
        TPR if !by_page && value > 0xFF => Access::Refused,
        TPR => {
            page.write(at(TPR), value as u32 & 0xFF);
            prioritize(page);
            Access::Done
        }
        EOI | ESR if !by_page && value != 0 => Access::Refused,
        EOI => complete(page),
        SELF_IPI if !by_page && value > 0xFF => Access::Refused,
        SELF_IPI if !by_page => {
            post(page, value as u8);
            Access::Done
        }
        ICR => {
            if !by_page {
                page.write(at(ICR_HIGH), (value >> 32) as u32);
            }
            page.write(at(ICR), value as u32);
            let high = u64::from(page.read(at(ICR_HIGH)));
            // Of a kind that isn't accelerated (cause 0).
            told(INCOMPLETE_IPI, high << 32 | value & 0xFFFF_FFFF, 0)
        }
        ICR_HIGH if by_page => {
            page.write(at(ICR_HIGH), value as u32);
            Access::Done
        }
        ID | LDR | DFR if !by_page => Access::Refused,
        ID | LDR | DFR | SVR | ESR | LVT_FIRST..=TIMER_INITIAL | TIMER_DIVIDE => {
            page.write(at(register), value as u32);
            told(UNACCELERATED, u64::from(at(register)) | WRITE, 0)
        }
        // Those that can only be read, and none.
        _ if by_page => Access::Done,
        _ => Access::Refused,
    }
}

/// L2 completes the interrupt that is in service. L1 completes a level-triggered one.
fn complete(page: &impl ApicPage) -> Access {
    let Some(vector) = highest(page, ISR) else { return Access::Done };
    let (mode, mask) = bit(TMR, vector);
    if page.read(mode) & mask != 0 {
        return Access::Trap((UNACCELERATED, u64::from(at(EOI)) | WRITE, vector.into()));
    }
    page.clear(bit(ISR, vector).0, mask);
    prioritize(page);
    Access::Done
}

#[cfg(test)]
mod tests;
