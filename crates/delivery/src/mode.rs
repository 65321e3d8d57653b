//! The modes of a vCPU (paper 4.1, 4.4), when to be in which, and what a
//! not-present fault in the middle of an interrupt delivery means.
//!
//! | | physical interrupts | EOI | IDT |
//! |---|---|---|---|
//! | [`Mode::Direct`] | through the IDT, no exit | no exit | the shadow |
//! | [`Mode::Injection`] | exit | exits | the shadow or the guest's own |
//! | [`Mode::Dedicated`] | through the IDT, no exit | no exit | the guest's own |
//!
//! Injection mode is the baseline: `trap` is a vCPU that never leaves it. A vCPU under
//! `eli` is in it whenever a virtual interrupt is pending or in service, and whenever
//! its IDT can't be shadowed or may be changing. So `eli` never has an exit that the
//! baseline wouldn't have, except the two that end direct mode: an interrupt of the
//! host's (which the baseline takes as an INTR exit) and a change of the IDT.

use crate::VectorSet;

/// How physical interrupts reach a vCPU right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The guest takes and completes its interrupts itself.
    Direct,
    /// Every physical interrupt exits; the host injects; EOI exits.
    Injection,
    /// As [`Mode::Direct`], and the guest's timer is the core's: the host has no vector of its own
    /// on the core and takes it back by NMI alone. Policy `direct` never leaves it.
    Dedicated,
}

/// The mode to enter the guest in. `quiet`: no virtual interrupt pending or in
/// service; `sources`: the guest has assigned interrupts; `shadowed`: the guest's IDT
/// has a valid shadow in place.
pub const fn mode_for(quiet: bool, sources: bool, shadowed: bool) -> Mode {
    if quiet && sources && shadowed { Mode::Direct } else { Mode::Injection }
}

/// EXITINTINFO (APM vol. 2, 15.7.2): the event that was being delivered when the exit
/// happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruption(pub u64);

impl Interruption {
    /// Was an event being delivered at all? The other bits mean nothing if not.
    pub const fn valid(self) -> bool {
        self.0 & 1 << 31 != 0
    }

    /// Its vector.
    pub const fn vector(self) -> u8 {
        self.0 as u8
    }

    /// Was it `INT n` (type 4)? The other types aren't told apart: QEMU reports
    /// physical interrupts as exceptions.
    pub const fn software(self) -> bool {
        self.0 >> 8 & 7 == 4
    }
}

/// What a #NP or #GP exit was.
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
        /// The virtual interrupt whose delivery failed, if it was one.
        interrupt: Option<u8>,
    },
    /// It came while another contributory exception or a page fault was being delivered
    /// (APM vol. 2, 8.2.9): the guest gets #DF.
    DoubleFault,
    /// It came while #DF was being delivered: the guest shuts down.
    TripleFault,
}

/// #DE, #TS, #NP, #SS, #GP, and #PF: what makes #DF of a #NP or #GP that follows it.
const CONTRIBUTORY: VectorSet = VectorSet::of(&[0, 10, 11, 12, 13, 14]);
const DOUBLE_FAULT: u8 = 8;
/// #BP and #OF, which INT3 and INTO raise: exceptions by their type, but the program's own.
const BY_INSTRUCTION: VectorSet = VectorSet::of(&[3, 4]);

