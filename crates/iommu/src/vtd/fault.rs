//! What the unit reports (VT-d 7.1, 11.4.9, 11.4.14): requests that it blocked, and answers of
//! devices that nobody asked for.
//!
//! Guarantees: after [`take`] no bit that a device can raise is left in the fault status, since a
//! bit that stays set keeps the unit from sending its interrupt for the next one (VT-d 7.3). The
//! queue's own error (IQE) is left to whoever waits for the queue.

use super::capabilities::Capabilities;
use super::registers::{FSTS, FSTS_STICKY, ICE, IQE, IQERCD, ITE, PFO, PPF};
use crate::{Bdf, Fault, Registers, Request};

/// F, the top bit of a record: it holds a fault. Writing it clears it.
const F: u32 = 1 << 31;

/// Is there something to report?
pub fn fault_pending(regs: &mut impl Registers) -> bool {
    regs.read32(FSTS) & (PPF | PFO | ICE | ITE) != 0
}

/// Reports every recorded fault and clears it; true if the unit had more than it could record.
pub fn take(
    regs: &mut impl Registers,
    capabilities: &Capabilities,
    mut report: impl FnMut(Fault),
) -> bool {
    let status = regs.read32(FSTS);
    if status & PPF != 0 {
        for record in 0..capabilities.fault_records {
            let offset = capabilities.fault_offset + 16 * record;
            let high = regs.read64(offset + 8);
            if high >> 32 & u64::from(F) == 0 {
                continue;
            }
            report(decode(regs.read64(offset), high));
            regs.write32(offset + 12, F);
        }
    }
    if status & ICE != 0 {
        report(completion(regs));
    }
    if status & ITE != 0 {
        report(time_out(regs));
    }
    let sticky = status & FSTS_STICKY & !IQE;
    if sticky != 0 {
        regs.write32(FSTS, sticky);
    }
    status & PFO != 0
}

/// A device completed an invalidation that nobody asked it for. Units of before the error record
/// don't say which: it reads 0.
fn completion(regs: &mut impl Registers) -> Fault {
    let source = Bdf::from_requester_id((regs.read64(IQERCD) >> 48) as u16);
    let reason = "nobody asked it to invalidate anything";
    Fault { source, request: Request::Completion, code: 0, reason }
}

/// A device didn't complete an invalidation in time.
pub fn time_out(regs: &mut impl Registers) -> Fault {
    let source = Bdf::from_requester_id((regs.read64(IQERCD) >> 32) as u16);
    let reason = "nobody waits for it";
    Fault { source, request: Request::TimeOut, code: 0, reason }
}

/// The fault in a record: page or index (FI), source (SID), type (T1) and reason (FR).
fn decode(low: u64, high: u64) -> Fault {
    let code = (high >> 32) as u8;
    let read = high >> 62 & 1 != 0;
    let page = low & !0xFFF;
    let request = match (code, read) {
        (0x20..=0x2F, _) => Request::Interrupt((low >> 48) as u16),
        (_, true) => Request::Read(page),
        (_, false) => Request::Write(page),
    };
    let source = Bdf::from_requester_id(high as u16);
    Fault { source, request, code, reason: reason(code) }
}

/// Reasons of legacy-mode translation (VT-d 7.1.3) and of interrupt remapping (5.1.4.1).
fn reason(code: u8) -> &'static str {
    match code {
        0x01 => "no device of its bus is attached",
        0x02 => "it isn't attached",
        0x03 => "its context entry is invalid",
        0x04 => "the address is beyond the unit's or the page tables' width",
        0x05 => "its domain has no writable page there",
        0x06 => "its domain has no readable page there",
        0x07 => "a page table can't be read",
        0x08 => "the root table can't be read",
        0x09 => "a context table can't be read",
        0x0A => "reserved bits are set in a root entry",
        0x0B => "reserved bits are set in its context entry",
        0x0C => "reserved bits are set in a page-table entry",
        0x0D => "it may not ask for translations",
        0x20 => "reserved bits are set in the interrupt request",
        0x21 => "the index is beyond the interrupt remapping table",
        0x22 => "the interrupt entry isn't present",
        0x23 => "the interrupt remapping table can't be read",
        0x24 => "reserved bits are set in the interrupt entry",
        0x25 => "interrupts in compatibility format are blocked",
        0x26 => "the interrupt entry belongs to another device",
        _ => "for a reason this driver doesn't know",
    }
}
