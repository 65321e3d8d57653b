//! Events, as VMX has them: raised at the next entry (SDM vol. 3, 25.8.3), interrupted by an exit
//! (25.9.3), or the exit's own reason (25.9.2).
//!
//! Guarantees: what an exit interrupted can be raised again as it was, and is the same [`Event`]
//! then. The error code and an instruction's length, which the other vendor has in the same word or
//! not at all, are part of a [`Delivered`].

use crate::{Area, field};
use delivery::{Event, EventKind};

const VALID: u32 = 1 << 31;
const ERROR_CODE: u32 = 1 << 11;
/// In the exit's own information, and in the qualification of an EPT violation.
const UNBLOCKED: u32 = 1 << 12;

/// INT1 (ICEBP), INT3 and INTO raise these.
const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;
const OVERFLOW: u8 = 4;

/// DR6 as it reads with nothing to report.
const DR6_QUIET: u64 = 0xFFFF_0FF0;
/// Of DR6: breakpoints, which a #DB sets anew. The rest stays until the guest clears it
/// (SDM vol. 3, 19.2.3).
const BREAKPOINTS: u64 = 0xF;
/// Of the qualification of a #DB: breakpoints, access to a debug register, single step.
const DEBUG_BITS: u64 = 0xF | 1 << 13 | 1 << 14;

/// The origin of an event, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A maskable interrupt.
    Interrupt = 0,
    /// An NMI.
    Nmi = 2,
    /// An exception that the processor found.
    Exception = 3,
    /// INT n.
    Software = 4,
    /// INT1.
    Privileged = 5,
    /// INT3 or INTO.
    SoftwareException = 6,
}

impl Kind {
    const fn of(number: u32) -> Option<Kind> {
        Some(match number {
            0 => Kind::Interrupt,
            2 => Kind::Nmi,
            3 => Kind::Exception,
            4 => Kind::Software,
            5 => Kind::Privileged,
            6 => Kind::SoftwareException,
            _ => return None,
        })
    }

    /// Did an instruction raise it, behind which the program goes on?
    const fn has_length(self) -> bool {
        matches!(self, Kind::Software | Kind::Privileged | Kind::SoftwareException)
    }
}

/// An event that is delivered, or was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its origin.
    pub kind: Kind,
    /// Its vector.
    pub vector: u8,
    /// The error code that its delivery pushes, if it has one.
    pub error_code: Option<u32>,
    /// How long the instruction is that raised it.
    pub length: u32,
}

impl From<Delivered> for Event {
    fn from(delivered: Delivered) -> Event {
        let kind = match delivered.kind {
            Kind::Interrupt => EventKind::Interrupt,
            Kind::Nmi => EventKind::Nmi,
            Kind::Exception => EventKind::Exception,
            Kind::Software | Kind::Privileged | Kind::SoftwareException => EventKind::Software,
        };
        Event { kind, vector: delivered.vector, error_code: delivered.error_code }
    }
}

impl Delivered {
    /// An event to be raised. `length`: of the instruction, if one raises it.
    pub fn new(event: Event, length: u32) -> Delivered {
        let kind = match (event.kind, event.vector) {
            (EventKind::Interrupt, _) => Kind::Interrupt,
            (EventKind::Nmi, _) => Kind::Nmi,
            (EventKind::Exception, _) => Kind::Exception,
            (EventKind::Software, DEBUG) => Kind::Privileged,
            (EventKind::Software, BREAKPOINT | OVERFLOW) => Kind::SoftwareException,
            (EventKind::Software, _) => Kind::Software,
        };
        let length = if kind.has_length() { length } else { 0 };
        Delivered { kind, vector: event.vector, error_code: event.error_code, length }
    }

    fn of(info: u32, error_code: u32, length: u32) -> Option<Delivered> {
        if info & VALID == 0 {
            return None;
        }
        let kind = Kind::of(info >> 8 & 7)?;
        let error_code = (info & ERROR_CODE != 0).then_some(error_code);
        let length = if kind.has_length() { length } else { 0 };
        Some(Delivered { kind, vector: info as u8, error_code, length })
    }

    fn info(self) -> u32 {
        let code = if self.error_code.is_some() { ERROR_CODE } else { 0 };
        VALID | code | (self.kind as u32) << 8 | u32::from(self.vector)
    }

    /// The event whose delivery the exit interrupted.
    pub fn interrupted(area: &impl Area) -> Option<Delivered> {
        let read = |field| area.read(field) as u32;
        let length = read(field::INSTRUCTION_LENGTH);
        Delivered::of(read(field::VECTORING), read(field::VECTORING_ERROR_CODE), length)
    }

    /// The event for which the guest was left.
    pub fn exited(area: &impl Area) -> Option<Delivered> {
        let read = |field| area.read(field) as u32;
        let length = read(field::INSTRUCTION_LENGTH);
        Delivered::of(read(field::EXIT_INTERRUPTION), read(field::EXIT_ERROR_CODE), length)
    }

    /// The event that is to be raised at the next entry; the exit behind it clears it.
    pub fn pending(area: &impl Area) -> Option<Delivered> {
        let read = |field| area.read(field) as u32;
        let length = read(field::ENTRY_INSTRUCTION_LENGTH);
        Delivered::of(read(field::ENTRY_INTERRUPTION), read(field::ENTRY_ERROR_CODE), length)
    }

