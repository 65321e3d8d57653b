//! The control block after each thing that can be done with it.

use super::*;
use crate::audit;
use decode::Registers;
use proptest::prelude::*;
use zerocopy::FromZeros;

pub const MAPS: Maps =
    Maps { msrs: [0x1000, 0x3000, 0x5000, 0x7000, 0xD000, 0xF000], ports: 0x9000 };
pub const HARDWARE: Features =
    Features { next_rip: true, decode_assists: true, emulated: false, ..QEMU };
pub const QEMU: Features = Features {
    nested_paging: true,
    next_rip: false,
    decode_assists: false,
    virtual_loads: false,
    virtual_gif: false,
    emulated: true,
};

pub fn setup(features: Features) -> Setup {
    Setup {
        nested_root: 0xB000,
        asid: 3,
        maps: MAPS,
        shared: false,
        hides_gates: false,
        features,
        start: Start::StartUp { page: 1 },
        signature: 0xF61,
    }
}

pub fn vcpu(setup: &Setup) -> Vcpu {
    Vcpu::new(Box::leak(Box::new(Vmcb::new_zeroed())), setup)
}

/// What must exit whatever else is so, by the numbers of the manual (APM vol. 2, table B-1).
fn check_safety(v: &Vmcb) {
    // NMI, INIT, CR0 but TS and MP, RDPMC, CPUID, INVD, INVLPGA, I/O, MSRs, task switch,
    // FERR_FREEZE, shutdown.
    for bit in [1, 3, 5, 15, 18, 22, 26, 27, 28, 29, 30, 31] {
        assert!(v.intercept_misc1 >> bit & 1 != 0, "word 3, bit {bit}");
    }
    // VMRUN to SKINIT, WBINVD, MONITOR, MWAIT (two), XSETBV, RDPRU.
    for bit in [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14] {
        assert!(v.intercept_misc2 >> bit & 1 != 0, "word 4, bit {bit}");
    }
    for vector in [1, 17, 18] {
        assert!(v.intercept_exceptions >> vector & 1 != 0, "exception {vector}");
    }
    assert_eq!((v.asid, v.nested_control, v.nested_cr3), (3, 1, 0xB000));
    assert_eq!(v.iopm_base, MAPS.ports);
    assert!(v.efer & EFER_SVME != 0);
}

#[test]
fn a_start_up_has_the_processors_signature() {
    let mut cpu = vcpu(&setup(QEMU));
    assert_eq!((cpu.gpr(2), cpu.gpr(0), cpu.vmcb.tlb_control), (0xF61, 0, 1));
    cpu.vmcb.tlb_control = 0;
    cpu.flush();
    assert_eq!(cpu.vmcb.tlb_control, 1);
    let registers = (1, 2, 3);
    let start =
        Start::Kernel { rip: 0x100, page_tables: None, gdt: (0, 0), selectors: (8, 16), registers };
    cpu.set_gpr(9, 9);
    cpu.reset(start);
    assert_eq!([0, 3, 6, 2, 9].map(|r| cpu.gpr(r)), [1, 2, 3, 0, 0]);
}

#[test]
fn each_mode_has_its_map_and_interrupts() {
    let mut cpu = vcpu(&setup(HARDWARE));
    assert!(cpu.in_injection());
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[0]);
    assert!(cpu.vmcb.intercept_misc1 & misc1::INTR != 0);
    cpu.set_virtual_priority(0x50);
    assert_eq!(cpu.set_exitless(Mode::Eli), 0x50);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[1]);
    assert!(!cpu.in_injection() && cpu.vmcb.intercept_misc1 & misc1::INTR == 0);
    cpu.set_injection(0x61);
    assert_eq!((cpu.virtual_priority(), cpu.vmcb.msrpm_base), (0x61, MAPS.msrs[0]));
    cpu.set_exitless(Mode::Passthrough);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[2]);
    cpu.open_timer(Mode::Passthrough, false);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[3]);
    cpu.open_timer(Mode::Passthrough, true);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[2]);
    cpu.set_injection(0);
    cpu.lend_timer(Mode::Injection, true);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[0]);
    cpu.set_exitless(Mode::Eli);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[5]);
    cpu.lend_timer(Mode::Eli, false);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[1]);
    cpu.set_injection(0);
    cpu.show_x2apic(Mode::Injection, false);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[4]);
    cpu.show_x2apic(Mode::Injection, true);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[0]);
    check_safety(cpu.vmcb);
}

