//! Each reason with its qualification, as the manual has them and as Bochs was seen to report them.

use super::*;
use crate::Field;
use crate::area::tests::Model;
use delivery::{Event, EventKind};
use proptest::prelude::*;

fn left(fields: &[(Field, u64)]) -> Exit {
    let mut area = Model::default();
    fields.iter().for_each(|(field, value)| area.write(*field, *value));
    decode(&area)
}

fn reason(number: u32) -> (Field, u64) {
    (field::EXIT_REASON, number.into())
}

#[test]
fn a_hidden_gate_is_a_fault_in_the_delivery_of_an_interrupt() {
    let exit = left(&[
        reason(0),
        (field::EXIT_INTERRUPTION, 0x8000_0B0B),
        (field::EXIT_ERROR_CODE, 0x283),
        (field::VECTORING, 0x8000_0050),
    ]);
    let raised = Raised { vector: 11, error_code: 0x283, address: 0 };
    assert_eq!(exit, Exit::Fault { raised, event: Some(Event::interrupt(0x50)) });
    // INT n on the same gate.
    let exit = left(&[
        reason(0),
        (field::EXIT_INTERRUPTION, 0x8000_0B0B),
        (field::EXIT_ERROR_CODE, 0x282),
        (field::VECTORING, 0x8000_0450),
        (field::INSTRUCTION_LENGTH, 2),
    ]);
    let raised = Raised { vector: 11, error_code: 0x282, address: 0 };
    let event = Event { kind: EventKind::Software, ..Event::interrupt(0x50) };
    assert_eq!(exit, Exit::Fault { raised, event: Some(event) });
}

#[test]
fn a_page_fault_tells_its_address_by_the_qualification() {
    let exit = left(&[
        reason(0),
        (field::EXIT_INTERRUPTION, 0x8000_0B0E),
        (field::EXIT_ERROR_CODE, 2),
        (field::QUALIFICATION, 0x7000),
    ]);
    let raised = Raised { vector: 14, error_code: 2, address: 0x7000 };
    assert_eq!(exit, Exit::Fault { raised, event: None });
}

#[test]
fn exceptions_are_told_apart() {
    let exception = |info| left(&[reason(0), (field::EXIT_INTERRUPTION, info)]);
    assert_eq!(exception(0x8000_0202), Exit::Nmi);
    assert_eq!(exception(0x8000_0301), Exit::Exception { vector: 1, error_code: None });
    assert_eq!(exception(0x8000_0B11), Exit::Exception { vector: 17, error_code: Some(0) });
    assert_eq!(exception(0x8000_0312), Exit::MachineCheck);
    assert_eq!(exception(0x0000_0312), Exit::Unknown(0, 0, 0x312), "not valid");
}

#[test]
fn a_violation_says_where_and_what_was_delivered() {
    let violation = |qualification: u64, vectoring: u64| {
        left(&[
            reason(48),
            (field::QUALIFICATION, qualification),
            (field::GUEST_PHYSICAL_ADDRESS, 0x5008),
            (field::VECTORING, vectoring),
        ])
    };
    let event = Some(Event::interrupt(0x60));
    let fault = |fetch, table, event| Exit::NestedFault { address: 0x5008, fetch, table, event };
    // A read of the IDT, on Bochs 2.7 and on 3.0.
    for qualification in [0x181, 0x581] {
        assert_eq!(violation(qualification, 0x8000_0060), fault(false, false, event));
    }
    assert_eq!(violation(0x184, 0), fault(true, false, None));
    assert_eq!(violation(0x81, 0), fault(false, true, None), "the guest's own tables");
    // By no linear address, as the pointers of PAE are loaded.
    assert_eq!(violation(0x01, 0), fault(false, false, None));
}

