//! Numbers and bits of the local APIC's registers (SDM vol. 3, 11.4.1 and 11.12.1.2): MSR 0x800 +
//! n, and 16 × n in the xAPIC's page.

pub(super) const ID: u8 = 0x02;
pub(super) const VERSION: u8 = 0x03;
pub(super) const TPR: u8 = 0x08;
pub(super) const PPR: u8 = 0x0A;
pub(super) const EOI: u8 = 0x0B;
pub(super) const LDR: u8 = 0x0D;
pub(super) const SVR: u8 = 0x0F;
pub(super) const ISR: u8 = 0x10;
pub(super) const TMR: u8 = 0x18;
pub(super) const IRR: u8 = 0x20;
pub(super) const ESR: u8 = 0x28;
pub(super) const ICR: u8 = 0x30;
/// Bits of ICR that must be zero in x2APIC mode; the delivery status, bit 12, is ignored there.
pub(super) const ICR_RESERVED: u64 = 0xFFF << 20 | 0b11 << 16 | 1 << 13;
pub(super) const LVT_TIMER: u8 = 0x32;
pub(super) const LVT_THERMAL: u8 = 0x33;
pub(super) const LVT_LINT0: u8 = 0x35;
pub(super) const LVT_LINT1: u8 = 0x36;
pub(super) const LVT_ERROR: u8 = 0x37;
pub(super) const TIMER_INITIAL: u8 = 0x38;
pub(super) const TIMER_CURRENT: u8 = 0x39;
pub(super) const TIMER_DIVIDE: u8 = 0x3E;
pub(super) const SELF_IPI: u8 = 0x3F;

pub(super) const LVT_MASKED: u32 = 1 << 16;
pub(super) const LVT_PERIODIC: u32 = 1 << 17;
/// Another delivery mode than fixed.
pub(super) const LVT_MODE: u32 = 0x700;
pub(super) const SVR_ENABLED: u32 = 1 << 8;
/// ESR bits: a vector below 16 was sent, or received; a register that isn't there was named.
pub(super) const ERROR_SEND_VECTOR: u32 = 1 << 5;
pub(super) const ERROR_RECEIVE_VECTOR: u32 = 1 << 6;
pub(super) const ERROR_REGISTER: u32 = 1 << 7;
/// Six LVT entries, version as an integrated APIC says it, no EOI-broadcast suppression.
pub(super) const VERSION_VALUE: u32 = 5 << 16 | 0x14;
pub(super) const DIVIDE_BITS: u32 = 0b1011;
/// The lowest vector of an interrupt.
pub(super) const FIRST_VECTOR: u8 = 16;

/// What an entry of the local vector table keeps (SDM vol. 3, figure 11-8): vector and mask, for
/// some the mode, for the pins polarity and trigger. The delivery status and the remote IRR are
/// read-only, and nothing sets them.
pub(super) const fn lvt_bits(register: u8) -> u32 {
    match register {
        LVT_TIMER => LVT_PERIODIC | LVT_MASKED | 0xFF,
        LVT_LINT0 | LVT_LINT1 => LVT_MASKED | 1 << 15 | 1 << 13 | LVT_MODE | 0xFF,
        // AMD's error entry has a mode, too (APM vol. 2, 16.4.6).
        _ => LVT_MASKED | LVT_MODE | 0xFF,
    }
}

/// The bits that a write may set: others raise #GP in x2APIC mode, and mean nothing in xAPIC mode.
/// `None`: not a register that is written, or not the same way in both.
pub(super) const fn writable(register: u8) -> Option<u32> {
    Some(match register {
        TPR => 0xFF,
        EOI | ESR => 0,
        SVR => 0x1FF,
        LVT_TIMER..=LVT_ERROR | TIMER_INITIAL => u32::MAX,
        TIMER_DIVIDE => DIVIDE_BITS,
        _ => return None,
    })
}
