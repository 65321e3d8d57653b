//! Whatever is asked of a vCPU, in whatever state the guest left: it can be entered, what is needed
//! exits, and what is offered is taken when the guest lets it in.

use super::*;
use crate::area::tests::Model;
use crate::capabilities::tests::capabilities;
use crate::entry::check;
use crate::{Delivered, Host};
use delivery::{Event, class};
use proptest::prelude::*;
use vendor::PAT_AT_RESET;

const HOST: Host = Host {
    control: [0x8005_0033, 0x1000, 0x4_2020],
    efer: 0xD00,
    pat: PAT_AT_RESET,
    selectors: [0x08, 0x18],
    bases: [0, 0x20_0000],
    task: 0x20_1000,
    tables: [0x20_2000, 0x20_3000],
    rip: 0x20_4000,
};
/// What a guest may set of CR4: VMXE, and what is newer, isn't among it.
pub const OFFERED_CR4: u64 = 0x77_0FFF;
const MAPS: [u64; 6] = [0x30_0000, 0x30_1000, 0x30_2000, 0x30_3000, 0x30_4000, 0x30_5000];
pub const LONG: Start = Start::Kernel {
    rip: 0x10_0000,
    page_tables: Some(0x5000),
    gdt: (0x6000, 0x27),
    selectors: (8, 16),
    registers: (1, 2, 3),
};
pub const FLAT: Start = Start::Kernel {
    rip: 0x10_0000,
    page_tables: None,
    gdt: (0x6000, 0x27),
    selectors: (8, 16),
    registers: (1, 2, 3),
};

/// A vCPU at its start.
pub fn vcpu(start: Start, shared: bool) -> Vcpu<Model> {
    let parts = Parts {
        nested_root: 0x10_0000,
        vpid: 1,
        ports: [0x10_1000, 0x10_2000],
        msrs: MAPS[0],
        virtual_apic: 0x10_4000,
    };
    let setup = Setup {
        parts,
        maps: MAPS,
        capabilities: capabilities(),
        shared,
        hides_gates: true,
        cr4: OFFERED_CR4,
        start,
        signature: 0x6_0F10,
    };
    let controls = Controls::fit(&setup.capabilities).unwrap();
    let priority = Box::leak(Box::new(AtomicU8::new(0)));
    let mut vcpu = Vcpu::new(Model::default(), &setup, controls, priority);
    vcpu.build();
    HOST.write(&mut vcpu.area);
    vcpu
}

/// The event that is raised at the entry that comes.
fn raised(vcpu: &Vcpu<Model>) -> Option<u8> {
    Delivered::pending(&vcpu.area).map(|event| event.vector)
}

/// An entry and an exit.
fn run(vcpu: &mut Vcpu<Model>) {
    vcpu.prepare();
    check(&vcpu.area, &vcpu.capabilities).unwrap();
    vcpu.entered();
    Delivered::withdraw(&mut vcpu.area);
}

fn window(vcpu: &Vcpu<Model>) -> bool {
    vcpu.area.read(field::PRIMARY_CONTROLS) as u32 & primary::INTERRUPT_WINDOW != 0
}

fn halts(vcpu: &Vcpu<Model>) -> bool {
    vcpu.area.read(field::PRIMARY_CONTROLS) as u32 & primary::HLT != 0
}

/// Whether it sleeps for good at this instruction or not, the host does what the CPU would.
#[test]
fn hlt_where_an_interrupt_waits_is_begun_by_the_host() {
    for (watched, enabled) in [(false, true), (false, false), (true, true)] {
        let mut v = vcpu(LONG, false);
        v.watch_halt(watched);
        v.offer(Some(0x51));
        run(&mut v);
        assert!(halts(&v) && window(&v), "IF is clear");
        // STI, HLT; or HLT at once.
        v.area.write(field::GUEST_RFLAGS, if enabled { 0x202 } else { 2 });
        v.area.write(field::GUEST_INTERRUPTIBILITY, enabled.into());
        v.area.write(field::EXIT_REASON, exits::reason::HLT.into());
        v.area.write(field::INSTRUCTION_LENGTH, 1);
        assert_eq!(v.halted(), watched);
        if watched {
            continue;
        }
        let rip = v.area.read(field::GUEST_RIP);
        assert_eq!((v.exit(), v.area.read(field::GUEST_RIP)), (Exit::Nothing, rip + 1));
        assert_eq!(v.area.read(field::GUEST_ACTIVITY), SLEEPS);
        run(&mut v);
        assert_eq!((v.offer_accepted(), window(&v)), (enabled, !enabled));
        v.offer(None);
        assert!(!halts(&v));
    }
}

