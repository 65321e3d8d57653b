//! Any steps of a host and its guest: after each the vCPU can be entered, by the model of an entry.

use super::tests::{LONG, debug, vcpu};
use super::*;
use crate::Delivered;
use crate::area::tests::Model;
use crate::entry::check;
use delivery::{Event, class};
use proptest::prelude::*;

/// What is asked of a vCPU, or what its guest does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Offer(Option<u8>),
    Priority(u8),
    Exception(bool),
    Nmi,
    Mode(Mode),
    WatchIdt(bool),
    WatchHalt(bool),
    X2apic(bool),
    Leave,
    LeaveAt(u64),
    Guest {
        interrupts: bool,
        blocking: u64,
    },
    /// An exit in the delivery of such an event.
    Interrupted {
        info: u32,
        code: u32,
        length: u64,
    },
    /// An exit for #DB: INT1's or another, behind STI, MOV SS or neither, while it steps or not.
    Debug {
        privileged: bool,
        blocking: u64,
        steps: bool,
    },
    Advance,
    Abort,
    Reset(bool),
}

/// An event that a processor may have been delivering to the guest as it stands.
fn deliverable(v: &Vcpu<Model>, info: u32) -> Option<u32> {
    let (kind, vector) = (info >> 8 & 7, info & 0xFF);
    let blocking = v.area.read(field::GUEST_INTERRUPTIBILITY);
    let vector = match kind {
        0 if v.interrupts_enabled() && blocking & 3 == 0 => vector.max(16),
        // Its delivery has begun, so others are blocked.
        2 if blocking == BY_NMI => 2,
        3 => [0, 1, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 19][vector as usize % 13],
        4 => vector,
        5 => 1,
        6 => 3 + (vector & 1),
        _ => return None,
    };
    let protected = v.area.read(field::GUEST_CR0) & CR0_PE != 0;
    let code = protected && kind == 3 && matches!(vector, 8 | 10..=14 | 17);
    Some(1 << 31 | u32::from(code) << 11 | kind << 8 | vector)
}

fn any_step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(Mode::Injection), Just(Mode::Eli), Just(Mode::Passthrough)];
    prop_oneof![
        proptest::option::of(16u8..).prop_map(Step::Offer),
        any::<u8>().prop_map(Step::Priority),
        any::<bool>().prop_map(Step::Exception),
        Just(Step::Nmi),
        mode.prop_map(Step::Mode),
        any::<bool>().prop_map(Step::WatchIdt),
        any::<bool>().prop_map(Step::WatchHalt),
        any::<bool>().prop_map(Step::X2apic),
        Just(Step::Leave),
        any::<u64>().prop_map(Step::LeaveAt),
        (any::<bool>(), prop::sample::select(vec![0, 1, 2, 8, 9, 10]))
            .prop_map(|(interrupts, blocking)| Step::Guest { interrupts, blocking }),
        (any::<u32>(), any::<u32>(), 1..=15u64)
            .prop_map(|(info, code, length)| Step::Interrupted { info, code, length }),
        (any::<bool>(), 0..3u64, any::<bool>()).prop_map(|(privileged, blocking, steps)| {
            Step::Debug { privileged, blocking, steps }
        }),
        Just(Step::Advance),
        Just(Step::Abort),
        any::<bool>().prop_map(Step::Reset),
    ]
}

proptest! {
    #[test]
    fn whatever_is_asked_can_be_entered(
        steps in prop::collection::vec(any_step(), 1..40), shared: bool
    ) {
        let mut v = vcpu(LONG, shared);
        let mut mode = Mode::Injection;
        for step in steps {
            match step {
                Step::Offer(vector) if mode == Mode::Injection => v.offer(vector),
                Step::Priority(priority) if mode == Mode::Injection => {
                    v.set_virtual_priority(priority);
                }
                Step::Offer(_) | Step::Priority(_) => {}
                Step::Exception(with) if !v.injects() => {
                    let (vector, code) = if with { (13, Some(0)) } else { (6, None) };
                    v.inject(Event::exception(vector, code));
                }
                Step::Nmi if !v.injects() && v.nmi_possible() => v.inject(Event::nmi()),
                Step::Exception(_) | Step::Nmi => {}
                Step::Mode(Mode::Injection) if mode != Mode::Injection => {
                    v.set_injection(0);
                    mode = Mode::Injection;
                }
                Step::Mode(new) if mode == Mode::Injection && new != mode => {
                    v.set_exitless(new);
                    mode = new;
                }
                Step::Mode(_) => {}
                Step::WatchIdt(on) => v.watch_idt(on),
                Step::WatchHalt(on) => v.watch_halt(on),
                Step::X2apic(on) => v.show_x2apic(mode, on),
                Step::Leave => v.leave_at_once(),
                Step::LeaveAt(at) => v.leave_at(at),
                Step::Guest { interrupts, blocking } if !v.injects() => {
                    // Behind STI interrupts are let in.
                    let open = interrupts || blocking & 1 != 0;
                    v.area.write(field::GUEST_RFLAGS, if open { 0x202 } else { 2 });
                    v.area.write(field::GUEST_INTERRUPTIBILITY, blocking);
                }
                Step::Guest { .. } => {}
                Step::Interrupted { info, code, length } if !v.injects() => {
                    let Some(info) = deliverable(&v, info) else { continue };
                    v.area.write(field::VECTORING, info.into());
                    v.area.write(field::VECTORING_ERROR_CODE, u64::from(code & 0xFFFF));
                    v.area.write(field::INSTRUCTION_LENGTH, length);
                    let event = Delivered::interrupted(&v.area).map(Event::from);
                    if let Some(event) = event.and_then(Event::again) {
                        v.inject(event);
                    }
                }
                Step::Interrupted { .. } => {}
                Step::Debug { privileged, blocking, steps } if !v.injects() => {
                    debug(&mut v, privileged, blocking, steps);
                    let exit = v.exit();
                    prop_assert!(Vcpu::<Model>::is_debug(exit));
                    v.take_debug_status(0);
                    v.inject(Event::exception(DEBUG, None));
                }
                Step::Debug { .. } => {}
                Step::Advance => v.advance(0x20_0000),
                Step::Abort => {
                    v.prepare(|| 0);
                    prop_assert_eq!(check(&v.area, &v.capabilities), Ok(()));
                    v.aborted();
                }
                Step::Reset(kernel) => {
                    v.reset(if kernel { LONG } else { Start::StartUp { page: 8 } });
                    mode = Mode::Injection;
                }
            }
            prop_assert_eq!(v.in_injection(), mode == Mode::Injection);
            let priority = class(v.virtual_priority());
            v.prepare(|| 0);
            prop_assert_eq!(check(&v.area, &v.capabilities), Ok(()));
            let threshold = v.area.read(field::TPR_THRESHOLD);
            prop_assert!(threshold <= u64::from(priority) || mode != Mode::Injection);
            let always = Controls::NEEDED;
            let primary = v.area.read(field::PRIMARY_CONTROLS) as u32 | primary::TPR_SHADOW;
            prop_assert_eq!(primary & always.primary, always.primary);
            let pin = v.area.read(field::PIN_CONTROLS) as u32;
            prop_assert_eq!(pin & always.pin, always.pin);
            let bitmap = v.area.read(field::EXCEPTION_BITMAP) as u32;
            prop_assert_eq!(bitmap & ALWAYS_EXCEPTIONS, ALWAYS_EXCEPTIONS);
            v.aborted();
        }
    }
}