#[test]
fn ports_have_size_direction_and_what_repeats() {
    let port = |qualification: u64| {
        let (rip, length) = ((field::GUEST_RIP, 0x1000), (field::INSTRUCTION_LENGTH, 2));
        left(&[reason(30), rip, length, (field::QUALIFICATION, qualification)])
    };
    let io = |port, size, input, string| {
        let access = PortAccess { port, size, input };
        Exit::Io { access, string, next: 0x1002 }
    };
    assert_eq!(port(0x03F8_0000), io(0x3F8, 1, false, false));
    assert_eq!(port(0x0CFC_000B), io(0xCFC, 4, true, false));
    assert_eq!(port(0x0060_0049), io(0x60, 2, true, false), "by an immediate byte");
    assert_eq!(port(0x03F8_0010), io(0x3F8, 1, false, true), "OUTS");
    assert_eq!(port(0x03F8_0020), io(0x3F8, 1, false, true), "a repeat prefix");
}

#[test]
fn control_registers_exit_by_their_masks() {
    let access = |qualification| left(&[reason(28), (field::QUALIFICATION, qualification)]);
    for cr0 in [0x000, 0xF00, 0x020, 0x1_0030] {
        assert_eq!(access(cr0), Exit::ControlLoad, "{cr0:#x}");
    }
    assert_eq!(access(0x304), Exit::Forbidden);
    for other in [0x003, 0x013, 0x008, 0x018, 0x010, 0x014] {
        assert_eq!(access(other), Exit::Unknown(28, other, 0));
    }
}

#[test]
fn descriptor_tables_share_a_reason() {
    for (kind, exit) in
        [(0, Exit::LeaveEli), (1, Exit::LeaveEli), (2, Exit::LeaveEli), (3, Exit::IdtLoad)]
    {
        assert_eq!(left(&[reason(46), (field::INSTRUCTION_INFORMATION, kind << 28)]), exit);
        let tr = left(&[reason(47), (field::INSTRUCTION_INFORMATION, kind << 28)]);
        assert_eq!(tr, Exit::LeaveEli);
    }
}

#[test]
fn the_rest_has_no_qualification() {
    let exits = [
        (1, Exit::Interrupt),
        (2, Exit::Shutdown),
        (7, Exit::Window),
        (8, Exit::NmiDone),
        (9, Exit::TaskSwitch),
        (10, Exit::Cpuid),
        (12, Exit::Halt),
        (13, Exit::FlushCaches),
        (15, Exit::Forbidden),
        (18, Exit::Hypercall),
        (31, Exit::MsrRead),
        (32, Exit::MsrWrite),
        (0x8000_0021, Exit::InvalidState),
        (0x8000_0029, Exit::MachineCheck),
        (43, Exit::Window),
        (52, Exit::TimeUp),
        (54, Exit::FlushCaches),
        (55, Exit::Xsetbv),
    ];
    for (number, exit) in exits {
        assert_eq!(left(&[reason(number)]), exit, "{number}");
    }
    for number in (19..=27).chain([11, 36, 39, 50, 53, 59]) {
        assert_eq!(left(&[reason(number)]), Exit::Undefined, "{number}");
    }
    for number in [3, 4, 14, 16, 29, 0x8000_0022, 37, 40, 49, 51, 61] {
        assert_eq!(left(&[reason(number)]), Exit::Unknown(u64::from(number) & 0xFFFF, 0, 0));
    }
}

proptest! {
    /// The quick answers are those of the slow one, and nothing that a guest does is a panic.
    #[test]
    fn quick_answers_agree(number in 0u32..80, fields: [u32; 6], address: u64) {
        let mut area = Model::default();
        let [qualification, own, vectoring, length, instruction, code] = fields.map(u64::from);
        for (field, value) in [
            reason(number),
            (field::QUALIFICATION, qualification),
            (field::EXIT_INTERRUPTION, own),
            (field::EXIT_ERROR_CODE, code),
            (field::VECTORING, vectoring),
            (field::INSTRUCTION_LENGTH, length),
            (field::INSTRUCTION_INFORMATION, instruction),
            (field::GUEST_RIP, address),
            (field::GUEST_PHYSICAL_ADDRESS, address),
        ] {
            area.write(field, value);
        }
        let exit = decode(&area);
        prop_assert_eq!(is_msr_write(&area), exit == Exit::MsrWrite);
        prop_assert_eq!(is_halt(&area), exit == Exit::Halt);
    }
}