/// Tells what a #NP exit was, or a #GP exit in the delivery of an offered interrupt. `error_code`: EXITINFO1; `hidden`: vectors hidden in the
/// shadow in place (empty if none is); `in_service`: is this vector in service in the
/// physical local APIC?
pub fn classify(
    interruption: Interruption,
    error_code: u32,
    hidden: &VectorSet,
    in_service: impl Fn(u8) -> bool,
) -> DeliveryFault {
    if !interruption.valid() {
        return DeliveryFault::Genuine { error_code, interrupt: None };
    }
    let vector = interruption.vector();
    if interruption.software() {
        if hidden.contains(vector) {
            return DeliveryFault::HiddenGate(vector);
        }
        return DeliveryFault::Genuine { error_code, interrupt: None };
    }
    if hidden.contains(vector) && in_service(vector) {
        return DeliveryFault::Reflected(vector);
    }
    if vector >= 32 && hidden.contains(vector) {
        // An injected interrupt met the hidden gate of its vector.
        return DeliveryFault::HiddenGate(vector);
    }
    if vector == DOUBLE_FAULT {
        return DeliveryFault::TripleFault;
    }
    if CONTRIBUTORY.contains(vector) {
        return DeliveryFault::DoubleFault;
    }
    // EXT (bit 0): the fault came from an event outside the program (SDM vol. 3, 6.13), which INT3
    // and INTO aren't. QEMU leaves it out.
    let outside = u32::from(!BY_INSTRUCTION.contains(vector));
    DeliveryFault::Genuine {
        error_code: error_code | outside,
        interrupt: (vector >= 32).then_some(vector),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIDDEN: VectorSet = VectorSet::of(&[0xF1]);

    fn event(kind: u64, vector: u8) -> Interruption {
        Interruption(1 << 31 | kind << 8 | vector as u64)
    }

    #[test]
    fn direct_only_when_nothing_is_owed_and_there_is_something_to_gain() {
        assert_eq!(mode_for(true, true, true), Mode::Direct);
        for (q, s, i) in [(false, true, true), (true, false, true), (true, true, false)] {
            assert_eq!(mode_for(q, s, i), Mode::Injection);
        }
    }

    #[test]
    fn a_physical_interrupt_is_told_by_the_local_apic_whatever_type_is_reported() {
        for kind in [0, 3] {
            let e = event(kind, 0xF1);
            assert_eq!(
                classify(e, 0xF1 * 8 + 2, &HIDDEN, |v| v == 0xF1),
                DeliveryFault::Reflected(0xF1)
            );
            assert_eq!(
                classify(e, 0xF1 * 8 + 2, &HIDDEN, |_| false),
                DeliveryFault::HiddenGate(0xF1)
            );
        }
    }

    #[test]
    fn int_n_is_never_a_physical_interrupt() {
        let e = event(4, 0xF1);
        assert_eq!(classify(e, 0xF1 * 8 + 2, &HIDDEN, |_| true), DeliveryFault::HiddenGate(0xF1));
        let e = event(4, 0x55);
        assert_eq!(
            classify(e, 0x55 * 8 + 2, &HIDDEN, |_| true),
            DeliveryFault::Genuine { error_code: 0x55 * 8 + 2, interrupt: None }
        );
    }

    #[test]
    fn a_fault_in_the_delivery_of_a_fault_is_a_double_fault() {
        for vector in [0, 10, 11, 12, 13, 14] {
            let e = event(3, vector);
            assert_eq!(classify(e, 0x5A, &HIDDEN, |_| false), DeliveryFault::DoubleFault);
        }
        assert_eq!(classify(event(3, 8), 0x42, &HIDDEN, |_| false), DeliveryFault::TripleFault);
    }

    #[test]
    fn the_guests_own_absent_gate_is_its_own_fault() {
        assert_eq!(
            classify(event(0, 0x41), 0x41 * 8 + 2, &HIDDEN, |_| true),
            DeliveryFault::Genuine { error_code: 0x41 * 8 + 3, interrupt: Some(0x41) }
        );
        assert_eq!(
            classify(event(3, 6), 6 * 8 + 2, &HIDDEN, |_| false),
            DeliveryFault::Genuine { error_code: 6 * 8 + 3, interrupt: None }
        );
        for vector in [3, 4] {
            assert_eq!(
                classify(event(3, vector), u32::from(vector) * 8 + 2, &HIDDEN, |_| false),
                DeliveryFault::Genuine { error_code: u32::from(vector) * 8 + 2, interrupt: None },
                "INT3 and INTO are the program's own"
            );
        }
        // Not valid: the rest is stale, whatever it says.
        assert_eq!(
            classify(Interruption(0x340), 0x18, &HIDDEN, |_| true),
            DeliveryFault::Genuine { error_code: 0x18, interrupt: None }
        );
    }
}
