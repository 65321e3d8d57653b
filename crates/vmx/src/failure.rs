//! What a VMX instruction that failed says (SDM vol. 3, 31.4).

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

#[cfg(test)]
mod tests {
    use super::*;

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