#[test]
fn an_offer_is_raised_where_the_guest_lets_it_in() {
    let mut v = vcpu(LONG, false);
    v.offer(Some(0x51));
    v.prepare();
    assert_eq!((raised(&v), window(&v), v.offer_accepted()), (None, true, false), "IF is clear");
    v.entered();
    assert_eq!(v.offered(), Some(0x51));
    v.area.write(field::GUEST_RFLAGS, 0x202);
    v.area.write(field::GUEST_INTERRUPTIBILITY, 1);
    v.prepare();
    assert_eq!((raised(&v), window(&v)), (None, true), "behind STI");
    assert!(halts(&v), "HLT there exits");
    v.entered();
    v.area.write(field::GUEST_INTERRUPTIBILITY, 0);
    v.set_virtual_priority(0x51);
    v.prepare();
    assert_eq!((raised(&v), window(&v)), (None, false), "the task priority holds it back");
    assert!(!halts(&v), "and it may sleep");
    assert_eq!(v.area.read(field::TPR_THRESHOLD), 5, "until it is below its class");
    v.entered();
    v.set_virtual_priority(0x4F);
    v.prepare();
    assert_eq!((raised(&v), window(&v)), (Some(0x51), false));
    assert_eq!(v.area.read(field::TPR_THRESHOLD), 0);
    v.aborted();
    assert_eq!((raised(&v), v.offer_accepted()), (None, false), "it wasn't entered");
    run(&mut v);
    assert!(v.offer_accepted());
}

#[test]
fn an_exception_goes_before_an_offer() {
    let mut v = vcpu(LONG, false);
    v.area.write(field::GUEST_RFLAGS, 0x202);
    v.offer(Some(0x51));
    v.inject(Event::exception(13, Some(0)));
    v.prepare();
    assert_eq!((raised(&v), window(&v)), (Some(13), true));
    v.aborted();
    assert_eq!(raised(&v), Some(13), "which an abort leaves");
}

#[test]
fn real_mode_has_no_error_codes() {
    let mut v = vcpu(LONG, false);
    v.reset(Start::StartUp { page: 0x9A });
    assert_eq!(v.registers[2], 0x6_0F10);
    v.inject(Event::exception(13, Some(0)));
    assert_eq!(Delivered::pending(&v.area).unwrap().error_code, None);
    run(&mut v);
}

#[test]
fn an_nmi_is_injected_once_and_its_end_is_told() {
    let mut v = vcpu(LONG, false);
    let told = |v: &Vcpu<Model>| v.area.read(field::PRIMARY_CONTROLS) as u32 & primary::NMI_WINDOW;
    assert!(v.nmi_possible() && told(&v) == 0);
    v.inject(Event::nmi());
    run(&mut v);
    assert!(told(&v) != 0);
    v.area.write(field::GUEST_INTERRUPTIBILITY, BY_NMI);
    assert!(!v.nmi_possible());
    v.area.write(field::EXIT_REASON, 8);
    v.area.write(field::GUEST_INTERRUPTIBILITY, 0);
    assert_eq!(v.exit(), Exit::NmiDone);
    assert!(told(&v) == 0 && v.nmi_possible());
    // One whose delivery was interrupted blocks already.
    v.area.write(field::GUEST_INTERRUPTIBILITY, BY_NMI);
    v.inject(Event::nmi());
    run(&mut v);
}

/// Some CPUs refuse an NMI behind STI; it is raised when that shadow is over, whatever is on offer.
#[test]
fn an_nmi_waits_for_the_end_of_a_shadow_of_sti() {
    for (offer, priority) in [(None, 0), (Some(0x51), 0), (Some(0x51), 0x60)] {
        let mut v = vcpu(LONG, false);
        v.offer(offer);
        v.set_virtual_priority(priority);
        v.area.write(field::GUEST_RFLAGS, 0x202);
        v.area.write(field::GUEST_INTERRUPTIBILITY, BY_STI);
        assert!(!v.nmi_possible());
        run(&mut v);
        assert!(window(&v), "that one waits for the shadow's end on every CPU");
        v.area.write(field::GUEST_INTERRUPTIBILITY, 0);
        v.area.write(field::EXIT_REASON, exits::reason::INTERRUPT_WINDOW.into());
        assert_eq!((v.exit(), window(&v)), (Exit::Window, false));
        assert!(v.nmi_possible());
        v.inject(Event::nmi());
        run(&mut v);
        assert_eq!(v.offered(), offer);
    }
}