    /// Has it raised at the next entry.
    pub fn raise(self, area: &mut impl Area) {
        area.write(field::ENTRY_INTERRUPTION, self.info().into());
        if let Some(code) = self.error_code {
            area.write(field::ENTRY_ERROR_CODE, code.into());
        }
        if self.kind.has_length() {
            area.write(field::ENTRY_INSTRUCTION_LENGTH, self.length.into());
        }
    }

    /// Has nothing raised at the next entry.
    pub fn withdraw(area: &mut impl Area) {
        area.write(field::ENTRY_INTERRUPTION, 0);
    }
}

/// After an exit for a fault or an EPT violation: had an IRET just ended the guest's blocking of
/// NMIs? It is to be set again, since the IRET is executed again. Says nothing where the exit
/// interrupted the delivery of an event.
pub fn nmi_unblocked(area: &impl Area, violation: bool) -> bool {
    let field = if violation { field::QUALIFICATION } else { field::EXIT_INTERRUPTION };
    let vectoring = area.read(field::VECTORING) as u32 & VALID != 0;
    let own = area.read(field::EXIT_INTERRUPTION) as u32;
    // Not of #DF, which the manual leaves undefined.
    let double = !violation && own as u8 == 8;
    !vectoring && !double && area.read(field) & u64::from(UNBLOCKED) != 0
}

/// What DR6 has to read for the guest when it gets a #DB that exited, and read `before`: the exit
/// left DR6 alone.
pub fn debug_status(area: &impl Area, before: u64) -> u64 {
    DR6_QUIET | before & !BREAKPOINTS | area.read(field::QUALIFICATION) & DEBUG_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::tests::Model;
    use proptest::prelude::*;

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(vec![0, 2, 3, 4, 5, 6]).prop_filter_map("reserved", Kind::of)
    }

    #[test]
    fn types_are_those_of_the_manual() {
        let info = |event| Delivered::new(event, 2).info();
        assert_eq!(info(Event::interrupt(0x51)), 0x8000_0051);
        assert_eq!(info(Event::nmi()), 0x8000_0202);
        assert_eq!(info(Event::exception(14, Some(5))), 0x8000_0B0E);
        let software = |vector| Event { kind: EventKind::Software, ..Event::interrupt(vector) };
        assert_eq!(info(software(0x50)), 0x8000_0450);
        assert_eq!(info(software(1)), 0x8000_0501);
        assert_eq!(info(software(3)), 0x8000_0603);
        assert_eq!(info(software(4)), 0x8000_0604);
        assert_eq!(Kind::of(1), None);
        assert_eq!(Kind::of(7), None, "another event, which isn't delivered");
    }

    #[test]
    fn an_iret_that_is_executed_again_blocks_nmis_again() {
        let mut area = Model::default();
        area.write(field::EXIT_INTERRUPTION, 0x8000_1B0E);
        assert!(nmi_unblocked(&area, false) && !nmi_unblocked(&area, true));
        area.write(field::VECTORING, 0x8000_0050);
        assert!(!nmi_unblocked(&area, false), "it was the delivery that faulted");
        area.write(field::VECTORING, 0);
        area.write(field::EXIT_INTERRUPTION, 0x8000_1B08);
        assert!(!nmi_unblocked(&area, false), "undefined for #DF");
        area.write(field::QUALIFICATION, 0x1181);
        assert!(nmi_unblocked(&area, true));
    }

    #[test]
    fn a_debug_exception_says_what_dr6_gets() {
        let mut area = Model::default();
        assert_eq!(debug_status(&area, DR6_QUIET), 0xFFFF_0FF0);
        area.write(field::QUALIFICATION, 0x4001);
        assert_eq!(debug_status(&area, DR6_QUIET), 0xFFFF_4FF1);
        assert_eq!(debug_status(&area, 0xFFFF_AFFC), 0xFFFF_EFF1, "what isn't a breakpoint stays");
        area.write(field::QUALIFICATION, u64::MAX);
        assert_eq!(debug_status(&area, DR6_QUIET), 0xFFFF_6FFF);
    }

    proptest! {
        #[test]
        fn what_is_interrupted_can_be_raised_again(
            kind in any_kind(), vector: u8, error_code: Option<u32>, length in 1u32..16
        ) {
            let length = if kind.has_length() { length } else { 0 };
            let event = Delivered { kind, vector, error_code, length };
            let mut area = Model::default();
            area.write(field::VECTORING, event.info().into());
            area.write(field::VECTORING_ERROR_CODE, error_code.unwrap_or(7).into());
            area.write(field::INSTRUCTION_LENGTH, length.into());
            prop_assert_eq!(Delivered::interrupted(&area), Some(event));
            event.raise(&mut area);
            prop_assert_eq!(Delivered::pending(&area), Some(event));
            // The same by the terms that vendors share, but that INT 1, 3 and 4 by two bytes are
            // told from INT1, INT3 and INTO by the length alone.
            let again = Delivered::new(event.into(), length);
            prop_assert_eq!(Event::from(again), Event::from(event));
            let named = matches!(vector, 1 | 3 | 4);
            if !kind.has_length() || !named && kind == Kind::Software {
                prop_assert_eq!(again, event);
            }
            Delivered::withdraw(&mut area);
            prop_assert_eq!(Delivered::pending(&area), None);
        }

        #[test]
        fn nothing_comes_of_what_isnt_valid(stale: u32, code: u32) {
            prop_assert_eq!(Delivered::of(stale & !VALID, code, 1), None);
            for reserved in [1, 7] {
                let info = stale & !0x700 | VALID | reserved << 8;
                prop_assert_eq!(Delivered::of(info, code, 1), None);
            }
        }
    }
}
