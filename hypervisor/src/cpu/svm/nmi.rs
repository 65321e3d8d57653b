//! The guest's NMIs, one at a time, though the VMCB doesn't tell whether one is being handled.
//!
//! Guarantees: after an NMI no other is raised before the IRET that ends its handler has been
//! executed. IRET exits before it is: an NMI raised there would overwrite the frame that the IRET
//! is to take, where NMIs have a stack of their own. So if one waits, the IRET is stepped over.
//! Where an IRET faults and its fault's handler goes on elsewhere, a guest may see one #DB too many.

use super::vmcb::{Vmcb, misc1};

const TRAP: u64 = 1 << 8;
/// DR6: a single step.
const SINGLE_STEP: u64 = 1 << 14;

/// What is known of the guest's NMIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nmi {
    /// None is being handled.
    #[default]
    None,
    /// One is, and IRET exits.
    Handled,
    /// The IRET at this address is to be executed next, or has been.
    Returning(u64),
    /// The same, and #DB follows it.
    Stepping,
}

impl Nmi {
    /// One is to be raised.
    pub fn raised(&mut self, vmcb: &mut Vmcb) {
        *self = Nmi::Handled;
        vmcb.intercept_misc1 |= misc1::IRET;
    }

    /// IRET exited.
    pub fn returns(&mut self, vmcb: &mut Vmcb) {
        *self = Nmi::Returning(vmcb.rip);
        vmcb.intercept_misc1 &= !misc1::IRET;
    }

    /// As after reset.
    pub fn forget(&mut self, vmcb: &mut Vmcb) {
        *self = Nmi::None;
        vmcb.intercept_misc1 &= !misc1::IRET;
    }

    /// Can one be raised? If only an IRET is in the way, there is an exit behind it.
    pub fn possible(&mut self, vmcb: &mut Vmcb) -> bool {
        match *self {
            Nmi::None => return true,
            Nmi::Returning(at) if at != vmcb.rip => {
                *self = Nmi::None;
                return true;
            }
            // A guest that steps itself has #DB, and so the exit, anyway.
            Nmi::Returning(_) if vmcb.rflags & TRAP == 0 => {
                vmcb.rflags |= TRAP;
                *self = Nmi::Stepping;
            }
            _ => {}
        }
        false
    }

    /// #DB exited: was it the step over IRET?
    pub fn stepped(&mut self, vmcb: &mut Vmcb) -> bool {
        let ours = *self == Nmi::Stepping && vmcb.dr6 & SINGLE_STEP != 0;
        if ours {
            vmcb.dr6 &= !SINGLE_STEP;
            *self = Nmi::None;
        }
        ours
    }
}
