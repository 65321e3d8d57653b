//! Events, as the control block has them: injected at the next entry (EVENTINJ, APM vol. 2, 15.20),
//! interrupted by an exit (EXITINTINFO, 15.7.2), or on offer until the guest takes them (V_IRQ,
//! 15.21.4).

use crate::vmcb::{Vmcb, int_ctl};
use delivery::{Event, EventKind, class};

const VALID: u64 = 1 << 31;
const ERROR_CODE: u64 = 1 << 11;
const INTERRUPT: u64 = 0;
const NMI: u64 = 2;
const EXCEPTION: u64 = 3;
const SOFTWARE: u64 = 4;

/// An event as EVENTINJ wants it.
pub fn injected(event: Event) -> u64 {
    let kind = match event.kind {
        EventKind::Interrupt => INTERRUPT,
        EventKind::Nmi => NMI,
        EventKind::Exception => EXCEPTION,
        EventKind::Software => SOFTWARE,
    };
    let code = event.error_code.map_or(0, |c| ERROR_CODE | u64::from(c) << 32);
    VALID | kind << 8 | code | u64::from(event.vector)
}

/// The event that EXITINTINFO tells of; the other bits mean nothing if the highest is clear.
pub fn interrupted(info: u64) -> Option<Event> {
    if info & VALID == 0 {
        return None;
    }
    let kind = match info >> 8 & 7 {
        INTERRUPT => EventKind::Interrupt,
        NMI => EventKind::Nmi,
        EXCEPTION => EventKind::Exception,
        SOFTWARE => EventKind::Software,
        _ => return None,
    };
    let error_code = (info & ERROR_CODE != 0).then_some((info >> 32) as u32);
    Some(Event { kind, vector: info as u8, error_code })
}

/// The one that is to be raised at the next entry.
pub fn pending(vmcb: &Vmcb) -> Option<Event> {
    interrupted(vmcb.event_inj)
}

/// Is there one at the next entry?
#[inline]
pub fn injects(vmcb: &Vmcb) -> bool {
    vmcb.event_inj & VALID != 0
}

/// Has this virtual interrupt on offer, or none.
pub fn offer(vmcb: &mut Vmcb, vector: Option<u8>) {
    let offer = vector.map_or(0, |v| {
        int_ctl::V_IRQ
            | u64::from(class(v)) << int_ctl::PRIORITY_SHIFT
            | u64::from(v) << int_ctl::VECTOR_SHIFT
    });
    vmcb.int_ctl = vmcb.int_ctl & !int_ctl::OFFER | offer;
}

/// The virtual interrupt on offer: the CPU withdraws it when the guest takes it.
#[inline]
pub fn offered(vmcb: &Vmcb) -> Option<u8> {
    let vector = (vmcb.int_ctl >> int_ctl::VECTOR_SHIFT) as u8;
    (vmcb.int_ctl & int_ctl::V_IRQ != 0).then_some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    fn any_event() -> impl Strategy<Value = Event> {
        use EventKind::*;
        let kind = prop_oneof![Just(Interrupt), Just(Nmi), Just(Exception), Just(Software)];
        (kind, any::<u8>(), any::<Option<u32>>()).prop_map(|(kind, vector, error_code)| Event {
            kind,
            vector,
            error_code,
        })
    }

    #[test]
    fn types_are_those_of_the_manual() {
        assert_eq!(injected(Event::interrupt(0x51)), 0x8000_0051);
        assert_eq!(injected(Event::nmi()), 0x8000_0202);
        assert_eq!(injected(Event::exception(14, Some(5))), 0x5_8000_0B0E);
        let software = Event { kind: EventKind::Software, ..Event::interrupt(3) };
        assert_eq!(injected(software), 0x8000_0403);
    }

    proptest! {
        #[test]
        fn what_is_interrupted_can_be_injected(event in any_event()) {
            prop_assert_eq!(interrupted(injected(event)), Some(event));
        }

        #[test]
        fn nothing_comes_of_what_isnt_valid(stale: u64) {
            prop_assert_eq!(interrupted(stale & !VALID), None);
            for reserved in [1, 5, 6, 7] {
                prop_assert_eq!(interrupted(stale & !0x700 | VALID | reserved << 8), None);
            }
        }

        #[test]
        fn an_offer_changes_nothing_else(before: u64, vector: u8) {
            let mut vmcb = Vmcb::new_zeroed();
            vmcb.int_ctl = before;
            offer(&mut vmcb, Some(vector));
            prop_assert_eq!(offered(&vmcb), Some(vector));
            prop_assert_eq!(vmcb.int_ctl >> 16 & 0xF, u64::from(vector >> 4));
            offer(&mut vmcb, None);
            prop_assert_eq!(offered(&vmcb), None);
            prop_assert_eq!(vmcb.int_ctl, before & !int_ctl::OFFER);
        }
    }
}
