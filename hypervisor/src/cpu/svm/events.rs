//! Events given to the guest: injected at the next entry (EVENTINJ, APM vol. 2, 15.20), or on offer until
//! it takes them (V_IRQ, 15.21.4).

use super::nmi::Nmi;
use super::vmcb::{Vmcb, int_ctl};
use delivery::{Interruption, class};

pub const DEBUG: u8 = 1;
pub const NOT_PRESENT: u8 = 11;
pub const GENERAL_PROTECTION: u8 = 13;
pub const PAGE_FAULT: u8 = 14;
pub const ALIGNMENT_CHECK: u8 = 17;
pub const MACHINE_CHECK: u8 = 18;

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

/// Delivers again the event whose delivery an exit interrupted.
pub fn redeliver(vmcb: &mut Vmcb, nmi: &mut Nmi, interruption: Interruption) {
    // INT n is executed again and an exception's instruction faults again; what came from
    // outside the program is gone unless it is injected. QEMU reports both kinds of outside
    // event with the type of an exception, so the vector decides.
    if interruption.software() {
        return;
    }
    match interruption.vector() {
        2 => raise_nmi(vmcb, nmi),
        v @ 32.. => vmcb.event_inj = VALID | INTERRUPT | v as u64,
        _ => {}
    }
}

/// An interrupt on offer, or none. While there is one #GP exits.
pub fn offer(vmcb: &mut Vmcb, vector: Option<u8>) {
    vmcb.int_ctl &= !int_ctl::OFFER;
    vmcb.intercept_exceptions &= !(1 << GENERAL_PROTECTION);
    if let Some(v) = vector {
        vmcb.intercept_exceptions |= 1 << GENERAL_PROTECTION;
        vmcb.int_ctl |= int_ctl::V_IRQ
            | (class(v) as u64) << int_ctl::PRIORITY_SHIFT
            | (v as u64) << int_ctl::VECTOR_SHIFT;
    }
}

/// Was it taken, or is none on offer?
pub fn taken(vmcb: &Vmcb) -> bool {
    vmcb.int_ctl & int_ctl::V_IRQ == 0
}