/// All eight bits are the guest's to read and write (APM vol. 2, 16.3.4).
#[test]
fn the_task_priority_has_eight_bits_and_cr8_has_four() {
    let mut cpu = vcpu(&setup(HARDWARE));
    cpu.set_virtual_priority(0x25);
    assert_eq!((cpu.virtual_priority(), cpu.vmcb.int_ctl & 0xFF), (0x25, 2));
    assert_eq!(cpu.set_exitless(Mode::Eli), 0x25);
    cpu.set_injection(0x3F);
    assert_eq!((cpu.virtual_priority(), cpu.vmcb.int_ctl & 0xFF), (0x3F, 3));
    // The guest's MOV to CR8.
    cpu.vmcb.int_ctl = cpu.vmcb.int_ctl & !0xFF | 7;
    assert_eq!(cpu.virtual_priority(), 0x70);
    cpu.set_virtual_priority(0x0F);
    cpu.reset(Start::StartUp { page: 1 });
    assert_eq!(cpu.virtual_priority(), 0);
}

#[test]
fn translations_are_dropped_when_what_they_are_made_by_changes() {
    let mut cpu = vcpu(&setup(HARDWARE));
    let mut flushed = |change: &dyn Fn(&mut Vcpu)| {
        cpu.vmcb.tlb_control = 0;
        change(&mut cpu);
        cpu.vmcb.tlb_control
    };
    assert_eq!(flushed(&|cpu| cpu.set_efer(1 << 11)), 1, "NXE");
    assert_eq!(flushed(&|cpu| cpu.set_efer(1 << 11)), 0, "the same again");
    assert_eq!(flushed(&|cpu| cpu.set_cr0(0x11)), 1);
    assert_eq!(flushed(&|cpu| cpu.flush()), 1);
}

#[test]
fn a_reset_opens_the_timer_again() {
    let mut cpu = vcpu(&setup(HARDWARE));
    cpu.set_exitless(Mode::Passthrough);
    cpu.open_timer(Mode::Passthrough, false);
    cpu.lend_timer(Mode::Passthrough, true);
    cpu.reset(Start::StartUp { page: 2 });
    assert!(cpu.in_injection());
    cpu.set_exitless(Mode::Passthrough);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[2]);
    cpu.set_injection(0);
    cpu.set_exitless(Mode::Eli);
    assert_eq!(cpu.vmcb.msrpm_base, MAPS.msrs[1], "and isn't lent any more");
}

#[test]
fn on_a_shared_core_the_limit_is_cut_and_nothing_shows_it() {
    let mut cpu = vcpu(&Setup { shared: true, ..setup(HARDWARE) });
    cpu.vmcb.idtr.limit = 0xFFF;
    cpu.set_exitless(Mode::Eli);
    let cut = u32::from(FIRST_RESERVED) * 16 - 1;
    assert_eq!((cpu.vmcb.idtr.limit, cpu.idtr().1), (cut, 0xFFF));
    cpu.watch_idt(false);
    // SIDT, LIDT.
    assert_eq!(cpu.vmcb.intercept_misc1 & (1 << 6 | 1 << 10), 1 << 6 | 1 << 10);
    assert!(cpu.vmcb.intercept_exceptions >> GENERAL_PROTECTION & 1 != 0);
    cpu.set_injection(0);
    assert_eq!((cpu.vmcb.idtr.limit, cpu.idtr().1), (0xFFF, 0xFFF));
    assert_eq!(cpu.vmcb.intercept_misc1 & (1 << 6 | 1 << 10), 0);
    assert!(cpu.vmcb.intercept_exceptions >> GENERAL_PROTECTION & 1 == 0);
    // A limit below the cut is the guest's own.
    cpu.vmcb.idtr.limit = 0x7FF;
    cpu.set_exitless(Mode::Eli);
    assert_eq!((cpu.vmcb.idtr.limit, cpu.idtr().1), (0x7FF, 0x7FF));
    cpu.reset(Start::StartUp { page: 1 });
    assert_eq!(cpu.idtr(), (0, 0xFFFF));
}

