//! A vCPU, case by case: what is needed exits, and what is offered is taken when the guest lets it
//! in.

use super::*;
use crate::area::tests::Model;
use crate::capabilities::tests::capabilities;
use crate::entry::check;
use crate::{Delivered, Descriptor, Host, Notification, Registers};
use delivery::Event;
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
const MAPS: [u64; 7] =
    [0x30_0000, 0x30_1000, 0x30_2000, 0x30_3000, 0x30_4000, 0x30_5000, 0x30_6000];
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
    made(start, shared, None)
}

/// One that may be in posted mode.
pub fn posting_vcpu() -> Vcpu<Model> {
    let to = Notification { destination: 3, vector: 0xF4 };
    let descriptor: &Descriptor = Box::leak(Box::new(Descriptor::new(to)));
    let registers: &Registers = Box::leak(Default::default());
    made(LONG, false, Some(Posting { registers, descriptor, at: 0x10_5000 }))
}

fn made(start: Start, shared: bool, posting: Option<Posting>) -> Vcpu<Model> {
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
        posting,
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
    vcpu.prepare(|| 0);
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
        assert_eq!((v.exit(), v.area.read(field::GUEST_RIP)), (Exit::Slept, rip + 1));
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
    v.prepare(|| 0);
    assert_eq!((raised(&v), window(&v), v.offer_accepted()), (None, true, false), "IF is clear");
    v.entered();
    assert_eq!(v.offered(), Some(0x51));
    v.area.write(field::GUEST_RFLAGS, 0x202);
    v.area.write(field::GUEST_INTERRUPTIBILITY, 1);
    v.prepare(|| 0);
    assert_eq!((raised(&v), window(&v)), (None, true), "behind STI");
    assert!(halts(&v), "HLT there exits");
    v.entered();
    v.area.write(field::GUEST_INTERRUPTIBILITY, 0);
    v.set_virtual_priority(0x51);
    v.prepare(|| 0);
    assert_eq!((raised(&v), window(&v)), (None, false), "the task priority holds it back");
    assert!(!halts(&v), "and it may sleep");
    assert_eq!(v.area.read(field::TPR_THRESHOLD), 5, "until it is below its class");
    v.entered();
    v.set_virtual_priority(0x4F);
    v.prepare(|| 0);
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
    v.prepare(|| 0);
    assert_eq!((raised(&v), window(&v)), (Some(13), true));
    v.aborted();
    assert_eq!(raised(&v), Some(13), "which an abort leaves");
}

/// A step over CPUID, or a breakpoint on what MOV SS read: the CPU forgets it for what is raised.
#[test]
fn a_trap_that_is_held_back_goes_before_an_offer() {
    for (held, first) in [(1 << 14, true), (1 << 12 | 1, true), (1, false), (0, false)] {
        let mut v = vcpu(LONG, false);
        v.area.write(field::GUEST_RFLAGS, 0x202);
        v.area.write(field::GUEST_PENDING_DEBUG, held);
        v.offer(Some(0x51));
        assert_eq!(
            v.injects(),
            first,
            "so an NMI waits, too, and who steps over HLT doesn't sleep"
        );
        run(&mut v);
        assert_eq!((v.offer_accepted(), window(&v)), (!first, first), "{held:#x}");
        v.area.write(field::GUEST_PENDING_DEBUG, 0);
        run(&mut v);
        assert!(v.offer_accepted());
    }
    let mut v = vcpu(LONG, false);
    v.area.write(field::GUEST_RFLAGS, 0x302);
    v.advance(0x10_0002);
    assert!(v.injects());
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

/// One that fell asleep while nobody wanted its core doesn't sleep on in others' time.
#[test]
fn a_sleeper_is_awake_once_its_sleep_is_watched() {
    let mut v = vcpu(LONG, true);
    v.watch_halt(false);
    v.area.write(field::GUEST_ACTIVITY, SLEEPS);
    v.watch_halt(false);
    assert_eq!(v.area.read(field::GUEST_ACTIVITY), SLEEPS);
    v.watch_halt(true);
    assert_eq!(v.area.read(field::GUEST_ACTIVITY), ACTIVE);
}

/// The timer has its count anew at each entry: what the host did meanwhile is time, too.
#[test]
fn a_guest_is_left_at_its_time_and_not_before() {
    let mut v = vcpu(LONG, true);
    let on = |v: &Vcpu<Model>| v.area.read(field::PIN_CONTROLS) as u32 & pin::PREEMPTION_TIMER != 0;
    let unit = 1 << v.capabilities.timer_shift();
    assert!(unit > 1 && !on(&v));
    let up = |v: &mut Vcpu<Model>| {
        v.area.write(field::EXIT_REASON, exits::reason::PREEMPTION_TIMER.into());
        v.exit()
    };
    v.leave_at(1_000_000);
    for now in [0, 999_000, 999_999, 1_000_000, 2_000_000] {
        v.prepare(|| now);
        assert!(on(&v));
        // The first step takes any part of a unit, down to nothing.
        let left = 1_000_000u64.saturating_sub(now);
        let steps = v.area.read(field::PREEMPTION_TIMER) - 1;
        assert!((left..left + unit).contains(&(steps * unit)), "{left} {steps}");
        check(&v.area, &v.capabilities).unwrap();
        v.entered();
        assert_eq!(up(&mut v), Exit::TimeUp);
    }
    // At once is at once, and the time stands.
    v.leave_at_once();
    v.prepare(|| 0);
    assert_eq!(v.area.read(field::PREEMPTION_TIMER), 0);
    assert_eq!((up(&mut v), on(&v)), (Exit::Nmi, true));
    v.prepare(|| 0);
    assert_ne!(v.area.read(field::PREEMPTION_TIMER), 0);
    assert_eq!(up(&mut v), Exit::TimeUp);
    // One that is further away than the timer counts is looked at again.
    v.leave_at(u64::MAX - 1);
    v.prepare(|| 0);
    assert_eq!(v.area.read(field::PREEMPTION_TIMER), u32::MAX.into());
    v.leave_at(u64::MAX);
    assert!(!on(&v));
    v.leave_at_once();
    v.leave_at(u64::MAX);
    assert!(on(&v), "it is left at once all the same");
    v.acknowledge_exit();
    assert!(!on(&v));
    v.leave_at(5);
    v.reset(LONG);
    assert!(!on(&v), "a reset has no time");
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