/// An IRET that faults, or whose stack isn't there, is executed again, with NMIs blocked as before.
#[test]
fn an_iret_that_exits_blocks_nmis_again() {
    const VIOLATION: u32 = exits::reason::EPT_VIOLATION;
    for (reason, info, qualification, blocked) in [
        (exits::reason::EXCEPTION, 0x8000_1B0Du64, 0, BY_NMI),
        (exits::reason::EXCEPTION, 0x8000_0B0D, 0, 0),
        (VIOLATION, 0, 0x1181, BY_NMI),
        (VIOLATION, 0, 0x181, 0),
    ] {
        let mut v = vcpu(LONG, false);
        v.area.write(field::EXIT_REASON, reason.into());
        v.area.write(field::EXIT_INTERRUPTION, info);
        v.area.write(field::QUALIFICATION, qualification);
        v.exit();
        assert_eq!(v.area.read(field::GUEST_INTERRUPTIBILITY), blocked, "{reason} {info:#x}");
    }
}

/// An interrupt wakes the guest, and the fault that its delivery leads to doesn't.
#[test]
fn an_exception_is_raised_in_who_is_awake() {
    let mut v = vcpu(LONG, false);
    v.area.write(field::GUEST_ACTIVITY, SLEEPS);
    v.inject(Event::exception(11, Some(0x283)));
    assert_eq!(v.area.read(field::GUEST_RFLAGS), 0x1_0002, "a fault has RF");
    run(&mut v);
    v.area.write(field::GUEST_RFLAGS, 2);
    v.inject(Event::exception(8, Some(0)));
    assert_eq!(v.area.read(field::GUEST_RFLAGS), 2, "and an abort hasn't");
    run(&mut v);
    v.area.write(field::GUEST_ACTIVITY, SLEEPS);
    v.inject(Event::nmi());
    run(&mut v);
}

#[test]
fn modes_decide_what_exits() {
    let mut v = vcpu(LONG, true);
    v.set_virtual_priority(0x35);
    assert!(v.in_injection());
    assert_eq!(v.area.read(field::MSR_BITMAPS), MAPS[0]);
    v.area.write(field::GUEST_IDTR_LIMIT, 0xFFF);
    assert_eq!(v.set_exitless(Mode::Eli), 0x35);
    let has = |v: &Vcpu<Model>, word, bit: u32| v.area.read(word) as u32 & bit != 0;
    assert!(!has(&v, field::PIN_CONTROLS, pin::EXTERNAL_INTERRUPT));
    assert!(!has(&v, field::PRIMARY_CONTROLS, primary::TPR_SHADOW), "CR8 is the core's");
    assert!(has(&v, field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES));
    assert!(has(&v, field::EXCEPTION_BITMAP, 1 << GENERAL_PROTECTION));
    assert_eq!(v.area.read(field::GUEST_IDTR_LIMIT), CUT);
    assert_eq!(v.idtr().1, 0xFFF, "and the guest's own is kept");
    assert_eq!(v.area.read(field::MSR_BITMAPS), MAPS[Map::Eli as usize]);
    run(&mut v);
    v.set_injection(0x40);
    assert_eq!(v.area.read(field::GUEST_IDTR_LIMIT), 0xFFF);
    assert!(!has(&v, field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES));
    assert!(!has(&v, field::EXCEPTION_BITMAP, 1 << GENERAL_PROTECTION));
    assert_eq!(v.virtual_priority(), 0x40);
    v.watch_idt(true);
    assert!(has(&v, field::SECONDARY_CONTROLS, secondary::DESCRIPTOR_TABLES));
    v.leave_at_once();
    assert!(has(&v, field::PIN_CONTROLS, pin::PREEMPTION_TIMER));
    v.acknowledge_exit();
    assert!(!has(&v, field::PIN_CONTROLS, pin::PREEMPTION_TIMER));
}

/// The guest is left for #DB, as a CPU leaves it: nothing is held back (SDM vol. 3, 28.3.4).
pub fn debug(v: &mut Vcpu<Model>, privileged: bool, blocking: u64, steps: bool) {
    let kind = if privileged { 5 } else { 3 };
    v.area.write(field::EXIT_REASON, 0);
    v.area.write(field::EXIT_INTERRUPTION, 1 << 31 | kind << 8 | 1);
    v.area.write(field::VECTORING, 0);
    v.area.write(field::INSTRUCTION_LENGTH, 1);
    v.area.write(field::GUEST_RFLAGS, 0x202 | u64::from(steps) << 8);
    v.area.write(field::GUEST_INTERRUPTIBILITY, blocking);
    v.area.write(field::GUEST_PENDING_DEBUG, 0);
}

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
                    v.prepare();
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
            v.prepare();
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