/// What only an emulator needs costs a real CPU no exit.
#[test]
fn a_real_cpu_has_no_intercept_for_an_emulators_sake() {
    let mut cpu = vcpu(&setup(HARDWARE));
    let check = |v: &Vmcb| {
        assert_eq!(v.intercept_exceptions, ALWAYS_EXCEPTIONS);
        assert_eq!((v.intercept_dr_write, v.intercept_cr_write, v.intercept_cr_read), (0, 0, 0));
    };
    check(cpu.vmcb);
    cpu.set_virtual_priority(0x50);
    for vector in [0x41, 0x51, 0x61] {
        cpu.offer(Some(vector));
        // The CPU compares with the task priority by itself.
        assert!(cpu.delivers(vector) && !cpu.offer_accepted());
        check(cpu.vmcb);
    }
    let hides = vcpu(&Setup { hides_gates: true, ..setup(HARDWARE) });
    assert_eq!(hides.vmcb.intercept_exceptions, ALWAYS_EXCEPTIONS | 1 << NOT_PRESENT);
}

#[test]
fn on_qemu_an_offer_exits_if_its_delivery_fails_and_waits_for_the_priority() {
    let mut cpu = vcpu(&setup(QEMU));
    assert_eq!(cpu.vmcb.intercept_dr_write, 0xF0);
    assert_eq!(cpu.vmcb.intercept_exceptions, ALWAYS_EXCEPTIONS | 1 << NOT_PRESENT);
    cpu.set_virtual_priority(0x50);
    cpu.offer(Some(0x51));
    assert!(!cpu.delivers(0x51) && !cpu.offer_accepted(), "held back");
    assert_eq!(cpu.vmcb.intercept_cr_write, 1 << 8);
    assert_eq!(cpu.vmcb.intercept_exceptions & DELIVERY_FAULTS, 0);
    cpu.set_virtual_priority(0x40);
    assert!(cpu.delivers(0x51) && !cpu.offer_accepted(), "let in");
    assert_eq!(cpu.vmcb.intercept_exceptions & DELIVERY_FAULTS, DELIVERY_FAULTS);
    cpu.set_virtual_priority(0x60);
    assert!(!cpu.delivers(0x51), "held back again");
    cpu.set_virtual_priority(0);
    // The guest takes it.
    cpu.vmcb.int_ctl &= !int_ctl::V_IRQ;
    assert!(cpu.offer_accepted());
    assert_eq!(cpu.vmcb.intercept_cr_write, 0);
    assert_eq!(cpu.vmcb.intercept_exceptions & DELIVERY_FAULTS, 0);
    cpu.set_virtual_priority(0x10);
    assert!(cpu.vmcb.int_ctl & int_ctl::V_IRQ == 0);
    cpu.offer(Some(0x51));
    cpu.offer(None);
    assert_eq!((cpu.vmcb.intercept_cr_write, cpu.vmcb.int_ctl & int_ctl::V_IRQ), (0, 0));
    assert_eq!(cpu.vmcb.intercept_exceptions & DELIVERY_FAULTS, 0);
}

#[test]
fn debug_controls_are_let_once() {
    let mut cpu = vcpu(&setup(QEMU));
    cpu.let_debug_control();
    assert_eq!(cpu.vmcb.intercept_dr_write, 0);
    cpu.vmcb.exit_code = 0x72;
    assert_eq!(cpu.exit(|_| false), Exit::Cpuid);
    assert_eq!(cpu.vmcb.intercept_dr_write, 0xF0);
    cpu.let_debug_control();
    cpu.reset(Start::StartUp { page: 1 });
    assert_eq!(cpu.vmcb.intercept_dr_write, 0xF0);
}

#[test]
fn an_nmi_makes_the_return_from_its_handler_exit() {
    let mut cpu = vcpu(&setup(HARDWARE));
    assert!(cpu.nmi_possible() && !cpu.injects());
    cpu.inject(Event::nmi());
    assert!(cpu.injects() && !cpu.nmi_possible());
    assert_eq!(cpu.vmcb.event_inj, 0x8000_0202);
    (cpu.vmcb.event_inj, cpu.vmcb.exit_code, cpu.vmcb.rip) = (0, 0x74, 0x10);
    assert_eq!(cpu.exit(|_| false), Exit::NmiDone);
    assert!(!cpu.nmi_possible(), "stepped over");
    (cpu.vmcb.exit_code, cpu.vmcb.dr6) = (0x41, 1 << 14);
    assert_eq!(cpu.exit(|_| false), Exit::NmiDone);
    assert!(cpu.nmi_possible());
    assert_eq!(
        cpu.exit(|_| false),
        Exit::Exception { vector: 1, error_code: None },
        "the next #DB is the guest's"
    );
}

