//! Events given to the guest: injected at the next entry (EVENTINJ, APM vol. 2, 15.20), or on offer until
//! it takes them (V_IRQ, 15.21.4).

use super::nmi::Nmi;
use super::vmcb::{Vmcb, int_ctl};
use delivery::{Again, Interruption, class};

pub const DEBUG: u8 = 1;
const INVALID_TSS: u8 = 10;
pub const NOT_PRESENT: u8 = 11;
const STACK: u8 = 12;
pub const GENERAL_PROTECTION: u8 = 13;
pub const PAGE_FAULT: u8 = 14;
pub const ALIGNMENT_CHECK: u8 = 17;
pub const MACHINE_CHECK: u8 = 18;
/// What the delivery of an interrupt can fail with, but #NP, which exits always; a bit each.
pub const DELIVERY_FAULTS: u32 =
    1 << INVALID_TSS | 1 << STACK | 1 << GENERAL_PROTECTION | 1 << PAGE_FAULT;

const VALID: u64 = 1 << 31;
const ERROR_CODE: u64 = 1 << 11;
const INTERRUPT: u64 = 0 << 8;
const NMI: u64 = 2 << 8;
const EXCEPTION: u64 = 3 << 8;

/// An exception at the next entry.
pub fn raise(vmcb: &mut Vmcb, vector: u8, error_code: Option<u32>) {
    let code = error_code.map_or(0, |c| ERROR_CODE | (c as u64) << 32);
    vmcb.event_inj = VALID | EXCEPTION | code | vector as u64;
}

/// An NMI at the next entry.
pub fn raise_nmi(vmcb: &mut Vmcb, nmi: &mut Nmi) {
    vmcb.event_inj = VALID | NMI | 2;
    nmi.raised(vmcb);
}

/// Is there one at the next entry?
pub fn raising(vmcb: &Vmcb) -> bool {
    vmcb.event_inj & VALID != 0
}

/// Delivers again the event whose delivery an exit interrupted. `physical`: is this vector in service in
/// the local APIC that the guest owns?
pub fn redeliver(
    vmcb: &mut Vmcb,
    nmi: &mut Nmi,
    interruption: Interruption,
    physical: impl Fn(u8) -> bool,
) {
    match interruption.again(physical) {
        Again::Nothing => {}
        Again::Interrupt(vector) => vmcb.event_inj = VALID | INTERRUPT | vector as u64,
        Again::Nmi => raise_nmi(vmcb, nmi),
        Again::Exception { vector, error_code } => raise(vmcb, vector, error_code),
    }
}

/// An interrupt on offer, or none. While there is one, what its delivery can fail with exits: QEMU
/// would have it on offer for ever.
pub fn offer(vmcb: &mut Vmcb, vector: Option<u8>) {
    vmcb.int_ctl &= !int_ctl::OFFER;
    vmcb.intercept_exceptions &= !DELIVERY_FAULTS;
    if let Some(v) = vector {
        vmcb.intercept_exceptions |= DELIVERY_FAULTS;
        vmcb.int_ctl |= int_ctl::V_IRQ
            | (class(v) as u64) << int_ctl::PRIORITY_SHIFT
            | (v as u64) << int_ctl::VECTOR_SHIFT;
    }
}

/// Was it taken, or is none on offer?
pub fn taken(vmcb: &Vmcb) -> bool {
    vmcb.int_ctl & int_ctl::V_IRQ == 0
}
