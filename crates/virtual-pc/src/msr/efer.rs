//! A guest's write to EFER (APM vol. 2, 3.1.7; SDM vol. 3, 2.2.1).
//!
//! Works on the guest's view: the bit by which the host runs the guest at all
//! (SVME) isn't in it; the host adds it on the way to the VMCB.

use super::MsrResult;

/// System call extensions.
pub const EFER_SCE: u64 = 1 << 0;
/// Long mode enable.
pub const EFER_LME: u64 = 1 << 8;
/// Long mode active: read-only, follows LME and paging.
pub const EFER_LMA: u64 = 1 << 10;
/// No-execute enable.
pub const EFER_NXE: u64 = 1 << 11;

/// The new EFER for a write of `value`, or #GP: for a bit that isn't in `offered`
/// (see [`crate::cpuid::efer_offered`]), and for a change of LME while `paging`
/// (CR0.PG) is on. A written LMA is ignored.
pub const fn write_efer(current: u64, value: u64, offered: u64, paging: bool) -> MsrResult {
    let lme_changes = (current ^ value) & EFER_LME != 0;
    if value & !(offered | EFER_LMA) != 0 || (paging && lme_changes) {
        return MsrResult::GeneralProtection;
    }
    MsrResult::Value(value & !EFER_LMA | current & EFER_LMA)
}