#[test]
fn only_what_the_cpu_tells_is_told() {
    let told = vcpu(&setup(HARDWARE));
    told.vmcb.next_rip = 0x1234;
    assert_eq!((told.next_rip(), told.instruction_bytes()), (Some(0x1234), None));
    told.vmcb.instruction[..3].copy_from_slice(&[0x0F, 0x01, 0xD9]);
    told.vmcb.bytes_fetched = 3;
    assert_eq!(told.instruction_bytes(), Some(&[0x0F, 0x01, 0xD9][..]));
    let silent = vcpu(&setup(QEMU));
    (silent.vmcb.next_rip, silent.vmcb.bytes_fetched) = (0x1234, 3);
    assert_eq!((silent.next_rip(), silent.instruction_bytes()), (None, None));
}

#[derive(Clone, Debug)]
enum Step {
    Direct(Mode),
    Injection(u8),
    Offer(Option<u8>),
    Priority(u8),
    Raise(u8),
    Nmi,
    WatchIdt(bool),
    WatchHalt(bool),
    Timer(bool),
    Lend(bool),
    Reset,
    Exit(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop_oneof![Just(Mode::Eli), Just(Mode::Passthrough)].prop_map(Step::Direct),
        any::<u8>().prop_map(Step::Injection),
        any::<Option<u8>>().prop_map(Step::Offer),
        any::<u8>().prop_map(Step::Priority),
        (0..32u8).prop_map(Step::Raise),
        Just(Step::Nmi),
        any::<bool>().prop_map(Step::WatchIdt),
        any::<bool>().prop_map(Step::WatchHalt),
        any::<bool>().prop_map(Step::Timer),
        any::<bool>().prop_map(Step::Lend),
        Just(Step::Reset),
        (0x40..0x90u64).prop_map(Step::Exit),
    ];
    proptest::collection::vec(step, 0..40)
}

proptest! {
    /// Whatever is done, what must exit does, and a cut limit comes back.
    #[test]
    fn nothing_takes_an_intercept_away(steps in steps(), shared: bool, qemu: bool) {
        let features = if qemu { QEMU } else { HARDWARE };
        let setup = Setup { shared, ..setup(features) };
        let mut cpu = vcpu(&setup);
        let mut mode = Mode::Injection;
        for step in steps {
            match step {
                Step::Direct(next) if mode == Mode::Injection => {
                    cpu.set_exitless(next);
                    mode = next;
                }
                Step::Injection(priority) if mode != Mode::Injection => {
                    cpu.set_injection(priority);
                    mode = Mode::Injection;
                }
                Step::Offer(v) if mode == Mode::Injection => cpu.offer(v),
                Step::Priority(p) if mode == Mode::Injection => cpu.set_virtual_priority(p),
                Step::Raise(v) => cpu.inject(Event::exception(v, None)),
                Step::Nmi => cpu.inject(Event::nmi()),
                Step::WatchIdt(on) => cpu.watch_idt(on),
                Step::WatchHalt(on) => cpu.watch_halt(on),
                Step::Timer(open) => cpu.open_timer(mode, open),
                Step::Lend(lent) => cpu.lend_timer(mode, lent),
                Step::Reset => {
                    cpu.reset(Start::StartUp { page: 1 });
                    mode = Mode::Injection;
                }
                Step::Exit(code) => {
                    cpu.vmcb.exit_code = code;
                    cpu.exit(|_| false);
                    cpu.nmi_possible();
                }
                _ => {}
            }
            check_safety(cpu.vmcb);
            // So has it a shadow IDT.
            cpu.watch_idt(mode == Mode::Eli);
            prop_assert_eq!(audit::tests::block(&cpu, &setup, mode), Ok(()));
            prop_assert_eq!(cpu.in_injection(), mode == Mode::Injection);
            prop_assert_eq!(cpu.vmcb.intercept_misc1 & misc1::INTR != 0, mode == Mode::Injection);
            let cut = shared && mode != Mode::Injection;
            prop_assert_eq!(cpu.idtr().1, 0xFFFF);
            prop_assert_eq!(cpu.vmcb.idtr.limit < 0xFFFF, cut);
        }
    }
}
