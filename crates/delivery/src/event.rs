//! Exits in the middle of the delivery of an event: what a fault there means, and what has to be
//! delivered again when the cause is gone.
//!
//! Guarantees: an event that the host interrupted is delivered once again with all that it had; an
//! event that the program raises again by itself isn't. The vendor's code makes an [`Event`] out of
//! what its extension reports, and corrects there what an emulator reports wrongly. This file
//! trusts the kind.

use crate::{SPURIOUS, VectorSet};

/// An event that a CPU delivers through the guest's IDT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its origin.
    pub kind: EventKind,
    /// Its vector.
    pub vector: u8,
    /// The error code that its delivery pushes, if it has one.
    pub error_code: Option<u32>,
}

/// The origin of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A maskable interrupt: physical, virtual or injected.
    Interrupt,
    /// A non-maskable interrupt.
    Nmi,
    /// An exception. INT3 and INTO may be reported as one, too.
    Exception,
    /// `INT n`; where the extension tells them apart, INT1, INT3 and INTO, too.
    Software,
}

impl Event {
    /// A maskable interrupt.
    pub const fn interrupt(vector: u8) -> Event {
        Event { kind: EventKind::Interrupt, vector, error_code: None }
    }

    /// A non-maskable interrupt.
    pub const fn nmi() -> Event {
        Event { kind: EventKind::Nmi, vector: NON_MASKABLE, error_code: None }
    }

    /// An exception.
    pub const fn exception(vector: u8, error_code: Option<u32>) -> Event {
        Event { kind: EventKind::Exception, vector, error_code }
    }

    /// Did an instruction raise it that the guest executes again?
    pub const fn software(self) -> bool {
        matches!(self.kind, EventKind::Software)
    }

    /// What the host has to raise so that the event is delivered after all. `None`: the guest
    /// executes the instruction again that raised it.
    pub const fn again(self) -> Option<Event> {
        match (self.kind, self.vector) {
            (EventKind::Software, _) | (EventKind::Exception, BREAKPOINT | OVERFLOW) => None,
            // A trap's instruction is done and wouldn't raise it again; nor does anything raise
            // what the host itself had raised for an event from outside.
            _ => Some(self),
        }
    }
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

/// The meaning of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryFault {
    /// A physical interrupt on a hidden vector: the host's, reflected by the shadow.
    /// It is in service in the local APIC.
    Reflected(u8),
    /// The local APIC's spurious vector, hidden, and not in service (SDM vol. 3, 11.9): a guest
    /// that raises its task priority as an interrupt arrives can cause it. It is nobody's.
    Spurious,
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
/// #DE, #TS, #NP, #SS, #GP.
const CONTRIBUTORY: VectorSet = VectorSet::of(&[0, 10, 11, 12, 13]);
/// #BP and #OF, which INT3 and INTO raise: exceptions by their type, but the program's own.
const BY_INSTRUCTION: VectorSet = VectorSet::of(&[BREAKPOINT, OVERFLOW]);

/// Tells what a fault was. `event`: what was being delivered, if anything was; `hidden`: vectors
/// hidden in the shadow in place (empty if none is); `in_service`: is this vector in service in the
/// physical local APIC?
pub fn classify(
    event: Option<Event>,
    fault: Raised,
    hidden: &VectorSet,
    in_service: impl Fn(u8) -> bool,
) -> DeliveryFault {
    let Raised { vector: second, error_code, .. } = fault;
    let Some(event) = event else {
        return DeliveryFault::Genuine { error_code, interrupt: None };
    };
    let vector = event.vector;
    let hidden = matches!(second, NOT_PRESENT | PROTECTION) && hidden.contains(vector);
    if event.software() {
        if hidden {
            return DeliveryFault::HiddenGate(vector);
        }
        return DeliveryFault::Genuine { error_code, interrupt: None };
    }
    if hidden && in_service(vector) {
        return DeliveryFault::Reflected(vector);
    }
    if vector == SPURIOUS && hidden {
        return DeliveryFault::Spurious;
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
    // and INTO aren't. An emulator may leave it out. #PF has no such bit.
    let outside = second != PAGE_FAULT && !BY_INSTRUCTION.contains(vector);
    DeliveryFault::Genuine {
        error_code: error_code | u32::from(outside),
        interrupt: (vector >= FIRST_INTERRUPT).then_some(vector),
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
