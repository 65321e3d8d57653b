//! The guest's NMIs, one at a time, though the VMCB doesn't tell whether one is being handled.
//!
//! Guarantees: after an NMI no other is injected before the IRET that ends its handler has been
//! executed. IRET exits before it is: an NMI injected there would overwrite the frame that the IRET
//! is to take, where NMIs have a stack of their own. So if one waits, the IRET is stepped over.
//! Where an IRET faults and its fault's handler goes on elsewhere, a guest may see one #DB too
//! many.

use crate::vmcb::{Vmcb, misc1};

const TRAP: u64 = 1 << 8;
/// DR6: a single step.
const SINGLE_STEP: u64 = 1 << 14;

/// The state of the guest's NMIs, as far as it is known.
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
    /// One is to be injected.
    pub fn injected(&mut self, vmcb: &mut Vmcb) {
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

    /// Can one be injected? If only an IRET is in the way, there is an exit behind it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn handled() -> (Nmi, Box<Vmcb>) {
        let (mut nmi, mut vmcb) = (Nmi::None, Box::new(Vmcb::new_zeroed()));
        assert!(nmi.possible(&mut vmcb));
        nmi.injected(&mut vmcb);
        assert_eq!(vmcb.intercept_misc1, misc1::IRET);
        (nmi, vmcb)
    }

    #[test]
    fn another_waits_for_the_iret_to_be_done() {
        let (mut nmi, mut vmcb) = handled();
        assert!(!nmi.possible(&mut vmcb), "its handler runs");
        vmcb.rip = 0x1000;
        nmi.returns(&mut vmcb);
        assert_eq!(vmcb.intercept_misc1, 0);
        assert!(!nmi.possible(&mut vmcb), "the IRET isn't done");
        assert_eq!((nmi, vmcb.rflags), (Nmi::Stepping, TRAP), "so it is stepped over");
        assert!(!nmi.possible(&mut vmcb));
        assert!(!nmi.stepped(&mut vmcb), "a #DB that no step caused is the guest's");
        vmcb.dr6 = SINGLE_STEP | 0xFFFF_0FF0;
        assert!(nmi.stepped(&mut vmcb));
        assert_eq!(vmcb.dr6, 0xFFFF_0FF0, "the guest sees nothing of it");
        assert!(nmi.possible(&mut vmcb));
    }

    #[test]
    fn nothing_is_stepped_if_nobody_waits() {
        let (mut nmi, mut vmcb) = handled();
        vmcb.rip = 0x1000;
        nmi.returns(&mut vmcb);
        vmcb.rip = 0x2000;
        assert!(nmi.possible(&mut vmcb), "the IRET is done");
        assert_eq!(vmcb.rflags, 0);
        vmcb.dr6 = SINGLE_STEP;
        assert!(!nmi.stepped(&mut vmcb), "a step of the guest's is its own");
    }

    #[test]
    fn a_guest_that_steps_itself_exits_anyway() {
        let (mut nmi, mut vmcb) = handled();
        vmcb.rip = 0x1000;
        vmcb.rflags = TRAP;
        nmi.returns(&mut vmcb);
        assert!(!nmi.possible(&mut vmcb));
        assert_eq!(nmi, Nmi::Returning(0x1000));
    }

    #[test]
    fn after_a_reset_none_is_handled() {
        let (mut nmi, mut vmcb) = handled();
        nmi.forget(&mut vmcb);
        assert_eq!((nmi, vmcb.intercept_misc1), (Nmi::None, 0));
        assert!(nmi.possible(&mut vmcb));
    }
}
