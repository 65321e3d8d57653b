//! Exits in the middle of the delivery of an event: what a fault there means, and what has to be delivered
//! again when the cause is gone.
//!
//! Guarantees: an event is told from the types that the manual has (APM vol. 2, 15.20) and from those that
//! QEMU reports, where an interrupt from outside and an NMI have the type of an exception. What is put
//! right by the host is delivered once again with all that it had; what the program does again by itself
//! isn't. It doesn't tell #MF, #XM and the like from an interrupt that the guest has at the same vector
//! where QEMU doesn't: to the guest they look the same.

use crate::VectorSet;

/// EXITINTINFO (APM vol. 2, 15.7.2): the event that was being delivered when the exit
/// happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruption(pub u64);

/// Types of events.
const INTERRUPT: u64 = 0;
const NMI: u64 = 2;
const EXCEPTION: u64 = 3;
const SOFTWARE: u64 = 4;

impl Interruption {
    /// Was an event being delivered at all? The other bits mean nothing if not.
    pub const fn valid(self) -> bool {
        self.0 & 1 << 31 != 0
    }

    /// Its vector.
    pub const fn vector(self) -> u8 {
        self.0 as u8
    }

    /// Was it `INT n`?
    pub const fn software(self) -> bool {
        self.kind() == SOFTWARE
    }

    const fn kind(self) -> u64 {
        self.0 >> 8 & 7
    }

    const fn error_code(self) -> Option<u32> {
        if self.0 & 1 << 11 != 0 { Some((self.0 >> 32) as u32) } else { None }
    }

    /// What has to be raised so that the event is delivered after all. `physical`: is this vector, one
    /// that exceptions have too, in service in the local APIC that the guest owns?
    pub fn again(self, physical: impl Fn(u8) -> bool) -> Again {
        if !self.valid() {
            return Again::Nothing;
        }
        let vector = self.vector();
        match (self.kind(), vector) {
            (INTERRUPT, _) => Again::Interrupt(vector),
            (NMI, _) | (EXCEPTION, NON_MASKABLE) => Again::Nmi,
            // The instruction is executed again.
            (SOFTWARE, _) | (EXCEPTION, BREAKPOINT | OVERFLOW) => Again::Nothing,
            // No exception has these.
            (EXCEPTION, NO_EXCEPTION..) => Again::Interrupt(vector),
            (EXCEPTION, FIRST_INTERRUPT..) if physical(vector) => Again::Interrupt(vector),
            // A trap's instruction is done and wouldn't raise it again; nor does anything raise what
            // the host itself had raised for an event from outside.
            (EXCEPTION, _) => Again::Exception { vector, error_code: self.error_code() },
            _ => Again::Nothing,
        }
    }
}

/// What is to be raised again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Nothing: there was no event, or the program raises it by itself.
    Nothing,
    /// An interrupt, already in service.
    Interrupt(u8),
    /// An NMI.
    Nmi,
    /// An exception.
    Exception {
        /// Its vector.
        vector: u8,
        /// Its error code, if it has one.
        error_code: Option<u32>,
    },
}

/// A fault that exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Its vector: of #TS, #NP, #SS, #GP or #PF.
    pub vector: u8,
    /// Its error code.
    pub error_code: u32,
    /// For #PF: what CR2 is to hold.
    pub address: u64,
}

/// What a fault was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryFault {
    /// A physical interrupt on a hidden vector: the host's, reflected by the shadow.
    /// It is in service in the local APIC.
    Reflected(u8),
    /// `INT n` on a vector whose gate only the shadow lacks: to be run again on the
    /// guest's own IDT.
    HiddenGate(u8),
    /// The guest's own fault: to be given back to it with this error code.
    Genuine {
        /// Error code to push.
        error_code: u32,
        /// The virtual interrupt whose delivery failed, if it was one: at a vector below 32 it may
        /// have been an exception.
        interrupt: Option<u8>,
    },
    /// It came while another contributory exception or a page fault was being delivered
    /// (APM vol. 2, 8.2.9): the guest gets #DF.
    DoubleFault,
    /// It came while #DF was being delivered: the guest shuts down.
    TripleFault,
}

const NON_MASKABLE: u8 = 2;
const BREAKPOINT: u8 = 3;
const OVERFLOW: u8 = 4;
const DOUBLE_FAULT: u8 = 8;
const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;
/// The lowest vector that a local APIC takes for an interrupt.
const FIRST_INTERRUPT: u8 = 16;
/// From here on no vector is an exception's.
const NO_EXCEPTION: u8 = 31;
/// #DE, #TS, #NP, #SS, #GP.
const CONTRIBUTORY: VectorSet = VectorSet::of(&[0, 10, 11, 12, 13]);
/// #BP and #OF, which INT3 and INTO raise: exceptions by their type, but the program's own.
const BY_INSTRUCTION: VectorSet = VectorSet::of(&[BREAKPOINT, OVERFLOW]);

/// Tells what a fault was. `hidden`: vectors hidden in the shadow in place (empty if none
/// is); `in_service`: is this vector in service in the physical local APIC?
pub fn classify(
    interruption: Interruption,
    fault: Raised,
    hidden: &VectorSet,
    in_service: impl Fn(u8) -> bool,
) -> DeliveryFault {
    let Raised { vector: second, error_code, .. } = fault;
    if !interruption.valid() {
        return DeliveryFault::Genuine { error_code, interrupt: None };
    }
    let vector = interruption.vector();
    let hidden = matches!(second, NOT_PRESENT | PROTECTION) && hidden.contains(vector);
    if interruption.software() {
        if hidden {
            return DeliveryFault::HiddenGate(vector);
        }
        return DeliveryFault::Genuine { error_code, interrupt: None };
    }
    if hidden && in_service(vector) {
        return DeliveryFault::Reflected(vector);
    }
    if vector >= 32 && hidden {
        // An injected interrupt met the hidden gate of its vector.
        return DeliveryFault::HiddenGate(vector);
    }
    let serious = CONTRIBUTORY.contains(second) || second == PAGE_FAULT;
    if vector == DOUBLE_FAULT && serious {
        return DeliveryFault::TripleFault;
    }
    // A page fault in the delivery of another fault isn't a double fault.
    let contributory = CONTRIBUTORY.contains(vector) && CONTRIBUTORY.contains(second);
    if contributory || vector == PAGE_FAULT && serious {
        return DeliveryFault::DoubleFault;
    }
    // EXT (bit 0): the fault came from an event outside the program (SDM vol. 3, 6.13), which INT3
    // and INTO aren't. QEMU leaves it out. #PF has no such bit.
    let outside = second != PAGE_FAULT && !BY_INSTRUCTION.contains(vector);
    DeliveryFault::Genuine {
        error_code: error_code | u32::from(outside),
        interrupt: (vector >= FIRST_INTERRUPT).then_some(vector),
    }
}

#[cfg(test)]
#[path = "nested_tests.rs"]
mod tests;
