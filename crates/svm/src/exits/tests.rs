//! Exit codes by the numbers of the manual.

use super::*;
use crate::vcpu::tests::QEMU;
use delivery::EventKind;
use zerocopy::FromZeros;

fn left(code: u64, info1: u64, info2: u64) -> Box<Vmcb> {
    let mut v = Box::new(Vmcb::new_zeroed());
    (v.exit_code, v.exit_info1, v.exit_info2) = (code, info1, info2);
    v
}

fn hardware(code: u64, info1: u64, info2: u64) -> Exit {
    decode(&mut left(code, info1, info2), &Features::default(), |_| panic!("asked on hardware"))
}

#[test]
fn codes_are_those_of_the_manual() {
    for (code, exit) in [
        (0x18, Exit::Emulator(Quirk::TaskPriority)),
        (0x34, Exit::Emulator(Quirk::DebugControl)),
        (0x37, Exit::Emulator(Quirk::DebugControl)),
        (0x46, Exit::Exception { vector: 6, error_code: None }),
        (0x51, Exit::Exception { vector: 17, error_code: Some(0) }),
        (0x52, Exit::MachineCheck),
        (0x60, Exit::Interrupt),
        (0x61, Exit::Nmi),
        (0x65, Exit::ControlLoad),
        (0x66, Exit::LeaveEli),
        (0x6A, Exit::IdtLoad),
        (0x6F, Exit::Forbidden),
        (0x72, Exit::Cpuid),
        (0x74, Exit::NmiDone),
        (0x76, Exit::FlushCaches),
        (0x78, Exit::Halt),
        (0x7A, Exit::Undefined),
        (0x7C, Exit::MsrRead),
        (0x7D, Exit::TaskSwitch),
        (0x7E, Exit::Frozen),
        (0x7F, Exit::Shutdown),
        (0x80, Exit::Undefined),
        (0x81, Exit::Hypercall),
        (0x82, Exit::Undefined),
        (0x86, Exit::Undefined),
        (0x89, Exit::FlushCaches),
        (0x8A, Exit::Undefined),
        (0x8B, Exit::Undefined),
        (0x8C, Exit::Undefined),
        (0x8D, Exit::Xsetbv),
        (0x8E, Exit::Undefined),
        (0x88, Exit::Unknown(0x88, 0, 0)),
        (0x401, Exit::Unknown(0x401, 0, 0)),
    ] {
        assert_eq!(hardware(code, 0, 0), exit, "{code:#x}");
    }
    assert_eq!(hardware(0x7C, 1, 0), Exit::MsrWrite);
    let access = PortAccess { port: 0x3FD, size: 1, input: true };
    assert_eq!(port_access(&left(0x7B, 0x03FD_0211, 7)), Some(access));
    // INS, and repeated.
    assert_eq!(port_access(&left(0x7B, 0x03FD_0215, 7)), None);
    assert_eq!(port_access(&left(0x7B, 0x03FD_021D, 7)), None);
    assert!(is_msr_write(&left(0x7C, 1, 0)) && !is_msr_write(&left(0x7C, 0, 0)));
    assert!(!is_msr_write(&left(0x7B, 1, 0)));
    assert!(is_halt(&left(0x78, 0, 0)) && !is_halt(&left(0x7C, 1, 0)));
}

/// What a guest's guest may do as the guest is what the guest's exit would have been.
#[test]
fn instructions_are_the_same_for_a_guests_guest() {
    let served = [0x65, 0x72, 0x76, 0x7A, 0x7B, 0x7C, 0x82, 0x83, 0x89, 0x8D];
    for code in 0..=0x400 {
        for info in [0, 1, 0x03FD_021D] {
            let found = instruction(&left(code, info, 7));
            let right = served.contains(&code).then(|| hardware(code, info, 7));
            assert_eq!(found, right, "{code:#x} {info:#x}");
        }
    }
}

#[test]
fn port_exits_tell_all_of_it() {
    // OUT 0x80, AL; INS of words at 0xCF8, repeated.
    let io = |port, size, input, string, next| Exit::Io {
        access: PortAccess { port, size, input },
        string,
        next,
    };
    assert_eq!(hardware(0x7B, 0x80_0010, 0x1002), io(0x80, 1, false, false, 0x1002));
    assert_eq!(hardware(0x7B, 0x0CF8_002D, 2), io(0xCF8, 2, true, true, 2));
    assert_eq!(hardware(0x7B, 0x0CF8_0041, 2), io(0xCF8, 4, true, false, 2));
}

#[test]
fn faults_tell_what_was_being_delivered() {
    let mut v = left(0x4B, 0x203, 0);
    v.exit_int_info = 0x8000_0040;
    let raised = Raised { vector: 11, error_code: 0x203, address: 0 };
    let event = Some(Event::interrupt(0x40));
    let exit = decode(&mut v, &Features::default(), |_| panic!("asked on hardware"));
    assert_eq!(exit, Exit::Fault { raised, event });
    // QEMU: an exception at vector 0x40.
    v.exit_int_info = 0x8000_0340;
    assert_eq!(decode(&mut v, &QEMU, |_| true), Exit::Fault { raised, event });
    let exit = decode(&mut v, &Features::default(), |_| true);
    let event = Some(Event { kind: EventKind::Exception, ..Event::interrupt(0x40) });
    assert_eq!(exit, Exit::Fault { raised, event }, "what real CPUs say is believed");
    // Not valid: stale.
    v.exit_int_info = 0x340;
    assert_eq!(decode(&mut v, &QEMU, |_| true), Exit::Fault { raised, event: None });
    for vector in [10, 12, 13, 14] {
        let exit = hardware(0x40 + u64::from(vector), 4, 0x5000);
        let raised = Raised { vector, error_code: 4, address: 0x5000 };
        assert_eq!(exit, Exit::Fault { raised, event: None });
    }
}

#[test]
fn nested_faults_tell_where_and_how() {
    let fault = |fetch, table| Exit::NestedFault { address: 0x7000, fetch, table, event: None };
    assert_eq!(hardware(0x400, 1 << 32 | 4, 0x7000), fault(false, false));
    assert_eq!(hardware(0x400, 1 << 32 | 0x14, 0x7000), fault(true, false));
    assert_eq!(hardware(0x400, 1 << 33 | 6, 0x7000), fault(false, true));
    let mut v = left(0x400, 4, 0x7000);
    v.exit_int_info = 0x8000_0302;
    let event = Some(Event::nmi());
    let exit = decode(&mut v, &QEMU, |_| false);
    assert_eq!(exit, Exit::NestedFault { address: 0x7000, fetch: false, table: false, event });
}

#[test]
fn a_state_that_cant_be_entered_is_the_guests_fault_unless_it_is_qemus() {
    for code in [0xFFFF_FFFF, u64::MAX] {
        assert_eq!(hardware(code, 0, 0), Exit::InvalidState);
        let mut v = left(code, 0, 0);
        assert_eq!(decode(&mut v, &QEMU, |_| false), Exit::Emulator(Quirk::ControlRefused));
        v.exit_int_info = 1 << 31;
        assert_eq!(decode(&mut v, &QEMU, |_| false), Exit::InvalidState);
        v.dr7 = 1 << 33;
        assert_eq!(decode(&mut v, &QEMU, |_| false), Exit::Nothing);
        assert_eq!(v.dr7, 0);
    }
}
