//! What a VMX instruction that failed says (SDM vol. 3, 31.4), and what a guest has that can't be
//! entered.

use crate::{Area, Field, field};
use core::fmt;

/// The number in the instruction-error field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u32);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            1 => "VMCALL executed in VMX root operation",
            2 => "VMCLEAR with an address that isn't one",
            3 => "VMCLEAR of the VMXON region",
            4 => "VMLAUNCH of a control structure that isn't clear",
            5 => "VMRESUME of a control structure that wasn't launched",
            6 => "VMRESUME after VMXOFF",
            7 => "VM entry with invalid control fields",
            8 => "VM entry with invalid host-state fields",
            9 => "VMPTRLD with an address that isn't one",
            10 => "VMPTRLD of the VMXON region",
            11 => "VMPTRLD of a control structure with another revision",
            12 => "VMREAD or VMWRITE of a field that the CPU hasn't",
            13 => "VMWRITE of a field that is read-only",
            15 => "VMXON in VMX root operation",
            26 => "VM entry with events blocked by MOV SS",
            28 => "INVEPT or INVVPID with an operand that isn't one",
            number => return write!(f, "error {number} of a VMX instruction"),
        })
    }
}

/// What a guest has that the CPU doesn't enter for its state, for whoever looks for the rule that
/// it breaks (SDM vol. 3, 27.3.1): the CPU names none. The model of an entry ([`crate::entry`])
/// does, given these.
pub struct Refused<'a, A>(pub &'a A);

const TOLD: [(&str, Field); 15] = [
    ("qualification", field::QUALIFICATION),
    ("CR0", field::GUEST_CR0),
    ("CR3", field::GUEST_CR3),
    ("CR4", field::GUEST_CR4),
    ("EFER", field::GUEST_EFER),
    ("RFLAGS", field::GUEST_RFLAGS),
    ("RIP", field::GUEST_RIP),
    ("CS", field::GUEST_CS_RIGHTS),
    ("SS", field::GUEST_SS_RIGHTS),
    ("TR", field::GUEST_TR_RIGHTS),
    ("activity", field::GUEST_ACTIVITY),
    ("blocking", field::GUEST_INTERRUPTIBILITY),
    ("held back", field::GUEST_PENDING_DEBUG),
    ("raised", field::ENTRY_INTERRUPTION),
    ("entry controls", field::ENTRY_CONTROLS),
];

impl<A: Area> fmt::Display for Refused<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the CPU doesn't enter a guest with")?;
        TOLD.iter().try_for_each(|(name, field)| write!(f, " {name} {:#x}", self.0.read(*field)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::Model;

    #[test]
    fn a_refused_guest_is_told_by_its_fields() {
        let mut area = Model::default();
        for (value, (_, field)) in (0x10..).zip(TOLD) {
            area.write(field, value);
        }
        let told = Refused(&area).to_string();
        let values = (0x10..).zip(TOLD).map(|(n, (name, _))| format!("{name} {n:#x}"));
        let values: Vec<_> = values.collect();
        assert_eq!(told, format!("the CPU doesn't enter a guest with {}", values.join(" ")));
    }

    #[test]
    fn each_has_words_of_its_own() {
        let mut all: Vec<_> = (0..30).map(|n| Failure(n).to_string()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 30);
        assert_eq!(Failure(7).to_string(), "VM entry with invalid control fields");
        assert_eq!(Failure(29).to_string(), "error 29 of a VMX instruction");
    }
}
